use super::config::NatsConfig;
use super::connect::{Connection, PING_INTERVAL, connect_pinging, error, no_jetstream};
use super::receiver::NatsReceiver;
use super::{NAME, capabilities};
use async_nats::jetstream::consumer::{self, AckPolicy, DeliverPolicy};
use async_nats::jetstream::context::{
    Context, ContextBuilder, GetStreamError, RequestError, RequestErrorKind,
};
use async_nats::jetstream::stream::{ConsumerErrorKind, Stream};
use async_trait::async_trait;
use relevo_core::broker::cloudevents::Binding;
use relevo_core::broker::{Capabilities, Receiver, Subscriber};
use relevo_core::error::{Error, Kind, Result};
use std::collections::BTreeSet;
use std::error::Error as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What is consumed, by which durable consumer, within which limits.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NatsConsumer {
    /// The stream.
    pub stream: String,
    /// The durable consumer's name: who shares it shares the messages.
    pub name: String,
    /// Only these subjects; all of the stream if empty.
    pub filters: Vec<String>,
    /// Most messages of one receiver that are not settled.
    pub max_unsettled: usize,
    /// Most bytes of one receiver's messages that are not settled; a larger message comes alone.
    pub max_unsettled_bytes: usize,
    /// Most messages of all receivers together that are not settled, those that wait for a retry among them.
    pub max_ack_pending: usize,
    /// How long after its receiver died a message goes to another. A living receiver keeps its messages.
    pub ack_wait: Duration,
    /// A message that was delivered more often goes to the dead letters by itself: it takes its consumers down.
    pub max_deliver: Option<u64>,
    /// Dead letters go to this subject, followed by the consumer's name and their own subject.
    pub dead_letters: String,
    /// The server says that often that it is there, while there is nothing to deliver.
    pub heartbeat: Duration,
    /// Makes the consumer where it is missing; otherwise that is an error.
    pub create: bool,
}

impl NatsConsumer {
    /// Consumes `stream` as the durable consumer `name`.
    pub fn new(stream: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            stream: stream.into(),
            name: name.into(),
            filters: Vec::new(),
            max_unsettled: 256,
            max_unsettled_bytes: 16 << 20,
            max_ack_pending: 1000,
            ack_wait: Duration::from_secs(30),
            max_deliver: None,
            dead_letters: "dead-letters".into(),
            heartbeat: Duration::from_secs(5),
            create: true,
        }
    }

    /// Only this subject (and others named so); `*` is one word, `>` the rest.
    pub fn filter(mut self, subject: impl Into<String>) -> Self {
        self.filters.push(subject.into());
        self
    }

    /// Most unsettled messages and bytes of one receiver.
    pub fn window(mut self, messages: usize, bytes: usize) -> Self {
        self.max_unsettled = messages.max(1);
        self.max_unsettled_bytes = bytes.max(1);
        self
    }

    /// One message at a time, of all receivers together: the order is kept through retries, at the cost of speed.
    pub fn one_at_a_time(mut self) -> Self {
        (self.max_unsettled, self.max_ack_pending) = (1, 1);
        self
    }

    /// How long after its receiver died a message goes to another.
    pub fn ack_wait(mut self, time: Duration) -> Self {
        self.ack_wait = time;
        self
    }

    /// A message that was delivered more often goes to the dead letters.
    pub fn max_deliver(mut self, times: u64) -> Self {
        self.max_deliver = Some(times.max(1));
        self
    }

    /// Where dead letters go: the beginning of their subjects.
    pub fn dead_letters(mut self, subject: impl Into<String>) -> Self {
        self.dead_letters = subject.into();
        self
    }

    /// How often the server says that it is there.
    pub fn heartbeat(mut self, every: Duration) -> Self {
        self.heartbeat = every;
        self
    }

    /// A missing consumer is an error.
    pub fn existing(mut self) -> Self {
        self.create = false;
        self
    }

    /// A connection for a receiver. Where it asks for nothing because it is full, or paused, it gets no heartbeats, so
    /// it sends pings as often.
    pub(super) async fn connect(&self, config: &NatsConfig) -> Result<Connection> {
        // Heartbeats come beside the messages.
        let ping = self.heartbeat.clamp(Duration::from_millis(100), PING_INTERVAL);
        connect_pinging(config, self.max_unsettled + 64, ping).await
    }

    /// As the server is told.
    pub(super) fn wanted(&self) -> consumer::pull::Config {
        let one = match &self.filters[..] {
            [one] => one.clone(),
            _ => String::new(),
        };
        consumer::pull::Config {
            durable_name: Some(self.name.clone()),
            deliver_policy: DeliverPolicy::All,
            ack_policy: AckPolicy::Explicit,
            ack_wait: self.ack_wait,
            // The server would skip a message of too many deliveries without a word.
            max_deliver: -1,
            filter_subject: one,
            filter_subjects: if self.filters.len() > 1 { self.filters.clone() } else { Vec::new() },
            max_ack_pending: i64::try_from(self.max_ack_pending).unwrap_or(i64::MAX),
            ..consumer::pull::Config::default()
        }
    }
}

/// Consumes a stream by a durable pull consumer.
pub struct NatsSubscriber {
    config: NatsConfig,
    consumer: NatsConsumer,
    /// Messages that the client cannot read and that were handed out already.
    unreadable: Arc<Mutex<BTreeSet<u64>>>,
}

impl NatsSubscriber {
    /// Consumes as `consumer` says.
    pub fn new(config: NatsConfig, consumer: NatsConsumer) -> Self {
        Self { config, consumer, unreadable: Arc::default() }
    }

    /// The servers without anything secret.
    pub fn address(&self) -> String {
        self.config.address()
    }
}

#[async_trait]
impl Subscriber for NatsSubscriber {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        capabilities(self.consumer.max_ack_pending)
    }

    fn binding(&self) -> Binding {
        Binding::NATS
    }

    async fn open(&self) -> Result<Box<dyn Receiver>> {
        let connection = self.consumer.connect(&self.config).await?;
        connection.permitted(ensure(&self.config, &self.consumer, &connection)).await?;
        let (config, consumer) = (self.config.clone(), self.consumer.clone());
        let receiver =
            NatsReceiver::open(config, consumer, connection, self.unreadable.clone()).await?;
        Ok(Box::new(receiver))
    }
}

/// JetStream's interface on a connection.
pub(super) fn context(config: &NatsConfig, connection: &Connection) -> Context {
    ContextBuilder::new()
        .timeout(config.ack_timeout)
        .api_prefix(config.api_prefix())
        .build(connection.client.clone())
}

/// Finds the consumer, or makes it.
async fn ensure(config: &NatsConfig, wanted: &NatsConsumer, connection: &Connection) -> Result<()> {
    let stream = context(config, connection).get_stream(&wanted.stream).await;
    let stream = stream.map_err(|cause| no_stream(config, &wanted.stream, &cause))?;
    match stream.consumer_info(&wanted.name).await {
        Ok(found) => check(&wanted.name, &found.config, wanted),
        Err(cause) if is_missing(&cause) && wanted.create => create(&stream, wanted).await,
        Err(cause) => {
            let why = format!("consumer {} of stream {}: {cause}", wanted.name, wanted.stream);
            Err(error(Kind::DestinationRefused, why))
        }
    }
}

/// Why a stream cannot be had.
pub(super) fn no_stream(config: &NatsConfig, name: &str, cause: &GetStreamError) -> Error {
    let asked = cause.source().and_then(|source| source.downcast_ref::<RequestError>());
    if asked.is_some_and(|asked| asked.kind() == RequestErrorKind::NoResponders) {
        return error(Kind::DestinationDown, format!("stream {name}: {}", no_jetstream(config)));
    }
    error(Kind::DestinationRefused, format!("stream {name} cannot be used: {cause}"))
}

fn is_missing(cause: &async_nats::jetstream::context::ConsumerInfoError) -> bool {
    use async_nats::jetstream::context::ConsumerInfoErrorKind;
    matches!(cause.kind(), ConsumerInfoErrorKind::NotFound)
}

async fn create(stream: &Stream, wanted: &NatsConsumer) -> Result<()> {
    match stream.create_consumer(wanted.wanted()).await {
        Ok(_) => Ok(()),
        Err(cause) => {
            // Somebody else was faster: theirs is looked at when it is used.
            if matches!(cause.kind(), ConsumerErrorKind::JetStream(ref inner) if inner.code() == 400)
                && stream.consumer_info(&wanted.name).await.is_ok()
            {
                return Ok(());
            }
            let why = format!("consumer {} cannot be made: {cause}", wanted.name);
            Err(error(Kind::DestinationRefused, why))
        }
    }
}

/// A consumer that acknowledges by itself, or pushes, would lose messages here.
fn check(name: &str, found: &consumer::Config, wanted: &NatsConsumer) -> Result<()> {
    let bad = |why: &str| Err(error(Kind::InvalidConfig, format!("consumer {name} {why}")));
    if found.deliver_subject.is_some() {
        return bad("pushes; a pull consumer is needed");
    }
    if found.ack_policy != AckPolicy::Explicit {
        return bad("does not wait for each message's acknowledgement (ack policy explicit)");
    }
    if found.headers_only {
        return bad("delivers headers only");
    }
    if wanted.max_ack_pending == 1 && found.max_ack_pending != 1 {
        return bad("gives more than one message at a time (max_ack_pending is not 1)");
    }
    if found.max_deliver > 0 {
        tracing::warn!(
            consumer = name,
            max_deliver = found.max_deliver,
            "after so many deliveries the server skips a message without a word; set it to -1"
        );
    }
    Ok(())
}
