//! What a handler answers, and what becomes of its event and of the events behind it.

use super::{Ref, keys_of_a_lane, why};
use crate::script::{Act, Script};
use crate::world::{by_key, dead_letters, effects, event, quick, relay, relay_with, stop};
use relevo_core::ErrorClass;
use relevo_core::dead_letters::Why;
use relevo_core::event::header;
use relevo_core::limits::LANES;
use relevo_core::outbox::Subscription;
use relevo_core::retry::RetryPolicy;
use relevo_testkit::eventually;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::Semaphore;

/// The key of a failing event waits; nobody else does.
pub async fn a_failing_event_parks_its_key_while_other_keys_go_on(world: &Ref) {
    let (script, mended) = Script::bad_until_mended();
    let mut config = quick();
    let step = Duration::from_millis(20);
    config.retry = RetryPolicy::linear(step, step).max_attempts(100_000);
    let ids = world.publish(vec![event("bad", 0), event("bad", 1)]).await;
    world.publish((0..20).map(|n| event(&format!("good-{n}"), n)).collect()).await;
    let running = relay_with(&**world, Subscription::new("s"), config, &script, "relay").await;
    let rows = effects(&**world, 20).await;
    assert!(!by_key(&rows).contains_key("bad"), "the failing event left no effect");
    world.publish(vec![event("bad", 2), event("good-0", "more")]).await;
    effects(&**world, 21).await;
    assert!(matches!(why(world, ids[0], "s").await, Why::Parked { .. }));
    assert!(matches!(why(world, ids[1], "s").await, Why::ParkedBehind { .. }));
    mended.store(true, Ordering::SeqCst);
    let rows = effects(&**world, 24).await;
    assert_eq!(by_key(&rows)["bad"], ["0", "1", "2"]);
    assert_eq!(script.attempts(ids[1]), 1, "what waits is not attempted");
    stop(running).await;
}

/// All keys of one tenant fail, in every lane there is; another tenant's keys in the same lanes go on.
pub async fn a_tenant_whose_events_fail_holds_back_no_other(world: &Ref) {
    const KEYS: usize = 3 * LANES as usize;
    let of = |tenant: &'static str| {
        let one = move |n| event(&format!("{tenant}-{n}"), n).tenant(tenant);
        (0..KEYS).map(one).collect::<Vec<_>>()
    };
    let script = Script::new(|event, _| match event.headers.get(header::TENANT) {
        Some("failing") => Act::Fail("this tenant's system is down"),
        _ => Act::Done,
    });
    let mut config = quick();
    let step = Duration::from_millis(200);
    config.retry = RetryPolicy::linear(step, step).max_attempts(100_000);
    world.publish(of("failing")).await;
    world.publish(of("working")).await;
    let running = relay_with(&**world, Subscription::new("s"), config, &script, "relay").await;
    let rows = effects(&**world, KEYS).await;
    assert!(by_key(&rows).keys().all(|key| key.starts_with("working-")), "{rows:?}");
    assert_eq!(running.counts().stopped, 0);
    stop(running).await;
}

/// The handler's own delay goes before the policy's.
pub async fn a_handler_that_says_retry_after_is_called_again_then(world: &Ref) {
    let delay = Duration::from_millis(400);
    let script =
        Script::new(
            move |_, attempt| {
                if attempt == 1 { Act::RetryAfter(delay, "later") } else { Act::Done }
            },
        );
    let running = relay(&**world, "s", &script).await;
    let ids = world.publish(vec![event("k", 0)]).await;
    effects(&**world, 1).await;
    let times = script.times(ids[0]);
    assert_eq!(times.len(), 2);
    assert!(times[1] - times[0] >= delay, "called again after {:?}", times[1] - times[0]);
    stop(running).await;
}

/// Failed for good is a dead letter at once.
pub async fn a_handler_that_says_for_good_is_not_called_again(world: &Ref) {
    let script = Script::new(|_, _| Act::ForGood("never"));
    let running = relay(&**world, "s", &script).await;
    let ids = world.publish(vec![event("k", 0)]).await;
    let letters = dead_letters(&**world, 1).await;
    assert_eq!(
        (letters[0].error.as_str(), letters[0].class, letters[0].attempts),
        ("never", ErrorClass::Permanent, 1)
    );
    assert_eq!(script.attempts(ids[0]), 1);
    assert!(world.effects().await.is_empty());
    stop(running).await;
}

/// A skip is kept with its reason; what the handler wrote before it is not.
pub async fn a_handler_that_skips_leaves_a_reason_and_no_effect(world: &Ref) {
    let script =
        Script::new(
            |event, _| if event.payload == "0" { Act::Skip("not for us") } else { Act::Done },
        );
    let running = relay(&**world, "s", &script).await;
    let keys = keys_of_a_lane(2);
    // Alone, and sharing a transaction with others.
    let alone = world.publish(vec![event("k", 0)]).await;
    let ids = world
        .publish(vec![
            event(&keys[0], 1),
            event(&keys[0], 0),
            event(&keys[1], 2),
            event(&keys[0], 3),
        ])
        .await;
    let rows = effects(&**world, 3).await;
    assert_eq!(by_key(&rows)[keys[0].as_str()], ["1", "3"]);
    for id in [alone[0], ids[1]] {
        let skipped = Why::Skipped { reason: "not for us".into() };
        eventually("the skip is noted", async || {
            (why(world, id, "s").await == skipped).then_some(())
        })
        .await;
    }
    stop(running).await;
}

/// Poison is not tried again.
pub async fn an_undecodable_payload_is_dead_at_once(world: &Ref) {
    let script = Script::new(|_, _| Act::Decode);
    let running = relay(&**world, "s", &script).await;
    let ids = world.publish(vec![event("k", "not a number"), event("k", "7")]).await;
    let rows = effects(&**world, 1).await;
    assert_eq!(rows[0].event, ids[1]);
    let letters = dead_letters(&**world, 1).await;
    assert_eq!((letters[0].class, letters[0].attempts), (ErrorClass::Poison, 1));
    stop(running).await;
}

/// Slow work before the first use holds nothing.
pub async fn a_slow_handlers_transaction_begins_at_its_first_use(world: &Ref) {
    let gate = Arc::new(Semaphore::new(0));
    let script = Script::done().slow().gate(&gate);
    let running = relay(&**world, "s", &script).await;
    let ids = world.publish(vec![event("k", 0), event("k", 1)]).await;
    eventually("the handler is at work", async || (script.attempts(ids[0]) == 1).then_some(()))
        .await;
    eventually("no transaction is open", async || {
        (world.open_transactions().await == 0).then_some(())
    })
    .await;
    let publish = world.publish(vec![event("other", 0)]);
    let published = tokio::time::timeout(Duration::from_secs(3), publish).await;
    assert!(published.is_ok(), "a publisher waits for a slow handler");
    gate.add_permits(100);
    let rows = effects(&**world, 3).await;
    assert_eq!(by_key(&rows)["k"], ["0", "1"]);
    stop(running).await;
}
