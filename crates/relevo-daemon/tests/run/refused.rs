//! What a real broker refuses for now: its key waits and the others go on, until there is room or the policy gives up.

use crate::isolation::number;
use crate::rabbitmq::Shop;
use crate::support::{Daemon, configure, eventually, publish, store};
use relevo_core::dead_letters::{DeadFilter, Operate, SubscriptionStatus};
use relevo_core::{ErrorClass, EventId, NewEvent};
use relevo_stores::sqlite::SqliteStore;
use serde_json::{Value, json};
use std::path::Path;

/// Adds a queue `small` of everything `small.*` that holds one message and refuses more. A classic one: a quorum queue
/// lets a few more in before it notices.
fn add_small_queue(shop: &Shop) {
    let arguments =
        json!({"x-queue-type": "classic", "x-max-length": 1, "x-overflow": "reject-publish"});
    shop.put("queues", "/small", &json!({"durable": true, "arguments": arguments}));
    let path = format!("/api/bindings/{}/e/amq.topic/q/small", shop.vhost);
    let binding = json!({"routing_key": "small.#"}).to_string();
    shop.server.api("POST", &path, &binding).unwrap();
}

/// The usual configuration, with so many attempts.
fn with_attempts(folder: &Path, url: &str, attempts: u32) {
    configure(folder, url, "");
    let file = folder.join("relevo.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let step = "step = \"200ms\"\n";
    assert!(text.contains(step), "{text}");
    let policy = format!("{step}max = \"400ms\"\nmax_attempts = {attempts}\n");
    std::fs::write(file, text.replace(step, &policy)).unwrap();
}

async fn publish_small(store: &SqliteStore, n: u64) -> EventId {
    let event = NewEvent::json("small.placed", &json!({ "n": n })).unwrap().key("small");
    store.publish_now(event).await.unwrap()
}

async fn all_confirmed(daemon: &Daemon, count: f64) {
    eventually(&format!("{count} are confirmed"), || async {
        daemon.metric("outbox_published_total{").await.filter(|n| *n == count)
    })
    .await;
}

async fn status(store: &SqliteStore) -> SubscriptionStatus {
    store.status().await.unwrap().subscriptions.remove(0)
}

/// Takes the first message of `small` away, once there is one.
async fn take_small(shop: &Shop) -> u64 {
    let path = format!("/api/queues/{}/small/get", shop.vhost);
    let take = json!({"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}).to_string();
    eventually("a message in the small queue", || async {
        let answer = shop.server.api("POST", &path, &take).unwrap();
        let messages: Vec<Value> = serde_json::from_str(&answer).unwrap();
        messages.first().map(|message| number(message["payload"].as_str().unwrap()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_parks_its_key_alone_and_gets_it_in_order_once_there_is_room() {
    let Some(shop) = Shop::fresh().await else { return };
    add_small_queue(&shop);
    let folder = tempfile::tempdir().unwrap();
    with_attempts(folder.path(), &shop.url, 1000);
    let store = store(folder.path()).await;
    let daemon = Daemon::start(folder.path(), &[]).await;
    publish_small(&store, 1).await;
    all_confirmed(&daemon, 1.0).await;
    publish_small(&store, 2).await;
    let refused = eventually("the key is parked", || async {
        Some(status(&store).await).filter(|now| now.parked_keys == 1)
    })
    .await;
    publish_small(&store, 3).await;
    eventually("the next one waits behind it", || async {
        (status(&store).await.parked_events > refused.parked_events).then_some(())
    })
    .await;

    for n in 10..14 {
        publish(&store, "another", n).await;
    }
    all_confirmed(&daemon, 5.0).await;
    let others = shop.messages(4).await;
    let others: Vec<u64> =
        others.iter().map(|message| number(message["payload"].as_str().unwrap())).collect();
    assert_eq!(others, [10, 11, 12, 13]);
    assert_eq!(status(&store).await.parked_keys, 1, "it waits as long as the queue is full");

    for expected in 1..=3 {
        assert_eq!(take_small(&shop).await, expected);
    }
    all_confirmed(&daemon, 7.0).await;
    let last = eventually("nothing is parked", || async {
        Some(status(&store).await).filter(|now| now.parked_keys == 0)
    })
    .await;
    assert_eq!(last.dead_letters, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_stays_full_makes_a_dead_letter_after_the_attempts_of_the_policy() {
    let Some(shop) = Shop::fresh().await else { return };
    add_small_queue(&shop);
    let folder = tempfile::tempdir().unwrap();
    with_attempts(folder.path(), &shop.url, 3);
    let store = store(folder.path()).await;
    let daemon = Daemon::start(folder.path(), &[]).await;
    publish_small(&store, 1).await;
    all_confirmed(&daemon, 1.0).await;
    let second = publish_small(&store, 2).await;
    let letters = eventually("a dead letter", || async {
        let found = store.dead_letters(&DeadFilter::default(), None, 10).await.unwrap();
        (!found.is_empty()).then_some(found)
    })
    .await;
    let [letter] = &letters[..] else { panic!("{letters:?}") };
    assert_eq!(
        (letter.event.id, letter.class, letter.attempts),
        (second, ErrorClass::Transient, 3)
    );
    assert!(letter.error.contains("a full queue"), "{}", letter.error);
    eventually("its key is free again", || async {
        (status(&store).await.parked_keys == 0).then_some(())
    })
    .await;
    assert_eq!(take_small(&shop).await, 1);
}
