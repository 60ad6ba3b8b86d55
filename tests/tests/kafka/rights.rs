//! What a user may do, given and taken away while everything runs.

use crate::{class_of, consumer, event, open, publish, run, settle, start, store, take, topic};
use relevo_brokers::kafka::{KafkaConfig, KafkaPublisher, KafkaSubscriber};
use relevo_core::broker::{Confirm, Incoming, Received, Receiver, Settle, Subscriber};
use relevo_core::{Error, ErrorClass, Kind};
use relevo_testkit::services::{Certificates, Kafka, KafkaOptions, KafkaRight};
use relevo_testkit::{PATIENCE, eventually};

const WRITER: &str = "writer";
const READER: &str = "reader";
const LATE: &[u8] = b"late";

fn config(server: &Kafka, user: &str) -> KafkaConfig {
    let url = format!("kafkas://{user}:secret@{}", server.scram_bootstrap().unwrap());
    KafkaConfig::to(&url).unwrap().authority(&server.tls_files().unwrap().ca)
}

/// Publishes until it is stored: a right that was given is known to the broker after a moment.
async fn store_at_last(publisher: &KafkaPublisher, payload: &[u8], topic: &str, wrote: bool) {
    let event = event(topic, "k", payload);
    eventually("it may be written again", async || {
        let confirms = publish(publisher, std::slice::from_ref(&event)).await;
        let stored = confirms == [Confirm::Stored];
        // What a producer that could write has in hand when it ends for want of rights may have been sent.
        let may_be_sent = wrote && matches!(confirms[..], [Confirm::Unknown { .. }]);
        assert!(stored || may_be_sent || is_forbidden(&confirms[0], topic), "{confirms:?}");
        stored.then_some(())
    })
    .await;
}

/// Refused, to be tried again, and it says what the user needs.
fn is_forbidden(confirm: &Confirm, topic: &str) -> bool {
    let Confirm::Refused { error, .. } = confirm else { return false };
    let remedy = format!("may not write to the topic {topic}: it needs Write on it");
    class_of(confirm) == Some(ErrorClass::Transient) && error.contains(&remedy)
}

async fn writing(server: &Kafka, topic: &str) {
    let publisher = KafkaPublisher::new(config(server, WRITER));
    // It does not even see the topic; then it sees it.
    let confirms = publish(&publisher, &[event(topic, "k", b"no")]).await;
    assert!(is_forbidden(&confirms[0], topic), "{confirms:?}");
    server.permit(WRITER, &KafkaRight::describe(topic)).unwrap();
    for _ in 0..3 {
        let confirms = publish(&publisher, &[event(topic, "k", b"no")]).await;
        assert!(is_forbidden(&confirms[0], topic), "{confirms:?}");
    }
    server.permit(WRITER, &KafkaRight::write(topic)).unwrap();
    store_at_last(&publisher, b"1", topic, false).await;
    // Taken away from a producer that has begun.
    server.forbid(WRITER, &KafkaRight::write(topic)).unwrap();
    let late = eventually("the broker knows", async || {
        let confirms = publish(&publisher, &[event(topic, "k", LATE)]).await;
        (confirms != [Confirm::Stored]).then_some(confirms)
    })
    .await;
    assert!(is_forbidden(&late[0], topic), "{late:?}");
    server.permit(WRITER, &KafkaRight::write(topic)).unwrap();
    store_at_last(&publisher, b"2", topic, true).await;
}

async fn refused(receiver: &mut Box<dyn Receiver>) -> Error {
    tokio::time::timeout(PATIENCE, receiver.next(1)).await.expect("it ends").unwrap_err()
}

fn may_not_read(error: &Error, topic: &str) {
    assert_eq!(error.kind(), Kind::MissingPrivilege, "{error}");
    let remedy = format!("may not read the topic {topic}: it needs Read on it");
    assert!(error.message().contains(&remedy), "{error}");
}

async fn reading(server: &Kafka, topic: &str) {
    let (config, group) = (config(server, READER), format!("{topic}.group"));
    let subscriber = KafkaSubscriber::new(config.clone(), consumer(topic));
    may_not_read(&subscriber.open().await.err().unwrap(), topic);
    server.permit(READER, &KafkaRight::describe(topic)).unwrap();
    let mut receiver = eventually("the topic is seen", async || subscriber.open().await.ok()).await;
    let error = refused(&mut receiver).await;
    assert_eq!(error.kind(), Kind::MissingPrivilege, "{error}");
    let remedy = format!("may not be in the group {group}: it needs Read on it");
    assert!(error.message().contains(&remedy), "{error}");
    // It would be let in together with the next.
    drop(receiver);
    server.permit(READER, &KafkaRight::group(&group)).unwrap();
    let error = eventually("the group lets it in", async || {
        let error = refused(&mut open(config.clone(), consumer(topic)).await).await;
        (!error.message().contains(&remedy)).then_some(error)
    })
    .await;
    may_not_read(&error, topic);
    server.permit(READER, &KafkaRight::read(topic)).unwrap();
    let (mut receiver, first) = read_at_last(&config, topic).await;
    assert_eq!(first[0].payload[..], b"1"[..]);
    settle(&mut receiver, &first).await;
    // Whoever may not write dead letters keeps what it wanted to put away.
    let second = take_next(&mut receiver).await;
    let dead = [(second[0].tag, Settle::Dead { reason: "bad".into() })];
    let error = receiver.settle(&dead).await.unwrap_err();
    assert!(error.message().contains("it needs Write on it"), "{error}");
    // Taken away while it reads.
    server.forbid(READER, &KafkaRight::read(topic)).unwrap();
    server.forbid(READER, &KafkaRight::describe(topic)).unwrap();
    store(self::config(server, WRITER), &[event(topic, "k", b"3")]).await;
    let error = eventually("it ends", async || {
        let next = tokio::time::timeout(PATIENCE, receiver.next(1)).await.expect("it ends");
        next.err()
    })
    .await;
    may_not_read(&error, topic);
    drop(receiver);
    server.permit(READER, &KafkaRight::read(topic)).unwrap();
    let (mut receiver, second) = read_at_last(&config, topic).await;
    let third = take(&mut receiver, 1).await;
    assert_eq!((&second[0].payload[..], &third[0].payload[..]), (&b"2"[..], &b"3"[..]));
}

/// The next message but those that were stored before the broker knew that they may not be.
async fn take_next(receiver: &mut Box<dyn Receiver>) -> Vec<Incoming> {
    loop {
        let came = take(receiver, 1).await;
        if came[0].payload[..] != LATE[..] {
            return came;
        }
        settle(receiver, &came).await;
    }
}

/// The first message, and who got it. Receivers that open before the broker knows of the right end.
async fn read_at_last(config: &KafkaConfig, topic: &str) -> (Box<dyn Receiver>, Vec<Incoming>) {
    let subscriber = KafkaSubscriber::new(config.clone(), consumer(topic));
    eventually("it may be read", async || {
        let mut receiver = subscriber.open().await.ok()?;
        let next =
            tokio::time::timeout(PATIENCE, receiver.next(1)).await.expect("it comes or ends");
        match next {
            Ok(Received::Messages { messages, .. }) => Some((receiver, messages)),
            Ok(_) => None,
            Err(error) => {
                may_not_read(&error, topic);
                None
            }
        }
    })
    .await
}

#[test]
fn rights_are_missed_by_name_and_nothing_is_lost_when_they_come_back() {
    run(async || {
        let certificates = Certificates::shared().unwrap();
        let options = KafkaOptions::new().tls(&certificates);
        let options = options.user(WRITER, "secret").user(READER, "secret");
        let Some(server) = start(options).await else { return };
        let topic = topic(&server, 1).await;
        writing(&server, &topic).await;
        reading(&server, &topic).await;
    });
}
