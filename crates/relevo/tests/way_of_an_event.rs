//! One event all the way, through the facade, on the memory store.

#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

use relevo::memory::MemoryStore;
use relevo::{
    Answer, Direct, Effect, Event, Failure, Handler, NewEvent, Operate, PublishIn, Relay,
    RelayConfig, RetryPolicy, Settled, Subscription,
};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

struct Ledger {
    failures_left: AtomicU32,
}

impl Handler<MemoryStore> for Ledger {
    async fn handle(&self, event: &Event, effect: &mut Effect<'_, MemoryStore>) -> Answer {
        let number: u32 = event.json()?;
        let key = event.key.clone().unwrap_or_default();
        let tx = effect.tx().await?;
        let mut seen: Vec<u32> = tx.get("ledger", &key)?.unwrap_or_default();
        seen.push(number);
        tx.put("ledger", &key, &seen).await?;
        if key == "flaky"
            && self
                .failures_left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
                .is_ok()
        {
            return Err(Failure::retry_after(Duration::from_millis(20), "not yet"));
        }
        Ok(Settled::Done)
    }
}

async fn publish(store: &MemoryStore, key: &str, number: u32) {
    let mut tx = store.begin();
    let event = NewEvent::json("t", &number).unwrap().key(key);
    store.outbox().publish(&mut tx, event).await.unwrap();
    tx.commit().unwrap();
}

async fn until(store: &MemoryStore, key: &str, expected: &[u32]) {
    let reached = async {
        while store.get::<Vec<u32>>("ledger", key).unwrap().unwrap_or_default() != expected {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let seen = || store.get::<Vec<u32>>("ledger", key).unwrap();
    tokio::time::timeout(Duration::from_secs(20), reached)
        .await
        .unwrap_or_else(|_| panic!("{key}: {:?}", seen()));
}

#[tokio::test]
async fn every_event_takes_effect_once_and_in_order_though_a_key_fails() {
    let store = MemoryStore::new();
    let mut config = RelayConfig::default();
    config.retry = RetryPolicy::linear(Duration::from_millis(10), Duration::from_millis(10));
    let ledger = Direct::new(store.clone(), Ledger { failures_left: AtomicU32::new(3) });
    let relay = Relay::on(store.clone())
        .subscribe_with(Subscription::new("ledger"), config, ledger)
        .start()
        .await
        .unwrap();
    for number in 0..50 {
        publish(&store, "flaky", number).await;
        publish(&store, "steady", number).await;
    }
    let all: Vec<u32> = (0..50).collect();
    until(&store, "steady", &all).await;
    until(&store, "flaky", &all).await;
    relay.stop().await.unwrap();
    let status = store.status().await.unwrap();
    assert_eq!((status.subscriptions[0].parked_keys, status.subscriptions[0].lanes_owned), (0, 0));
}
