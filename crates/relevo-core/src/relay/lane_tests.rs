//! What a lane wants next, what it takes in, and when its memory is void, on a clock of the test's own.

use super::batch::Batch;
use super::config::RelayConfig;
use super::lane::{Lane, Wish};
use crate::clock::{Instant, Rng};
use crate::error::ErrorClass;
use crate::event::{Event, NewEvent, TopicFilter};
use crate::inbox::Outcome;
use crate::outbox::{
    EventRef, LaneChange, LaneId, LaneState, ParkKey, ParkedEvent, ParkedKey, Position, Request,
    Row, TickRef,
};
use std::sync::Arc;
use std::time::Duration;

const TOKEN: i64 = 77;
const TO: TickRef = TickRef { number: 5, nonce: 9 };
const START: Position = Position { from: TickRef { number: 1, nonce: 0 }, to: None, seq: 0 };

fn at(millis: u64) -> Instant {
    Instant::at(Duration::from_millis(millis))
}

/// Batches of two, queues of six, at most two parked keys.
fn config() -> RelayConfig {
    RelayConfig { batch: 2, lane_queue: 6, max_parked_keys: 2, ..RelayConfig::default() }
}

fn parked(key: &str, due: Option<u64>) -> ParkedKey {
    let due_in = due.map(Duration::from_millis);
    ParkedKey { key: key.into(), attempts: 1, deaths: 0, due_in }
}

/// A lane taken at zero, at `START`, with these keys parked.
fn lane(keys: &[ParkedKey]) -> Lane {
    let id = LaneId { subscription: "s".into(), lane: 3 };
    let state = LaneState { position: START, parked: keys.to_vec() };
    Lane::taken(id, TOKEN, state, Instant::ZERO, &config())
}

fn event(key: &str) -> Event {
    Event::stored(NewEvent::bytes("t", vec![0; 10]).key(key), chrono::Utc::now())
}

/// A page with one row of ten bytes for each key, read from `START`.
fn read(lane: &mut Lane, keys: &[&str]) {
    let row = |(seq, key): (usize, &&str)| Row { lane: 3, seq: seq as i64 + 1, event: event(key) };
    let rows = keys.iter().enumerate().map(row).collect();
    lane.page(START, rows, TO, Position::at(TO), &config());
}

/// A lane with these events in its queue.
fn holding(keys: &[&str]) -> Lane {
    let mut lane = lane(&[]);
    read(&mut lane, keys);
    lane
}

fn wish(lane: &mut Lane, now: Instant) -> Option<Wish> {
    lane.wish(now, true, false, &Arc::new(config()), &mut Rng::seeded(1))
}

fn cut(lane: &mut Lane) -> Batch {
    match wish(lane, at(0)) {
        Some(Wish::Deliver(batch)) => {
            lane.set_busy();
            *batch
        }
        other => panic!("{other:?} instead of a batch"),
    }
}

fn drains(wish: Option<Wish>) -> String {
    match wish {
        Some(Wish::ReadParked(key)) => key,
        other => panic!("{other:?} instead of a parked key"),
    }
}

/// Every event of the batch is done.
fn done(mut batch: Batch) -> LaneChange {
    while let Some(index) = batch.next() {
        batch.settle(index, Outcome::Done);
    }
    batch.finish().0.expect("a change")
}

fn park(key: &str) -> ParkKey {
    let error = "no".into();
    let retry_in = Some(Duration::from_millis(500));
    ParkKey {
        key: key.into(),
        attempts: 1,
        deaths: 0,
        retry_in,
        class: ErrorClass::Transient,
        error,
    }
}

/// A change that leaves the cursor at `START`.
fn staying() -> LaneChange {
    LaneChange::moving(LaneId { subscription: "s".into(), lane: 3 }, TOKEN, START, START)
}

#[test]
fn a_batch_ends_at_its_last_event_while_more_is_queued_and_where_was_read_to_else() {
    let mut lane = holding(&["a", "b", "c"]);
    assert_eq!((lane.queued(), lane.queued_bytes()), (3, 30));
    let first = done(cut(&mut lane));
    assert_eq!((first.before, first.after.seq, first.after.to), (START, 2, Some(TO)));
    assert_eq!((lane.queued(), lane.queued_bytes()), (1, 10));
    lane.recorded_with_rest(&first, Vec::new(), at(0), &config());
    let second = done(cut(&mut lane));
    assert_eq!((second.before, second.after), (first.after, Position::at(TO)));
}

#[test]
fn what_was_not_decided_comes_back_to_the_front_in_its_order() {
    let mut lane = holding(&["a", "b", "c"]);
    let items = cut(&mut lane).into_items();
    lane.put_back(items);
    assert_eq!((lane.queued(), lane.queued_bytes()), (3, 30));
    let again = cut(&mut lane);
    let keys: Vec<_> = (0..again.len()).map(|index| again.event(index).order_key()).collect();
    assert_eq!(keys, ["a", "b"]);
}

#[test]
fn events_of_a_batch_that_was_rolled_back_go_one_by_one_and_later_ones_do_not() {
    let mut lane = holding(&["a", "b", "c", "d"]);
    let items = cut(&mut lane).into_items();
    lane.redo_alone(items);
    for _ in 0..2 {
        let batch = cut(&mut lane);
        assert!(batch.is_single() && batch.len() == 1);
        lane.recorded_with_rest(&done(batch), Vec::new(), at(0), &config());
    }
    let batch = cut(&mut lane);
    assert!(!batch.is_single() && batch.len() == 2);
}

#[test]
fn a_probe_is_one_event() {
    let mut lane = holding(&["a", "b"]);
    let wish = lane.wish(at(0), true, true, &Arc::new(config()), &mut Rng::seeded(1));
    assert!(matches!(wish, Some(Wish::Deliver(batch)) if batch.len() == 1 && !batch.is_single()));
}

#[test]
fn an_event_is_to_blame_after_three_times_down_while_others_were_answered_as_often() {
    let blamed = |answers: &[u64]| {
        let mut lane = holding(&["a", "b"]);
        answers.iter().for_each(|answers| lane.was_down(*answers));
        cut(&mut lane).is_blamed()
    };
    assert!(blamed(&[10, 12, 13]));
    assert!(!blamed(&[10, 12, 12]), "others were answered twice");
    assert!(!blamed(&[10, 20]), "down twice");
    let mut lane = holding(&["a", "b"]);
    [10, 12, 13].into_iter().for_each(|answers| lane.was_down(answers));
    lane.was_up();
    lane.was_down(20);
    let batch = cut(&mut lane);
    assert!(!batch.is_blamed() && batch.len() == 2, "it answered in between");
}

#[test]
fn pages_and_due_keys_take_turns() {
    let mut lane = lane(&[parked("later", Some(40)), parked("sooner", Some(30))]);
    read(&mut lane, &["a", "b", "c"]);
    assert!(matches!(wish(&mut lane, at(100)), Some(Wish::Deliver(_))));
    assert_eq!(drains(wish(&mut lane, at(100))), "sooner");
    assert!(matches!(wish(&mut lane, at(100)), Some(Wish::Deliver(_))));
    assert_eq!(drains(wish(&mut lane, at(100))), "sooner");
    assert_eq!(drains(wish(&mut lane, at(100))), "sooner", "the queue is empty");
}

#[test]
fn a_parked_key_is_due_at_its_time_and_a_held_one_never() {
    let mut due = lane(&[parked("a", Some(30))]);
    assert!(!due.has_due(at(29)) && wish(&mut due, at(29)).is_none());
    assert!(due.has_due(at(30)));
    assert_eq!(due.wake_at(&config()), Some(at(30)));
    assert_eq!(drains(wish(&mut due, at(30))), "a");
    due.set_busy();
    assert!(!due.has_due(at(30)) && due.wake_at(&config()).is_none(), "one thing at a time");
    let held = lane(&[parked("a", None)]);
    assert!(!held.has_due(at(1_000_000)) && held.wake_at(&config()).is_none());
}

#[test]
fn nothing_is_handed_over_by_a_lane_that_leaves_or_while_nothing_may_be() {
    let mut lane = holding(&["a"]);
    let may_not = lane.wish(at(0), false, false, &Arc::new(config()), &mut Rng::seeded(1));
    assert!(may_not.is_none() && lane.has_due(at(0)));
    lane.leaving = true;
    assert!(wish(&mut lane, at(0)).is_none() && !lane.has_due(at(0)));
}

#[test]
fn a_lane_may_leave_when_nothing_is_under_way_and_what_was_confirmed_is_recorded() {
    let mut lane = holding(&["a"]);
    assert!(lane.may_leave() && lane.owes_nothing(), "what is queued is read again");
    let batch = cut(&mut lane);
    assert!(!lane.may_leave() && lane.is_busy());
    lane.confirmed(done(batch), Vec::new(), at(0));
    assert!(!lane.may_leave() && !lane.owes_nothing() && !lane.is_settled());
    assert!(!lane.flush_is_due(at(99), &config()));
    lane.leaving = true;
    assert!(lane.flush_is_due(at(99), &config()), "whoever leaves does not wait for more");
    let change = lane.flush().expect("what was confirmed");
    assert!(!lane.flush_is_due(at(500), &config()), "it is being recorded");
    lane.record_ended(&change, false, at(100), &config());
    assert!(lane.may_leave() && lane.owes_nothing() && lane.is_settled());
}

#[test]
fn what_became_of_a_batch_is_owed_until_it_is_recorded() {
    let mut lane = holding(&["a"]);
    let mut change = done(cut(&mut lane));
    change.parked.push(park("a"));
    lane.decided(change, Vec::new());
    assert!(!lane.owes_nothing() && wish(&mut lane, at(0)).is_none());
    let change = lane.outcome_to_record().expect("the outcome");
    assert!(lane.outcome_to_record().is_none(), "once");
    lane.record_ended(&change, false, at(100), &config());
    assert!(lane.owes_nothing() && lane.parked_keys() == 1);
    assert_eq!(lane.wake_at(&config()), Some(at(600)));
}

#[test]
fn a_record_that_failed_voids_memory_and_it_is_loaded_before_anything_else() {
    let mut lane = holding(&["a", "b", "c"]);
    let change = done(cut(&mut lane));
    lane.record_ended(&change, true, at(0), &config());
    assert!(lane.is_void() && !lane.is_busy() && lane.may_leave());
    assert!(lane.reads_from().is_none(), "where to read on is not known");
    assert!(matches!(wish(&mut lane, at(0)), Some(Wish::Load)));
    let state = LaneState { position: START, parked: vec![parked("x", Some(10))] };
    lane.loaded(state, at(50), &config());
    assert_eq!((lane.queued(), lane.queued_bytes(), lane.parked_keys()), (0, 0, 1));
    assert_eq!((lane.reads_from(), lane.wake_at(&config())), (Some(START), Some(at(60))));
}

#[test]
fn a_move_that_failed_dooms_what_is_under_way_and_voids_memory_at_its_end() {
    let mut lane = holding(&["a", "b", "c"]);
    let first = cut(&mut lane);
    lane.confirmed(done(first), Vec::new(), at(0));
    let change = lane.flush().expect("what was confirmed");
    cut(&mut lane);
    lane.record_ended(&change, true, at(10), &config());
    assert!(lane.is_busy() && lane.is_void() && wish(&mut lane, at(10)).is_none());
    assert!(lane.flush().is_none(), "nothing of it is recorded");
    assert!(lane.ends_doomed() && !lane.is_busy() && lane.is_void());
    assert!(!lane.ends_doomed(), "once");
}

#[test]
fn a_move_that_is_recorded_leaves_what_is_under_way_alone() {
    let mut lane = holding(&["a", "b", "c"]);
    let first = cut(&mut lane);
    lane.confirmed(done(first), Vec::new(), at(0));
    let change = lane.flush().expect("what was confirmed");
    lane.void();
    assert!(wish(&mut lane, at(0)).is_none(), "not while its record is under way");
    let mut lane = holding(&["a", "b", "c"]);
    let first = cut(&mut lane);
    lane.confirmed(done(first), Vec::new(), at(0));
    lane.flush().expect("what was confirmed");
    let second = cut(&mut lane);
    lane.record_ended(&change, false, at(10), &config());
    assert!(lane.is_busy() && !lane.is_void() && !lane.ends_doomed());
    assert_eq!(done(second).before, START, "cut before the move was known");
}

#[test]
fn a_page_is_taken_in_only_where_it_was_read_for() {
    let mut lane = holding(&["a"]);
    read(&mut lane, &["b"]);
    assert_eq!(lane.queued(), 1, "it was read from another place");
    assert_eq!(lane.reads_from(), Some(Position::at(TO)));
    let mut void = self::lane(&[]);
    void.void();
    read(&mut void, &["a"]);
    assert_eq!(void.queued(), 0);
}

#[test]
fn what_nobody_wants_is_passed_and_written_late() {
    let topics = vec![TopicFilter::parse("other").expect("a topic")];
    let config = RelayConfig { topics, ..config() };
    let mut lane = lane(&[]);
    let rows = vec![Row { lane: 3, seq: 1, event: event("a") }];
    assert_eq!(lane.page(START, rows, TO, Position::at(TO), &config), 1);
    assert!(lane.queued() == 0 && !lane.is_settled() && lane.owes_nothing());
    let mut later =
        |millis| lane.wish(at(millis), true, false, &Arc::new(config.clone()), &mut Rng::seeded(1));
    assert!(later(0).is_none());
    assert!(matches!(later(5_000), Some(Wish::Record(change)) if change.after == Position::at(TO)));
}

#[test]
fn there_is_room_below_half_of_the_queue() {
    let room = |events: usize| holding(&vec!["a"; events]).has_room(&config());
    assert!(room(2) && !room(3));
}

#[test]
fn a_place_that_cannot_be_read_from_voids_the_lanes_that_stand_there_with_nothing_under_way() {
    let voided = |busy: bool, place: Position| {
        let mut lane = lane(&[]);
        if busy {
            lane.set_busy();
        }
        lane.cannot_read_from(place);
        lane.is_void()
    };
    assert!(voided(false, START));
    assert!(!voided(true, START) && !voided(false, Position::at(TO)));
}

#[test]
fn a_stored_cursor_that_stands_elsewhere_voids_memory_unless_that_may_be_newer() {
    let voided = |sent: u64, stored: Position, change: fn(&mut Lane)| {
        let mut lane = holding(&["a", "b", "c"]);
        change(&mut lane);
        lane.compare(at(sent), stored);
        lane.is_void()
    };
    assert!(voided(1, Position::at(TO), |_| {}));
    assert!(!voided(1, START, |_| {}), "it stands where memory has it");
    assert!(!voided(0, Position::at(TO), |_| {}), "the lane was taken when the beat was sent");
    assert!(!voided(1, Position::at(TO), Lane::set_busy), "a batch may have moved it");
    let moving = |lane: &mut Lane| {
        let batch = cut(lane);
        lane.confirmed(done(batch), Vec::new(), at(0));
        lane.flush().expect("what was confirmed");
    };
    assert!(!voided(1, Position::at(TO), moving), "a record may have moved it");
}

#[test]
fn too_many_parked_keys_stop_a_lane_and_empty_its_memory_but_are_still_tried() {
    let mut lane = holding(&["a", "b", "c", "d"]);
    let mut change = done(cut(&mut lane));
    change.parked = ["x", "y"].map(park).into();
    lane.recorded(&change, at(0), &config());
    assert!(lane.stopped.is_none() && lane.queued() == 2, "as many as may be");
    let mut change = done(cut(&mut lane));
    change.parked = vec![park("z")];
    lane.recorded(&change, at(0), &config());
    assert!(lane.stopped.is_some() && lane.reads_from().is_none());
    assert_eq!((lane.queued(), lane.queued_bytes(), lane.parked_keys()), (0, 0, 3));
    assert_eq!(drains(wish(&mut lane, at(500))), "x");
}

#[test]
fn a_lane_that_stopped_while_a_page_was_read_takes_nothing_of_it() {
    let mut lane = lane(&["x", "y", "z"].map(|key| parked(key, Some(10))));
    assert!(lane.stopped.is_some());
    read(&mut lane, &["a", "b"]);
    assert_eq!((lane.queued(), lane.queued_bytes()), (0, 0));
}

#[test]
fn a_lane_with_more_parked_keys_than_memory_has_is_loaded_again_when_there_is_room() {
    let mut lane = lane(&["x", "y", "z"].map(|key| parked(key, Some(10))));
    assert!(lane.stopped.is_some());
    let mut change = staying();
    change.unparked = vec!["x".into()];
    lane.recorded(&change, at(0), &config());
    assert!(lane.is_void() && lane.stopped.is_none() && lane.parked_keys() == 2);
}

#[test]
fn a_request_is_carried_out_once_and_memory_is_void_after_it() {
    let mut lane = holding(&["a"]);
    let request = Request { id: 4, lane: 3, key: "k".into() };
    lane.ask(request.clone());
    lane.ask(request);
    let Some(Wish::Record(change)) = wish(&mut lane, at(0)) else { panic!("requests come first") };
    assert_eq!(change.replayed, [4]);
    lane.set_busy();
    lane.record_ended(&change, false, at(0), &config());
    assert!(matches!(wish(&mut lane, at(0)), Some(Wish::Load)));
}

fn parked_events(keys: &[&str]) -> Vec<ParkedEvent> {
    let one = |(seq, key): (usize, &&str)| {
        let event = event(key);
        let at = EventRef { key: (*key).into(), to: TO, seq: seq as i64 + 1, id: event.id };
        ParkedEvent { at, event }
    };
    keys.iter().enumerate().map(one).collect()
}

#[test]
fn a_key_is_let_go_only_if_all_that_waits_behind_it_was_read_and_is_done() {
    let unparked = |waiting: usize, max_rows: usize| {
        let mut lane = lane(&[parked("k", Some(0))]);
        drains(wish(&mut lane, at(0)));
        lane.set_busy();
        let events = parked_events(&vec!["k"; waiting]);
        let batch = lane.drain("k", events, max_rows, &Arc::new(config()), &mut Rng::seeded(1));
        assert!(batch.is_drain());
        let change = done(batch);
        assert_eq!((change.before, change.after), (START, START), "it moves no cursor");
        change.unparked
    };
    assert_eq!(unparked(1, 2), ["k"]);
    assert!(unparked(2, 2).is_empty(), "there may be more");
    assert!(unparked(3, 50).is_empty(), "more than a batch was read");
}

#[test]
fn refs_that_were_not_decided_stay_in_the_store() {
    let mut lane = lane(&[parked("k", Some(0))]);
    drains(wish(&mut lane, at(0)));
    lane.set_busy();
    let config = Arc::new(config());
    let batch = lane.drain("k", parked_events(&["k"]), 50, &config, &mut Rng::seeded(1));
    lane.put_back(batch.into_items());
    assert!(lane.queued() == 0 && !lane.is_busy() && lane.has_due(at(0)));
}

#[test]
fn a_parked_key_with_nothing_behind_it_is_let_go() {
    let mut lane = lane(&[parked("k", Some(0))]);
    drains(wish(&mut lane, at(0)));
    lane.set_busy();
    lane.nothing_waits_behind("k");
    let change = lane.outcome_to_record().expect("the key goes");
    assert_eq!((&change.unparked[..], change.after), (&["k".to_owned()][..], START));
    lane.record_ended(&change, false, at(0), &config());
    assert_eq!(lane.parked_keys(), 0);
}

#[test]
fn an_event_of_a_parked_key_waits_behind_it_and_others_go() {
    let mut lane = lane(&[parked("a", None)]);
    read(&mut lane, &["a", "b"]);
    let change = done(cut(&mut lane));
    let waiting: Vec<_> = change.waiting.iter().map(|at| at.key.as_str()).collect();
    assert_eq!((change.delivered, waiting), (1, vec!["a"]));
}

#[test]
fn a_failed_move_voids_a_lane_whose_batch_has_ended_at_once() {
    let mut lane = holding(&["a", "b", "c"]);
    let first = cut(&mut lane);
    lane.confirmed(done(first), Vec::new(), at(0));
    let change = lane.flush().expect("what was confirmed");
    let mut outcome = done(cut(&mut lane));
    outcome.parked.push(park("c"));
    lane.decided(outcome, Vec::new());
    lane.record_ended(&change, true, at(10), &config());
    assert!(lane.is_void() && !lane.is_busy(), "nothing more is heard of that batch");
    assert!(matches!(wish(&mut lane, at(10)), Some(Wish::Load)));
}

#[test]
fn a_request_that_came_meanwhile_outlives_the_record_of_something_else() {
    let mut lane = holding(&["a"]);
    let change = done(cut(&mut lane));
    lane.ask(Request { id: 4, lane: 3, key: "k".into() });
    lane.recorded(&change, at(0), &config());
    let wish = wish(&mut lane, at(0));
    assert!(matches!(wish, Some(Wish::Record(change)) if change.replayed == [4]));
}
