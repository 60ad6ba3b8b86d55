//! The whole engine with real handlers: what it promises, seen in the application's own table.
//!
//! # Layout
//! - `deliver`: every event takes effect, once and in order
//! - `answers`: what a handler answers
//! - `shared_batch`: events that share a transaction
//! - `dead_letters`: what fails for good
//! - `relays`: relays that come and go

mod answers;
mod dead_letters;
mod deliver;
mod relays;
mod shared_batch;

pub use answers::*;
pub use dead_letters::*;
pub use deliver::*;
pub use relays::*;
pub use shared_batch::*;

use crate::world::World;
use relevo_core::dead_letters::{Answer, Why};
use relevo_core::event::{EventId, lane_of};
use std::sync::Arc;
use std::time::Duration;

/// The one list of these cases; hands it to the macro named first, after the tokens that belong to it.
#[macro_export]
macro_rules! engine_cases {
    ([$($then:tt)*] $($own:tt)*) => {
        $($then)*! { [$($own)*]
            every_event_takes_effect_once_and_in_the_order_of_its_key,
            what_was_published_before_the_relay_started_takes_effect_too,
            a_failing_event_parks_its_key_while_other_keys_go_on,
            a_tenant_whose_events_fail_holds_back_no_other,
            a_ladder_ends_in_a_dead_letter_with_its_reason,
            after_a_dead_letter_a_held_key_waits_for_an_operator,
            a_replayed_dead_letter_takes_effect_with_the_same_id,
            an_edited_copy_takes_effect_instead_of_its_original,
            a_handler_that_says_retry_after_is_called_again_then,
            a_handler_that_says_for_good_is_not_called_again,
            a_handler_that_skips_leaves_a_reason_and_no_effect,
            an_undecodable_payload_is_dead_at_once,
            a_panic_in_a_shared_batch_harms_only_its_own_attempt,
            a_hang_in_a_shared_batch_harms_only_its_own_attempt,
            an_error_in_a_shared_batch_harms_only_its_own_attempt,
            a_failed_statement_in_a_shared_batch_harms_only_its_own_attempt,
            an_event_that_always_panics_ends_as_a_dead_letter,
            a_slow_handlers_transaction_begins_at_its_first_use,
            what_a_handler_publishes_is_delivered_in_turn,
            what_a_failed_handler_published_never_was,
            a_graceful_stop_gives_the_lanes_back_and_loses_nothing,
            two_relays_share_the_lanes_and_one_takes_over_from_the_other,
            a_removed_subscription_ends_its_relay,
            a_paused_subscription_has_no_effects_until_it_is_resumed,
            a_rewind_does_effects_again_in_order,
            a_subscription_gets_only_the_topics_it_wants,
            two_subscriptions_have_their_effects_each,
        }
    };
}

/// A module of the given name with a `#[test]` for each case, each in a fresh world.
#[macro_export]
macro_rules! engine_tests {
    ($name:ident, $world:expr) => {
        mod $name {
            use super::*;
            $crate::engine_cases! { [$crate::world_case_tests] engine $world }
        }
    };
}

/// Runs a test within a bound.
pub fn run(test: impl AsyncFnOnce()) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.unwrap_or_else(|error| panic!("no runtime: {error}"));
    let over =
        runtime.block_on(async { tokio::time::timeout(Duration::from_secs(600), test()).await });
    runtime.shutdown_timeout(Duration::from_secs(5));
    assert!(over.is_ok(), "the test hangs");
}

type Ref = Arc<dyn World>;

/// So many different keys of one lane: their events share batches.
fn keys_of_a_lane(n: usize) -> Vec<String> {
    (0..)
        .map(|i| format!("key-{i}"))
        .filter(|key| lane_of(key) == lane_of("key-0"))
        .take(n)
        .collect()
}

async fn why(world: &Ref, event: EventId, subscription: &str) -> Why {
    match world.operate().why(event).await.unwrap_or_else(|error| panic!("{error}")) {
        Answer::Known { subscriptions, .. } => {
            let found = subscriptions.into_iter().find(|(name, _)| name == subscription);
            found.unwrap_or_else(|| panic!("nothing is said of {subscription}")).1
        }
        other => panic!("{event} should be known: {other:?}"),
    }
}
