//! What is Kafka's own: partitions of keys, compression, limits of topics, groups, lag, logins, rights, topology, and other
//! programs at the same topics.
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

mod cloudevents;
mod groups;
mod lag;
mod login;
mod partitions;
mod publish;
mod rights;
mod slow;
mod topology;

use relevo_brokers::kafka::{
    KafkaAdmin, KafkaConfig, KafkaConsumer, KafkaPublisher, KafkaSubscriber, KafkaTopology,
};
use relevo_core::ErrorClass;
use relevo_core::broker::{
    Confirm, Incoming, Publisher, Received, Receiver, Settle, Subscriber, Tag, Topology,
};
use relevo_core::event::{Event, NewEvent};
use relevo_testkit::PATIENCE;
use relevo_testkit::services::{self, Kafka, KafkaOptions, unique_name};
use serde_json::{Value, json};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

fn run(work: impl AsyncFnOnce()) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.unwrap().block_on(work());
}

async fn shared() -> Option<Arc<Kafka>> {
    services::require(tokio::task::spawn_blocking(Kafka::shared).await.unwrap())
}

async fn start(options: KafkaOptions) -> Option<Kafka> {
    let started = tokio::task::spawn_blocking(move || Kafka::start_with(&options)).await.unwrap();
    services::require(started)
}

fn config(server: &Kafka) -> KafkaConfig {
    KafkaConfig::to(&format!("kafka://{}", server.bootstrap())).unwrap()
}

fn topology(json: Value) -> KafkaTopology {
    serde_json::from_value(json).unwrap()
}

/// A fresh topic with so many partitions.
async fn topic(server: &Kafka, partitions: usize) -> String {
    topic_with(server, json!({"partitions": partitions})).await
}

async fn topic_with(server: &Kafka, like: Value) -> String {
    let name = unique_name("t");
    let wanted =
        topology(json!({"topics": {name.as_str(): like}, "dead_letters": format!("{name}.dead")}));
    KafkaAdmin::new(config(server), wanted).apply(false).await.unwrap();
    name
}

fn event(topic: &str, key: &str, payload: &[u8]) -> Event {
    Event::stored(NewEvent::bytes(topic, payload.to_vec()).key(key), chrono::Utc::now())
}

async fn publish(publisher: &KafkaPublisher, events: &[Event]) -> Vec<Confirm> {
    publisher.publish(&events.iter().collect::<Vec<_>>()).await
}

async fn store(config: KafkaConfig, events: &[Event]) {
    let confirms = publish(&KafkaPublisher::new(config), events).await;
    assert!(confirms.iter().all(|confirm| *confirm == Confirm::Stored), "{confirms:?}");
}

fn class_of(confirm: &Confirm) -> Option<ErrorClass> {
    match confirm {
        Confirm::Refused { class, .. } => Some(*class),
        _ => None,
    }
}

fn consumer(topic: &str) -> KafkaConsumer {
    KafkaConsumer::new(topic, format!("{topic}.group"))
        .session_timeout(Duration::from_secs(6))
        .dead_letters(format!("{topic}.dead"))
}

async fn open(config: KafkaConfig, consumer: KafkaConsumer) -> Box<dyn Receiver> {
    KafkaSubscriber::new(config, consumer).open().await.unwrap()
}

async fn take(receiver: &mut Box<dyn Receiver>, count: usize) -> Vec<Incoming> {
    let mut taken = Vec::new();
    while taken.len() < count {
        let next = tokio::time::timeout(PATIENCE, receiver.next(count - taken.len())).await;
        match next.expect("a message comes").unwrap() {
            Received::Messages { messages, .. } => taken.extend(messages),
            other => println!("{other:?}"),
        }
    }
    taken
}

async fn settle(receiver: &mut Box<dyn Receiver>, messages: &[Incoming]) {
    let done: Vec<(Tag, Settle)> = messages.iter().map(|m| (m.tag, Settle::Done)).collect();
    receiver.settle(&done).await.unwrap();
}

/// The partition in a message's place, `topic/partition@offset`.
fn partition_of(message: &Incoming) -> i32 {
    let place = message.position.as_deref().unwrap();
    place.rsplit_once('/').unwrap().1.split('@').next().unwrap().parse().unwrap()
}

fn python(args: &[&str]) -> Option<Vec<Value>> {
    let python = services::require(services::python())?;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/python/kafka_cloudevents.py");
    let output = Command::new(python).arg(script).args(args).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "kafka_cloudevents.py failed:\n{errors}");
    let lines = String::from_utf8(output.stdout).unwrap();
    Some(lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}
