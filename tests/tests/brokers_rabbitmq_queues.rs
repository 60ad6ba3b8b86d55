//! What RabbitMQ's queues do by themselves, made by a topology: limits, time, order among several consumers.
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

use relevo_brokers::rabbitmq::topology::{RabbitMqAdmin, RabbitMqTopology};
use relevo_brokers::rabbitmq::{RabbitMqConfig, RabbitMqPublisher, RabbitMqSubscriber};
use relevo_core::ErrorClass;
use relevo_core::broker::{
    Confirm, Incoming, Publisher, Received, Receiver, Settle, Subscriber, Topology,
};
use relevo_core::event::{Event, NewEvent};
use relevo_testkit::services::{self, RabbitMq};
use relevo_testkit::{PATIENCE, eventually};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Longer than a message takes that comes at all, if it may.
const QUIET: Duration = Duration::from_millis(500);

fn run(work: impl AsyncFnOnce()) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.unwrap().block_on(work());
}

/// How queues store: on a majority of the nodes, or on one.
const KINDS: [&str; 2] = ["quorum", "classic"];

/// A virtual host of its own with these queues, which get what is published to `events`.
async fn with_queues(exchange: &str, queues: Value) -> Option<RabbitMqConfig> {
    let started = tokio::task::spawn_blocking(RabbitMq::shared).await.unwrap();
    let server = services::require(started)?;
    let config = RabbitMqConfig::to(&server.fresh_vhost().unwrap()).unwrap().exchange("events");
    let wanted = json!({"exchanges": {"events": {"kind": exchange}}, "queues": queues});
    let wanted: RabbitMqTopology = serde_json::from_value(wanted).unwrap();
    let admin = RabbitMqAdmin::new(config.clone(), &wanted);
    let admin = admin.management_port(server.management().port());
    admin.apply(false).await.unwrap();
    Some(config)
}

fn event(key: &str, n: usize) -> Event {
    let event = NewEvent::bytes("jobs.made", n.to_string()).key(key);
    Event::stored(event, chrono::Utc::now())
}

async fn publish(publisher: &RabbitMqPublisher, event: &Event) -> Confirm {
    publisher.publish(&[event]).await.remove(0)
}

async fn one(receiver: &mut Box<dyn Receiver>) -> Incoming {
    let next = tokio::time::timeout(PATIENCE, receiver.next(1)).await;
    match next.expect("a message comes").unwrap() {
        Received::Messages { mut messages, .. } => messages.remove(0),
        other => panic!("{other:?}"),
    }
}

async fn is_quiet(receiver: &mut Box<dyn Receiver>) -> bool {
    tokio::time::timeout(QUIET, receiver.next(1)).await.is_err()
}

async fn done(receiver: &mut Box<dyn Receiver>, message: &Incoming) {
    receiver.settle(&[(message.tag, Settle::Done)]).await.unwrap();
}

fn number(message: &Incoming) -> usize {
    std::str::from_utf8(&message.payload).unwrap().parse().unwrap()
}

#[test]
fn what_waited_longer_than_its_time_is_a_dead_letter() {
    run(async || {
        for kind in KINDS {
            let queue = json!({"kind": kind, "bind": {"events": ["jobs.#"]},
                "message_ttl": "300ms", "dead_letters": "dead"});
            let Some(config) = with_queues("topic", json!({"jobs": queue})).await else { return };
            let sent = event("k", 1);
            let publisher = RabbitMqPublisher::new(config.clone());
            assert_eq!(publish(&publisher, &sent).await, Confirm::Stored);
            let subscriber = RabbitMqSubscriber::new(config, "jobs.dead");
            let letter = one(&mut subscriber.open().await.unwrap()).await;
            assert_eq!(letter.message_id, Some(sent.id.to_string()), "{kind}");
            assert_eq!(letter.payload, sent.payload);
            assert_eq!(letter.header("x-first-death-reason"), Some("expired"), "{kind}");
            assert_eq!(letter.header("x-first-death-queue"), Some("jobs"));
        }
    });
}

#[test]
fn a_queue_of_bounded_length_refuses_more_until_there_is_room() {
    run(async || {
        for kind in KINDS {
            for limit in ["max_length", "max_length_bytes"] {
                let queue = json!({"kind": kind, "bind": {"events": ["jobs.#"]}, limit: 3});
                let Some(config) = with_queues("topic", json!({"jobs": queue})).await else {
                    return;
                };
                refuses_until_there_is_room(config, &format!("{kind} {limit}")).await;
            }
        }
    });
}

async fn refuses_until_there_is_room(config: RabbitMqConfig, queue: &str) {
    let publisher = RabbitMqPublisher::new(config.clone());
    let mut stored = 0;
    // A quorum queue lets a few more in before it notices.
    let refused = loop {
        match publish(&publisher, &event("k", stored)).await {
            Confirm::Stored => stored += 1,
            refused => break refused,
        }
        assert!(stored < 100, "{queue}: it takes everything");
    };
    let transient = matches!(refused, Confirm::Refused { class: ErrorClass::Transient, .. });
    assert!(transient && stored >= 3, "{queue}: {refused:?} after {stored}");
    let mut receiver = RabbitMqSubscriber::new(config, "jobs").open().await.unwrap();
    for expected in 0..stored {
        let message = one(&mut receiver).await;
        assert_eq!(number(&message), expected, "{queue}");
        done(&mut receiver, &message).await;
    }
    eventually("room", async || {
        (publish(&publisher, &event("k", stored)).await == Confirm::Stored).then_some(())
    })
    .await;
}

/// Two consumers of one queue with two messages of a key in it, neither of which is settled.
async fn two_consumers(kind: &str, single_active: bool) -> Option<[Box<dyn Receiver>; 2]> {
    let queue = json!({"kind": kind, "bind": {"events": ["jobs.#"]},
        "single_active_consumer": single_active});
    let config = with_queues("topic", json!({"jobs": queue})).await?;
    let subscriber = RabbitMqSubscriber::new(config.clone(), "jobs").prefetch(1);
    let receivers = [subscriber.open().await.unwrap(), subscriber.open().await.unwrap()];
    let publisher = RabbitMqPublisher::new(config);
    for n in 0..2 {
        assert_eq!(publish(&publisher, &event("k", n)).await, Confirm::Stored);
    }
    Some(receivers)
}

#[test]
fn consumers_of_one_queue_overtake_each_other_unless_one_is_active_at_a_time() {
    run(async || {
        for kind in KINDS {
            let Some([mut first, mut second]) = two_consumers(kind, false).await else { return };
            let mut at_once = [number(&one(&mut first).await), number(&one(&mut second).await)];
            at_once.sort_unstable();
            assert_eq!(at_once, [0, 1], "{kind}: the later one may end first");
            let Some([mut first, mut second]) = two_consumers(kind, true).await else { return };
            let (held, other) = tokio::select! {
                held = one(&mut first) => (held, &mut second),
                held = one(&mut second) => (held, &mut first),
            };
            assert_eq!(number(&held), 0);
            assert!(is_quiet(other).await, "{kind}: two have work though one is to be active");
        }
    });
}

#[test]
fn queues_by_hash_keep_the_order_of_every_key() {
    run(async || {
        let queue = json!({"bind": {"events": ["1"]}});
        let queues = json!({"jobs.1": queue, "jobs.2": queue});
        let Some(config) = with_queues("hash", queues).await else { return };
        let publisher = RabbitMqPublisher::new(config.clone());
        for n in 0..COUNT {
            let event = event(&format!("key-{}", n % KEYS), n);
            assert_eq!(publish(&publisher, &event).await, Confirm::Stored);
        }
        let keys = places_of_keys(RabbitMqSubscriber::new(config, "jobs.1").queue("jobs.2")).await;
        for (key, places) in &keys {
            let queues: BTreeSet<&str> = places.iter().map(|(queue, _)| queue.as_str()).collect();
            assert_eq!(queues.len(), 1, "{key} is in two queues: {places:?}");
            assert!(places.is_sorted(), "{key} is out of order: {places:?}");
            assert_eq!(places.len(), COUNT / KEYS, "{key}: {places:?}");
        }
        let used: BTreeSet<&str> = keys.values().map(|places| places[0].0.as_str()).collect();
        assert_eq!(used.len(), 2, "twelve keys in one of two queues");
    });
}

/// A consumer at work, one message after the other, until it is told to leave. Then it has another message in hand.
async fn work(
    name: &'static str,
    mut receiver: Box<dyn Receiver>,
    leave: Arc<AtomicBool>,
    log: Arc<Mutex<Vec<Worked>>>,
) {
    loop {
        let next = tokio::time::timeout(QUIET, receiver.next(1)).await;
        if leave.load(Ordering::SeqCst) {
            return;
        }
        let Ok(received) = next else { continue };
        let Received::Messages { messages, .. } = received.unwrap() else { continue };
        // Whoever else has one of its key at the same time is seen.
        tokio::task::yield_now().await;
        let key = messages[0].header("cloudEvents_partitionkey").unwrap().to_owned();
        log.lock().unwrap().push(Worked { by: name, key, number: number(&messages[0]) });
        done(&mut receiver, &messages[0]).await;
    }
}

struct Worked {
    by: &'static str,
    key: String,
    number: usize,
}

/// First copies of each key in their order, and nothing is missing.
fn assert_in_order(log: &[Worked]) {
    for key in (0..KEYS).map(|key| format!("key-{key}")) {
        let mut seen = BTreeSet::new();
        let of_key = log.iter().filter(|worked| worked.key == key).map(|worked| worked.number);
        let first: Vec<usize> = of_key.filter(|number| seen.insert(*number)).collect();
        assert!(first.is_sorted() && first.len() == COUNT / KEYS, "{key}: {first:?}");
    }
}

#[test]
fn consumers_of_queues_by_hash_share_the_work_and_one_that_stands_by_takes_over() {
    run(async || {
        let queue = json!({"bind": {"events": ["1"]}, "single_active_consumer": true});
        let queues = json!({"jobs.1": queue, "jobs.2": queue});
        let Some(config) = with_queues("hash", queues).await else { return };
        let subscriber = |queue: &str| RabbitMqSubscriber::new(config.clone(), queue).prefetch(5);
        let log = Arc::new(Mutex::new(Vec::new()));
        let leaves: [Arc<AtomicBool>; 3] = Default::default();
        let at_work = |name, receiver, leave: &Arc<AtomicBool>| {
            tokio::spawn(work(name, receiver, leave.clone(), log.clone()))
        };
        let open = async |subscriber: RabbitMqSubscriber| subscriber.open().await.unwrap();
        let first = at_work("first", open(subscriber("jobs.1")).await, &leaves[0]);
        let second = at_work("second", open(subscriber("jobs.2")).await, &leaves[1]);
        // It comes last: both queues have their consumer.
        let both = subscriber("jobs.1").queue("jobs.2");
        let third = at_work("third", open(both).await, &leaves[2]);
        let publisher = RabbitMqPublisher::new(config.clone());
        let mut first = Some(first);
        for n in 0..COUNT {
            let event = event(&format!("key-{}", n % KEYS), n);
            assert_eq!(publish(&publisher, &event).await, Confirm::Stored);
            if n == COUNT / 2 {
                shares(&log, &["first", "second"]).await;
                assert!(log.lock().unwrap().iter().all(|it| it.by != "third"), "it stands by");
                leaves[0].store(true, Ordering::SeqCst);
                first.take().unwrap().await.unwrap();
            }
        }
        shares(&log, &["first", "second", "third"]).await;
        eventually("all of it", async || {
            let log = log.lock().unwrap();
            let distinct: BTreeSet<usize> = log.iter().map(|worked| worked.number).collect();
            (distinct.len() == COUNT).then_some(())
        })
        .await;
        leaves.iter().for_each(|leave| leave.store(true, Ordering::SeqCst));
        second.await.unwrap();
        third.await.unwrap();
        assert_in_order(&log.lock().unwrap());
    });
}

/// Each of them has worked.
async fn shares(log: &Mutex<Vec<Worked>>, names: &[&str]) {
    eventually(&format!("shares of {names:?}"), async || {
        let log = log.lock().unwrap();
        names.iter().all(|name| log.iter().any(|worked| worked.by == *name)).then_some(())
    })
    .await;
}

const COUNT: usize = 120;
const KEYS: usize = 12;

/// By key, the queues of its messages and their numbers, as they came.
async fn places_of_keys(subscriber: RabbitMqSubscriber) -> BTreeMap<String, Vec<(String, usize)>> {
    let mut receiver = subscriber.open().await.unwrap();
    let mut keys: BTreeMap<String, Vec<(String, usize)>> = BTreeMap::new();
    for _ in 0..COUNT {
        let next = tokio::time::timeout(PATIENCE, receiver.next(1)).await;
        let Received::Messages { source, messages } = next.expect("a message comes").unwrap()
        else {
            panic!("a queue was taken away")
        };
        let key = messages[0].header("cloudEvents_partitionkey").unwrap().to_owned();
        keys.entry(key).or_default().push((source.to_string(), number(&messages[0])));
        done(&mut receiver, &messages[0]).await;
    }
    keys
}
