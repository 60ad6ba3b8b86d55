use super::batch::{Batch, Item};
use super::config::{AfterDead, Order, RelayConfig};
use crate::clock::Rng;
use crate::error::ErrorClass;
use crate::event::{Event, NewEvent};
use crate::inbox::Outcome;
use crate::outbox::{EventRef, LaneChange, LaneId, Page, Position, Row, TickRef};
use crate::retry::RetryPolicy;
use std::sync::Arc;
use std::time::Duration;

const TO: TickRef = TickRef { number: 5, nonce: 9 };

fn item(seq: i64, key: &str) -> Item {
    let event = Event::stored(NewEvent::bytes("t", vec![]).key(key), chrono::Utc::now());
    let at = EventRef { key: key.into(), to: TO, seq, id: event.id };
    Item { from: TickRef::default(), at, event }
}

fn config() -> RelayConfig {
    RelayConfig { retry: RetryPolicy::ladder([Duration::from_secs(60)]), ..RelayConfig::default() }
}

fn lane() -> (LaneId, i64) {
    (LaneId { subscription: "s".into(), lane: 1 }, 77)
}

fn page(config: RelayConfig, keys: &[&str], parked: &[&str]) -> Batch {
    let items = keys.iter().enumerate().map(|(seq, key)| item(seq as i64 + 1, key)).collect();
    let end = Position::at(TO);
    Batch::page(
        lane(),
        Position::default(),
        end,
        items,
        |key| parked.contains(&key),
        Arc::new(config),
        Rng::seeded(1),
    )
}

/// A page with one row of `lane`.
pub(crate) fn page_of_one(lane: u16) -> Page {
    let row = Row { lane, seq: 1, event: item(1, "k").event };
    Page { rows: vec![row], to: Some(TO), end: Position::at(TO) }
}

/// A batch that a broker gets in so many waves.
pub(crate) fn waves_of_one_key(events: usize) -> Batch {
    let config = RelayConfig { one_transaction: false, ..config() };
    page(config, &vec!["k"; events], &[])
}

/// A batch that a broker gets at once.
pub(crate) fn wave_of_keys(keys: &[&str]) -> Batch {
    page(RelayConfig { one_transaction: false, ..config() }, keys, &[])
}

fn drain(config: RelayConfig, keys: usize, attempts: u32, all: bool) -> Batch {
    let items = (1..=keys as i64).map(|seq| item(seq, "a")).collect();
    Batch::drain(
        lane(),
        Position::default(),
        ("a".into(), attempts, 0),
        items,
        all,
        Arc::new(config),
        Rng::seeded(1),
    )
}

fn failed() -> Outcome {
    Outcome::Failed { class: ErrorClass::Transient, error: "no".into(), after: None }
}

/// Works a batch through with these outcomes in the order events are handed over.
fn work(mut batch: Batch, outcomes: &[Outcome]) -> LaneChange {
    let mut outcomes = outcomes.iter();
    while let Some(index) = batch.next() {
        batch.settle(
            index,
            outcomes.next().expect("an event more than expected was handed over").clone(),
        );
    }
    assert!(outcomes.next().is_none(), "an event less than expected was handed over");
    let (change, rest) = batch.finish();
    assert!(rest.is_empty());
    change.expect("a change")
}

fn seqs(refs: &[EventRef]) -> Vec<i64> {
    refs.iter().map(|at| at.seq).collect()
}

#[test]
fn a_failure_parks_its_key_and_what_follows_of_it_waits() {
    let change =
        work(page(config(), &["a", "b", "a", "b"], &[]), &[failed(), Outcome::Done, Outcome::Done]);
    assert_eq!(change.delivered, 2);
    assert_eq!((seqs(&change.failed), seqs(&change.waiting)), (vec![1], vec![1, 3]));
    assert_eq!(change.parked.len(), 1);
    assert_eq!(
        (change.parked[0].attempts, change.parked[0].retry_in),
        (1, Some(Duration::from_secs(60)))
    );
    assert_eq!(change.after, Position::at(TO));
}

#[test]
fn the_class_of_the_latest_failure_picks_the_policy_and_attempts_go_on_counting() {
    let slow = RetryPolicy::ladder([Duration::from_secs(1), Duration::from_secs(900)]);
    let config = |attempts| {
        let retry = config().retry.for_class(ErrorClass::Permanent, slow.clone());
        drain(RelayConfig { retry, ..config() }, 1, attempts, true)
    };
    let permanent =
        || Outcome::Failed { class: ErrorClass::Permanent, error: "no".into(), after: None };
    // One attempt was made before, with whatever error: this is permanent's second step.
    let change = work(config(1), &[permanent()]);
    assert_eq!(
        (change.parked[0].attempts, change.parked[0].retry_in),
        (2, Some(Duration::from_secs(900)))
    );
    assert_eq!(work(config(2), &[permanent()]).deaths[0].attempts, 3);
    // Transient errors follow the general policy, whose one step is used up.
    assert_eq!(work(config(1), &[failed()]).deaths[0].attempts, 2);
}

#[test]
fn a_delay_that_was_asked_for_is_bounded() {
    let forever = Outcome::Failed {
        class: ErrorClass::Transient,
        error: "never".into(),
        after: Some(Duration::MAX),
    };
    let change = work(page(config(), &["a"], &[]), &[forever]);
    assert_eq!(change.parked[0].retry_in, Some(crate::retry::LONGEST_DELAY));
}

#[test]
fn what_arrives_for_a_parked_key_waits_behind_it_unseen() {
    let change = work(page(config(), &["a", "b"], &["a"]), &[Outcome::Done]);
    assert_eq!(seqs(&change.waiting), [1]);
    assert!(change.parked.is_empty());
}

#[test]
fn one_event_of_a_key_is_under_way_at_a_time() {
    let mut batch = page(config(), &["a", "a", "b"], &[]);
    assert_eq!([batch.next(), batch.next(), batch.next()], [Some(0), Some(2), None]);
    batch.settle(0, Outcome::Done);
    assert_eq!(batch.next(), Some(1));
}

#[test]
fn only_the_decided_beginning_is_recorded() {
    let mut batch = page(config(), &["a", "b", "c"], &[]);
    while batch.next().is_some() {}
    batch.settle(0, Outcome::Done);
    batch.settle(2, Outcome::Done);
    let (change, rest) = batch.finish();
    let change = change.expect("a change");
    assert_eq!(
        (change.delivered, change.after),
        (1, Position { from: TickRef::default(), to: Some(TO), seq: 1 })
    );
    assert_eq!(rest.len(), 2);
}

#[test]
fn the_last_attempt_ends_in_a_dead_letter_and_the_key_goes_on() {
    let change = work(drain(config(), 2, 1, true), &[failed(), Outcome::Done]);
    assert_eq!((change.deaths.len(), change.deaths[0].attempts), (1, 2));
    assert_eq!(seqs(&change.settled), [1, 2]);
    assert_eq!(change.unparked, ["a"]);
}

#[test]
fn a_held_key_waits_for_a_person_after_a_dead_letter() {
    let held = RelayConfig { after_dead: AfterDead::Hold, ..config() };
    let change = work(drain(held, 2, 1, true), &[failed()]);
    assert_eq!(seqs(&change.settled), [1]);
    assert_eq!(change.parked[0].retry_in, None);
    assert!(change.unparked.is_empty());
}

#[test]
fn after_too_many_deaths_in_a_row_the_key_is_held() {
    let two = RelayConfig { max_deaths_in_a_row: 2, ..config() };
    let dead = Outcome::Dead { class: ErrorClass::Permanent, error: "never".into() };
    let change = work(page(two, &["a", "a", "a"], &[]), &[dead.clone(), dead]);
    assert_eq!(change.deaths.iter().map(|death| death.attempts).collect::<Vec<_>>(), [1, 1]);
    assert_eq!(change.parked[0].retry_in, None);
    assert_eq!(seqs(&change.waiting), [3]);
}

#[test]
fn outside_one_transaction_a_follower_waits_until_the_dead_letter_is_recorded() {
    let broker = RelayConfig { one_transaction: false, ..config() };
    let dead = Outcome::Dead { class: ErrorClass::Permanent, error: "never".into() };
    let change = work(page(broker, &["a", "a"], &[]), &[dead]);
    assert_eq!(seqs(&change.waiting), [2]);
    assert_eq!((change.parked[0].attempts, change.parked[0].retry_in), (0, Some(Duration::ZERO)));
}

#[test]
fn outside_one_transaction_a_key_with_no_follower_is_not_parked() {
    let broker = RelayConfig { one_transaction: false, ..config() };
    let dead = Outcome::Dead { class: ErrorClass::Permanent, error: "never".into() };
    let skip = Outcome::Skip { reason: "not mine".into() };
    let batch = page(broker, &["b", "a", "c", "b"], &[]);
    let change = work(batch, &[Outcome::Done, dead, skip, Outcome::Done]);
    assert_eq!((change.deaths.len(), change.skips.len(), change.delivered), (1, 1, 2));
    assert!(change.parked.is_empty() && change.waiting.is_empty(), "{change:?}");
}

#[test]
fn a_drained_key_with_more_behind_it_is_due_again_at_once() {
    let change = work(drain(config(), 2, 0, false), &[Outcome::Done, Outcome::Done]);
    assert!(change.unparked.is_empty());
    assert_eq!(change.parked[0].retry_in, Some(Duration::ZERO));
}

#[test]
fn a_drain_that_fails_leaves_its_refs_where_they_are() {
    let change = work(drain(config(), 3, 1, true), &[Outcome::Done, failed()]);
    assert_eq!(seqs(&change.settled), [1]);
    assert!(change.waiting.is_empty());
    assert_eq!(change.parked[0].attempts, 1, "those before were of the one that is done");
}

#[test]
fn a_key_is_not_held_for_a_dead_letter_that_was_not_recorded() {
    let held = RelayConfig { after_dead: AfterDead::Hold, one_transaction: false, ..config() };
    let mut batch = page(held, &["a", "b", "c"], &[]);
    while batch.next().is_some() {}
    batch.settle(0, Outcome::Done);
    batch.settle(2, Outcome::Dead { class: ErrorClass::Poison, error: "never".into() });
    let (change, rest) = batch.finish();
    let change = change.expect("a change");
    assert!(change.parked.is_empty() && change.deaths.is_empty(), "{change:?}");
    assert_eq!(rest.len(), 2);
}

fn pipelined(after_dead: AfterDead) -> RelayConfig {
    let retry = RetryPolicy::ladder([Duration::from_secs(60)]);
    let order = Order::Key;
    let promise = RelayConfig { one_transaction: false, failure_fails_later: true, ..config() };
    RelayConfig { retry, order, after_dead, ..promise }
}

#[test]
fn several_of_a_key_are_under_way_where_a_failure_fails_later_ones_or_order_does_not_matter() {
    let under_way = |config: RelayConfig| {
        let mut batch = page(config, &["a", "a", "b"], &[]);
        std::iter::from_fn(move || batch.next()).count()
    };
    let promised = || pipelined(AfterDead::Continue);
    assert_eq!(under_way(promised()), 3);
    assert_eq!(under_way(RelayConfig { order: Order::OneByOne, ..promised() }), 2);
    assert_eq!(under_way(RelayConfig { failure_fails_later: false, ..promised() }), 2);
    let any = RelayConfig { failure_fails_later: false, order: Order::Any, ..promised() };
    assert_eq!(under_way(any.clone()), 3);
    // What a dead letter holds must not have left already; a handler's events share a transaction.
    assert_eq!(under_way(pipelined(AfterDead::Hold)), 2);
    assert_eq!(under_way(RelayConfig { one_transaction: true, ..any }), 2);
}

/// Hands everything over at once, and settles it in order.
fn at_once(mut batch: Batch, outcomes: &[Outcome]) -> LaneChange {
    let handed: Vec<usize> = std::iter::from_fn(|| batch.next()).collect();
    assert_eq!(handed.len(), outcomes.len());
    for (index, outcome) in handed.into_iter().zip(outcomes) {
        batch.settle(index, outcome.clone());
    }
    batch.finish().0.expect("a change")
}

#[test]
fn of_several_under_way_those_behind_a_failure_wait_behind_it() {
    let batch = page(pipelined(AfterDead::Continue), &["a", "a", "b", "a"], &[]);
    let change = at_once(batch, &[failed(), failed(), Outcome::Done, failed()]);
    assert_eq!((change.delivered, seqs(&change.waiting)), (1, vec![1, 2, 4]));
    assert_eq!(
        (change.parked.len(), change.parked[0].attempts),
        (1, 1),
        "one attempt, of the first"
    );
}

#[test]
fn what_is_said_of_one_behind_a_failure_is_not_final() {
    let dead = Outcome::Dead { class: ErrorClass::Permanent, error: "never".into() };
    let skip = Outcome::Skip { reason: "not mine".into() };
    let batch = page(pipelined(AfterDead::Continue), &["a", "a", "a"], &[]);
    let change = at_once(batch, &[failed(), dead, skip]);
    assert_eq!((seqs(&change.failed), seqs(&change.waiting)), (vec![1], vec![1, 2, 3]));
    assert!(change.deaths.is_empty() && change.skips.is_empty(), "{change:?}");
    assert_eq!((change.parked.len(), change.parked[0].error.as_str()), (1, "no"));
}

#[test]
fn what_arrived_though_one_before_it_failed_is_not_sent_again_and_the_key_still_waits() {
    let any = RelayConfig { order: Order::Any, ..pipelined(AfterDead::Continue) };
    let change = at_once(page(any.clone(), &["a", "a"], &[]), &[failed(), Outcome::Done]);
    assert_eq!((change.delivered, seqs(&change.waiting)), (1, vec![1]));
    assert_eq!(change.parked.len(), 1);
    let drained = at_once(drain(any, 3, 0, true), &[failed(), Outcome::Done, failed()]);
    assert_eq!((seqs(&drained.settled), drained.parked[0].attempts), (vec![2], 1));
    assert!(drained.unparked.is_empty());
}

#[test]
fn a_batch_tells_what_it_is() {
    let fresh = || page(config(), &["a", "b", "a"], &["b"]);
    assert_eq!((fresh().len(), fresh().to_hand_over()), (3, 2), "one waits behind its key");
    assert_eq!(fresh().into_items().len(), 3);
    assert!(!fresh().is_empty() && page(config(), &[], &[]).is_empty());
    assert!(!fresh().is_single() && fresh().alone().is_single());
    assert!(!fresh().is_blamed() && fresh().blamed().is_blamed());
    assert!(!fresh().is_drain() && drain(config(), 1, 0, true).is_drain());
    assert_eq!((fresh().lane(), fresh().token()), (&lane().0, lane().1));
}
