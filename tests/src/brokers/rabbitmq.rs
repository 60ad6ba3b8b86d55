//! RabbitMQ: one server for all cases, a virtual host for each; the restart has a server of its own.

use async_trait::async_trait;
use lapin::options::{
    BasicGetOptions, BasicPublishOptions, ExchangeDeclareOptions, QueueBindOptions,
    QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, ByteArray, FieldTable, LongString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};
use relevo_brokers::rabbitmq::{
    BINDING, DeadLetterTo, RabbitMqConfig, RabbitMqPublisher, RabbitMqSubscriber, Rung,
};
use relevo_core::broker::cloudevents::Binding;
use relevo_core::broker::{Capabilities, Publisher, Subscriber};
use relevo_core::{Error, Kind, Result};
use relevo_testkit::PATIENCE;
use relevo_testkit::conformance::broker::{BrokerHarness, BrokerWorld, Consuming, Fault, Raw};
use relevo_testkit::services::{self, Proxy, RabbitMq};
use std::sync::Arc;
use std::time::Duration;

const EXCHANGE: &str = "events";
const QUEUE: &str = "jobs";
const OTHER: &str = "others";
const EXCLUSIVE: &str = "jobs.one-at-a-time";
const WAITING: &str = "jobs.wait";
const DEAD: &str = "jobs.dead";
const MAX_BYTES: usize = 65_536;
const DELAY: Duration = Duration::from_secs(2);

/// The kind of queue that the cases run on.
#[derive(Debug, Clone, Copy)]
pub enum RabbitMqHarness {
    /// Replicated, always durable.
    Quorum,
    /// On one node.
    Classic,
}

#[async_trait]
impl BrokerHarness for RabbitMqHarness {
    async fn fresh(&self, alone: bool) -> Option<Box<dyn BrokerWorld>> {
        let start = move || match alone {
            true => RabbitMq::start().map(Arc::new),
            false => RabbitMq::shared(),
        };
        let started = tokio::task::spawn_blocking(start).await;
        let server = services::require(started.unwrap_or_else(|error| panic!("{error}")))?;
        let world = World::new(server, *self).await;
        Some(Box::new(world.unwrap_or_else(|error| panic!("{error}"))))
    }
}

struct World {
    server: Arc<RabbitMq>,
    proxy: Proxy,
    direct: String,
    kind: RabbitMqHarness,
}

fn error(why: impl std::fmt::Display) -> Error {
    Error::new(Kind::StoreFailed, why.to_string())
}

impl World {
    async fn new(server: Arc<RabbitMq>, kind: RabbitMqHarness) -> Result<Self> {
        let maker = server.clone();
        let vhost = tokio::task::spawn_blocking(move || maker.fresh_vhost()).await;
        let direct = vhost.map_err(error)?.map_err(error)?;
        let proxy = Proxy::start(server.address()).map_err(error)?;
        let world = Self { server, proxy, direct, kind };
        let (_connection, channel) = world.admin().await?;
        declare_exchange(&channel).await?;
        world.declare(&channel, QUEUE, "jobs.#", FieldTable::default()).await?;
        world.declare(&channel, DEAD, "dead.never-by-topic", FieldTable::default()).await?;
        // A queue that was declared a moment ago may not survive a crash: the restart waits.
        Ok(world)
    }

    async fn admin(&self) -> Result<(Connection, Channel)> {
        let connection = Connection::connect(&self.direct, ConnectionProperties::default());
        let connection = connection.await.map_err(error)?;
        let channel = connection.create_channel().await.map_err(error)?;
        Ok((connection, channel))
    }

    async fn declare(
        &self,
        channel: &Channel,
        queue: &str,
        filter: &str,
        mut arguments: FieldTable,
    ) -> Result<()> {
        let kind = match self.kind {
            RabbitMqHarness::Quorum => "quorum",
            RabbitMqHarness::Classic => "classic",
        };
        arguments.insert("x-queue-type".into(), AMQPValue::LongString(kind.into()));
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(queue.into(), options, arguments).await.map_err(error)?;
        let (none, options) = (FieldTable::default(), QueueBindOptions::default());
        let bound = channel.queue_bind(queue.into(), EXCHANGE.into(), filter.into(), options, none);
        bound.await.map_err(error)
    }

    fn config(&self) -> Result<RabbitMqConfig> {
        self.config_with("")
    }

    fn config_with(&self, parameters: &str) -> Result<RabbitMqConfig> {
        let url = format!("{}{parameters}", self.proxy.url(&self.direct));
        let config = RabbitMqConfig::to(&url)?;
        Ok(config.exchange(EXCHANGE).max_message_bytes(MAX_BYTES).source("tests"))
    }

    /// Silence is noticed when two heartbeats are missing.
    fn noticing(&self, consuming: Consuming) -> Result<RabbitMqConfig> {
        match consuming.broker_dead_after {
            Some(time) => self.config_with(&format!("?heartbeat={}", time.as_secs().max(4))),
            None => self.config(),
        }
    }
}

fn now<T>(work: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(work))
}

/// One rung, and what is to wait for longer waits in its consumer.
fn ladder() -> Vec<Rung> {
    vec![Rung { delay: DELAY, queue: WAITING.into() }]
}

async fn declare_exchange(channel: &Channel) -> Result<()> {
    let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let none = FieldTable::default();
    let declared = channel.exchange_declare(EXCHANGE.into(), ExchangeKind::Topic, options, none);
    declared.await.map_err(error)
}

#[async_trait]
impl BrokerWorld for World {
    fn name(&self) -> &'static str {
        "rabbitmq"
    }

    fn capabilities(&self) -> Capabilities {
        RabbitMqConfig::to("amqp://localhost")
            .map(|config| RabbitMqSubscriber::new(config, QUEUE).retry_ladder(ladder()))
            .map(|subscriber| subscriber.capabilities())
            .unwrap_or_default()
    }

    fn binding(&self) -> Binding {
        BINDING
    }

    fn topic(&self) -> String {
        "jobs.made".into()
    }

    fn unroutable(&self) -> String {
        "nobody.cares".into()
    }

    fn oversize(&self) -> usize {
        MAX_BYTES + 1
    }

    fn publisher(&self) -> Result<Arc<dyn Publisher>> {
        Ok(Arc::new(RabbitMqPublisher::new(self.config()?)))
    }

    fn publisher_within(&self, messages: usize, bytes: usize) -> Result<Arc<dyn Publisher>> {
        let config = self.config()?.window(messages, bytes).confirm_timeout(PATIENCE);
        Ok(Arc::new(RabbitMqPublisher::new(config)))
    }

    fn publisher_waiting(&self, messages: usize, limit: Duration) -> Result<Arc<dyn Publisher>> {
        let config = self.config()?.window(messages, 16 << 20).confirm_timeout(limit);
        Ok(Arc::new(RabbitMqPublisher::new(config)))
    }

    fn subscriber(&self, consuming: Consuming) -> Result<Arc<dyn Subscriber>> {
        let queue = if consuming.exclusive { EXCLUSIVE } else { QUEUE };
        let to = DeadLetterTo { exchange: String::new(), routing_key: Some(DEAD.into()) };
        let prefetch = u16::try_from(consuming.max_unsettled).map_err(error)?;
        let subscriber = RabbitMqSubscriber::new(self.noticing(consuming)?, queue);
        let subscriber = subscriber.prefetch(prefetch).dead_letters(to);
        let mut subscriber = subscriber.prefetch_bytes(consuming.max_unsettled_bytes);
        if consuming.exclusive {
            now(self.make_exclusive())?;
        }
        if consuming.delays_at_broker {
            now(self.make_waiting())?;
            subscriber = subscriber.retry_ladder(ladder());
        }
        Ok(Arc::new(subscriber))
    }

    async fn several_sources(
        &self,
        consuming: Consuming,
    ) -> Result<(Arc<dyn Subscriber>, Vec<String>)> {
        let (_connection, channel) = self.admin().await?;
        self.declare(&channel, OTHER, "other.#", FieldTable::default()).await?;
        let prefetch = u16::try_from(consuming.max_unsettled).map_err(error)?;
        let subscriber = RabbitMqSubscriber::new(self.config()?, QUEUE).queue(OTHER);
        Ok((Arc::new(subscriber.prefetch(prefetch)), vec![self.topic(), "other.made".into()]))
    }

    fn sent_bytes(&self) -> Option<u64> {
        Some(self.proxy.replied_bytes())
    }

    async fn stored(&self) -> Result<usize> {
        let (_connection, channel) = self.admin().await?;
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let queue = channel.queue_declare(QUEUE.into(), options, FieldTable::default()).await;
        Ok(queue.map_err(error)?.message_count() as usize)
    }

    async fn put(&self, raw: Raw) -> Result<()> {
        let (_connection, channel) = self.admin().await?;
        let mut table = FieldTable::default();
        for (name, value) in raw.headers {
            let value = match String::from_utf8(value) {
                Ok(text) => AMQPValue::LongString(LongString::from(text.as_str())),
                Err(bytes) => AMQPValue::ByteArray(ByteArray::from(bytes.into_bytes())),
            };
            table.insert(name.as_str().into(), value);
        }
        let mut properties = BasicProperties::default().with_headers(table);
        if let Some(id) = raw.message_id {
            properties = properties.with_message_id(id.as_str().into());
        }
        let options = BasicPublishOptions::default();
        let topic = self.topic();
        let sent = channel.basic_publish(
            EXCHANGE.into(),
            topic.as_str().into(),
            options,
            &raw.payload,
            properties,
        );
        sent.await.map_err(error)?.await.map_err(error)?;
        channel.close(200, "done".into()).await.map_err(error)
    }

    async fn dead(&self) -> Result<Vec<Raw>> {
        let (_connection, channel) = self.admin().await?;
        let mut dead = Vec::new();
        let get = || channel.basic_get(DEAD.into(), BasicGetOptions::default());
        while let Some(message) = get().await.map_err(error)? {
            let headers = message.delivery.properties.headers().clone().unwrap_or_default();
            let bytes = |value: &AMQPValue| match value {
                AMQPValue::LongString(text) => text.as_bytes().to_vec(),
                AMQPValue::ByteArray(bytes) => bytes.as_slice().to_vec(),
                other => format!("{other:?}").into_bytes(),
            };
            dead.push(Raw {
                message_id: None,
                key: None,
                headers: headers.inner().iter().map(|(n, v)| (n.to_string(), bytes(v))).collect(),
                payload: message.delivery.data.clone(),
            });
        }
        // Not acknowledged: with the channel they go back.
        Ok(dead)
    }

    async fn bound(&self, messages: usize) -> Result<()> {
        self.delete().await?;
        let mut arguments = FieldTable::default();
        let most = i32::try_from(messages).map_err(error)?;
        arguments.insert("x-max-length".into(), AMQPValue::LongInt(most));
        arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
        let (_connection, channel) = self.admin().await?;
        self.declare(&channel, QUEUE, "jobs.#", arguments).await
    }

    async fn delete(&self) -> Result<()> {
        let (_connection, channel) = self.admin().await?;
        let deleted = channel.queue_delete(QUEUE.into(), QueueDeleteOptions::default()).await;
        deleted.map(drop).map_err(error)
    }

    async fn recreate(&self) -> Result<()> {
        let (_connection, channel) = self.admin().await?;
        self.declare(&channel, QUEUE, "jobs.#", FieldTable::default()).await
    }

    async fn fault(&self, fault: Fault) -> Result<()> {
        tokio::task::block_in_place(|| super::spoil(&self.proxy, fault))
    }

    async fn restart(&self) -> Result<()> {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let server = self.server.clone();
        let restarted = tokio::task::spawn_blocking(move || {
            server.kill9();
            server.restart()
        })
        .await;
        restarted.map_err(error)?.map_err(error)
    }
}

impl World {
    /// A queue of its own for one consumer at a time; it takes over the topics of the other.
    async fn make_exclusive(&self) -> Result<()> {
        let (_connection, channel) = self.admin().await?;
        let mut arguments = FieldTable::default();
        arguments.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true));
        self.declare(&channel, EXCLUSIVE, "jobs.#", arguments).await
    }

    /// A queue whose messages go back when their time is over.
    async fn make_waiting(&self) -> Result<()> {
        let (_connection, channel) = self.admin().await?;
        let mut arguments = FieldTable::default();
        let time = i32::try_from(DELAY.as_millis()).map_err(error)?;
        arguments.insert("x-message-ttl".into(), AMQPValue::LongInt(time));
        arguments.insert("x-dead-letter-exchange".into(), AMQPValue::LongString("".into()));
        arguments.insert("x-dead-letter-routing-key".into(), AMQPValue::LongString(QUEUE.into()));
        self.declare(&channel, WAITING, "wait.never-by-topic", arguments).await
    }
}
