//! One event, sent by the bare client and by Relevo's adapter: what the broker stored must be the same, or the
//! comparison would not be fair.

use super::{Arena, brokers};
use crate::tasks::{Bare, Message, Sink, connect_nats, kafka_client};
use anyhow::{Context, Result, ensure};
use async_nats::jetstream;
use futures::StreamExt;
use lapin::options::BasicGetOptions;
use lapin::types::AMQPValue;
use lapin::{Connection, ConnectionProperties};
use rdkafka::Message as _;
use rdkafka::consumer::{Consumer, StreamConsumer};
use rdkafka::message::{BorrowedMessage, Headers};
use rdkafka::{Offset, TopicPartitionList};
use relevo::broker::Confirm;
use relevo::{Event, EventId, NewEvent};
use std::collections::BTreeMap;
use std::time::Duration;

/// Everything a message has beside its payload, by name.
type Told = BTreeMap<String, String>;

const PATIENCE: Duration = Duration::from_secs(30);

impl Arena {
    /// Says so, or fails.
    pub(crate) async fn check_fairness(&self, sink: &Sink) -> Result<()> {
        let message = Message::nth(0, 1, 64);
        let bare = stored(sink, Publish::Bare(&message)).await.context("by the bare client")?;
        let ours = stored(sink, Publish::Relevo(&message)).await.context("by the adapter")?;
        ensure!(bare == ours, "the bare client writes {bare:#?}, Relevo's adapter {ours:#?}");
        println!("fair: {} headers and properties are the same on {}", bare.len(), name(sink));
        Ok(())
    }
}

fn name(sink: &Sink) -> &'static str {
    match sink {
        Sink::Null => "nothing",
        Sink::Nats { .. } => "NATS",
        Sink::RabbitMq { .. } => "RabbitMQ",
        Sink::Kafka { .. } => "Kafka",
    }
}

enum Publish<'m> {
    Bare(&'m Message),
    Relevo(&'m Message),
}

/// In a place of its own, so that the broker does not drop the second as a copy of the first.
async fn stored(sink: &Sink, publish: Publish<'_>) -> Result<Told> {
    brokers::make(sink).await?;
    match publish {
        Publish::Bare(message) => Bare::connect(sink).await?.send(message).await?.await?,
        Publish::Relevo(message) => {
            let publisher = sink.publisher()?.context("no adapter")?;
            let confirms = publisher.publish(&[&event(message)]).await;
            ensure!(confirms == [Confirm::Stored], "{confirms:?}");
        }
    }
    let told = tokio::time::timeout(PATIENCE, told(sink)).await??;
    brokers::clear(sink).await?;
    Ok(told)
}

fn event(message: &Message) -> Event {
    let event = NewEvent::bytes(message.topic.clone(), message.payload.clone());
    let event = event.key(message.key.clone()).id(EventId(message.id));
    Event::stored(event, message.created_at)
}

async fn told(sink: &Sink) -> Result<Told> {
    match sink {
        Sink::Null => Ok(Told::new()),
        Sink::Nats { url, stream } => told_by_nats(url, stream).await,
        Sink::RabbitMq { url, name, .. } => told_by_rabbitmq(url, name).await,
        Sink::Kafka { bootstrap, topic } => told_by_kafka(bootstrap, topic).await,
    }
}

async fn told_by_nats(url: &str, name: &str) -> Result<Told> {
    let stream = jetstream::new(connect_nats(url).await?).get_stream(name).await?;
    let ordered = jetstream::consumer::pull::OrderedConfig::default();
    let mut messages = stream.create_consumer(ordered).await?.messages().await?;
    let message = messages.next().await.context("no message")??;
    let mut told = Told::from([("subject".into(), message.subject.to_string())]);
    for (name, values) in message.headers.iter().flat_map(|headers| headers.iter()) {
        let values: Vec<&str> = values.iter().map(|value| value.as_str()).collect();
        told.insert(name.to_string(), values.join(", "));
    }
    Ok(told)
}

async fn told_by_rabbitmq(url: &str, name: &str) -> Result<Told> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    let got = channel.basic_get(name.into(), BasicGetOptions { no_ack: true }).await?;
    let delivery = got.context("no message")?.delivery;
    let mut properties = delivery.properties.clone();
    let mut told = Told::from([("routing key".into(), delivery.routing_key.to_string())]);
    let headers = properties.headers().clone().unwrap_or_default();
    for (name, value) in headers.inner() {
        let AMQPValue::LongString(value) = value else { continue };
        told.insert(name.to_string(), value.to_string());
    }
    // The table has no order of its own.
    properties = properties.with_headers(lapin::types::FieldTable::default());
    told.insert("properties".into(), format!("{properties:?}"));
    connection.close(200, "read".into()).await?;
    Ok(told)
}

async fn told_by_kafka(bootstrap: &str, topic: &str) -> Result<Told> {
    let mut client = kafka_client(bootstrap);
    let consumer: StreamConsumer =
        client.set("group.id", "fair").set("enable.auto.commit", "false").create()?;
    let mut all = TopicPartitionList::new();
    for number in 0..brokers::PARTITIONS {
        all.add_partition_offset(topic, number, Offset::Beginning)?;
    }
    consumer.assign(&all)?;
    let message = consumer.recv().await?;
    Ok(told_by_record(&message))
}

fn told_by_record(message: &BorrowedMessage<'_>) -> Told {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut told = Told::from([
        ("key".into(), text(message.key().unwrap_or_default())),
        ("partition".into(), message.partition().to_string()),
    ]);
    for header in message.headers().iter().flat_map(|headers| headers.iter()) {
        told.insert(header.key.to_owned(), text(header.value.unwrap_or_default()));
    }
    told
}
