//! How much of the bare client's speed is left: `cargo test --profile checked -p relevo-brokers --features nats
//! --test nats_speed -- --ignored --nocapture`.
#![cfg(feature = "nats")]
#![allow(clippy::unwrap_used, reason = "a measurement that cannot go on fails")]

use async_nats::HeaderMap;
use async_nats::jetstream::context::{ContextBuilder, PublishAckFuture};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::Config;
use relevo_brokers::nats::{NatsConfig, NatsPublisher};
use relevo_core::broker::cloudevents::{Binding, write};
use relevo_core::broker::{Confirm, Publisher};
use relevo_core::event::{Event, NewEvent};
use relevo_testkit::services::{Nats, require, unique_name};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

const EVENTS: usize = 50_000;
const WINDOW: usize = 1000;
const BATCH: usize = 50;
const LANES: usize = 8;

fn events(topic: &str) -> Vec<Event> {
    let event = |n| NewEvent::bytes(topic, vec![b'x'; 256]).key(format!("key-{n}"));
    (0..EVENTS).map(|n| Event::stored(event(n), chrono::Utc::now())).collect()
}

/// One sender, the oldest confirm awaited when the window is full.
async fn bare(context: &async_nats::jetstream::Context, events: &[Event], headers: bool) -> f64 {
    let began = Instant::now();
    let mut window: VecDeque<PublishAckFuture> = VecDeque::new();
    for event in events {
        let mut message = PublishMessage::build().payload(event.payload.clone());
        if headers {
            let mut map = HeaderMap::new();
            for (name, value) in write(event, "relevo", &Binding::NATS) {
                map.insert(name.as_ref(), value);
            }
            message = message.headers(map).message_id(event.id.to_string());
        }
        window.push_back(context.send_publish(event.topic.clone(), message).await.unwrap());
        if window.len() == WINDOW {
            window.pop_front().unwrap().await.unwrap();
        }
    }
    for confirm in window {
        confirm.await.unwrap();
    }
    EVENTS as f64 / began.elapsed().as_secs_f64()
}

/// As the relay does it: lanes at once, batch after batch.
async fn adapter(publisher: &Arc<NatsPublisher>, events: Vec<Event>) -> f64 {
    let events = Arc::new(events);
    let began = Instant::now();
    let lanes = (0..LANES).map(|lane| {
        let (publisher, events) = (publisher.clone(), events.clone());
        tokio::spawn(async move {
            for batch in events.chunks(BATCH).skip(lane).step_by(LANES) {
                let confirms = publisher.publish(&batch.iter().collect::<Vec<_>>()).await;
                assert!(confirms.iter().all(|confirm| *confirm == Confirm::Stored));
            }
        })
    });
    for lane in lanes.collect::<Vec<_>>() {
        lane.await.unwrap();
    }
    EVENTS as f64 / began.elapsed().as_secs_f64()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement, not a test"]
async fn the_adapter_against_the_bare_client() {
    let Some(server) = require(Nats::start()) else { return };
    let options =
        async_nats::ConnectOptions::with_user_and_password("relevo".into(), "relevo".into());
    let client = options.connect(server.address().to_string()).await.unwrap();
    let context = ContextBuilder::new().max_ack_inflight(WINDOW * 2).build(client);
    let publisher = Arc::new(NatsPublisher::new(NatsConfig::to(&server.url()).unwrap()));
    for round in 1..=3 {
        let name = unique_name("SPEED");
        let config =
            Config { subjects: vec![format!("{name}.>")], name: name.clone(), ..Config::default() };
        context.create_stream(config).await.unwrap();
        let topic = format!("{name}.a");
        let plain = bare(&context, &events(&topic), false).await;
        let same = bare(&context, &events(&topic), true).await;
        let ours = adapter(&publisher, events(&topic)).await;
        context.delete_stream(&name).await.unwrap();
        println!(
            "round {round}: bare without headers {plain:.0}/s, bare with the same headers {same:.0}/s, \
             adapter {ours:.0}/s: {:.2} and {:.2}",
            ours / plain,
            ours / same
        );
    }
}
