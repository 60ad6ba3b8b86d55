//! Apache Kafka: a topic of its own on a shared server for each case, reached through a proxy.

use async_trait::async_trait;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication, TopicResult};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::message::{Header, Headers, Message, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{Offset, TopicPartitionList};
use relevo_brokers::kafka::{KafkaConfig, KafkaConsumer, KafkaPublisher, KafkaSubscriber};
use relevo_core::broker::cloudevents::Binding;
use relevo_core::broker::{Capabilities, Publisher, Subscriber};
use relevo_core::{Error, Kind, Result};
use relevo_testkit::PATIENCE;
use relevo_testkit::conformance::broker::{BrokerHarness, BrokerWorld, Consuming, Fault, Raw};
use relevo_testkit::services::{Kafka, KafkaOptions, Proxy, ServiceError, require, unique_name};
use std::fmt::Display;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

const OVERSIZE: usize = 2 << 20;
const PARTITIONS: i32 = 3;
const LIMIT: Duration = Duration::from_secs(30);

/// A question that has no answer by then is asked again.
const SOON: Duration = Duration::from_secs(10);

/// Cases that run at the same time each have a proxy: what one does to its own harms no other.
const PROXIES: usize = 8;

/// A real Kafka broker.
pub struct KafkaHarness;

/// A broker and which of its proxies are free.
struct Shared {
    server: Arc<Kafka>,
    free: Mutex<Vec<usize>>,
    turns: Arc<Semaphore>,
}

impl Shared {
    fn start(proxies: usize) -> Result<Arc<Self>, ServiceError> {
        let server = Arc::new(Kafka::start_with(&KafkaOptions::new().proxies(proxies))?);
        let free = Mutex::new((0..proxies).collect());
        Ok(Arc::new(Self { server, free, turns: Arc::new(Semaphore::new(proxies)) }))
    }

    fn get() -> Result<Arc<Self>, ServiceError> {
        static SHARED: OnceLock<Result<Arc<Shared>, ServiceError>> = OnceLock::new();
        SHARED.get_or_init(|| Self::start(PROXIES)).clone()
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Vec<usize>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl BrokerHarness for KafkaHarness {
    async fn fresh(&self, alone: bool) -> Option<Box<dyn BrokerWorld>> {
        let started =
            tokio::task::spawn_blocking(
                move || {
                    if alone { Shared::start(1) } else { Shared::get() }
                },
            );
        let shared = require(started.await.unwrap_or_else(|error| panic!("{error}")))?;
        let turn = shared.turns.clone().acquire_owned().await.ok()?;
        let proxy = shared.free().pop()?;
        let world = World { shared, proxy, _turn: turn, name: unique_name("t") };
        for topic in [world.name.clone(), world.graveyard()] {
            let made = world.make(&topic).await;
            made.unwrap_or_else(|error| panic!("no topic: {error}"));
        }
        Some(Box::new(world))
    }
}

struct World {
    shared: Arc<Shared>,
    proxy: usize,
    _turn: OwnedSemaphorePermit,
    name: String,
}

impl Drop for World {
    fn drop(&mut self) {
        self.proxy().heal();
        self.shared.free().push(self.proxy);
    }
}

fn soon() -> AdminOptions {
    AdminOptions::new().request_timeout(Some(SOON)).operation_timeout(Some(SOON))
}

/// It was done now, or before.
fn is_done(answer: &Result<Vec<TopicResult>>, before: RDKafkaErrorCode) -> bool {
    match answer.as_deref() {
        Ok([Ok(_)]) => true,
        Ok([Err((_, code))]) => *code == before,
        _ => false,
    }
}

fn failed(why: impl Display) -> Error {
    Error::new(Kind::DestinationDown, why.to_string())
}

impl World {
    fn proxy(&self) -> &Proxy {
        &self.shared.server.proxies()[self.proxy]
    }

    fn graveyard(&self) -> String {
        format!("{}.dead", self.name)
    }

    fn group(&self) -> String {
        format!("{}.worker", self.name)
    }

    /// Past the proxy, as an operator does.
    fn direct(&self) -> ClientConfig {
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", self.shared.server.bootstrap());
        client
    }

    fn admin(&self) -> Result<AdminClient<DefaultClientContext>> {
        self.direct().create().map_err(failed)
    }

    /// Asks again where a busy broker does not answer; returns when the topic's partitions have leaders.
    async fn make(&self, name: &str) -> Result<()> {
        let (admin, reader) = (self.admin()?, self.reader()?);
        let topic = NewTopic::new(name, PARTITIONS, TopicReplication::Fixed(1));
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            let answer = admin.create_topics([&topic], &soon()).await.map_err(failed);
            let leads = |number| reader.fetch_watermarks(name, number, SOON).is_ok();
            // A request without its answer may have been carried out.
            if is_done(&answer, RDKafkaErrorCode::TopicAlreadyExists) && (0..PARTITIONS).all(leads)
            {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Err(failed("the topic does not come"))
    }

    fn is_there(&self, name: &str) -> bool {
        let there = self.reader().map(|reader| reader.fetch_metadata(Some(name), SOON));
        let Ok(Ok(metadata)) = there else { return true };
        metadata.topics().iter().any(|topic| topic.name() == name && topic.error().is_none())
    }

    fn config(&self) -> Result<KafkaConfig> {
        let config = KafkaConfig::to(&format!("kafka://{}", self.proxy().address()))?;
        Ok(config.ack_timeout(Duration::from_secs(4)).connect_timeout(Duration::from_secs(3)))
    }

    fn reader(&self) -> Result<BaseConsumer> {
        self.direct().create().map_err(failed)
    }

    /// How much a topic has, by partition.
    fn counts(&self, topic: &str) -> Result<Vec<i64>> {
        let reader = self.reader()?;
        let count = |partition| {
            let (low, high) = reader.fetch_watermarks(topic, partition, LIMIT).map_err(failed)?;
            Ok(high - low)
        };
        (0..PARTITIONS).map(count).collect()
    }

    /// How much the consumers' group has settled.
    fn settled(&self) -> Result<i64> {
        let mut client = self.direct();
        let group: BaseConsumer = client.set("group.id", self.group()).create().map_err(failed)?;
        let mut places = TopicPartitionList::new();
        places.add_partition_range(&self.name, 0, PARTITIONS - 1);
        let committed = group.committed_offsets(places, SOON).map_err(failed)?;
        let settled = committed.elements().into_iter().map(|place| match place.offset() {
            Offset::Offset(at) => at,
            _ => 0,
        });
        Ok(settled.sum())
    }

    /// Everything a topic has.
    fn read(&self, topic: &str) -> Result<Vec<Raw>> {
        let expected = self.counts(topic)?.iter().sum::<i64>();
        let mut client = self.direct();
        let reader: BaseConsumer = client
            .set("group.id", "reader")
            .set("enable.auto.commit", "false")
            .create()
            .map_err(failed)?;
        let mut from = TopicPartitionList::new();
        for partition in 0..PARTITIONS {
            from.add_partition_offset(topic, partition, Offset::Beginning).map_err(failed)?;
        }
        reader.assign(&from).map_err(failed)?;
        let mut read = Vec::new();
        while (read.len() as i64) < expected {
            let message = reader.poll(LIMIT).ok_or_else(|| failed("nothing comes"))?;
            let message = message.map_err(failed)?;
            let headers = message.headers().into_iter().flat_map(|headers| headers.iter());
            let headers = headers
                .map(|header| (header.key.to_owned(), header.value.unwrap_or_default().to_vec()));
            let payload = message.payload().unwrap_or_default().to_vec();
            let key = message.key().map(<[u8]>::to_vec);
            read.push(Raw { message_id: None, key, headers: headers.collect(), payload });
        }
        Ok(read)
    }
}

#[async_trait]
impl BrokerWorld for World {
    fn name(&self) -> &'static str {
        "kafka"
    }

    fn capabilities(&self) -> Capabilities {
        self.config().map_or_else(
            |_| Capabilities::default(),
            |config| KafkaPublisher::new(config).capabilities(),
        )
    }

    fn binding(&self) -> Binding {
        Binding::KAFKA
    }

    fn mends_itself(&self) -> bool {
        true
    }

    fn topic(&self) -> String {
        self.name.clone()
    }

    fn unroutable(&self) -> String {
        format!("{}.nobody.cares", self.name)
    }

    fn oversize(&self) -> usize {
        OVERSIZE
    }

    fn publisher(&self) -> Result<Arc<dyn Publisher>> {
        Ok(Arc::new(KafkaPublisher::new(self.config()?)))
    }

    fn publisher_within(&self, messages: usize, bytes: usize) -> Result<Arc<dyn Publisher>> {
        let config = self.config()?.window(messages, bytes).ack_timeout(PATIENCE);
        // The client has five requests under way: a whole window is to fit into them.
        let config = config.linger(Duration::from_millis(100));
        Ok(Arc::new(KafkaPublisher::new(config)))
    }

    fn publisher_waiting(&self, messages: usize, limit: Duration) -> Result<Arc<dyn Publisher>> {
        let config = self.config()?.window(messages, 16 << 20).ack_timeout(limit);
        Ok(Arc::new(KafkaPublisher::new(config)))
    }

    fn subscriber(&self, consuming: Consuming) -> Result<Arc<dyn Subscriber>> {
        let consumer = KafkaConsumer::new(self.name.as_str(), self.group())
            .window(consuming.max_unsettled, consuming.max_unsettled_bytes)
            .session_timeout(consuming.dead_after)
            .dead_letters(self.graveyard());
        Ok(Arc::new(KafkaSubscriber::new(self.config()?, consumer)))
    }

    fn sent_bytes(&self) -> Option<u64> {
        Some(self.proxy().replied_bytes())
    }

    fn reads_ahead(&self) -> bool {
        true
    }

    async fn stored(&self) -> Result<usize> {
        Ok(self.counts(&self.name)?.iter().sum::<i64>() as usize)
    }

    async fn unsettled(&self) -> Result<usize> {
        let stored: i64 = self.counts(&self.name)?.iter().sum();
        Ok((stored - self.settled()?) as usize)
    }

    async fn put(&self, raw: Raw) -> Result<()> {
        let producer: FutureProducer = self.direct().create().map_err(failed)?;
        let headers = raw.headers.iter().fold(OwnedHeaders::new(), |headers, (key, value)| {
            headers.insert(Header { key, value: Some(value) })
        });
        let mut record: FutureRecord<'_, [u8], [u8]> =
            FutureRecord::to(&self.name).payload(&raw.payload[..]).headers(headers);
        record.key = raw.key.as_deref();
        let sent = producer.send(record, LIMIT).await;
        sent.map(drop).map_err(|(error, _)| failed(error))
    }

    async fn dead(&self) -> Result<Vec<Raw>> {
        self.read(&self.graveyard())
    }

    async fn bound(&self, _messages: usize) -> Result<()> {
        Err(failed("a topic deletes what is old and refuses nothing"))
    }

    async fn delete(&self) -> Result<()> {
        let admin = self.admin()?;
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            let answer = admin.delete_topics(&[&self.name], &soon()).await.map_err(failed);
            // The controller answers before the broker knows of it.
            if is_done(&answer, RDKafkaErrorCode::UnknownTopicOrPartition)
                && !self.is_there(&self.name)
            {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Err(failed("the topic does not go"))
    }

    async fn recreate(&self) -> Result<()> {
        self.make(&self.name).await
    }

    async fn fault(&self, fault: Fault) -> Result<()> {
        super::spoil(self.proxy(), fault)
    }

    async fn restart(&self) -> Result<()> {
        let server = self.shared.server.clone();
        let restarted = tokio::task::spawn_blocking(move || {
            server.kill9();
            server.restart()
        });
        restarted.await.map_err(failed)?.map_err(failed)
    }
}
