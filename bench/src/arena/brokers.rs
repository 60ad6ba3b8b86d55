//! Streams, queues and topics: made before a turn, read back and cleared away after it.

use crate::judge::Judge;
use crate::tasks::{Bare, Message, Plan, Sink, connect_nats, kafka_client};
use anyhow::{Context, Result, bail, ensure};
use async_nats::jetstream::{self, consumer, stream};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use lapin::options::{
    BasicConsumeOptions, ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions,
    QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Connection, ConnectionProperties, ExchangeKind};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer, StreamConsumer};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::{Message as _, Offset, TopicPartitionList};
use std::time::{Duration, Instant};

/// How long what was stored may take to be read back, or something that was made to be there.
const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const PARTITIONS: i32 = 12;

/// Makes the place that a sink names.
pub(crate) async fn make(sink: &Sink) -> Result<()> {
    match sink {
        Sink::Null => Ok(()),
        Sink::Nats { url, stream } => {
            let jetstream = jetstream::new(connect_nats(url).await?);
            let subjects = vec![format!("{stream}.>")];
            let config = stream::Config { name: stream.clone(), subjects, ..Default::default() };
            jetstream.create_stream(config).await?;
            Ok(())
        }
        Sink::RabbitMq { url, name, quorum } => make_queue(url, name, *quorum).await,
        Sink::Kafka { bootstrap, topic } => make_topic(bootstrap, topic).await,
    }
}

async fn make_queue(url: &str, name: &str, quorum: bool) -> Result<()> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    let durable = ExchangeDeclareOptions { durable: true, ..Default::default() };
    let none = FieldTable::default;
    channel.exchange_declare(name.into(), ExchangeKind::Topic, durable, none()).await?;
    let mut arguments = none();
    let kind = if quorum { "quorum" } else { "classic" };
    arguments.insert("x-queue-type".into(), AMQPValue::LongString(kind.into()));
    let durable = QueueDeclareOptions { durable: true, ..Default::default() };
    channel.queue_declare(name.into(), durable, arguments).await?;
    let bind = QueueBindOptions::default();
    channel.queue_bind(name.into(), name.into(), "#".into(), bind, none()).await?;
    Ok(connection.close(200, "made".into()).await?)
}

fn admin(bootstrap: &str) -> Result<AdminClient<DefaultClientContext>> {
    Ok(kafka_client(bootstrap).create()?)
}

/// Returns when all partitions have leaders. A broker on a busy machine loses its session for a moment, and there is
/// nobody to make a topic on: asked again.
async fn make_topic(bootstrap: &str, name: &str) -> Result<()> {
    let began = Instant::now();
    while let Some(why) = try_topic(bootstrap, name).await? {
        ensure!(began.elapsed() < PATIENCE, "topic {name}: {why}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let reader: BaseConsumer = kafka_client(bootstrap).create()?;
    let leads = |number| reader.fetch_watermarks(name, number, Duration::from_secs(5)).is_ok();
    while !(0..PARTITIONS).all(leads) {
        ensure!(began.elapsed() < PATIENCE, "the topic {name} has no leaders");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// Why it is not there, if it is not.
async fn try_topic(bootstrap: &str, name: &str) -> Result<Option<RDKafkaErrorCode>> {
    let topic = NewTopic::new(name, PARTITIONS, TopicReplication::Fixed(1));
    let options = AdminOptions::new().operation_timeout(Some(PATIENCE));
    let made = admin(bootstrap)?.create_topics([&topic], &options).await?;
    let code = made.into_iter().find_map(|made| made.err()).map(|(_, code)| code);
    Ok(code.filter(|code| *code != RDKafkaErrorCode::TopicAlreadyExists))
}

/// Clears it away.
pub(crate) async fn clear(sink: &Sink) -> Result<()> {
    match sink {
        Sink::Null => {}
        Sink::Nats { url, stream } => {
            jetstream::new(connect_nats(url).await?).delete_stream(stream).await?;
        }
        Sink::RabbitMq { url, name, .. } => {
            let connection = Connection::connect(url, ConnectionProperties::default()).await?;
            let channel = connection.create_channel().await?;
            channel.queue_delete(name.as_str().into(), QueueDeleteOptions::default()).await?;
            channel.exchange_delete(name.as_str().into(), ExchangeDeleteOptions::default()).await?;
            connection.close(200, "cleared".into()).await?;
        }
        Sink::Kafka { bootstrap, topic } => {
            admin(bootstrap)?.delete_topics(&[topic], &AdminOptions::new()).await?;
        }
    }
    Ok(())
}

/// Puts the events of a plan there, as a publisher would.
pub(crate) async fn fill(sink: &Sink, plan: Plan) -> Result<()> {
    let mut bare = Bare::connect(sink).await?;
    for n in 0..plan.events {
        bare.publish(&Message::nth(n, plan.keys, plan.bytes)).await?;
    }
    bare.confirmed().await
}

/// Everything that was stored, judged.
pub(crate) async fn read_back(sink: &Sink, plan: Plan) -> Result<()> {
    if *sink == Sink::Null {
        return Ok(());
    }
    let mut judge = Judge::new(plan.events, plan.keys);
    let mut messages = receive(sink).await?;
    while !judge.is_complete() {
        let message = tokio::time::timeout(PATIENCE, messages.next()).await;
        let Ok(message) = message else { bail!("nothing more comes; {:?}", judge.verdict()) };
        judge.see(&message.context("the end")??);
    }
    judge.verdict()
}

/// The payloads of all that is and will be stored, each key's in order.
pub(crate) async fn receive(sink: &Sink) -> Result<BoxStream<'static, Result<Bytes>>> {
    Ok(match sink {
        Sink::Null => bail!("nothing is stored nowhere"),
        Sink::Nats { url, stream } => receive_nats(url, stream).await?,
        Sink::RabbitMq { url, name, .. } => {
            let connection = Connection::connect(url, ConnectionProperties::default()).await?;
            let channel = connection.create_channel().await?;
            let options = BasicConsumeOptions { no_ack: true, ..Default::default() };
            let none = FieldTable::default();
            let name = name.as_str().into();
            let messages = channel.basic_consume(name, "judge".into(), options, none).await?;
            let messages = messages.map(|message| Ok(Bytes::from(message?.data)));
            // The connection lives as long as its messages are read.
            messages.inspect(move |_| _ = &connection).boxed()
        }
        Sink::Kafka { bootstrap, topic } => receive_kafka(bootstrap, topic)?,
    })
}

async fn receive_nats(url: &str, name: &str) -> Result<BoxStream<'static, Result<Bytes>>> {
    let stream = jetstream::new(connect_nats(url).await?).get_stream(name).await?;
    let ordered = consumer::pull::OrderedConfig::default();
    let messages = stream.create_consumer(ordered).await?.messages().await?;
    Ok(messages.map(|message| Ok(message?.message.payload)).boxed())
}

fn receive_kafka(bootstrap: &str, topic: &str) -> Result<BoxStream<'static, Result<Bytes>>> {
    let mut client = kafka_client(bootstrap);
    client.set("group.id", "judge").set("enable.auto.commit", "false");
    // Told as soon as it is there.
    client.set("fetch.wait.max.ms", "100").set("fetch.error.backoff.ms", "50");
    let consumer: StreamConsumer = client.create()?;
    let mut all = TopicPartitionList::new();
    for number in 0..PARTITIONS {
        all.add_partition_offset(topic, number, Offset::Beginning)?;
    }
    consumer.assign(&all)?;
    let next = async |consumer: StreamConsumer| {
        loop {
            match consumer.recv().await {
                Ok(message) => {
                    let payload = Bytes::copy_from_slice(message.payload().unwrap_or_default());
                    drop(message);
                    return Some((Ok(payload), consumer));
                }
                // The client mends its connections by itself; who waits for messages has a limit.
                Err(error) => eprintln!("Kafka, reading {error}"),
            }
        }
    };
    Ok(futures::stream::unfold(consumer, next).boxed())
}
