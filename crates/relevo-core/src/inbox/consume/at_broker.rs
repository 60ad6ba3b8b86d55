//! What fails stays at the broker: decides what to tell it, and does nothing else.
//!
//! An option for consumers that need no order: nothing of a failure is left in the consumer's database, and whoever
//! looks for it finds it in the broker's queues.

use crate::broker::Settle;
use crate::clock::Rng;
use crate::event::EventId;
use crate::inbox::Outcome;
use crate::retry::{LONGEST_DELAY, RetryPolicy, Verdict};

/// When the broker is to deliver a message again, and when to put it away.
#[derive(Debug, Clone)]
pub(super) struct AtBroker {
    policy: RetryPolicy,
    /// What is tried again keeps its place before what followed it.
    in_order: bool,
}

impl AtBroker {
    pub(super) fn new(policy: RetryPolicy, in_order: bool) -> Self {
        Self { policy, in_order }
    }

    pub(super) fn in_order(&self) -> bool {
        self.in_order
    }

    /// What to tell of a message that failed at its delivery of this number; `None` for what did not fail. The delay is
    /// spread by the event's id, so the same failure gets the same answer.
    pub(super) fn settle(&self, id: EventId, deliveries: u32, outcome: &Outcome) -> Option<Settle> {
        let (class, error, after) = match outcome {
            Outcome::Done | Outcome::Skip { .. } => return None,
            Outcome::Dead { error, .. } => return Some(dead(deliveries, error)),
            Outcome::Failed { class, error, after } => (*class, error, *after),
        };
        let mut rng = Rng::seeded(id.0.as_u64_pair().1 ^ u64::from(deliveries));
        Some(match self.policy.verdict(deliveries, class, &mut rng) {
            Verdict::Dead => dead(deliveries, error),
            Verdict::RetryIn(delay) => {
                Settle::RetryAfter(after.unwrap_or(delay).min(LONGEST_DELAY))
            }
        })
    }
}

fn dead(deliveries: u32, error: &str) -> Settle {
    Settle::Dead { reason: format!("attempt {deliveries}: {error}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorClass;
    use std::time::Duration;

    const STEP: Duration = Duration::from_secs(5);

    fn settle(deliveries: u32, outcome: &Outcome) -> Option<Settle> {
        let policy = RetryPolicy::ladder([STEP, 2 * STEP]);
        AtBroker::new(policy, false).settle(EventId::fresh(), deliveries, outcome)
    }

    fn failed(class: ErrorClass, after: Option<Duration>) -> Outcome {
        Outcome::Failed { class, error: "no paper".into(), after }
    }

    #[test]
    fn the_ladder_is_climbed_by_deliveries_and_ends_in_the_brokers_dead_letters() {
        let told = |n| settle(n, &failed(ErrorClass::Transient, None));
        assert_eq!(told(1), Some(Settle::RetryAfter(STEP)));
        assert_eq!(told(2), Some(Settle::RetryAfter(2 * STEP)));
        assert_eq!(told(3), Some(Settle::Dead { reason: "attempt 3: no paper".into() }));
    }

    #[test]
    fn the_handlers_word_counts_more_than_the_ladders() {
        let later = failed(ErrorClass::Transient, Some(7 * STEP));
        assert_eq!(settle(1, &later), Some(Settle::RetryAfter(7 * STEP)));
        assert!(matches!(settle(3, &later), Some(Settle::Dead { .. })), "but not for ever");
        let endless = failed(ErrorClass::Transient, Some(Duration::MAX));
        assert_eq!(settle(1, &endless), Some(Settle::RetryAfter(LONGEST_DELAY)));
    }

    #[test]
    fn what_failed_for_good_is_put_away_at_once_and_what_did_not_fail_is_nobodys_business() {
        let poison = failed(ErrorClass::Poison, None);
        let for_good = Outcome::Dead { class: ErrorClass::Permanent, error: "never".into() };
        for outcome in [poison, for_good] {
            assert!(matches!(settle(1, &outcome), Some(Settle::Dead { .. })), "{outcome:?}");
        }
        for outcome in [Outcome::Done, Outcome::Skip { reason: "not ours".into() }] {
            assert_eq!(settle(1, &outcome), None);
        }
    }
    #[test]
    fn events_that_fail_together_are_spread_and_each_gets_the_same_answer_again() {
        let at_broker = AtBroker::new(RetryPolicy::default(), true);
        assert!(at_broker.in_order() && !AtBroker::new(RetryPolicy::default(), false).in_order());
        let told =
            |id| format!("{:?}", at_broker.settle(id, 1, &failed(ErrorClass::Transient, None)));
        let ids: Vec<EventId> = (0..50).map(|_| EventId::fresh()).collect();
        let delays: std::collections::BTreeSet<_> = ids.iter().map(|id| told(*id)).collect();
        assert!(delays.len() > 10, "{delays:?}");
        assert!(ids.iter().all(|id| told(*id) == told(*id)));
    }
}
