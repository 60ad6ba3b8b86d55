//! What a cursor records of what is decided, and when, on a clock of the test's own.

use super::cursor::Cursor;
use crate::clock::Instant;
use crate::event::EventId;
use crate::outbox::{LaneChange, LaneId, Position};
use std::time::Duration;

const EVERY: Duration = Duration::from_millis(100);
const LATE: Duration = Duration::from_secs(5);
const TOKEN: i64 = 77;

fn at(millis: u64) -> Instant {
    Instant::at(Duration::from_millis(millis))
}

fn place(seq: i64) -> Position {
    Position { seq, ..Position::default() }
}

fn lane() -> LaneId {
    LaneId { subscription: "s".into(), lane: 1 }
}

/// A cursor whose lane was taken at place 10.
fn cursor() -> Cursor {
    Cursor::at(lane(), TOKEN, place(10))
}

/// Every event between these places was confirmed.
fn confirms(before: i64, after: i64) -> LaneChange {
    let mut change = LaneChange::moving(lane(), TOKEN, place(before), place(after));
    change.delivered = (after - before) as u64;
    change.done = (before..after).map(|_| EventId::fresh()).collect();
    change
}

/// What a change records: from where, up to where, how many events, and how many of these it names.
fn told(change: &LaneChange) -> (i64, i64, u64, usize) {
    (change.before.seq, change.after.seq, change.delivered, change.done.len())
}

#[test]
fn confirms_are_gathered_until_the_first_of_them_is_due() {
    let mut cursor = cursor();
    cursor.confirm(confirms(10, 12), at(1000));
    cursor.confirm(confirms(12, 13), at(1060));
    assert_eq!((cursor.durable(), cursor.decided()), (place(10), place(13)));
    assert!(!cursor.has_all_recorded() && !cursor.is_settled());
    assert_eq!(cursor.wake_at(EVERY, LATE), Some(at(1100)));
    assert!(!cursor.flush_is_due(at(1099), EVERY) && cursor.flush_is_due(at(1100), EVERY));
    assert_eq!(told(&cursor.flush().unwrap()), (10, 13, 3, 3));
}

#[test]
fn while_the_cursor_is_moved_nothing_else_is_recorded() {
    let mut cursor = cursor();
    cursor.confirm(confirms(10, 12), at(0));
    let first = cursor.flush().unwrap();
    assert!(cursor.is_moving() && !cursor.has_all_recorded() && !cursor.is_settled());
    assert_eq!(cursor.wake_at(EVERY, LATE), None);
    cursor.confirm(confirms(12, 13), at(10));
    assert!(!cursor.flush_is_due(at(60_000), EVERY));
    assert_eq!((cursor.flush(), cursor.lag(at(60_000), LATE)), (None, None));

    assert!(cursor.end_move(&first, false), "it was the cursor that moved");
    assert_eq!((cursor.durable(), cursor.is_moving()), (place(12), false));
    assert!(cursor.flush_is_due(at(110), EVERY));
    let second = cursor.flush().unwrap();
    assert_eq!(told(&second), (12, 13, 1, 1));
    assert!(cursor.end_move(&second, false));
    assert!(cursor.has_all_recorded() && cursor.is_settled());
    assert_eq!(cursor.flush(), None, "all is recorded");
}

#[test]
fn a_move_that_failed_and_a_record_of_something_else_move_nothing_here() {
    let mut cursor = cursor();
    assert!(!cursor.end_move(&confirms(10, 12), false));
    assert_eq!(cursor.durable(), place(10));
    cursor.confirm(confirms(10, 12), at(0));
    let change = cursor.flush().unwrap();
    assert!(cursor.end_move(&change, true));
    assert_eq!(cursor.durable(), place(10));
}

#[test]
fn what_only_passed_events_nobody_wants_is_recorded_late() {
    let mut cursor = cursor();
    assert_eq!((cursor.lag(at(0), LATE), cursor.wake_at(EVERY, LATE)), (None, None));
    cursor.decide(place(15));
    assert!(cursor.has_all_recorded() && !cursor.is_settled());
    assert_eq!(cursor.lag(at(1000), LATE), None);
    assert_eq!(cursor.wake_at(EVERY, LATE), Some(at(6000)));
    assert!(!cursor.flush_is_due(at(6000), EVERY));
    assert_eq!((cursor.flush(), cursor.lag(at(5999), LATE)), (None, None));
    assert_eq!(told(&cursor.lag(at(6000), LATE).unwrap()), (10, 15, 0, 0));
}

#[test]
fn confirms_are_not_recorded_as_if_nobody_had_wanted_them() {
    let mut cursor = cursor();
    cursor.confirm(confirms(10, 12), at(0));
    assert_eq!(cursor.lag(at(60_000), LATE), None);
    assert_eq!(told(&cursor.flush().unwrap()), (10, 12, 2, 2));
}

#[test]
fn what_became_of_a_batch_takes_confirms_before_it_along_and_is_recorded_once() {
    let mut cursor = cursor();
    cursor.confirm(confirms(10, 12), at(0));
    assert!(!cursor.has_outcome());
    cursor.keep(confirms(12, 15), Vec::new());
    assert!(cursor.has_outcome());
    assert_eq!(cursor.flush(), None, "they go along with it");
    assert_eq!(told(&cursor.outcome_to_record().unwrap()), (10, 15, 5, 5));
    assert_eq!(cursor.outcome_to_record(), None);
    assert!(cursor.take_outcome().is_empty() && !cursor.has_outcome());
}

#[test]
fn what_became_of_parked_events_moves_the_cursor_to_what_is_decided() {
    let mut cursor = cursor();
    cursor.confirm(confirms(10, 12), at(0));
    let moving = cursor.flush().unwrap();
    cursor.decide(place(14));
    cursor.keep(cursor.staying(), Vec::new());
    assert_eq!(cursor.outcome_to_record(), None, "the cursor is being moved");
    cursor.end_move(&moving, false);
    assert_eq!(told(&cursor.outcome_to_record().unwrap()), (12, 14, 0, 0));
}

#[test]
fn what_is_recorded_is_decided_and_what_is_decided_beyond_it_stays_so_while_events_wait() {
    let recorded = |after: i64, nothing_waits: bool| {
        let mut cursor = cursor();
        cursor.decide(place(15));
        assert_eq!(cursor.lag(at(0), LATE), None);
        cursor.recorded(place(after), nothing_waits);
        assert_eq!((cursor.durable(), cursor.wake_at(EVERY, LATE)), (place(after), None));
        cursor.decided()
    };
    assert_eq!(recorded(12, false), place(15));
    assert_eq!(recorded(17, false), place(17));
    assert_eq!(recorded(12, true), place(12));
}

#[test]
fn of_a_void_memory_nothing_is_recorded() {
    let mut cursor = cursor();
    cursor.confirm(confirms(10, 12), at(0));
    cursor.keep(confirms(12, 15), Vec::new());
    cursor.forget();
    assert!(cursor.has_all_recorded() && !cursor.has_outcome());
    assert_eq!((cursor.outcome_to_record(), cursor.flush()), (None, None));
    assert_eq!(cursor.wake_at(EVERY, LATE), None);
    cursor.confirm(confirms(10, 11), at(0));
    assert_eq!(told(&cursor.flush().unwrap()), (10, 11, 1, 1));
}
