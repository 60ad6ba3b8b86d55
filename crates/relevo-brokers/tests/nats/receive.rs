//! Order, windows, redelivery and the end of a consumer.

use super::{consumer, event, next, open, publish, streams};
use relevo_brokers::nats::{NatsConfig, NatsPublisher, NatsSubscriber};
use relevo_core::Kind;
use relevo_core::broker::{Confirm, Incoming, Settle, Subscriber, dead_header};
use relevo_core::event::{Event, NewEvent};
use relevo_testkit::services::{Nats, Proxy, require};
use std::time::Duration;

fn text(message: &Incoming) -> String {
    String::from_utf8_lossy(&message.payload).into_owned()
}

#[tokio::test]
async fn one_at_a_time_keeps_the_order_through_retries() {
    let Some(server) = require(Nats::shared()) else { return };
    let (_, name) = streams(&server).await;
    let topic = format!("{name}.a");
    let publisher = NatsPublisher::new(NatsConfig::to(&server.url()).unwrap());
    publish(&publisher, &(0..4).map(|n| event(&topic, n)).collect::<Vec<_>>()).await;
    let subscriber = NatsSubscriber::new(
        NatsConfig::to(&server.url()).unwrap(),
        consumer(&name).one_at_a_time(),
    );
    assert!(subscriber.capabilities().order_on_retry);
    let mut receiver = subscriber.open().await.unwrap();
    let mut came = Vec::new();
    let mut tried = 0;
    while came.len() < 4 {
        let message = next(&mut receiver, 10).await.remove(0);
        tried += 1;
        let settle = if tried % 2 == 1 {
            Settle::RetryAfter(Duration::from_millis(200))
        } else {
            came.push(text(&message));
            assert!(message.redelivered);
            Settle::Done
        };
        receiver.settle(&[(message.tag, settle)]).await.unwrap();
    }
    assert_eq!(came, ["payload 0", "payload 1", "payload 2", "payload 3"]);
}

#[tokio::test]
async fn a_message_that_takes_its_consumers_down_is_put_away() {
    let Some(server) = require(Nats::shared()) else { return };
    let (context, name) = streams(&server).await;
    let topic = format!("{name}.a");
    let publisher = NatsPublisher::new(NatsConfig::to(&server.url()).unwrap());
    publish(&publisher, &[event(&topic, 1), event(&topic, 2)]).await;
    let one = consumer(&name).max_deliver(2).window(1, 1 << 20);
    for _ in 0..2 {
        let mut receiver = open(&server, one.clone()).await;
        assert_eq!(text(&next(&mut receiver, 1).await[0]), "payload 1");
        receiver.close().await.unwrap();
    }
    let mut receiver = open(&server, one).await;
    let message = next(&mut receiver, 1).await.remove(0);
    assert_eq!(text(&message), "payload 2");
    let letters = context.get_stream(format!("{name}_dead")).await.unwrap();
    let letter = letters.get_raw_message(1).await.unwrap();
    assert_eq!(&letter.payload[..], b"payload 1");
    assert_eq!(letter.subject.as_str(), format!("{name}_dead.worker.{topic}"));
    assert_eq!(letter.headers.get(dead_header::TOPIC).unwrap().as_str(), topic);
    assert!(letter.headers.get(dead_header::REASON).unwrap().as_str().contains("2 times"));
}

#[tokio::test]
async fn a_living_receiver_keeps_its_messages_and_a_dead_ones_come_again() {
    let Some(server) = require(Nats::shared()) else { return };
    let (_, name) = streams(&server).await;
    let topic = format!("{name}.a");
    let proxy = Proxy::start(server.address()).unwrap();
    let publisher = NatsPublisher::new(NatsConfig::to(&server.url()).unwrap());
    publish(&publisher, &[event(&topic, 1)]).await;
    let quick = consumer(&name).ack_wait(Duration::from_secs(2));
    let config = NatsConfig::to(&proxy.url(&server.url())).unwrap();
    let mut first = NatsSubscriber::new(config, quick.clone()).open().await.unwrap();
    assert_eq!(next(&mut first, 1).await.len(), 1);
    let mut second = open(&server, quick).await;
    let early = tokio::time::timeout(Duration::from_secs(5), second.next(1)).await;
    assert!(early.is_err(), "it is still being worked on: {early:?}");
    // As a process that is gone without a word.
    proxy.half_open();
    let again = next(&mut second, 1).await;
    assert!(again[0].redelivered);
}

#[tokio::test]
async fn bytes_are_bounded_and_a_message_larger_than_the_bound_comes_alone() {
    let Some(server) = require(Nats::shared()) else { return };
    let (_, name) = streams(&server).await;
    let topic = format!("{name}.a");
    let publisher = NatsPublisher::new(NatsConfig::to(&server.url()).unwrap());
    let sizes = [10_000, 10_000, 10_000, 200_000, 10_000];
    for size in sizes {
        let event = NewEvent::bytes(&*topic, vec![b'x'; size]);
        let confirms = publish(&publisher, &[Event::stored(event, chrono::Utc::now())]).await;
        assert_eq!(confirms, [Confirm::Stored]);
    }
    let mut receiver = open(&server, consumer(&name).window(100, 25_000)).await;
    let mut came: Vec<usize> = Vec::new();
    while came.len() < sizes.len() {
        let messages = next(&mut receiver, 100).await;
        let held: usize = messages.iter().map(|message| message.payload.len()).sum();
        assert!(held <= 25_000 || messages.len() == 1, "{held} bytes in {}", messages.len());
        came.extend(messages.iter().map(|message| message.payload.len()));
        let done: Vec<_> = messages.iter().map(|m| (m.tag, Settle::Done)).collect();
        receiver.settle(&done).await.unwrap();
    }
    assert_eq!(came, sizes);
}

#[tokio::test]
async fn a_deleted_consumer_ends_its_receiver_and_the_next_one_makes_it_anew() {
    let Some(server) = require(Nats::shared()) else { return };
    let (context, name) = streams(&server).await;
    let topic = format!("{name}.a");
    let mut receiver = open(&server, consumer(&name)).await;
    let waiting = tokio::time::timeout(Duration::from_millis(300), receiver.next(1)).await;
    assert!(waiting.is_err());
    let stream = context.get_stream(&name).await.unwrap();
    stream.delete_consumer("worker").await.unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(30), receiver.next(1)).await.unwrap();
    assert_eq!(ended.unwrap_err().kind(), Kind::DestinationRefused);
    let missing =
        NatsSubscriber::new(NatsConfig::to(&server.url()).unwrap(), consumer(&name).existing());
    let error = missing.open().await.err().unwrap();
    assert!(error.to_string().contains("worker"), "{error}");
    let publisher = NatsPublisher::new(NatsConfig::to(&server.url()).unwrap());
    publish(&publisher, &[event(&topic, 1)]).await;
    let mut receiver = open(&server, consumer(&name)).await;
    assert_eq!(next(&mut receiver, 1).await.len(), 1);
}

#[tokio::test]
async fn settling_what_somebody_else_settled_is_no_error() {
    let Some(server) = require(Nats::shared()) else { return };
    let (_, name) = streams(&server).await;
    let topic = format!("{name}.a");
    let publisher = NatsPublisher::new(NatsConfig::to(&server.url()).unwrap());
    publish(&publisher, &[event(&topic, 1)]).await;
    let proxy = Proxy::start(server.address()).unwrap();
    let quick = consumer(&name).ack_wait(Duration::from_secs(1));
    let config = NatsConfig::to(&proxy.url(&server.url())).unwrap();
    let patient = quick.clone().heartbeat(Duration::from_secs(10));
    let mut slow = NatsSubscriber::new(config, patient).open().await.unwrap();
    let held = next(&mut slow, 1).await;
    // Too slow to say that it is still there.
    proxy.delay(Duration::from_secs(4));
    let mut other = open(&server, quick).await;
    let again = next(&mut other, 1).await;
    other.settle(&[(again[0].tag, Settle::Done)]).await.unwrap();
    proxy.delay(Duration::ZERO);
    slow.settle(&[(held[0].tag, Settle::Done)]).await.unwrap();
}
