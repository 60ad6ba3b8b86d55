//! Which pages are read for which lanes, and when, on a clock of the test's own.

use super::config::RelayConfig;
use super::lane::Lane;
use super::reader::Readers;
use crate::clock::Instant;
use crate::event::{Event, NewEvent};
use crate::outbox::{LaneId, LaneState, Position, Row, TickRef};
use std::collections::BTreeMap;
use std::time::Duration;

type Lanes = BTreeMap<u16, Lane>;

fn at(millis: u64) -> Instant {
    Instant::at(Duration::from_millis(millis))
}

fn tick(number: i64) -> TickRef {
    TickRef { number, nonce: 0 }
}

/// A lane is full with ten events; four are enough to work on.
fn config() -> RelayConfig {
    let poll = (Duration::from_millis(50), Duration::from_secs(2));
    RelayConfig { batch: 2, concurrency: Some(2), lane_queue: 20, poll, ..RelayConfig::default() }
}

/// A lane that was read up to this tick, with so many events in memory.
fn lane(number: u16, read: i64, queued: i64) -> Lane {
    let id = LaneId { subscription: "s".into(), lane: number };
    let state = LaneState { position: Position::default(), parked: Vec::new() };
    let mut lane = Lane::taken(id, 7, state, Instant::ZERO, &config());
    let event = || Event::stored(NewEvent::bytes("t", vec![]), chrono::Utc::now());
    let rows = (1..=queued).map(|seq| Row { lane: number, seq, event: event() }).collect();
    lane.page(Position::default(), rows, tick(read), Position::at(tick(read)), &config());
    lane
}

/// Lanes with nothing in memory, numbered from one, that were read up to these ticks.
fn lanes_at(ticks: &[i64]) -> Lanes {
    (1..).zip(ticks).map(|(number, tick)| (number, lane(number, *tick, 0))).collect()
}

/// Which reads begin: the reader, from which tick, for which lanes.
fn begun(readers: &mut Readers, lanes: &Lanes, now: Instant) -> Vec<(usize, i64, Vec<u16>)> {
    let begun = readers.begin(lanes, now, &config()).into_iter();
    begun.map(|(reader, page)| (reader, page.position.from.number, page.lanes)).collect()
}

fn readers() -> Readers {
    Readers::new(&config(), false)
}

#[test]
fn lanes_in_front_and_stragglers_are_read_side_by_side_each_by_one_reader() {
    let (mut readers, lanes) = (readers(), lanes_at(&[5, 4, 5, 3]));
    assert!(readers.is_idle());
    assert_eq!(begun(&mut readers, &lanes, at(0)), [(0, 5, vec![1, 3]), (1, 4, vec![2])]);
    assert!(begun(&mut readers, &lanes, at(0)).is_empty() && !readers.is_idle());
    let reading = readers.end(0).unwrap();
    assert_eq!((reading.start, reading.lanes), (Position::at(tick(5)), vec![(1, 7), (3, 7)]));
    assert_eq!(begun(&mut readers, &lanes, at(0)), [(0, 5, vec![1, 3])]);
    assert!(readers.end(0).is_some() && readers.end(1).is_some() && readers.is_idle());
}

#[test]
fn lanes_that_are_being_read_are_not_read_again_as_stragglers() {
    let (mut readers, mut lanes) = (readers(), lanes_at(&[4]));
    assert_eq!(begun(&mut readers, &lanes, at(0)), [(0, 4, vec![1])]);
    lanes.insert(2, lane(2, 6, 0));
    assert!(begun(&mut readers, &lanes, at(0)).is_empty());
}

#[test]
fn lanes_with_room_wait_for_full_ones_as_long_as_they_have_enough() {
    let read = |queued: &[i64]| {
        let lanes = (1..).zip(queued).map(|(number, queued)| (number, lane(number, 5, *queued)));
        let begun = begun(&mut readers(), &lanes.collect(), at(0));
        begun.into_iter().flat_map(|(_, _, lanes)| lanes).collect::<Vec<_>>()
    };
    assert_eq!(read(&[9, 9]), [1, 2], "none is full");
    assert!(read(&[10, 10]).is_empty());
    assert!(read(&[10, 2, 2]).is_empty());
    assert_eq!(read(&[10, 2, 1]), [2, 3]);
    assert_eq!(read(&[10, 0]), [2]);
}

#[test]
fn full_lanes_that_are_slow_keep_idle_ones_waiting_for_one_pause_only() {
    let lanes = |queued: &[i64]| -> Lanes {
        (1..).zip(queued).map(|(number, queued)| (number, lane(number, 5, *queued))).collect()
    };
    let (mut readers, slow) = (readers(), lanes(&[10, 9, 9, 0]));
    for now in [1000, 2999] {
        assert!(begun(&mut readers, &slow, at(now)).is_empty());
        assert_eq!(readers.wake_at(&config()).min(), Some(at(3000)));
    }
    assert_eq!(begun(&mut readers, &slow, at(3000)), [(0, 5, vec![2, 3, 4])]);
    readers.end(0);
    assert!(begun(&mut readers, &lanes(&[10, 9, 9, 1]), at(3001)).is_empty());
    assert_eq!(readers.wake_at(&config()).min(), None, "all have something to do");
    assert!(begun(&mut readers, &slow, at(3100)).is_empty(), "they begin to wait anew");
    assert_eq!(begun(&mut readers, &slow, at(5100)), [(0, 5, vec![2, 3, 4])]);
}

#[test]
fn idle_lanes_wait_two_seconds_at_the_most_however_seldom_a_quiet_log_is_looked_at() {
    let seldom = (Duration::from_millis(50), Duration::from_secs(10));
    let config = RelayConfig { poll: seldom, ..config() };
    let lanes = Lanes::from([(1, lane(1, 5, 10)), (2, lane(2, 5, 9)), (3, lane(3, 5, 0))]);
    let mut readers = Readers::new(&config, false);
    assert!(readers.begin(&lanes, at(1000), &config).is_empty());
    assert_eq!(readers.wake_at(&config).min(), Some(at(3000)));
    assert_eq!(readers.begin(&lanes, at(3000), &config).len(), 1);
}

#[test]
fn a_quiet_log_is_looked_at_after_pauses_that_double_until_rows_come() {
    let (mut readers, lanes) = (readers(), lanes_at(&[5]));
    assert_eq!(readers.wake_at(&config()).min(), None);
    for (now, next) in [(1000, 1050), (1050, 1150), (1150, 1350)] {
        assert_eq!(begun(&mut readers, &lanes, at(now)), [(0, 5, vec![1])]);
        let start = readers.end(0).unwrap().start;
        readers.quiet(start, at(now));
        assert_eq!(readers.wake_at(&config()).min(), Some(at(next)));
        assert!(begun(&mut readers, &lanes, at(next - 1)).is_empty());
    }
    readers.busy(1, 1);
    assert_eq!(readers.wake_at(&config()).min(), None);
    assert_eq!(begun(&mut readers, &lanes, at(1151)), [(0, 5, vec![1])]);
    let start = readers.end(0).unwrap().start;
    readers.quiet(start, at(1151));
    assert_eq!(readers.wake_at(&config()).min(), Some(at(1201)), "the pauses begin anew");
}

#[test]
fn a_ring_ends_the_pause_of_those_in_front_whoever_else_is_read() {
    let (mut readers, lanes) = (readers(), lanes_at(&[5, 4]));
    readers.quiet(Position::at(tick(5)), at(0));
    assert_eq!(begun(&mut readers, &lanes, at(1)), [(1, 4, vec![2])], "stragglers do not pause");
    readers.end(1);
    readers.ring();
    assert_eq!(begun(&mut readers, &lanes, at(1)), [(0, 5, vec![1]), (1, 4, vec![2])]);
    readers.end(0);
    assert!(begun(&mut readers, &lanes, at(1)).is_empty(), "it rang once");
}

#[test]
fn no_more_rows_are_asked_for_than_fit_a_page_as_far_as_the_last_one_tells() {
    let config = RelayConfig { page_rows: 4000, page_bytes: 1 << 20, ..config() };
    let (mut readers, lanes) = (readers(), lanes_at(&[5]));
    let mut asked = |rows, bytes| {
        readers.busy(rows, bytes);
        let (reader, page) = readers.begin(&lanes, at(0), &config).remove(0);
        readers.end(reader);
        (page.max_rows, page.max_bytes)
    };
    assert_eq!(asked(0, 0), (4000, 1 << 20), "nothing is known yet");
    assert_eq!(asked(10, 10 * 256), (4000, 1 << 20));
    assert_eq!(asked(10, 10 << 10), (1024, 1 << 20));
    assert_eq!(asked(0, 0), (1024, 1 << 20), "a page without rows tells nothing");
    assert_eq!(asked(2, 2 << 20), (50, 1 << 20), "however large they are");
    assert_eq!(asked(10, 0), (4000, 1 << 20));
}
