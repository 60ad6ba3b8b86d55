//! The store in memory as an application's tests use it.
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

use chrono::Utc;
use relevo_core::dead_letters::{Answer, DeadFilter, Operate, Why};
use relevo_core::event::{Event, NewEvent};
use relevo_core::inbox::{Answer as Handled, Direct, Effect, Failure, Handler, Settled};
use relevo_core::outbox::{MemberId, PublishIn, Store, Subscription};
use relevo_core::relay::{RelayConfig, run};
use relevo_core::retry::RetryPolicy;
use relevo_stores::memory::MemoryStore;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

struct Ledger;

impl Handler<MemoryStore> for Ledger {
    async fn handle(&self, event: &Event, effect: &mut Effect<'_, MemoryStore>) -> Handled {
        let tx = effect.tx().await?;
        tx.put("ledger", &event.id.to_string(), &event.topic).await?;
        match event.topic.as_str() {
            "order.bad" => Err(Failure::for_good("no such order")),
            "order.late" => {
                Err(Failure::retry_after(Duration::from_secs(36_000), "not before noon"))
            }
            "order.dull" => Ok(Settled::Skip("nothing to do".into())),
            _ => Ok(Settled::Done),
        }
    }
}

async fn start(store: &MemoryStore) -> run::Running {
    let mut config = RelayConfig::default();
    config.retry = RetryPolicy::ladder([Duration::from_millis(10)]);
    let destination = Arc::new(Direct::new(store.clone(), Ledger));
    let shared: Arc<dyn Store> = Arc::new(store.clone());
    run::start(shared, Subscription::new("ledger"), config, destination, MemberId("me".into()))
        .await
        .unwrap()
}

async fn until(mut condition: impl AsyncFnMut() -> bool) {
    for _ in 0..6_000 {
        if condition().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it did not come to pass within a minute");
}

async fn why(store: &MemoryStore, event: relevo_core::EventId) -> Why {
    match store.why(event).await.unwrap() {
        Answer::Known { subscriptions, .. } => subscriptions.into_iter().next().unwrap().1,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_effect_happens_once_and_only_if_its_event_was_committed() {
    let store = MemoryStore::new();
    let running = start(&store).await;
    let outbox = store.outbox();
    let mut tx = store.begin();
    tx.put("orders", "o-1", &"placed").await.unwrap();
    let id =
        outbox.publish(&mut tx, NewEvent::bytes("order.placed", "{}").key("o-1")).await.unwrap();
    tx.commit().unwrap();
    let mut tx = store.begin();
    let ghost =
        outbox.publish(&mut tx, NewEvent::bytes("order.placed", "{}").key("o-1")).await.unwrap();
    tx.rollback();
    until(async || store.get::<String>("ledger", &id.to_string()).unwrap().is_some()).await;
    assert_eq!(store.get::<String>("ledger", &ghost.to_string()).unwrap(), None);
    assert_eq!(store.get::<String>("orders", "o-1").unwrap().as_deref(), Some("placed"));
    until(async || why(&store, id).await == Why::Delivered).await;
    assert!(matches!(store.why(ghost).await.unwrap(), Answer::Unknown { .. }));
    running.stop(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test]
async fn a_failure_for_good_is_a_dead_letter_that_can_be_archived_and_its_effect_is_undone() {
    let store = MemoryStore::new();
    let bad = store.publish_now(NewEvent::bytes("order.bad", "{}").key("o-1")).await.unwrap();
    let dull = store.publish_now(NewEvent::bytes("order.dull", "{}").key("o-1")).await.unwrap();
    let good = store.publish_now(NewEvent::bytes("order.good", "{}").key("o-1")).await.unwrap();
    let running = start(&store).await;
    until(async || store.get::<String>("ledger", &good.to_string()).unwrap().is_some()).await;
    assert_eq!(store.get::<String>("ledger", &bad.to_string()).unwrap(), None);
    assert!(matches!(why(&store, bad).await, Why::Dead { .. }));
    assert!(matches!(why(&store, dull).await, Why::Skipped { .. }));
    let dead = store.dead_letters(&DeadFilter::default(), None, 10).await.unwrap();
    assert_eq!(dead.iter().map(|letter| letter.event.id).collect::<Vec<_>>(), [bad]);
    let progress = store.replay(&DeadFilter::default(), None).await.unwrap();
    assert_eq!(progress.total, 1);
    until(async || store.replay_progress(progress.operation).await.unwrap().replayed == 1).await;
    until(async || store.dead_letters(&DeadFilter::default(), None, 10).await.unwrap().len() == 1)
        .await;
    assert_eq!(store.archive(&DeadFilter::default()).await.unwrap(), 1);
    let status = store.status().await.unwrap();
    assert_eq!((status.subscriptions[0].dead_letters, status.subscriptions[0].backlog), (0, 0));
    running.stop(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test]
async fn a_transaction_waits_for_a_row_another_one_has_locked() {
    let store = MemoryStore::new();
    let mut first = store.begin();
    first.put("t", "k", &1).await.unwrap();
    let second = tokio::spawn({
        let store = store.clone();
        async move {
            let mut tx = store.begin();
            tx.lock("t", "k").await.unwrap();
            let seen: i32 = tx.get("t", "k").unwrap().unwrap();
            tx.put("t", "k", &(seen + 1)).await.unwrap();
            tx.commit().unwrap();
        }
    });
    tokio::task::yield_now().await;
    first.commit().unwrap();
    second.await.unwrap();
    assert_eq!(store.get::<i32>("t", "k").unwrap(), Some(2));
}

#[tokio::test]
async fn a_subscription_with_nothing_but_parked_keys_can_be_forgotten_too() {
    let late = Arc::new(AtomicBool::new(false));
    let is_late = late.clone();
    let store = MemoryStore::with_clock(move || {
        Utc::now() + chrono::Duration::hours(i64::from(is_late.load(Ordering::Relaxed)))
    });
    store.publish_now(NewEvent::bytes("order.late", "{}").key("o-1")).await.unwrap();
    let running = start(&store).await;
    let one = async || store.status().await.unwrap().subscriptions.remove(0);
    until(async || one().await.parked_events == 1 && one().await.backlog == 0).await;
    assert_eq!(one().await.forgotten_for_s, None, "somebody is at work");
    running.stop(Duration::from_secs(5)).await.unwrap();
    late.store(true, Ordering::Relaxed);
    let one = one().await;
    assert_eq!((one.backlog, one.parked_keys, one.parked_events), (0, 1, 1));
    assert!(one.forgotten_for_s.is_some_and(|silent_s| silent_s > 3000.0), "{one:?}");
}
