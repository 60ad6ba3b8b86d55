//! Consumes with inbox and effect in one transaction, against the same transactions without the inbox.

use super::effects::{BATCH, Driver, EFFECT, Effected, Effects};
use super::latency::Carrier;
use super::rows::connect;
use super::sink::{Sink, connect_nats};
use super::{Outcome, Plan};
use anyhow::{Context, Result, bail};
use async_nats::jetstream::{self, consumer};
use bytes::Bytes;
use futures::StreamExt;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties};
use relevo::broker::Subscriber;
use relevo::postgres::{Deadpool, PostgresStore};
use relevo::{Consumer, Consuming};
use relevo_brokers::nats::{NatsConfig, NatsConsumer, NatsSubscriber};
use relevo_brokers::rabbitmq::{RabbitMqConfig, RabbitMqSubscriber};
use relevo_core::outbox::MemberId;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_postgres::{Client, Statement};
use uuid::Uuid;

/// Messages that wait in a bare client: what Relevo's adapters come with.
const NATS_AHEAD: usize = 256;
const RABBITMQ_AHEAD: u16 = 100;

/// All messages of the sink, until each had its effect.
pub(super) async fn run(
    url: &str,
    plan: Plan,
    sink: &Sink,
    carrier: Carrier,
    name: &str,
) -> Result<Outcome> {
    let effects = Effected::open(url, Driver::Postgres).await?;
    let start = Instant::now();
    match carrier {
        Carrier::Bare => bare(url, plan, sink).await?,
        Carrier::Relevo => {
            let consuming = relevo(url, sink, name).await?;
            effects.wait_for(plan.events).await?;
            let took = start.elapsed();
            consuming.stop(Duration::from_secs(60)).await?;
            effects.verify(plan).await?;
            return Ok(Outcome::of(plan.events, took));
        }
    }
    let took = start.elapsed();
    effects.verify(plan).await?;
    Ok(Outcome::of(plan.events, took))
}

/// With the settings it comes with.
async fn relevo(url: &str, sink: &Sink, name: &str) -> Result<Consuming> {
    match sink {
        Sink::Nats { url: broker, stream } => {
            let consumer = NatsConsumer::new(stream, "bench");
            consume(url, name, NatsSubscriber::new(NatsConfig::to(broker)?, consumer)).await
        }
        Sink::RabbitMq { url: broker, name: queue, .. } => {
            let config = RabbitMqConfig::to(broker)?;
            consume(url, name, RabbitMqSubscriber::new(config, queue.as_str())).await
        }
        other => bail!("nobody consumes {other:?} here"),
    }
}

async fn consume(url: &str, name: &str, subscriber: impl Subscriber) -> Result<Consuming> {
    let store = PostgresStore::connect(url).await?;
    let driver = Deadpool::new(store.pool().clone());
    let consumer = Consumer::new(name, subscriber, driver, Effects);
    Ok(consumer.start(Arc::new(store), MemberId(name.into())).await?)
}

/// Batches of the same size; acknowledged after their commit.
async fn bare(url: &str, plan: Plan, sink: &Sink) -> Result<()> {
    let database = Database::open(url).await?;
    match sink {
        Sink::Nats { url, stream } => bare_nats(database, plan, url, stream).await,
        Sink::RabbitMq { url, name, .. } => bare_rabbitmq(database, plan, url, name).await,
        other => bail!("nobody consumes {other:?} here"),
    }
}

struct Database {
    client: Client,
    effect: Statement,
}

impl Database {
    async fn open(url: &str) -> Result<Database> {
        let client = connect(url).await?;
        let effect = client.prepare(EFFECT).await?;
        Ok(Database { client, effect })
    }

    async fn work(&mut self, batch: &[(Uuid, Bytes)]) -> Result<()> {
        let tx = self.client.transaction().await?;
        for (id, payload) in batch {
            tx.execute(&self.effect, &[id, &payload.as_ref()]).await?;
        }
        Ok(tx.commit().await?)
    }
}

async fn bare_nats(mut database: Database, plan: Plan, url: &str, name: &str) -> Result<()> {
    let stream = jetstream::new(connect_nats(url).await?).get_stream(name).await?;
    let config = consumer::pull::Config {
        durable_name: Some("bare".into()),
        ack_policy: consumer::AckPolicy::Explicit,
        ..Default::default()
    };
    let consumer = stream.create_consumer(config).await?;
    let messages = consumer.stream().max_messages_per_batch(NATS_AHEAD).messages().await?;
    let mut batches = messages.ready_chunks(BATCH);
    let mut done = 0;
    while done < plan.events {
        let batch: Vec<_> =
            batches.next().await.context("the end")?.into_iter().collect::<Result<_, _>>()?;
        let mut rows = Vec::with_capacity(batch.len());
        for message in &batch {
            let headers = message.headers.as_ref().context("no headers")?;
            let id = headers.get("ce-id").context("no id")?.as_str();
            rows.push((id.parse()?, message.payload.clone()));
        }
        database.work(&rows).await?;
        for message in &batch {
            message.ack().await.map_err(|error| anyhow::anyhow!(error))?;
        }
        done += rows.len() as u64;
    }
    Ok(())
}

async fn bare_rabbitmq(mut database: Database, plan: Plan, url: &str, queue: &str) -> Result<()> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.basic_qos(RABBITMQ_AHEAD, BasicQosOptions::default()).await?;
    let (options, none) = (BasicConsumeOptions::default(), FieldTable::default());
    let messages = channel.basic_consume(queue.into(), "bare".into(), options, none).await?;
    let mut batches = messages.ready_chunks(BATCH);
    let mut done = 0;
    while done < plan.events {
        let batch: Vec<_> =
            batches.next().await.context("the end")?.into_iter().collect::<Result<_, _>>()?;
        let mut rows = Vec::with_capacity(batch.len());
        for delivery in &batch {
            let id = delivery.properties.message_id().as_ref().context("no id")?;
            rows.push((id.as_str().parse()?, Bytes::copy_from_slice(&delivery.data)));
        }
        database.work(&rows).await?;
        let last = batch.last().context("an empty batch")?;
        last.ack(BasicAckOptions { multiple: true }).await?;
        done += rows.len() as u64;
    }
    Ok(connection.close(200, "done".into()).await?)
}
