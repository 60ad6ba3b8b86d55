//! A consumer that is slower than its topic: what it does not take stays at the brokers.

use crate::{consumer, partition_of, publish, run, settle, start, topic};
use relevo_brokers::kafka::{KafkaConfig, KafkaPublisher, KafkaSubscriber};
use relevo_core::broker::{Confirm, Incoming, Received, Receiver, Subscriber};
use relevo_core::event::Event;
use relevo_testkit::PATIENCE;
use relevo_testkit::services::{Kafka, KafkaOptions, Proxy};
use std::collections::BTreeMap;
use std::time::Duration;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

const WINDOW: u64 = 2 * MIB;
/// Six times the window.
const PAYLOAD: usize = 4 << 10;
const EVENTS: usize = 3072;

/// What is not messages: the group's protocol, the topics' descriptions.
const TALK: u64 = 64 * KIB;
/// Headers of a message, its key and its frame.
const AROUND: u64 = KIB;

/// So long nothing may come before a client counts as being at rest; it looks again for room every 20 ms.
const REST: Duration = Duration::from_millis(700);

/// A case: a topic, and how much of it may be read ahead.
struct Case {
    partitions: usize,
    /// The largest batch in the topic.
    batch: usize,
    /// As docs/kafka.md has it.
    ahead: u64,
}

/// Bytes that nothing shrinks.
fn noise(seed: usize) -> Vec<u8> {
    let mut state = seed as u64 + 1;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    std::iter::repeat_with(&mut next).take(PAYLOAD).collect()
}

async fn fill(server: &Kafka, case: &Case, topic: &str) {
    let config =
        crate::config(server).max_message_bytes(case.batch).linger(Duration::from_millis(5));
    let publisher = KafkaPublisher::new(config);
    let event = |n: usize| crate::event(topic, &format!("k{}", n % 64), &noise(n));
    let events: Vec<Event> = (0..EVENTS).map(event).collect();
    let confirms = publish(&publisher, &events).await;
    assert!(confirms.iter().all(|confirm| *confirm == Confirm::Stored));
}

/// Waits until the brokers send nothing any more but small talk; all that they sent until then.
async fn at_rest(proxy: &Proxy) -> u64 {
    let resting = async {
        loop {
            let before = proxy.replied_bytes();
            tokio::time::sleep(REST).await;
            let after = proxy.replied_bytes();
            if after - before < 8 * KIB {
                return after;
            }
        }
    };
    tokio::time::timeout(PATIENCE, resting).await.expect("it stops to fetch")
}

/// Takes without settling until nothing comes.
async fn fill_window(receiver: &mut Box<dyn Receiver>) -> Vec<Incoming> {
    let mut held = Vec::new();
    while let Ok(next) = tokio::time::timeout(REST, receiver.next(50)).await {
        if let Received::Messages { messages, .. } = next.unwrap() {
            held.extend(messages);
        }
    }
    held
}

/// Everything that is left, settled as it comes, by partition.
async fn drain(
    receiver: &mut Box<dyn Receiver>,
    mut page: Vec<Incoming>,
) -> BTreeMap<i32, Vec<Incoming>> {
    let mut came: BTreeMap<i32, Vec<Incoming>> = BTreeMap::new();
    let mut count = 0;
    loop {
        settle(receiver, &page).await;
        count += page.len();
        for message in page.drain(..) {
            came.entry(partition_of(&message)).or_default().push(message);
        }
        if count >= EVENTS {
            return came;
        }
        let next = tokio::time::timeout(PATIENCE, receiver.next(100)).await;
        if let Received::Messages { messages, .. } = next.expect("more comes").unwrap() {
            page = messages;
        }
    }
}

fn assert_complete(came: &BTreeMap<i32, Vec<Incoming>>) {
    let mut payloads: Vec<&[u8]> = Vec::new();
    for (partition, messages) in came {
        let offset = |message: &Incoming| -> usize {
            message.position.as_deref().unwrap().rsplit_once('@').unwrap().1.parse().unwrap()
        };
        let offsets: Vec<usize> = messages.iter().map(offset).collect();
        assert_eq!(offsets, (0..messages.len()).collect::<Vec<_>>(), "partition {partition}");
        payloads.extend(messages.iter().map(|message| &message.payload[..]));
    }
    let mut expected: Vec<Vec<u8>> = (0..EVENTS).map(noise).collect();
    payloads.sort_unstable();
    expected.sort_unstable();
    assert!(payloads.iter().eq(expected.iter()), "each of them once, as it was");
}

async fn stand_still(server: &Kafka, case: &Case) {
    let topic = topic(server, case.partitions).await;
    fill(server, case, &topic).await;
    let proxy = server.proxy().unwrap();
    let before = proxy.replied_bytes();
    let url = format!("kafka://{}", server.proxied_bootstrap().unwrap());
    let wanted = consumer(&topic).window(1000, WINDOW as usize);
    let subscriber = KafkaSubscriber::new(KafkaConfig::to(&url).unwrap(), wanted);
    let mut receiver = subscriber.open().await.unwrap();
    let mut held = crate::take(&mut receiver, 3).await;
    let size = PAYLOAD as u64 + AROUND;
    let sent = at_rest(proxy).await - before;
    let most = case.ahead + 3 * size + TALK;
    println!("{} partitions: {} KiB of {} KiB ahead", case.partitions, sent / KIB, most / KIB);
    assert!(sent <= most, "{sent} bytes came, {most} are allowed");
    assert!(sent >= case.ahead / 4, "it reads ahead: {sent}");
    held.extend(fill_window(&mut receiver).await);
    let bytes: usize = held.iter().map(|message| message.payload.len()).sum();
    assert!(bytes as u64 <= WINDOW && bytes as u64 > WINDOW / 2, "{bytes} bytes held");
    let sent = at_rest(proxy).await - before;
    // A batch that a fetch cut off comes again with the next.
    let most = (case.ahead + held.len() as u64 * size) * 5 / 4 + TALK;
    assert!(sent <= most, "{sent} bytes came, {most} are allowed with {} held", held.len());
    assert_complete(&drain(&mut receiver, held).await);
    receiver.close().await.unwrap();
}

#[test]
fn a_consumer_that_stands_still_reads_no_more_ahead_than_the_page_says() {
    run(async || {
        let Some(server) = start(KafkaOptions::new().proxied()).await else { return };
        for case in [
            // A quarter of the window.
            Case { partitions: 1, batch: 10_000, ahead: WINDOW / 4 },
            // As much as the window for all together.
            Case { partitions: 8, batch: 10_000, ahead: WINDOW },
            // A batch comes as a whole.
            Case { partitions: 1, batch: 1_000_000, ahead: WINDOW / 8 + 1_000_000 },
        ] {
            stand_still(&server, &case).await;
        }
    });
}
