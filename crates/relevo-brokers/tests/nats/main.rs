//! What is NATS' own beside the suite for brokers: streams, logins, TLS, rights, order, topology, a cluster.
#![cfg(feature = "nats")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod cloudevents;
mod cluster;
mod login;
mod publish;
mod receive;
mod rights;
mod topology;

use async_nats::jetstream::Context;
use async_nats::jetstream::stream::Config;
use relevo_brokers::nats::{NatsConfig, NatsConsumer, NatsPublisher, NatsSubscriber};
use relevo_core::broker::{Confirm, Incoming, Publisher, Received, Receiver, Subscriber};
use relevo_core::event::{Event, NewEvent};
use relevo_testkit::services::{Nats, unique_name};
use std::time::Duration;

fn event(topic: &str, n: usize) -> Event {
    let event = NewEvent::bytes(topic, format!("payload {n}").into_bytes()).key(format!("k-{n}"));
    Event::stored(event, chrono::Utc::now())
}

async fn publish(publisher: &NatsPublisher, events: &[Event]) -> Vec<Confirm> {
    publisher.publish(&events.iter().collect::<Vec<_>>()).await
}

async fn bare(server: &Nats) -> async_nats::Client {
    let options =
        async_nats::ConnectOptions::with_user_and_password("relevo".into(), "relevo".into());
    options.connect(server.address().to_string()).await.unwrap()
}

async fn jetstream(server: &Nats) -> Context {
    async_nats::jetstream::new(bare(server).await)
}

/// A stream of this test alone, and one for its dead letters.
async fn streams(server: &Nats) -> (Context, String) {
    let (context, name) = (jetstream(server).await, unique_name("T"));
    for name in [name.clone(), format!("{name}_dead")] {
        let config = Config { subjects: vec![format!("{name}.>")], name, ..Config::default() };
        context.create_stream(config).await.unwrap();
    }
    (context, name)
}

async fn stored(context: &Context, stream: &str) -> u64 {
    context.get_stream(stream).await.unwrap().cached_info().state.messages
}

fn consumer(stream: &str) -> NatsConsumer {
    NatsConsumer::new(stream, "worker")
        .heartbeat(Duration::from_secs(3))
        .dead_letters(format!("{stream}_dead"))
}

async fn open(server: &Nats, consumer: NatsConsumer) -> Box<dyn Receiver> {
    let config = NatsConfig::to(&server.url()).unwrap();
    NatsSubscriber::new(config, consumer).open().await.unwrap()
}

async fn next(receiver: &mut Box<dyn Receiver>, max: usize) -> Vec<Incoming> {
    let next = tokio::time::timeout(Duration::from_secs(30), receiver.next(max));
    match next.await.expect("a message comes").unwrap() {
        Received::Messages { messages, .. } => messages,
        other => panic!("not a message: {other:?}"),
    }
}
