//! What is Kafka's own: partitions of keys, compression, limits of topics, groups, lag, logins, topology, and other
//! programs at the same topics.
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use relevo_brokers::kafka::{
    Compression, KafkaAdmin, KafkaConfig, KafkaConsumer, KafkaPublisher, KafkaSubscriber,
    KafkaTopology,
};
use relevo_core::broker::cloudevents::Binding;
use relevo_core::broker::{
    Act, Confirm, Foreign, Incoming, Publisher, Received, Receiver, Settle, Subscriber, Tag,
    Topology,
};
use relevo_core::event::{Event, NewEvent};
use relevo_core::{ErrorClass, Kind};
use relevo_testkit::services::{self, Certificates, Kafka, KafkaOptions, unique_name};
use relevo_testkit::{PATIENCE, eventually};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
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

/// Kafka's hash of a key, as its Java clients compute it.
fn murmur2(data: &[u8]) -> i32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c ^ data.len() as u32;
    let mut blocks = data.chunks_exact(4);
    for block in &mut blocks {
        let mut k = u32::from_le_bytes(block.try_into().unwrap()).wrapping_mul(M);
        k = (k ^ (k >> 24)).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ k;
    }
    let rest = blocks.remainder();
    for (at, byte) in rest.iter().enumerate().rev() {
        hash ^= u32::from(*byte) << (8 * at);
    }
    if !rest.is_empty() {
        hash = hash.wrapping_mul(M);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(M);
    (hash ^ (hash >> 15)) as i32
}

#[test]
fn the_hash_is_the_one_of_javas_own_tests() {
    for (text, hash) in [
        ("21", -973_932_308),
        ("foobar", -790_332_482),
        ("a-little-bit-long-string", -985_981_536),
        ("a-little-bit-longer-string", -1_486_304_829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
        ("abc", 479_470_107),
    ] {
        assert_eq!(murmur2(text.as_bytes()), hash, "{text}");
    }
}

#[test]
fn a_key_goes_to_the_partition_where_java_and_python_look_for_it() {
    run(async || {
        let Some(server) = shared().await else { return };
        let topic = topic(&server, 7).await;
        let keys = ["21", "foobar", "order-1", "order-2", "Straße 7", "😀", "x", "abc"];
        let keys = &keys[..];
        let events: Vec<Event> = keys.iter().map(|key| event(&topic, key, b"1")).collect();
        store(config(&server), &events).await;
        let mut receiver = open(config(&server), consumer(&topic)).await;
        let came = take(&mut receiver, keys.len()).await;
        let found: BTreeMap<String, i32> =
            came.iter().map(|m| (m.key.clone().unwrap(), partition_of(m))).collect();
        for key in keys {
            let java = (murmur2(key.as_bytes()) & 0x7fff_ffff) % 7;
            assert_eq!(found.get(*key), Some(&java), "{key}");
        }
        let bootstrap = server.bootstrap();
        let args = [&["partitions", &bootstrap, &topic], keys].concat();
        let Some(said) = python(&args) else { return };
        for line in said {
            let key = line[0].as_str().unwrap();
            assert_eq!(found.get(key).map(|n| json!(n)).as_ref(), Some(&line[1]), "{key}");
        }
    });
}

#[test]
fn every_compression_comes_back_as_it_was() {
    run(async || {
        let Some(server) = shared().await else { return };
        for compression in Compression::ALL {
            let topic = topic(&server, 1).await;
            let payload = vec![b'z'; 20_000];
            let events: Vec<Event> =
                (0..20).map(|n| event(&topic, &format!("k{n}"), &payload)).collect();
            store(config(&server).compression(compression), &events).await;
            let mut receiver = open(config(&server), consumer(&topic)).await;
            for message in take(&mut receiver, 20).await {
                assert_eq!(message.payload, payload, "{}", compression.as_str());
            }
            receiver.close().await.unwrap();
        }
    });
}

#[test]
fn a_topics_own_limit_poisons_one_message_and_none_of_its_batch() {
    run(async || {
        let Some(server) = shared().await else { return };
        let topic = topic_with(&server, json!({"max_message_bytes": 20_000})).await;
        let publisher = KafkaPublisher::new(config(&server).linger(Duration::from_millis(200)));
        for _ in 0..2 {
            let mut events: Vec<Event> =
                (0..9).map(|n| event(&topic, &format!("k{n}"), b"small")).collect();
            events.insert(4, event(&topic, "huge", &vec![b'x'; 30_000]));
            for (n, confirm) in publish(&publisher, &events).await.iter().enumerate() {
                let expected = (n == 4).then_some(ErrorClass::Poison);
                assert_eq!(class_of(confirm), expected, "{n}: {confirm:?}");
                assert!(expected.is_some() || *confirm == Confirm::Stored, "{n}: {confirm:?}");
            }
        }
    });
}

#[test]
fn a_topic_is_not_made_by_publishing_to_it() {
    run(async || {
        let makes = KafkaOptions::new().setting("auto.create.topics.enable", "true");
        let Some(server) = start(makes).await else { return };
        let publisher = KafkaPublisher::new(config(&server));
        let lost = unique_name("nobody");
        for _ in 0..2 {
            let confirms = publish(&publisher, &[event(&lost, "k", b"1")]).await;
            assert_eq!(class_of(&confirms[0]), Some(ErrorClass::Permanent), "{confirms:?}");
        }
        let subscriber = KafkaSubscriber::new(config(&server), consumer(&lost));
        let refused = subscriber.open().await.err().unwrap();
        assert!(refused.to_string().contains("is not there"), "{refused}");
    });
}

#[test]
fn what_nobody_answers_is_unknown_and_what_nobody_hears_is_down() {
    run(async || {
        let Some(server) = start(KafkaOptions::new().proxied()).await else { return };
        let topic = topic(&server, 1).await;
        let proxy = server.proxy().unwrap();
        let url = format!("kafka://{}", server.proxied_bootstrap().unwrap());
        let config = KafkaConfig::to(&url).unwrap();
        let config =
            config.ack_timeout(Duration::from_secs(2)).connect_timeout(Duration::from_secs(2));
        let publisher = KafkaPublisher::new(config);
        assert_eq!(publish(&publisher, &[event(&topic, "k", b"1")]).await, [Confirm::Stored]);
        proxy.lose_replies();
        let confirms = publish(&publisher, &[event(&topic, "k", b"2")]).await;
        assert!(matches!(confirms[..], [Confirm::Unknown { .. }]), "{confirms:?}");
        let confirms = publish(&publisher, &[event(&topic, "k", b"3")]).await;
        assert!(matches!(confirms[..], [Confirm::Down { .. }]), "{confirms:?}");
        proxy.heal();
        proxy.cut();
        let again = event(&topic, "k", b"2");
        eventually("it is published again", async || {
            let confirms = publish(&publisher, std::slice::from_ref(&again)).await;
            (confirms == [Confirm::Stored]).then_some(())
        })
        .await;
        let mut receiver = open(self::config(&server), consumer(&topic)).await;
        let first = take(&mut receiver, 2).await;
        assert_eq!((&first[0].payload[..], &first[1].payload[..]), (&b"1"[..], &b"2"[..]));
        settle(&mut receiver, &first).await;
        // It was stored: that is why nobody could call it refused.
        assert_eq!(take(&mut receiver, 1).await[0].payload[..], b"2"[..]);
    });
}

#[test]
fn a_partition_goes_when_its_work_is_settled_and_nothing_is_done_twice() {
    run(async || {
        let Some(server) = shared().await else { return };
        let topic = topic(&server, 4).await;
        let events: Vec<Event> =
            (0..40).map(|n| event(&topic, &format!("k{n}"), n.to_string().as_bytes())).collect();
        store(config(&server), &events).await;
        let mut first = open(config(&server), consumer(&topic)).await;
        let held = take(&mut first, 40).await;
        let mut second = open(config(&server), consumer(&topic)).await;
        // Two partitions are to go, and wait for their work.
        let early = tokio::time::timeout(Duration::from_secs(2), second.next(10)).await;
        assert!(early.is_err(), "handed over while somebody works on it: {early:?}");
        settle(&mut first, &held).await;
        let mut revoked = BTreeSet::new();
        while revoked.len() < 2 {
            let next = tokio::time::timeout(PATIENCE, first.next(10)).await;
            match next.expect("a partition goes").unwrap() {
                Received::Revoked(source) => drop(revoked.insert(source)),
                other => panic!("settled already: {other:?}"),
            }
        }
        settle(&mut first, &held).await;
        let more: Vec<Event> =
            (40..80).map(|n| event(&topic, &format!("k{n}"), n.to_string().as_bytes())).collect();
        store(config(&server), &more).await;
        let mut came: Vec<String> = Vec::new();
        let mut shares = [0, 0];
        while came.len() < 40 {
            for (receiver, share) in [&mut first, &mut second].into_iter().zip(&mut shares) {
                let next =
                    tokio::time::timeout(Duration::from_millis(200), receiver.next(50)).await;
                let Ok(Ok(Received::Messages { messages, .. })) = next else { continue };
                settle(receiver, &messages).await;
                *share += messages.len();
                came.extend(
                    messages.iter().map(|m| String::from_utf8_lossy(&m.payload).into_owned()),
                );
            }
        }
        came.sort_by_key(|text| text.parse::<u32>().unwrap());
        let expected: Vec<String> = (40..80).map(|n| n.to_string()).collect();
        assert_eq!(came, expected);
        assert!(shares.iter().all(|share| *share > 0), "{shares:?}");
    });
}

#[test]
fn work_that_takes_too_long_is_taken_away_and_settling_it_then_does_nothing() {
    run(async || {
        let Some(server) = shared().await else { return };
        let topic = topic(&server, 2).await;
        let events: Vec<Event> = (0..20).map(|n| event(&topic, &format!("k{n}"), b"x")).collect();
        store(config(&server), &events).await;
        let slow = consumer(&topic).handover(Duration::from_millis(300));
        let mut first = open(config(&server), slow.clone()).await;
        let held = take(&mut first, 20).await;
        let mut second = open(config(&server), slow).await;
        let taken = take(&mut second, 1).await;
        let revoked = partition_of(&taken[0]);
        let (gone, kept): (Vec<_>, Vec<_>) =
            held.into_iter().partition(|message| partition_of(message) == revoked);
        // Not the broker's any more, whatever is said of it.
        settle(&mut first, &gone).await;
        settle(&mut first, &kept).await;
        let rest = take(&mut second, gone.len() - 1).await;
        assert!(rest.iter().all(|message| partition_of(message) == revoked));
        settle(&mut second, &taken).await;
        settle(&mut second, &rest).await;
        let group = KafkaSubscriber::new(config(&server), consumer(&topic));
        let lag: u64 = group.lag().await.unwrap().iter().map(|partition| partition.lag).sum();
        assert_eq!(lag, 0);
    });
}

#[test]
fn lag_is_told_for_each_partition() {
    run(async || {
        let Some(server) = shared().await else { return };
        let topic = topic(&server, 2).await;
        let group = KafkaSubscriber::new(config(&server), consumer(&topic));
        let none = group.lag().await.unwrap();
        assert!(none.iter().all(|p| p.lag == 0 && p.committed.is_none()) && none.len() == 2);
        let events: Vec<Event> = (0..30).map(|n| event(&topic, &format!("k{n}"), b"x")).collect();
        store(config(&server), &events).await;
        let mut receiver = group.open().await.unwrap();
        let messages = take(&mut receiver, 30).await;
        let settled = &messages[..10];
        settle(&mut receiver, settled).await;
        let lags = group.lag().await.unwrap();
        assert_eq!(lags.iter().map(|partition| partition.lag).sum::<u64>(), 20);
        let of_first = settled.iter().filter(|message| partition_of(message) == 0).count() as i64;
        let end = lags[0].end;
        assert_eq!(lags[0].lag as i64, end - of_first, "{lags:?}");
    });
}

#[test]
fn passwords_and_certificates_let_in_and_nothing_else_does() {
    run(async || {
        let certificates = Certificates::shared().unwrap();
        let Some(server) = start(KafkaOptions::new().tls(&certificates)).await else { return };
        let topic = topic(&server, 1).await;
        let files = server.tls_files().unwrap();
        let short = Duration::from_secs(5);
        let scram = |password: &str| {
            let url = format!("kafkas://relevo:{password}@{}", server.scram_bootstrap().unwrap());
            KafkaConfig::to(&url).unwrap().authority(&files.ca).connect_timeout(short)
        };
        let bare = KafkaConfig::to(&format!("kafkas://{}", server.mtls_bootstrap().unwrap()));
        let bare = bare.unwrap().authority(&files.ca).connect_timeout(short);
        let mtls = bare.clone().client_certificate(&files.certificate, &files.key);
        for (number, good) in [scram("relevo"), mtls].into_iter().enumerate() {
            let payload = number.to_string();
            store(good.clone(), &[event(&topic, "k", payload.as_bytes())]).await;
            let mut receiver = open(good, consumer(&topic)).await;
            let came = take(&mut receiver, 1).await;
            assert_eq!(came[0].payload, payload);
            settle(&mut receiver, &came).await;
            receiver.close().await.unwrap();
        }
        let strange = scram("relevo").authority("/etc/hostname");
        for bad in [scram("wr0ng"), bare, strange] {
            let confirms =
                publish(&KafkaPublisher::new(bad.clone()), &[event(&topic, "k", b"x")]).await;
            let [Confirm::Down { error }] = &confirms[..] else { panic!("{confirms:?}") };
            assert!(!error.contains("wr0ng"), "{error}");
            let error = KafkaSubscriber::new(bad, consumer(&topic)).open().await.err().unwrap();
            assert!(!error.to_string().contains("wr0ng"), "{error}");
        }
    });
}

#[test]
fn a_certificate_for_another_name_is_not_believed() {
    run(async || {
        // The brokers are known as 127.0.0.1; with a certificate for that the case above gets in the same way.
        let certificates = Certificates::for_names(&["kafka.example.org"]).unwrap();
        let Some(server) = start(KafkaOptions::new().tls(&certificates)).await else { return };
        let topic = topic(&server, 1).await;
        let files = server.tls_files().unwrap();
        let bad = KafkaConfig::to(&format!("kafkas://{}", server.mtls_bootstrap().unwrap()));
        let bad = bad.unwrap().authority(&files.ca).connect_timeout(Duration::from_secs(10));
        let bad = bad.client_certificate(&files.certificate, &files.key);
        let confirms =
            publish(&KafkaPublisher::new(bad.clone()), &[event(&topic, "k", b"x")]).await;
        assert!(matches!(&confirms[..], [Confirm::Down { .. }]), "{confirms:?}");
        let refused = KafkaSubscriber::new(bad, consumer(&topic)).open().await.err().unwrap();
        assert_eq!(refused.kind(), Kind::DestinationDown, "{refused}");
    });
}

#[test]
fn what_is_compressed_takes_less_room_on_the_brokers_disk() {
    run(async || {
        let Some(server) = shared().await else { return };
        let mut sizes = BTreeMap::new();
        for compression in Compression::ALL {
            let topic = topic(&server, 1).await;
            let events: Vec<Event> =
                (0..20).map(|n| event(&topic, &format!("k{n}"), &[b'z'; 20_000])).collect();
            store(config(&server).compression(compression), &events).await;
            let segment = server.data_folder().join(format!("{topic}-0/{:020}.log", 0));
            sizes.insert(compression.as_str(), std::fs::metadata(&segment).unwrap().len());
        }
        let plain = sizes.remove(Compression::None.as_str()).unwrap();
        assert!(plain > 400_000, "{plain}");
        assert!(!sizes.is_empty() && sizes.values().all(|size| size * 5 < plain), "{sizes:?}");
    });
}

/// The value of a metric whose line has these texts.
fn shown(metrics: &PrometheusHandle, texts: &[&str]) -> Option<f64> {
    let page = metrics.render();
    let mut lines = page.lines().filter(|line| !line.starts_with('#'));
    let line = lines.find(|line| texts.iter().all(|text| line.contains(text)))?;
    line.rsplit(' ').next()?.parse().ok()
}

#[test]
fn lag_is_shown_by_partition_and_shrinks_with_what_is_settled() {
    run(async || {
        let Some(server) = shared().await else { return };
        // The only recorder of this process.
        let metrics = PrometheusBuilder::new().install_recorder().unwrap();
        let topic = topic(&server, 1).await;
        let events: Vec<Event> = (0..9).map(|_| event(&topic, "k", b"x")).collect();
        store(config(&server), &events).await;
        let consumer = consumer(&topic);
        let source = format!("source=\"{topic}/0\"");
        let lag = async |wanted: f64| {
            eventually(&format!("a lag of {wanted}"), async || {
                let lag = shown(&metrics, &["relevo_source_lag", &source])?;
                (lag == wanted).then_some(())
            })
            .await
        };
        let mut receiver = open(config(&server), consumer).await;
        let came = take(&mut receiver, 9).await;
        lag(9.0).await;
        settle(&mut receiver, &came[..5]).await;
        lag(4.0).await;
        settle(&mut receiver, &came[5..]).await;
        lag(0.0).await;
        receiver.close().await.unwrap();
    });
}

#[test]
fn topics_are_made_changed_and_only_by_force_replaced() {
    run(async || {
        let Some(server) = shared().await else { return };
        let (name, dead) = (unique_name("t"), unique_name("dead"));
        let admin = |like: Value| {
            let wanted = json!({"topics": {name.as_str(): like}, "dead_letters": dead.as_str()});
            KafkaAdmin::new(config(&server), topology(wanted))
        };
        let acts = async |admin: &KafkaAdmin| {
            let plan = admin.plan().await.unwrap();
            let of = |wanted: &str| plan.steps.iter().find(|step| step.name == wanted).unwrap().act;
            (of(&name), of(&dead))
        };
        let first = admin(
            json!({"partitions": 2, "retention": "7d", "config": {"segment.bytes": "1048576"}}),
        );
        assert_eq!(acts(&first).await, (Act::Create, Act::Create));
        first.apply(false).await.unwrap();
        eventually("both are there", async || {
            (acts(&first).await == (Act::Ok, Act::Ok)).then_some(())
        })
        .await;
        assert!(first.apply(false).await.unwrap().is_done());
        let events: Vec<Event> = (0..10).map(|n| event(&name, &format!("k{n}"), b"x")).collect();
        store(config(&server), &events).await;
        // More partitions and longer retention lose nothing, and what is not named stays.
        let more = admin(json!({"partitions": 3, "retention": "forever"}));
        assert_eq!(acts(&more).await, (Act::Change, Act::Ok));
        more.apply(false).await.unwrap();
        eventually("it is changed", async || (acts(&more).await.0 == Act::Ok).then_some(())).await;
        let kept = admin(json!({"partitions": 3, "config": {"segment.bytes": "1048576"}}));
        assert_eq!(acts(&kept).await.0, Act::Ok);
        for lossy in [json!({"partitions": 1}), json!({"partitions": 3, "retention": "1h"})] {
            let lossy = admin(lossy);
            assert_eq!(acts(&lossy).await.0, Act::Replace);
            let refused = lossy.apply(false).await.unwrap_err();
            assert!(refused.to_string().contains(&name), "{refused}");
        }
        let fewer = admin(json!({"partitions": 1}));
        fewer.apply(true).await.unwrap();
        eventually("it is replaced", async || (acts(&fewer).await.0 == Act::Ok).then_some(()))
            .await;
        let publisher = KafkaPublisher::new(config(&server));
        eventually("the new one takes events", async || {
            let confirms = publish(&publisher, &events[..1]).await;
            (confirms == [Confirm::Stored]).then_some(())
        })
        .await;
    });
}

#[test]
fn the_cloudevents_sdk_reads_what_is_published_and_writes_what_is_consumed() {
    run(async || {
        let Some(server) = shared().await else { return };
        let topic = topic(&server, 3).await;
        let new = NewEvent::json(&topic, &json!({"title": "año ñandú 🦀"}))
            .unwrap()
            .key("Straße 7")
            .event_type("ticket.created.v2")
            .tenant("acme")
            .correlation_id("flow-1")
            .header("source", "/shop")
            .header("time", "2026-01-02T03:04:05.678Z")
            .header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
        let event = Event::stored(new, chrono::Utc::now());
        store(config(&server), std::slice::from_ref(&event)).await;
        let bootstrap = server.bootstrap();
        let Some(said) = python(&["read", &bootstrap, &topic, "1"]) else { return };
        let (seen, id) = (&said[0], event.id.to_string());
        for (name, value) in [
            ("specversion", "1.0"),
            ("id", id.as_str()),
            ("source", "/shop"),
            ("type", "ticket.created.v2"),
            ("subject", "Straße 7"),
            ("partitionkey", "Straße 7"),
            ("datacontenttype", "application/json"),
            ("tenant", "acme"),
            ("correlationid", "flow-1"),
        ] {
            assert_eq!(seen["attributes"][name], value, "{seen}");
        }
        assert_eq!(seen["time"], "2026-01-02T03:04:05.678000+00:00");
        assert_eq!(
            (&seen["data"], &seen["key"]),
            (&json!({"title": "año ñandú 🦀"}), &json!("Straße 7"))
        );
        for (name, value) in [("x-event-id", id.as_str()), ("x-correlation-id", "flow-1")] {
            assert_eq!(seen["headers"][name], value, "{seen}");
        }
        let mut receiver = open(config(&server), consumer(&topic)).await;
        python(&["write", &bootstrap, &topic]);
        let messages = eventually_foreign(&mut receiver, &id).await;
        let arrived = messages.event(&Binding::KAFKA, &Foreign::default()).unwrap();
        assert_eq!((arrived.source.as_str(), arrived.id.as_str()), ("/python", "py-1"));
        assert_eq!(arrived.event.key.as_deref(), Some("t-7"));
        assert_eq!(arrived.event.event_type(), "ticket.closed");
        assert_eq!(arrived.event.content_type(), "application/json");
        assert_eq!(arrived.event.json::<Value>().unwrap()["title"], "año ñandú 🦀");
    });
}

/// The first message that is not ours.
async fn eventually_foreign(receiver: &mut Box<dyn Receiver>, own: &str) -> Incoming {
    loop {
        let message = take(receiver, 1).await.remove(0);
        if message.header("x-event-id") != Some(own) {
            return message;
        }
    }
}
