//! Partitions that go from one member to another.

use crate::{config, consumer, event, open, partition_of, run, settle, shared, store, take, topic};
use relevo_brokers::kafka::KafkaSubscriber;
use relevo_core::broker::{Incoming, Received};
use relevo_core::event::Event;
use relevo_testkit::{PATIENCE, eventually};
use std::collections::BTreeSet;
use std::time::Duration;

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
fn a_new_group_from_now_on_gets_what_comes_and_later_goes_on_where_it_was() {
    run(async || {
        let Some(server) = shared().await else { return };
        let topic = topic(&server, 1).await;
        let sent = |n: usize| event(&topic, "k", n.to_string().as_bytes());
        let number = |message: &Incoming| -> usize {
            String::from_utf8_lossy(&message.payload).parse().unwrap()
        };
        store(config(&server), &[sent(0), sent(1), sent(2)]).await;
        let newcomer = consumer(&topic).from_now();
        let mut receiver = open(config(&server), newcomer.clone()).await;
        // Nobody tells when it has joined: what comes until then is not for it.
        let (mut next, mut came) = (3, Vec::new());
        eventually("it gets what comes", async || {
            store(config(&server), &[sent(next)]).await;
            next += 1;
            let heard = tokio::time::timeout(Duration::from_millis(200), receiver.next(1)).await;
            let Received::Messages { messages, .. } = heard.ok()?.unwrap() else { return None };
            came.extend(messages);
            Some(())
        })
        .await;
        let first = number(&came[0]);
        assert!(first >= 3, "{first} was there before");
        store(config(&server), &[sent(next)]).await;
        came.extend(take(&mut receiver, next - first).await);
        let numbers: Vec<usize> = came.iter().map(number).collect();
        assert_eq!(numbers, (first..=next).collect::<Vec<_>>());
        settle(&mut receiver, &came).await;
        receiver.close().await.unwrap();
        store(config(&server), &[sent(next + 1)]).await;
        let mut receiver = open(config(&server), newcomer).await;
        assert_eq!(number(&take(&mut receiver, 1).await[0]), next + 1, "not new any more");
    });
}
