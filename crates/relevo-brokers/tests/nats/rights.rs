//! What a user may not do, a server without JetStream, and JetStream on another server.

use super::{bare, consumer, event, jetstream, next, publish, stored, streams};
use futures::StreamExt;
use relevo_brokers::nats::{NatsAdmin, NatsConfig, NatsPublisher, NatsSubscriber};
use relevo_core::broker::{Confirm, Settle, Subscriber, Topology};
use relevo_core::{ErrorClass, Kind};
use relevo_testkit::eventually;
use relevo_testkit::services::{Nats, NatsOptions, require};
use std::time::{Duration, Instant};

fn as_user(server: &Nats, user: &str) -> NatsConfig {
    NatsConfig::to(&format!("nats://{}", server.address())).unwrap().user(user, "relevo")
}

#[tokio::test]
async fn what_is_not_permitted_is_refused_by_name_and_nothing_waits_for_it() {
    let options = NatsOptions::new()
        .user("writer", r#"publish: { deny: ["*.forbidden.>"] }"#)
        .user("deaf", r#"subscribe: { deny: [">"] }"#)
        .user("blind", r#"publish: { deny: ["$JS.API.STREAM.INFO.>"] }"#)
        .user("idle", r#"publish: { deny: ["$JS.API.CONSUMER.MSG.NEXT.>"] }"#)
        .user("mute", r#"publish: { deny: ["$JS.ACK.>"] }"#);
    let Some(server) = require(Nats::start_with(&options)) else { return };
    let (context, name) = streams(&server).await;
    let publisher = NatsPublisher::new(as_user(&server, "writer").ack_timeout(FAR));
    let (good, bad) = (format!("{name}.a"), format!("{name}.forbidden"));
    let events = [event(&good, 1), event(&format!("{bad}.x"), 2), event(&format!("{bad}.y"), 3)];
    let began = Instant::now();
    for _ in 0..2 {
        let confirms = publish(&publisher, &events).await;
        assert_eq!(confirms[0], Confirm::Stored);
        for (confirm, topic) in confirms[1..].iter().zip(["x", "y"]) {
            let Confirm::Refused { class, error, .. } = confirm else { panic!("{confirm:?}") };
            assert_eq!(*class, ErrorClass::Transient, "{error}");
            let remedy = format!("may not publish to {bad}.{topic}: it needs that permission");
            assert!(error.contains(&remedy), "{error}");
        }
    }
    assert!(began.elapsed() < FAR, "nobody waits for an answer that the server does not give");
    assert_eq!(stored(&context, &name).await, 1);
    // It is stored, and the answer may not be heard: nobody can call that refused.
    let deaf = as_user(&server, "deaf").ack_timeout(QUITE_SHORT);
    let confirms = publish(&NatsPublisher::new(deaf), &[event(&good, 4)]).await;
    let [Confirm::Unknown { error }] = &confirms[..] else { panic!("{confirms:?}") };
    assert!(error.contains("_INBOX") && error.contains("needs that permission"), "{error}");
    eventually("it is stored", async || (stored(&context, &name).await == 2).then_some(())).await;
    for user in ["blind", "idle", "mute"] {
        let error = consumes(as_user(&server, user).ack_timeout(QUITE_SHORT), &name).await;
        let error = error.expect("it may not").to_string();
        assert!(error.contains("Permissions Violation for Publish to"), "{user}: {error}");
        assert!(error.contains("the user needs that permission"), "{user}: {error}");
    }
    assert!(consumes(as_user(&server, "relevo"), &name).await.is_none());
}

#[tokio::test]
async fn what_is_forbidden_keeps_no_late_answer_waiting() {
    let options = NatsOptions::new().user("writer", r#"publish: { deny: ["*.forbidden.>"] }"#);
    let Some(server) = require(Nats::start_with(&options)) else { return };
    // Stands in for a stream that takes its time, far longer than a refusal needs to be believed.
    let client = bare(&server).await;
    let mut asked = client.subscribe("late.a").await.unwrap();
    client.flush().await.unwrap();
    let answers = tokio::spawn(async move {
        let message = asked.next().await.unwrap();
        tokio::time::sleep(Duration::from_millis(800)).await;
        let answer = r#"{"stream":"S","seq":1}"#.into();
        client.publish(message.reply.unwrap(), answer).await.unwrap();
        client.flush().await.unwrap();
    });
    let publisher = NatsPublisher::new(as_user(&server, "writer").ack_timeout(FAR));
    let events = [event("late.a", 1), event("t.forbidden.x", 2)];
    let began = Instant::now();
    let confirms = publish(&publisher, &events).await;
    assert!(began.elapsed() < FAR / 10, "{:?}", began.elapsed());
    assert_eq!(confirms[0], Confirm::Stored);
    assert!(matches!(&confirms[1], Confirm::Refused { .. }), "{confirms:?}");
    answers.await.unwrap();
}

const FAR: Duration = Duration::from_secs(300);
const QUITE_SHORT: Duration = Duration::from_secs(3);

/// Takes a message and settles it; why that does not work.
async fn consumes(config: NatsConfig, stream: &str) -> Option<relevo_core::Error> {
    let consumer = consumer(stream).ack_wait(QUITE_SHORT);
    let mut receiver = match NatsSubscriber::new(config, consumer).open().await {
        Ok(receiver) => receiver,
        Err(error) => return Some(error),
    };
    let came = match receiver.next(1).await {
        Ok(relevo_core::broker::Received::Messages { messages, .. }) => messages,
        Ok(other) => panic!("{other:?}"),
        Err(error) => return Some(error),
    };
    let settled = receiver.settle(&[(came[0].tag, Settle::Done)]).await;
    settled.err()
}

#[tokio::test]
async fn a_server_without_jetstream_is_down_and_it_says_what_to_do() {
    let options = NatsOptions::new().without_jetstream();
    let Some(server) = require(Nats::start_with(&options)) else { return };
    let config = NatsConfig::to(&server.url()).unwrap();
    let remedy = "JetStream is off on this server: its configuration needs jetstream";
    let confirms = publish(&NatsPublisher::new(config.clone()), &[event("a", 1)]).await;
    let [Confirm::Down { error }] = &confirms[..] else { panic!("{confirms:?}") };
    assert!(error.contains(remedy), "{error}");
    let opened = NatsSubscriber::new(config.clone(), consumer("S")).open().await;
    let topology = serde_json::from_str(r#"{"streams":{"S":{"subjects":["s.>"]}}}"#).unwrap();
    let planned = NatsAdmin::new(config, topology).plan().await;
    for error in [opened.err().unwrap(), planned.err().unwrap()] {
        assert_eq!(error.kind(), Kind::DestinationDown, "{error}");
        assert!(error.message().contains(remedy), "{error}");
    }
}

#[tokio::test]
async fn a_domain_is_another_servers_jetstream() {
    let Some(hub) = require(Nats::start_with(&NatsOptions::new().domain("hub"))) else { return };
    let (context, name) = streams(&hub).await;
    let leaf = NatsOptions::new().domain("leaf").leaf_of(&hub);
    let Some(leaf) = require(Nats::start_with(&leaf)) else { return };
    let at_leaf = NatsConfig::to(&leaf.url()).unwrap();
    let at_hub = at_leaf.clone().domain("hub");
    let (topic, publisher) = (format!("{name}.a"), NatsPublisher::new(at_hub.clone()));
    let first = event(&topic, 1);
    eventually("the leaf knows the hub", async || {
        let confirms = publish(&publisher, std::slice::from_ref(&first)).await;
        (confirms == [Confirm::Stored]).then_some(())
    })
    .await;
    assert_eq!(stored(&context, &name).await, 1);
    let nobody = publish(&publisher, &[event("nobody.listens", 2)]).await;
    let told = matches!(nobody[..], [Confirm::Refused { class: ErrorClass::Permanent, .. }]);
    assert!(told, "the hub was asked: {nobody:?}");
    let mut receiver = NatsSubscriber::new(at_hub.clone(), consumer(&name)).open().await.unwrap();
    let came = next(&mut receiver, 1).await;
    assert_eq!(came[0].payload[..], b"payload 1"[..]);
    receiver.settle(&[(came[0].tag, Settle::Done)]).await.unwrap();
    receiver.close().await.unwrap();
    let asked = context.get_stream(&name).await.unwrap().consumer_info("worker").await.unwrap();
    assert_eq!((asked.ack_floor.stream_sequence, asked.num_ack_pending), (1, 0));
    // The leaf's own JetStream has no such stream.
    let own = NatsSubscriber::new(at_leaf.clone(), consumer(&name)).open().await.err().unwrap();
    assert_eq!(own.kind(), Kind::DestinationRefused, "{own}");
    assert!(jetstream(&leaf).await.get_stream(&name).await.is_err());
    let wrong = at_leaf.domain("nowhere");
    let wrong = NatsSubscriber::new(wrong, consumer(&name)).open().await.err().unwrap();
    assert_eq!(wrong.kind(), Kind::DestinationDown, "{wrong}");
    assert!(wrong.message().contains("no JetStream answers in the domain nowhere"), "{wrong}");
}
