//! The bare clients: the same messages, the same window, nothing else.

use super::message::Message;
use super::sink::{Sink, connect_nats, kafka_client};
use anyhow::{Context, Result, anyhow, ensure};
use async_nats::jetstream;
use futures::stream::{FuturesUnordered, StreamExt};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{Confirmation, Connection, ConnectionProperties};
use rdkafka::producer::{FutureProducer, FutureRecord};
use std::future::{Future, IntoFuture};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::Pin;

/// Ends when a message is confirmed.
pub(crate) type Confirming = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// A channel is a process of RabbitMQ's, which has no more than one core: one channel alone would be half as fast.
const CHANNELS: usize = 20;

/// Which of so many parts a key belongs to.
pub(super) fn part_of(key: &str, parts: usize) -> usize {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish() as usize % parts
}

enum Client {
    Null,
    Nats(jetstream::Context, String),
    /// The connection lives as long as its channels are used.
    RabbitMq(#[allow(dead_code, reason = "kept open")] Connection, Vec<lapin::Channel>, String),
    Kafka(FutureProducer, String),
}

/// A client with a window of unconfirmed messages.
pub(crate) struct Bare {
    client: Client,
    window: usize,
    unconfirmed: FuturesUnordered<Confirming>,
}

impl Bare {
    pub(crate) async fn connect(sink: &Sink) -> Result<Bare> {
        let client = match sink {
            Sink::Null => Client::Null,
            Sink::Nats { url, stream } => {
                Client::Nats(jetstream::new(connect_nats(url).await?), stream.clone())
            }
            Sink::RabbitMq { url, name, .. } => {
                let connection = Connection::connect(url, ConnectionProperties::default()).await?;
                let mut channels = Vec::new();
                for _ in 0..CHANNELS {
                    let channel = connection.create_channel().await?;
                    channel.confirm_select(ConfirmSelectOptions::default()).await?;
                    channels.push(channel);
                }
                Client::RabbitMq(connection, channels, name.clone())
            }
            Sink::Kafka { bootstrap, topic } => {
                Client::Kafka(producer(bootstrap, sink.window())?, topic.clone())
            }
        };
        Ok(Bare { client, window: sink.window(), unconfirmed: FuturesUnordered::new() })
    }

    /// With another window than Relevo's adapter comes with.
    pub(crate) fn with_window(self, window: usize) -> Bare {
        Bare { window, ..self }
    }

    /// Hands a message to the client.
    pub(crate) async fn send(&mut self, message: &Message) -> Result<Confirming> {
        Ok(match &self.client {
            Client::Null => Box::pin(async { Ok(()) }),
            Client::Nats(jetstream, stream) => {
                let subject = format!("{stream}.{}", message.topic);
                let payload = message.payload.clone();
                let ack = jetstream.publish_with_headers(subject, message.nats(), payload).await?;
                Box::pin(async move { Ok(ack.into_future().await.map(drop)?) })
            }
            Client::RabbitMq(_, channels, exchange) => {
                // A key's messages stay in order on one channel.
                let channel = &channels[part_of(&message.key, channels.len())];
                rabbitmq(channel, exchange, message).await?
            }
            Client::Kafka(producer, topic) => kafka(producer, topic, message)?,
        })
    }

    /// Sends; waits only while the window is full.
    pub(crate) async fn publish(&mut self, message: &Message) -> Result<()> {
        let confirming = self.send(message).await?;
        self.unconfirmed.push(confirming);
        if self.unconfirmed.len() >= self.window {
            self.unconfirmed.next().await.context("the window is empty")??;
        }
        Ok(())
    }

    /// Waits until everything is confirmed.
    pub(crate) async fn confirmed(&mut self) -> Result<()> {
        while let Some(confirm) = self.unconfirmed.next().await {
            confirm?;
        }
        Ok(())
    }
}

async fn rabbitmq(
    channel: &lapin::Channel,
    exchange: &str,
    message: &Message,
) -> Result<Confirming> {
    let options = BasicPublishOptions { mandatory: true, ..Default::default() };
    let (exchange, key) = (exchange.into(), message.topic.as_str().into());
    let properties = message.rabbitmq();
    let confirm =
        channel.basic_publish(exchange, key, options, &message.payload, properties).await?;
    Ok(Box::pin(async move {
        let confirm = confirm.await?;
        ensure!(matches!(confirm, Confirmation::Ack(None)), "not stored: {confirm:?}");
        Ok(())
    }))
}

/// With the promises that Relevo's adapter makes: each message once, in order, on all replicas that are in step.
fn producer(bootstrap: &str, window: usize) -> Result<FutureProducer> {
    let mut client = kafka_client(bootstrap);
    client.set("enable.idempotence", "true").set("acks", "all");
    client.set("partitioner", "murmur2_random").set("linger.ms", "0");
    // A message counts until the last of those is reported that are reported with it.
    client.set("queue.buffering.max.messages", (2 * window + 1000).to_string());
    Ok(client.create()?)
}

fn kafka(producer: &FutureProducer, topic: &str, message: &Message) -> Result<Confirming> {
    let record = FutureRecord::to(topic)
        .key(message.key.as_str())
        .payload(&message.payload[..])
        .headers(message.kafka());
    let delivery = producer.send_result(record).map_err(|(error, _)| error)?;
    Ok(Box::pin(async move {
        delivery.await?.map(drop).map_err(|(error, _)| anyhow!("not stored: {error}"))
    }))
}
