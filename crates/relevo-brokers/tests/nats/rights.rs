//! What a user may not do, a server without JetStream, and JetStream on another server.

use super::{bare, consumer, event, jetstream, next, publish, stored, streams};
use async_nats::jetstream::Context;
use async_nats::jetstream::stream::Config;
use futures::StreamExt;
use relevo_brokers::nats::{NatsAdmin, NatsConfig, NatsConsumer, NatsPublisher, NatsSubscriber};
use relevo_core::broker::{Confirm, Incoming, Received, Receiver, Settle, Subscriber, Topology};
use relevo_core::{ErrorClass, Kind};
use relevo_testkit::eventually;
use relevo_testkit::services::{Nats, NatsOptions, require};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::TcpStream;
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

/// The permissions that docs/nats.md calls enough, without one of them.
fn documented_rights(without: Option<&str>) -> String {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/nats.md");
    let page = std::fs::read_to_string(page).unwrap();
    let mut blocks = page.split("```text\n").skip(1).filter_map(|block| block.split("```").next());
    let rights = blocks.find(|block| block.starts_with("publish: { allow:")).unwrap();
    let Some(without) = without else { return rights.to_owned() };
    let quoted = format!("\"{without}\"");
    assert_eq!(rights.matches(&quoted).count(), 1, "{without} in {rights}");
    rights.replace(&quoted, "\"nothing\"")
}

/// What every one of these is for fails without it.
const NEEDED: [&str; 10] = [
    "order.>",
    "$JS.API.STREAM.NAMES",
    "$JS.API.STREAM.INFO.ORDERS",
    "$JS.API.STREAM.MSG.GET.ORDERS",
    "$JS.API.CONSUMER.INFO.ORDERS.billing",
    "$JS.API.CONSUMER.CREATE.ORDERS.billing.>",
    "$JS.API.CONSUMER.MSG.NEXT.ORDERS.billing",
    "$JS.ACK.>",
    "dead-letters.billing.>",
    "_INBOX.>",
];

/// A user with the documented rights, and for each right one without it.
fn with_documented_rights() -> NatsOptions {
    let options = NatsOptions::new().user("complete", &documented_rights(None));
    let users = NEEDED.iter().enumerate();
    users.fold(options, |options, (n, right)| {
        options.user(&format!("without{n}"), &documented_rights(Some(right)))
    })
}

/// A fresh `ORDERS`, with a message that somebody else stored, and a place for dead letters.
async fn orders(context: &Context) {
    for (name, subject) in [("ORDERS", "order.paid"), ("dead-letters", "dead-letters.>")] {
        if context.get_stream(name).await.is_ok() {
            context.delete_stream(name).await.unwrap();
        }
        let subjects = vec![subject.to_owned()];
        let config = Config { name: name.to_owned(), subjects, ..Config::default() };
        context.create_stream(config).await.unwrap();
    }
    context.publish("order.paid", "of another".into()).await.unwrap().await.unwrap();
}

/// Stores a message whose headers are no text, which no client would send.
fn put_unreadable(server: &Nats) -> std::io::Result<()> {
    let headers = b"NATS/1.0\r\nx: \xff\r\n\r\n";
    let login = r#"{"verbose":false,"headers":true,"user":"relevo","pass":"relevo"}"#;
    let length = headers.len();
    let begin = format!("CONNECT {login}\r\nHPUB order.paid {length} {length}\r\n");
    let mut socket = BufReader::new(TcpStream::connect(server.address())?);
    socket.get_mut().write_all(&[begin.as_bytes(), headers, b"\r\nPING\r\n"].concat())?;
    for line in socket.lines() {
        match line?.as_str() {
            "PONG" => return Ok(()),
            error if error.starts_with("-ERR") => {
                return Err(std::io::Error::other(error.to_owned()));
            }
            _ => {}
        }
    }
    Err(ErrorKind::UnexpectedEof.into())
}

/// Publishes, consumes, tries again and gives up; what of it does not work.
async fn whole_work(server: &Nats, user: &str) -> Result<(), String> {
    let config = as_user(server, user).ack_timeout(QUITE_SHORT);
    let publisher = NatsPublisher::new(config.clone());
    let confirms = publish(&publisher, &[event("order.paid", 1), event("order.lost", 2)]).await;
    let is_missing = |confirm: &Confirm| {
        matches!(confirm, Confirm::Refused { class: ErrorClass::Permanent, .. })
    };
    if confirms[0] != Confirm::Stored || !is_missing(&confirms[1]) {
        return Err(format!("{confirms:?}"));
    }
    let failed = |error: relevo_core::Error| error.to_string();
    let consumer = NatsConsumer::new("ORDERS", "billing").filter("order.paid");
    let consumer = consumer.heartbeat(QUITE_SHORT);
    let mut receiver = NatsSubscriber::new(config, consumer).open().await.map_err(failed)?;
    let dead = Settle::Dead { reason: "no paper".into() };
    let again = Settle::RetryAfter(Duration::from_millis(1));
    for settle in [Settle::Done, again, dead] {
        let message = one(&mut receiver).await?;
        receiver.settle(&[(message.tag, settle)]).await.map_err(failed)?;
    }
    put_unreadable(server).unwrap();
    loop {
        let message = one(&mut receiver).await?;
        receiver.settle(&[(message.tag, Settle::Done)]).await.map_err(failed)?;
        // A slow machine may get others once more.
        if message.payload.is_empty() {
            return receiver.close().await.map_err(failed);
        }
    }
}

async fn one(receiver: &mut Box<dyn Receiver>) -> Result<Incoming, String> {
    match receiver.next(1).await.map_err(|error| error.to_string())? {
        Received::Messages { mut messages, .. } => messages.pop().ok_or("no message".to_owned()),
        other => Err(format!("not a message: {other:?}")),
    }
}

#[tokio::test]
async fn the_documented_rights_are_enough_and_none_of_them_is_too_much() {
    let Some(server) = require(Nats::start_with(&with_documented_rights())) else { return };
    let context = jetstream(&server).await;
    orders(&context).await;
    assert_eq!(whole_work(&server, "complete").await, Ok(()));
    assert_eq!(stored(&context, "dead-letters").await, 1);
    for (n, right) in NEEDED.iter().enumerate() {
        orders(&context).await;
        let failed = whole_work(&server, &format!("without{n}")).await;
        assert!(failed.is_err(), "it works without {right}");
    }
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
        Ok(Received::Messages { messages, .. }) => messages,
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
