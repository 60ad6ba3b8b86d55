//! Events that share a transaction: whatever goes wrong with one of them harms only its own attempt.

use super::{Ref, keys_of_a_lane};
use crate::script::{Act, Script};
use crate::world::{effects, event, relay, stop};
use relevo_core::dead_letters::DeadFilter;
use relevo_core::event::EventId;
use std::time::Duration;

/// Six events share a batch; the first attempt at one of them goes wrong.
async fn only_its_own_attempt(world: &Ref, harm: Act) {
    let keys = keys_of_a_lane(6);
    let bad = keys[2].clone();
    let script = Script::new(move |event, attempt| match &event.key {
        Some(key) if *key == bad && attempt <= 2 => harm.clone(),
        _ => Act::Done,
    });
    let script = script.limit(Duration::from_millis(300));
    let ids = world.publish(keys.iter().map(|key| event(key, 0)).collect()).await;
    let running = relay(&**world, "s", &script).await;
    let rows = effects(&**world, 6).await;
    let mut once: Vec<EventId> = rows.iter().map(|row| row.event).collect();
    once.sort_unstable();
    assert_eq!(once, {
        let mut all = ids.clone();
        all.sort_unstable();
        all
    });
    assert!(
        world
            .operate()
            .dead_letters(&DeadFilter::default(), None, 9)
            .await
            .is_ok_and(|dead| dead.is_empty())
    );
    assert_eq!(script.attempts(ids[2]), 3);
    stop(running).await;
}

/// A panic.
pub async fn a_panic_in_a_shared_batch_harms_only_its_own_attempt(world: &Ref) {
    only_its_own_attempt(world, Act::Panic).await;
}

/// A hang past the limit.
pub async fn a_hang_in_a_shared_batch_harms_only_its_own_attempt(world: &Ref) {
    only_its_own_attempt(world, Act::Hang).await;
}

/// An error that the handler answers.
pub async fn an_error_in_a_shared_batch_harms_only_its_own_attempt(world: &Ref) {
    only_its_own_attempt(world, Act::Fail("no good")).await;
}

/// An error of the database in the middle of the shared transaction.
pub async fn a_failed_statement_in_a_shared_batch_harms_only_its_own_attempt(world: &Ref) {
    only_its_own_attempt(world, Act::FailStatement).await;
}
