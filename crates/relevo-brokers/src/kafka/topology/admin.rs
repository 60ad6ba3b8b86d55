use super::KafkaTopology;
use super::differ::{self, Differences, Found, Wanted};
use crate::kafka::connect::{failed, unusable};
use crate::kafka::watch::Watch;
use crate::kafka::{KafkaConfig, NAME, topic};
use async_trait::async_trait;
use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, ConfigSource, NewPartitions, NewTopic,
    ResourceSpecifier, TopicReplication,
};
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use relevo_core::broker::{Act, Plan, Step, Told, Topology};
use relevo_core::error::{Error, Kind, Result};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between two questions about a topic whose leaders are being elected.
const ELECTION: Duration = Duration::from_millis(100);

/// A topic that was deleted is not gone at once: so often, and after such a pause, it is made anew.
const MAKE_AGAIN: (u32, Duration) = (100, Duration::from_millis(100));

/// Brings a cluster to what a [`KafkaTopology`] wants.
pub struct KafkaAdmin {
    config: KafkaConfig,
    topology: KafkaTopology,
}

/// One topic that is wanted, what is there of it, and how they differ.
struct Work {
    wanted: Wanted,
    found: Option<Found>,
    different: Differences,
}

type Client = Arc<AdminClient<Watch>>;

impl KafkaAdmin {
    /// Compares with the cluster that `config` connects to.
    pub fn new(config: KafkaConfig, topology: KafkaTopology) -> Self {
        Self { config, topology }
    }

    fn client(&self) -> Result<Client> {
        let made = AdminClient::from_config_and_context(&self.config.client(), Watch::default());
        made.map(Arc::new).map_err(unusable)
    }

    fn options(&self) -> AdminOptions {
        let limit = Some(self.config.ack_timeout);
        AdminOptions::new().request_timeout(limit).operation_timeout(limit)
    }

    async fn compare(&self, client: &Client) -> Result<Vec<(Step, Work)>> {
        let mut steps = Vec::new();
        for (name, wanted) in self.topology.topics() {
            topic::check(&name).map_err(|why| failed(Kind::InvalidConfig, why))?;
            let (found, brokers) = self.found(client, &name).await?;
            let wanted = Wanted {
                partitions: wanted.partitions(),
                replicas: wanted.replicas(brokers),
                settings: wanted.settings(),
                name,
            };
            steps.push(step(wanted, found));
        }
        Ok(steps)
    }

    /// What is there of a topic, and how many brokers there are.
    async fn found(&self, client: &Client, name: &str) -> Result<(Option<Found>, usize)> {
        let (shape, brokers) = self.shape(client, name).await?;
        let Some(shape) = shape else { return Ok((None, brokers)) };
        let (settings, own) = self.settings(client, name).await?;
        Ok((Some(Found { settings, own, ..shape }), brokers))
    }

    /// Asks for a topic's shape; while its partitions come, go or elect, which nobody tells the end of, again.
    async fn shape(&self, client: &Client, name: &str) -> Result<(Option<Found>, usize)> {
        let limit = self.config.connect_timeout;
        let end = Instant::now() + limit;
        loop {
            let (asking, asked) = (client.clone(), name.to_owned());
            let answer = tokio::task::spawn_blocking(move || shape(&asking, &asked, limit)).await;
            match answer.map_err(|error| failed(Kind::DestinationDown, error.to_string()))? {
                Err(error) if is_on_the_move(&error) && Instant::now() < end => {
                    tokio::time::sleep(ELECTION).await;
                }
                answer => return answer.map_err(|error| down(client, &error)),
            }
        }
    }

    /// All settings that count for a topic, and those that are its own.
    async fn settings(&self, client: &Client, name: &str) -> Result<(Settings, Settings)> {
        let topic = [ResourceSpecifier::Topic(name)];
        let described = client.describe_configs(&topic, &self.options()).await;
        let described = described.map_err(|error| down(client, &error))?.into_iter().next();
        let described = described.unwrap_or(Err(RDKafkaErrorCode::Fail));
        let described = described.map_err(|code| refused(format!("topic {name}: {code}")))?;
        let (mut all, mut own) = (Settings::new(), Settings::new());
        for entry in described.entries {
            let Some(value) = entry.value else { continue };
            if entry.source == ConfigSource::DynamicTopic {
                own.insert(entry.name.clone(), value.clone());
            }
            all.insert(entry.name, value);
        }
        Ok((all, own))
    }

    async fn carry_out(&self, client: &Client, step: &Step, work: Work) -> Result<()> {
        match step.act {
            Act::Ok => Ok(()),
            Act::Create => self.create(client, &work.wanted).await,
            _ if work.different.anew => {
                self.rehearse(client, &work.wanted).await?;
                self.delete(client, &work.wanted.name).await?;
                self.create(client, &work.wanted).await
            }
            _ => self.change(client, &work).await,
        }
    }

    /// Asks the brokers whether they would make such a topic, while the one that has to go is still there.
    async fn rehearse(&self, client: &Client, wanted: &Wanted) -> Result<()> {
        // The name itself is taken: one beside it, where the same rules of access are likely to hold.
        let beside = format!("{:.240}.anew", wanted.name);
        let options = self.options().validate_only(true);
        let answer = client.create_topics([&new_topic(&beside, wanted)], &options).await;
        match answer.map_err(|error| down(client, &error))?.into_iter().next() {
            Some(Err((_, code))) if is_about_the_shape(code) => Err(refused(format!(
                "topic {}: brokers do not make it so, not even by force, and it stays as it is: {code}",
                wanted.name
            ))),
            _ => Ok(()),
        }
    }

    async fn create(&self, client: &Client, wanted: &Wanted) -> Result<()> {
        let topic = new_topic(&wanted.name, wanted);
        for again in 0.. {
            let made = client.create_topics([&topic], &self.options()).await;
            let made = made.map_err(|error| down(client, &error))?;
            match made.into_iter().next() {
                Some(Err((_, RDKafkaErrorCode::TopicAlreadyExists))) if again < MAKE_AGAIN.0 => {
                    tokio::time::sleep(MAKE_AGAIN.1).await;
                }
                Some(Err((name, code))) => {
                    return Err(refused(format!("topic {name} cannot be made: {code}")));
                }
                _ => break,
            }
        }
        self.until_shown(client, &wanted.name).await
    }

    /// What is made is known to the brokers a moment later: whoever asks next would be told that it is not there.
    async fn until_shown(&self, client: &Client, name: &str) -> Result<()> {
        let end = Instant::now() + self.config.connect_timeout;
        while self.shape(client, name).await?.0.is_none() && Instant::now() < end {
            tokio::time::sleep(ELECTION).await;
        }
        Ok(())
    }

    async fn delete(&self, client: &Client, name: &str) -> Result<()> {
        let deleted = client.delete_topics(&[name], &self.options()).await;
        match deleted.map_err(|error| down(client, &error))?.into_iter().next() {
            Some(Err((name, code))) => {
                Err(refused(format!("topic {name} cannot be deleted: {code}")))
            }
            _ => Ok(()),
        }
    }

    async fn change(&self, client: &Client, work: &Work) -> Result<()> {
        let (name, different) = (&work.wanted.name, &work.different);
        if different.more_partitions {
            let more = NewPartitions::new(name, work.wanted.partitions);
            let made = client.create_partitions([&more], &self.options()).await;
            let made = made.map_err(|error| down(client, &error))?.into_iter().next();
            if let Some(Err((name, code))) = made {
                return Err(refused(format!("topic {name} gets no more partitions: {code}")));
            }
        }
        if !different.settings {
            return Ok(());
        }
        // What is not named goes back to its default: the topic's other settings are named again.
        let own = work.found.as_ref().map(|found| found.own.clone()).unwrap_or_default();
        let all: Settings = own.into_iter().chain(work.wanted.settings.clone()).collect();
        let alter = all
            .iter()
            .fold(AlterConfig::new(ResourceSpecifier::Topic(name)), |alter, (name, value)| {
                alter.set(name, value)
            });
        let altered = client.alter_configs([&alter], &self.options()).await;
        match altered.map_err(|error| down(client, &error))?.into_iter().next() {
            Some(Err((_, code))) => Err(refused(format!("topic {name} cannot be changed: {code}"))),
            _ => Ok(()),
        }
    }
}

type Settings = BTreeMap<String, String>;

fn step(wanted: Wanted, found: Option<Found>) -> (Step, Work) {
    let different = found.as_ref().map(|found| differ::topic(found, &wanted));
    let (act, text) = match &different {
        Some(different) => different.verdict(),
        None => {
            let (partitions, replicas) = (wanted.partitions, wanted.replicas);
            (Act::Create, format!("partitions {partitions}, replicas {replicas}"))
        }
    };
    let step = Step::new(act, "topic", &wanted.name, text);
    (step, Work { wanted, found, different: different.unwrap_or_default() })
}

fn new_topic<'n>(name: &'n str, wanted: &'n Wanted) -> NewTopic<'n> {
    let partitions = i32::try_from(wanted.partitions).unwrap_or(i32::MAX);
    let replicas = i32::try_from(wanted.replicas).unwrap_or(i32::MAX);
    let topic = NewTopic::new(name, partitions, TopicReplication::Fixed(replicas));
    wanted.settings.iter().fold(topic, |topic, (name, value)| topic.set(name, value))
}

/// Such a topic is refused whatever its name is, or, by a policy of the brokers, perhaps for the name that was tried. In
/// doubt the old topic stays: were it the shape, nothing could be made in its place.
fn is_about_the_shape(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode::{
        InvalidConfig, InvalidPartitions, InvalidReplicationFactor, PolicyViolation,
    };
    matches!(code, InvalidConfig | InvalidPartitions | InvalidReplicationFactor | PolicyViolation)
}

/// Whether brokers do not agree yet: one elects a leader, or does not know a partition that another has just named.
fn is_on_the_move(error: &KafkaError) -> bool {
    use RDKafkaErrorCode::{
        LeaderNotAvailable, NotLeaderForPartition, UnknownPartition, UnknownTopicOrPartition,
    };
    let KafkaError::MetadataFetch(code) = error else { return false };
    matches!(
        code,
        LeaderNotAvailable | NotLeaderForPartition | UnknownPartition | UnknownTopicOrPartition
    )
}

/// Partitions and replicas of a topic (if it is there), whether it has messages, and how many brokers there are. Blocks.
fn shape(
    client: &AdminClient<Watch>,
    name: &str,
    limit: Duration,
) -> std::result::Result<(Option<Found>, usize), KafkaError> {
    let metadata = client.inner().fetch_metadata(Some(name), limit)?;
    let brokers = metadata.brokers().len();
    let found = metadata.topics().iter().find(|topic| topic.name() == name);
    let Some(found) = found.filter(|topic| topic.error().is_none()) else {
        return match found.and_then(|topic| topic.error()).map(RDKafkaErrorCode::from) {
            None
            | Some(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic) => {
                Ok((None, brokers))
            }
            Some(code) => Err(KafkaError::MetadataFetch(code)),
        };
    };
    let mut messages = 0;
    for partition in found.partitions() {
        let (low, high) = client.inner().fetch_watermarks(name, partition.id(), limit)?;
        messages += high - low;
    }
    let partitions = found.partitions();
    let replicas = partitions.first().map_or(0, |partition| partition.replicas().len());
    let shape = Found { partitions: partitions.len(), replicas, messages, ..Found::default() };
    Ok((Some(shape), brokers))
}

fn down(client: &Client, error: &KafkaError) -> Error {
    match client.inner().context().complaint() {
        Some(said) if said.is_login => failed(Kind::AuthenticationFailed, said.reason),
        Some(said) => failed(Kind::DestinationDown, format!("{error}: {}", said.reason)),
        None => failed(Kind::DestinationDown, error.to_string()),
    }
}

fn refused(why: String) -> Error {
    failed(Kind::DestinationRefused, why)
}

#[async_trait]
impl Topology for KafkaAdmin {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn plan(&self) -> Result<Plan> {
        let steps = self.compare(&self.client()?).await?;
        Ok(Plan::new(steps.into_iter().map(|(step, _)| step).collect()))
    }

    async fn apply_telling(&self, force: bool, done: Told<'_>) -> Result<Plan> {
        let client = self.client()?;
        let steps = self.compare(&client).await?;
        let plan = Plan::new(steps.iter().map(|(step, _)| step.clone()).collect());
        plan.allow(force)?;
        for (step, work) in steps {
            self.carry_out(&client, &step, work).await?;
            done(&step);
        }
        Ok(plan)
    }
}
