use super::ahead::Ahead;
use super::config::KafkaConfig;
use super::connect::{Asked, ask, failed, unusable};
use super::group::{Listener, Member, Shared};
use super::lag::{self, PartitionLag};
use super::receiver::KafkaReceiver;
use super::watch::Complaint;
use super::{NAME, capabilities, rights, topic};
use async_trait::async_trait;
use rdkafka::ClientConfig;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use relevo_core::broker::cloudevents::Binding;
use relevo_core::broker::{Capabilities, Receiver, Subscriber};
use relevo_core::error::{Error, Kind, Result};
use std::sync::Arc;
use std::time::Duration;

/// So often the client reports how far it is behind.
const STATISTICS_MILLIS: &str = "5000";

/// So many complaints of a client are listened to, and so long for the next.
const COMPLAINTS: usize = 100;
const LISTEN: Duration = Duration::from_millis(100);

/// What is consumed, by which group, within which limits.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KafkaConsumer {
    /// The topics.
    pub topics: Vec<String>,
    /// The consumer group: who shares it shares the partitions.
    pub group: String,
    /// Most messages of one receiver that are not settled. About as many again are read ahead, over all partitions that
    /// are there when it opens; at least 16 of each.
    pub max_unsettled: usize,
    /// Most bytes of one receiver's messages that are not settled; a larger message comes alone. As many again are read
    /// ahead, over all partitions that are there when it opens; but 256 KiB of each at least, so above 64 partitions it
    /// is more than the 16 MiB of the default. Partitions that are added later have the same share on top.
    pub max_unsettled_bytes: usize,
    /// How long after its receiver died a partition goes to another.
    pub session_timeout: Duration,
    /// How long a partition that is to go to another receiver waits until what was handed out of it is settled.
    pub handover: Duration,
    /// Dead letters go to this topic.
    pub dead_letters: String,
    /// A group that is new begins with what comes, instead of with what is there.
    pub from_now: bool,
}

impl KafkaConsumer {
    /// Consumes `topic` as a member of `group`.
    pub fn new(topic: impl Into<String>, group: impl Into<String>) -> Self {
        Self {
            topics: vec![topic.into()],
            group: group.into(),
            max_unsettled: 1000,
            max_unsettled_bytes: 16 << 20,
            session_timeout: Duration::from_secs(45),
            handover: Duration::from_secs(10),
            dead_letters: "dead-letters".into(),
            from_now: false,
        }
    }

    /// This topic too.
    pub fn topic(mut self, name: impl Into<String>) -> Self {
        self.topics.push(name.into());
        self
    }

    /// Most unsettled messages and bytes of one receiver.
    pub fn window(mut self, messages: usize, bytes: usize) -> Self {
        self.max_unsettled = messages.max(1);
        self.max_unsettled_bytes = bytes.max(1);
        self
    }

    /// How long after its receiver died a partition goes to another.
    pub fn session_timeout(mut self, time: Duration) -> Self {
        self.session_timeout = time;
        self
    }

    /// How long a partition that is to go waits for its work.
    pub fn handover(mut self, time: Duration) -> Self {
        self.handover = time;
        self
    }

    /// Where dead letters go.
    pub fn dead_letters(mut self, topic: impl Into<String>) -> Self {
        self.dead_letters = topic.into();
        self
    }

    /// A group that is new begins with what comes from now on.
    pub fn from_now(mut self) -> Self {
        self.from_now = true;
        self
    }

    /// A client that may get every one of so many partitions.
    fn client(&self, config: &KafkaConfig, partitions: usize) -> ClientConfig {
        let session = self.session_timeout.as_millis().clamp(1000, 1_800_000);
        let mut client = config.client();
        let ahead = Ahead::shared(self.max_unsettled, self.max_unsettled_bytes, partitions);
        ahead.tell(&mut client);
        client
            .set("group.id", &self.group)
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("auto.offset.reset", if self.from_now { "latest" } else { "earliest" })
            .set("partition.assignment.strategy", "cooperative-sticky")
            .set("session.timeout.ms", session.to_string())
            .set("heartbeat.interval.ms", (session / 15).max(100).to_string())
            .set("max.poll.interval.ms", session.max(300_000).to_string())
            .set("fetch.queue.backoff.ms", "20")
            .set("topic.metadata.refresh.interval.ms", "30000");
        if client.get("statistics.interval.ms").is_none() {
            client.set("statistics.interval.ms", STATISTICS_MILLIS);
        }
        client
    }
}

/// Consumes topics as a member of a group.
pub struct KafkaSubscriber {
    config: KafkaConfig,
    consumer: KafkaConsumer,
}

impl KafkaSubscriber {
    /// Consumes as `consumer` says.
    pub fn new(config: KafkaConfig, consumer: KafkaConsumer) -> Self {
        Self { config, consumer }
    }

    /// The servers without anything secret.
    pub fn address(&self) -> String {
        self.config.address()
    }

    /// How far the whole group is behind, asked of the brokers.
    pub async fn lag(&self) -> Result<Vec<PartitionLag>> {
        let (config, consumer) = (self.config.clone(), self.consumer.clone());
        let asking = tokio::task::spawn_blocking(move || {
            lag::of_group(&config, &consumer.group, &consumer.topics)
        });
        asking.await.map_err(|error| failed(Kind::DestinationDown, error.to_string()))?
    }
}

#[async_trait]
impl Subscriber for KafkaSubscriber {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        capabilities()
    }

    fn binding(&self) -> Binding {
        Binding::KAFKA
    }

    async fn open(&self) -> Result<Box<dyn Receiver>> {
        let shared = Arc::new(Shared::default());
        let (config, wanted, with) = (self.config.clone(), self.consumer.clone(), shared.clone());
        let joining = tokio::task::spawn_blocking(move || join(&config, &wanted, with));
        let joined = joining.await;
        let consumer =
            joined.map_err(|error| failed(Kind::DestinationDown, error.to_string()))??;
        let left = Listener::start(consumer.clone(), shared.clone(), self.consumer.handover)
            .map_err(|error| failed(Kind::DestinationDown, error.to_string()))?;
        let (config, wanted) = (self.config.clone(), self.consumer.clone());
        Ok(Box::new(KafkaReceiver::new(config, wanted, consumer, shared, left)))
    }
}

/// Looks whether the topics are there and joins the group. Blocks.
fn join(
    config: &KafkaConfig,
    wanted: &KafkaConsumer,
    shared: Arc<Shared>,
) -> Result<Arc<BaseConsumer<Member>>> {
    let partitions = count_partitions(config, wanted)?;
    let consumer = Arc::new(client(wanted, wanted.client(config, partitions), shared)?);
    let topics: Vec<&str> = wanted.topics.iter().map(String::as_str).collect();
    let joined = consumer.subscribe(&topics);
    joined.map_err(|error| failed(Kind::DestinationRefused, error.to_string()))?;
    Ok(consumer)
}

/// All partitions of all topics. A client is told how much to read ahead when it is made, so another one has to ask.
fn count_partitions(config: &KafkaConfig, wanted: &KafkaConsumer) -> Result<usize> {
    let asking = client(wanted, wanted.client(config, 0), Arc::default())?;
    let mut partitions = 0;
    for topic in &wanted.topics {
        topic::check(topic).map_err(|why| failed(Kind::InvalidConfig, why))?;
        match ask(asking.client(), topic, config.connect_timeout) {
            Asked::There(count) => partitions += count,
            Asked::Missing => {
                let why = format!("the topic {topic} is not there");
                return Err(failed(Kind::DestinationRefused, why));
            }
            Asked::Forbidden(_) => {
                return Err(failed(Kind::MissingPrivilege, rights::unread(topic)));
            }
            Asked::NoAnswer(why) => return Err(no_answer(why, &asking)),
        }
    }
    Ok(partitions)
}

/// Why nobody answered. A consumer says it only to those who listen.
fn no_answer(why: String, asking: &BaseConsumer<Member>) -> Error {
    std::iter::from_fn(|| asking.poll(LISTEN)).take(COMPLAINTS).for_each(drop);
    match asking.context().complaint() {
        Some(Complaint { reason, is_login: true }) => failed(Kind::AuthenticationFailed, reason),
        Some(said) => failed(Kind::DestinationDown, format!("{why}: {}", said.reason)),
        None => failed(Kind::DestinationDown, why),
    }
}

fn client(
    wanted: &KafkaConsumer,
    told: ClientConfig,
    shared: Arc<Shared>,
) -> Result<BaseConsumer<Member>> {
    let context = Member::new(&wanted.group, &wanted.topics, shared);
    BaseConsumer::from_config_and_context(&told, context).map_err(unusable)
}
