//! What is NATS' own beside the suite for brokers: streams, logins, TLS, order, topology, a cluster.
#![cfg(feature = "nats")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use async_nats::jetstream::Context;
use async_nats::jetstream::stream::{Config, RetentionPolicy};
use relevo_brokers::nats::{
    NatsAdmin, NatsConfig, NatsConsumer, NatsPublisher, NatsSubscriber, NatsTopology,
};
use relevo_core::broker::{
    Act, Confirm, Incoming, Publisher, Received, Receiver, Settle, Subscriber, Topology,
    dead_header,
};
use relevo_core::event::{Event, NewEvent};
use relevo_core::{ErrorClass, Kind};
use relevo_testkit::eventually;
use relevo_testkit::services::{
    Certificates, ClientCertificates, Nats, NatsLogin, NatsOptions, Proxy, require, unique_name,
};
use std::time::Duration;

fn event(topic: &str, n: usize) -> Event {
    let event = NewEvent::bytes(topic, format!("payload {n}").into_bytes()).key(format!("k-{n}"));
    Event::stored(event, chrono::Utc::now())
}

async fn publish(publisher: &NatsPublisher, events: &[Event]) -> Vec<Confirm> {
    publisher.publish(&events.iter().collect::<Vec<_>>()).await
}

fn class(confirm: &Confirm) -> Option<ErrorClass> {
    match confirm {
        Confirm::Refused { class, .. } => Some(*class),
        _ => None,
    }
}

async fn jetstream(server: &Nats) -> Context {
    let options =
        async_nats::ConnectOptions::with_user_and_password("relevo".into(), "relevo".into());
    async_nats::jetstream::new(options.connect(server.address().to_string()).await.unwrap())
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
        .heartbeat(Duration::from_secs(1))
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

fn text(message: &Incoming) -> String {
    String::from_utf8_lossy(&message.payload).into_owned()
}

#[tokio::test]
async fn a_confirm_means_the_stream_that_is_meant() {
    let Some(server) = require(Nats::shared()) else { return };
    let (context, name) = streams(&server).await;
    let topic = format!("{name}.a");
    let right = NatsConfig::to(&server.url()).unwrap().stream(name.as_str());
    let confirms = publish(&NatsPublisher::new(right.clone()), &[event(&topic, 1)]).await;
    assert_eq!(confirms, [Confirm::Stored]);
    let other = NatsPublisher::new(right.stream("ANOTHER"));
    let confirms = publish(&other, &[event(&topic, 2)]).await;
    assert_eq!(class(&confirms[0]), Some(ErrorClass::Permanent), "{confirms:?}");
    assert_eq!(stored(&context, &name).await, 1);
}

#[tokio::test]
async fn a_topic_that_is_no_subject_is_poison_and_commands_nothing() {
    let Some(server) = require(Nats::shared()) else { return };
    let (context, name) = streams(&server).await;
    let topic = format!("{name}.a");
    let publisher = NatsPublisher::new(NatsConfig::to(&server.url()).unwrap());
    let delete = format!("$JS.API.STREAM.DELETE.{name}");
    for hostile in [delete.as_str(), "_INBOX.x", "a b", "a..b", "a.*", ">", "a\r\nPUB b 0"] {
        let confirms = publish(&publisher, &[event(&topic, 1), event(hostile, 2)]).await;
        assert_eq!(confirms[0], Confirm::Stored, "beside {hostile}");
        assert_eq!(class(&confirms[1]), Some(ErrorClass::Poison), "{hostile}: {confirms:?}");
    }
    assert_eq!(stored(&context, &name).await, 7);
}

#[tokio::test]
async fn an_applications_header_purges_nothing() {
    let Some(server) = require(Nats::shared()) else { return };
    let (context, name) = (jetstream(&server).await, unique_name("T"));
    let config = Config {
        subjects: vec![format!("{name}.>")],
        name: name.clone(),
        allow_rollup: true,
        ..Config::default()
    };
    context.create_stream(config).await.unwrap();
    let topic = format!("{name}.a");
    let publisher = NatsPublisher::new(NatsConfig::to(&server.url()).unwrap());
    let hostile = NewEvent::bytes(&*topic, vec![]).header("Nats-Rollup", "all");
    let events = [event(&topic, 1), Event::stored(hostile, chrono::Utc::now())];
    assert_eq!(publish(&publisher, &events).await, [Confirm::Stored, Confirm::Stored]);
    assert_eq!(stored(&context, &name).await, 2);
    let mut receiver = open(&server, consumer(&name)).await;
    let came = next(&mut receiver, 2).await;
    let message = came.iter().find(|message| message.payload.is_empty()).unwrap();
    let arrived =
        message.event(&relevo_core::broker::cloudevents::Binding::NATS, &Default::default());
    assert_eq!(arrived.unwrap().event.headers.get("Nats-Rollup"), Some("all"));
}

#[tokio::test]
async fn nothing_is_sent_later_behind_the_publishers_back() {
    let Some(server) = require(Nats::shared()) else { return };
    let (context, name) = streams(&server).await;
    let proxy = Proxy::start(server.address()).unwrap();
    let topic = format!("{name}.a");
    let config = NatsConfig::to(&proxy.url(&server.url())).unwrap();
    let publisher = NatsPublisher::new(config.ack_timeout(Duration::from_secs(1)));
    assert_eq!(publish(&publisher, &[event(&topic, 1)]).await, [Confirm::Stored]);
    proxy.half_open();
    let silent = publish(&publisher, &[event(&topic, 2), event(&topic, 3)]).await;
    assert!(silent.iter().all(|c| matches!(c, Confirm::Unknown { .. })), "{silent:?}");
    proxy.refuse();
    let down = publish(&publisher, &[event(&topic, 4)]).await;
    assert!(matches!(down[..], [Confirm::Down { .. }]), "{down:?}");
    proxy.heal();
    let before = proxy.connections();
    assert_eq!(publish(&publisher, &[event(&topic, 5)]).await, [Confirm::Stored]);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(stored(&context, &name).await, 2, "only what was confirmed");
    assert_eq!(proxy.connections(), before + 1, "nobody else came back");
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
    let mut slow = NatsSubscriber::new(config, quick.clone()).open().await.unwrap();
    let held = next(&mut slow, 1).await;
    // Too slow to say that it is still there.
    proxy.delay(Duration::from_secs(4));
    let mut other = open(&server, quick).await;
    let again = next(&mut other, 1).await;
    other.settle(&[(again[0].tag, Settle::Done)]).await.unwrap();
    proxy.delay(Duration::ZERO);
    slow.settle(&[(held[0].tag, Settle::Done)]).await.unwrap();
}

#[tokio::test]
async fn every_login_works_and_a_wrong_one_is_named() {
    for login in [NatsLogin::Password, NatsLogin::Nkey, NatsLogin::Credentials] {
        let Some(server) = require(Nats::start_with(&NatsOptions::new().login(login))) else {
            return;
        };
        let config = NatsConfig::to(&server.url()).unwrap();
        let config = match (server.seed(), server.credentials_file()) {
            (Some(seed), _) => config.nkey(seed),
            (_, Some(file)) => config.credentials_file(file),
            _ => config,
        };
        let plan = |config: NatsConfig| async move {
            let topology =
                serde_json::from_str(r#"{"streams":{"L":{"subjects":["l.>"]}}}"#).unwrap();
            NatsAdmin::new(config, topology).apply(false).await
        };
        assert_eq!(plan(config.clone()).await.unwrap().steps[0].act, Act::Create, "{login:?}");
        let confirms = publish(&NatsPublisher::new(config), &[event("l.a", 1)]).await;
        assert_eq!(confirms, [Confirm::Stored], "{login:?}");
        let address = server.address();
        for wrong in [
            NatsConfig::to(&format!("nats://relevo:s3cret@{address}")).unwrap(),
            NatsConfig::to(&format!("nats://{address}")).unwrap().token("s3cret"),
            NatsConfig::to(&format!("nats://{address}")).unwrap(),
        ] {
            let error = plan(wrong).await.unwrap_err();
            assert_eq!(error.kind(), Kind::AuthenticationFailed, "{login:?}: {error}");
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }
}

#[tokio::test]
async fn a_broken_credentials_file_is_named_without_its_content() {
    let file = std::env::temp_dir().join(format!("{}.creds", unique_name("broken")));
    std::fs::write(&file, "-----BEGIN-----\ns3cret\n").unwrap();
    let config = NatsConfig::to("nats://127.0.0.1:1").unwrap().credentials_file(&file);
    let error = NatsAdmin::new(config, NatsTopology::default()).plan().await.unwrap_err();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(error.kind(), Kind::InvalidConfig);
    assert!(error.to_string().contains("broken") && !error.to_string().contains("s3cret"));
}

#[tokio::test]
async fn tls_believes_its_authority_and_shows_its_certificate() {
    let Some(certificates) = require(Certificates::shared()) else { return };
    let options = NatsOptions::new().tls(&certificates, ClientCertificates::Required);
    let Some(server) = require(Nats::start_with(&options)) else { return };
    let files = server.tls_files().unwrap();
    let config = NatsConfig::to(&server.url()).unwrap();
    let plan = |config: NatsConfig| async move {
        NatsAdmin::new(config, NatsTopology::default()).plan().await
    };
    let both =
        config.clone().authority(&files.ca).client_certificate(&files.certificate, &files.key);
    assert!(plan(both.clone()).await.unwrap().is_done());
    let no_certificate = plan(config.clone().authority(&files.ca)).await.unwrap_err();
    assert_eq!(no_certificate.kind(), Kind::DestinationDown, "{no_certificate}");
    let not_believed = plan(config.client_certificate(&files.certificate, &files.key)).await;
    let not_believed = not_believed.unwrap_err();
    assert!(not_believed.to_string().contains("certificate"), "{not_believed}");
    let no_file = plan(both.authority("/nowhere/ca.pem")).await.unwrap_err();
    assert_eq!(no_file.kind(), Kind::InvalidConfig);
    assert!(no_file.to_string().contains("/nowhere/ca.pem"), "{no_file}");
}

#[tokio::test]
async fn a_certificate_for_another_name_is_not_believed() {
    // Not for 127.0.0.1, which is the same server by another name.
    let Some(certificates) = require(Certificates::for_names(&["localhost"])) else { return };
    let options = NatsOptions::new().tls(&certificates, ClientCertificates::Required);
    let Some(server) = require(Nats::start_with(&options)) else { return };
    let files = server.tls_files().unwrap();
    let plan = |url: String| async move {
        let config = NatsConfig::to(&url).unwrap().authority(&files.ca);
        let config = config.client_certificate(&files.certificate, &files.key);
        NatsAdmin::new(config, NatsTopology::default()).plan().await
    };
    let by_address = server.url();
    assert!(by_address.contains("127.0.0.1"), "{by_address}");
    assert!(plan(by_address.replace("127.0.0.1", "localhost")).await.unwrap().is_done());
    let refused = plan(by_address).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::DestinationDown, "{refused}");
    assert!(refused.to_string().contains("certificate"), "{refused}");
}

fn topology(name: &str, more: &str) -> NatsTopology {
    let json = format!(
        r#"{{"dead_letters":"{name}_dead","streams":{{"{name}":{{"subjects":["{name}.>"]{more},
            "consumers":{{"worker":{{"filters":["{name}.a"],"ack_wait":"10s"}}}}}}}}}}"#
    );
    serde_json::from_str(&json).unwrap()
}

#[tokio::test]
async fn a_topology_is_applied_once_and_refuses_to_lose_messages() {
    let Some(server) = require(Nats::shared()) else { return };
    let (context, name) = (jetstream(&server).await, unique_name("T"));
    let config = NatsConfig::to(&server.url()).unwrap();
    let admin = |more: &str| NatsAdmin::new(config.clone(), topology(&name, more));
    let acts = |plan: &relevo_core::broker::Plan| {
        plan.steps.iter().map(|step| (step.what, step.act)).collect::<Vec<_>>()
    };
    let wanted = [("stream", Act::Create), ("consumer", Act::Create), ("stream", Act::Create)];
    assert_eq!(acts(&admin("").plan().await.unwrap()), wanted);
    assert_eq!(acts(&admin("").apply(false).await.unwrap()), wanted);
    assert!(admin("").plan().await.unwrap().is_done(), "{:?}", admin("").plan().await);
    assert!(admin("").apply(false).await.unwrap().is_done());
    let publisher = NatsPublisher::new(config.clone());
    let events: Vec<Event> = (0..5).map(|n| event(&format!("{name}.a"), n)).collect();
    assert_eq!(publish(&publisher, &events).await, vec![Confirm::Stored; 5]);

    let changed = admin(r#","max_messages":100,"duplicate_window":"1h","discard":"old""#);
    let plan = changed.apply(false).await.unwrap();
    assert_eq!(plan.steps[0].act, Act::Change, "{plan:?}");
    assert!(plan.steps[0].text.contains("max_messages is -1, wanted 100"), "{plan:?}");
    assert!(changed.plan().await.unwrap().is_done());

    for lossy in [r#","max_messages":2,"discard":"old""#, r#","retention":"work_queue""#] {
        let refused = admin(lossy).apply(false).await.unwrap_err();
        assert!(refused.to_string().contains("lose"), "{refused}");
        assert_eq!(stored(&context, &name).await, 5);
    }
    assert_eq!(
        admin(r#","retention":"work_queue""#).apply(true).await.unwrap().steps[0].act,
        Act::Replace
    );
    let info = context.get_stream(&name).await.unwrap();
    assert_eq!(info.cached_info().config.retention, RetentionPolicy::WorkQueue);
    assert!(admin(r#","retention":"work_queue""#).plan().await.unwrap().is_done());
    let subscriber = topology(&name, "").consumer(&name, "worker").unwrap();
    assert_eq!(subscriber.dead_letters, format!("{name}_dead"));
}

/// Of three servers the stream's leader is killed while events are counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_leader_loses_nothing_that_was_confirmed() {
    let Some(cluster) = require(Nats::cluster()) else { return };
    let urls = cluster.urls().join(",");
    let config = NatsConfig::to(&urls).unwrap().ack_timeout(Duration::from_secs(3));
    let topology: NatsTopology =
        serde_json::from_str(r#"{"streams":{"R":{"subjects":["r.>"]}}}"#).unwrap();
    eventually("the stream on three servers", async || {
        NatsAdmin::new(config.clone(), topology.clone()).apply(false).await.ok()
    })
    .await;
    let publisher = NatsPublisher::new(config.clone());
    let mut confirmed = std::collections::BTreeSet::new();
    let mut refused = Vec::new();
    let mut killed = None;
    let began = std::time::Instant::now();
    for batch in 0.. {
        assert!(began.elapsed() < Duration::from_secs(120), "{} confirmed", confirmed.len());
        let before = confirmed.len();
        let events: Vec<Event> = (0..20).map(|n| event("r.a", batch * 20 + n)).collect();
        for (event, confirm) in events.iter().zip(publish(&publisher, &events).await) {
            match confirm {
                Confirm::Stored => drop(confirmed.insert(event.id.to_string())),
                Confirm::Refused { error, .. } => refused.push(error),
                _ => {}
            }
        }
        if batch == 20 {
            let options = async_nats::ConnectOptions::with_user_and_password(
                "relevo".into(),
                "relevo".into(),
            );
            let client = options.connect(cluster[0].address().to_string()).await.unwrap();
            let stream = async_nats::jetstream::new(client).get_stream("R").await.unwrap();
            assert_eq!(stream.cached_info().config.num_replicas, 3);
            let leader = stream.cached_info().cluster.as_ref().unwrap().leader.clone().unwrap();
            let at = cluster.iter().position(|server| server.name() == leader).unwrap();
            cluster[at].kill9();
            killed = Some(confirmed.len());
        }
        if killed.is_some_and(|before| confirmed.len() > before + 400) {
            break;
        }
        if confirmed.len() == before {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    assert_eq!(refused, Vec::<String>::new(), "an election is no event's fault");
    let consumer = NatsConsumer::new("R", "counter").heartbeat(Duration::from_secs(1));
    let mut receiver = eventually("a receiver", async || {
        NatsSubscriber::new(config.clone(), consumer.clone()).open().await.ok()
    })
    .await;
    while !confirmed.is_empty() {
        let messages = next(&mut receiver, 200).await;
        for message in &messages {
            confirmed.remove(message.header("x-event-id").unwrap());
        }
        let done: Vec<_> = messages.iter().map(|m| (m.tag, Settle::Done)).collect();
        receiver.settle(&done).await.unwrap();
    }
}
