//! Compression, limits of topics, answers that do not come.

use crate::{
    class_of, config, consumer, event, open, publish, run, settle, shared, start, store, take,
    topic, topic_with,
};
use relevo_brokers::kafka::{Compression, KafkaConfig, KafkaPublisher, KafkaSubscriber};
use relevo_core::ErrorClass;
use relevo_core::broker::{Confirm, Subscriber};
use relevo_core::event::Event;
use relevo_testkit::eventually;
use relevo_testkit::services::{KafkaOptions, unique_name};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

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

/// How the batches of a segment are compressed, by Kafka's numbers: the last three bits of a batch's attributes.
fn codecs(segment: &[u8]) -> BTreeSet<u8> {
    let (mut codecs, mut rest) = (BTreeSet::new(), segment);
    while rest.len() > 22 {
        codecs.insert(rest[22] & 7);
        let length = u32::from_be_bytes(rest[8..12].try_into().unwrap());
        rest = rest.get(12 + length as usize..).unwrap_or_default();
    }
    codecs
}

fn number_of(compression: Compression) -> u8 {
    match compression {
        Compression::None => 0,
        Compression::Snappy => 2,
        Compression::Lz4 => 3,
        Compression::Zstd => 4,
        other => panic!("what is {other:?}?"),
    }
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
            let stored = std::fs::read(&segment).unwrap();
            assert_eq!(
                codecs(&stored),
                BTreeSet::from([number_of(compression)]),
                "{compression:?}"
            );
            sizes.insert(compression.as_str(), stored.len());
        }
        let plain = sizes.remove(Compression::None.as_str()).unwrap();
        assert!(plain > 400_000, "{plain}");
        assert!(!sizes.is_empty() && sizes.values().all(|size| size * 5 < plain), "{sizes:?}");
    });
}

#[test]
fn a_topics_own_limit_poisons_one_message_and_none_of_its_batch() {
    run(async || {
        let Some(server) = shared().await else { return };
        let topic = topic_with(&server, json!({"max_message_bytes": 20_000})).await;
        let publisher = KafkaPublisher::new(config(&server).linger(Duration::from_millis(200)));
        let mut stored = Vec::new();
        for _ in 0..2 {
            let mut events: Vec<Event> =
                (0..9).map(|n| event(&topic, &format!("k{n}"), b"small")).collect();
            events.insert(4, event(&topic, "huge", &vec![b'x'; 30_000]));
            for (n, confirm) in publish(&publisher, &events).await.iter().enumerate() {
                let expected = (n == 4).then_some(ErrorClass::Poison);
                assert_eq!(class_of(confirm), expected, "{n}: {confirm:?}");
                assert!(expected.is_some() || *confirm == Confirm::Stored, "{n}: {confirm:?}");
            }
            events.remove(4);
            stored.extend(events.iter().map(|event| event.id.to_string()));
        }
        // What was sent again alone is stored once.
        let mut receiver = open(config(&server), consumer(&topic)).await;
        let came = take(&mut receiver, stored.len()).await;
        let mut ids: Vec<&str> = came.iter().filter_map(|m| m.header("x-event-id")).collect();
        ids.sort_unstable();
        stored.sort_unstable();
        assert_eq!(ids, stored);
        settle(&mut receiver, &came).await;
        let group = KafkaSubscriber::new(config(&server), consumer(&topic));
        assert!(group.lag().await.unwrap().iter().all(|partition| partition.lag == 0));
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
        let mut receiver = open(crate::config(&server), consumer(&topic)).await;
        let first = take(&mut receiver, 2).await;
        assert_eq!((&first[0].payload[..], &first[1].payload[..]), (&b"1"[..], &b"2"[..]));
        settle(&mut receiver, &first).await;
        // It was stored: that is why nobody could call it refused.
        assert_eq!(take(&mut receiver, 1).await[0].payload[..], b"2"[..]);
    });
}
