//! What the machine keeps count of: what is under way, what is owed, whose turn it is, and the figures it shows.

use super::action::{Action, Delivery, Input};
use super::answers_tests::{Rig, at, config, gone, nowhere, waiting};
use super::batch::Batch;
use super::config::RelayConfig;
use crate::error::{Error, Kind};
use crate::event::TopicFilter;
use crate::inbox::Outcome;
use crate::outbox::{
    Claim, Fleet, LaneChange, LaneState, Page, ParkedEvent, ParkedKey, Position, Request,
};
use std::time::Duration;

/// Lane 3 has a parked key that is due then.
fn parking(config: RelayConfig, due: u64) -> Rig {
    let due_in = Some(Duration::from_millis(due));
    let key = ParkedKey { key: "k".into(), attempts: 1, deaths: 0, due_in };
    Rig::new(config, LaneState { parked: vec![key], ..nowhere() })
}

fn parked(rig: &mut Rig, millis: u64, result: Result<Vec<ParkedEvent>, Error>) {
    let (token, key) = (rig.tokens[&3], "k".to_owned());
    rig.relay.handle(at(millis), Input::Parked { lane: 3, token, key, max_rows: 50, result });
    rig.poll(millis);
}

fn records(rig: &Rig) -> Option<Vec<LaneChange>> {
    let record = |action: &Action| match action {
        Action::Record(changes) => Some(changes.clone()),
        _ => None,
    };
    rig.asked.iter().find_map(record)
}

fn recorded(rig: &mut Rig, millis: u64, result: Result<(), Error>) {
    let changes = records(rig).expect("a record");
    rig.relay.handle(at(millis), Input::Recorded { changes, result });
    rig.poll(millis);
}

fn reads_parked(rig: &Rig) -> bool {
    rig.asked.iter().any(|action| matches!(action, Action::ReadParked { .. }))
}

/// Every event of the batch is done, which is not recorded yet.
fn done(batch: &Batch) -> Delivery {
    let mut batch = batch.clone();
    while let Some(index) = batch.next() {
        batch.settle(index, Outcome::Done);
    }
    let (change, rest) = batch.finish();
    Delivery::Decided { change: change.expect("a change"), rest, down: None }
}

fn down(batch: &Batch) -> Delivery {
    Delivery::Down { items: batch.clone().into_items(), reason: "down".into() }
}

fn aborted(batch: &Batch) -> Delivery {
    Delivery::Aborted { items: batch.clone().into_items(), reason: "rolled back".into() }
}

/// What it gives back, after a record of what is decided if it asks for one.
fn released(rig: &mut Rig, millis: u64) -> Option<Vec<Claim>> {
    if records(rig).is_some() {
        recorded(rig, millis, Ok(()));
    }
    rig.asked.iter().find_map(|action| match action {
        Action::Release(claims) => Some(claims.clone()),
        _ => None,
    })
}

/// Asked to stop now, it gives its lanes back and is finished when that and its pages are answered.
fn ends(rig: &mut Rig, millis: u64) -> bool {
    rig.relay.handle(at(millis), Input::Stop);
    rig.poll(millis);
    let Some(claims) = released(rig, millis) else { return false };
    rig.relay.handle(at(millis), Input::Released { claims, result: Ok(()) });
    let page = Page { rows: Vec::new(), to: None, end: Position::default() };
    for reader in 0..2 {
        rig.relay.handle(at(millis), Input::Page { reader, result: Ok(page.clone()) });
    }
    rig.relay.is_finished()
}

/// A batch of lane 1 was confirmed at zero, and its record is under way since 100 ms.
fn recording() -> Rig {
    let mut rig = Rig::plain(config());
    rig.page(0, &[(1, "a")]);
    let batch = rig.batches()[0].clone();
    rig.delivered(0, &batch, done(&batch));
    rig.poll(100);
    rig
}

#[test]
fn whatever_was_asked_and_answered_keeps_nobody_from_ending() {
    assert!(ends(&mut Rig::plain(config()), 0));
    let mut loads = Rig::plain(config());
    loads.page(0, &[(1, "a")]);
    let batch = loads.batches()[0].clone();
    loads.delivered(0, &batch, Delivery::Void(gone(Kind::Stale)));
    let token = batch.token();
    let state = Ok(Some(nowhere()));
    loads.relay.handle(at(0), Input::Loaded { lane: 1, token, result: state });
    assert!(ends(&mut loads, 0), "a load");
    let mut records = recording();
    recorded(&mut records, 100, Ok(()));
    assert!(ends(&mut records, 100), "a record");
    let mut reads = parking(config(), 0);
    let (token, key, result) = (reads.tokens[&3], "k".to_owned(), Err(gone(Kind::Stale)));
    reads.relay.handle(at(0), Input::Parked { lane: 3, token, key, max_rows: 50, result });
    assert!(ends(&mut reads, 0), "what waits behind a key");
}

#[test]
fn a_key_with_nothing_behind_it_leaves_its_place_among_the_batches() {
    let mut rig = parking(RelayConfig { concurrency: Some(1), ..config() }, 0);
    assert!(reads_parked(&rig));
    rig.page(0, &[(1, "a")]);
    assert!(rig.batches().is_empty(), "one at a time");
    parked(&mut rig, 0, Ok(Vec::new()));
    assert_eq!(rig.lanes_handed_over(), [1]);
}

#[test]
fn what_waits_behind_a_key_and_comes_too_late_leaves_its_place_among_the_batches() {
    let mut rig = parking(RelayConfig { concurrency: Some(1), ..config() }, 0);
    rig.page(0, &[(1, "a")]);
    parked(&mut rig, 8_000, Ok(waiting()));
    assert!(rig.batches().is_empty(), "its lease may have ended");
    let fleet = rig.fleet();
    rig.beat(8_000, fleet);
    assert_eq!(rig.lanes_handed_over(), [1]);
    let mut rig = parking(config(), 0);
    parked(&mut rig, 8_000, Ok(waiting()));
    assert!(ends(&mut rig, 8_000));
}

#[test]
fn what_waits_behind_a_key_is_not_handed_over_once_memory_is_void() {
    let mut rig = parking(config(), 150);
    rig.page(0, &[(3, "a")]);
    let batch = rig.batches()[0].clone();
    rig.delivered(0, &batch, done(&batch));
    rig.poll(100);
    let changes = records(&rig).expect("what was confirmed");
    rig.poll(150);
    assert!(reads_parked(&rig));
    let result = Err(gone(Kind::Stale));
    rig.relay.handle(at(150), Input::Recorded { changes, result });
    parked(&mut rig, 150, Ok(waiting()));
    assert!(rig.batches().is_empty());
    assert_eq!(rig.loads(), [3]);
}

#[test]
fn after_its_turn_a_lane_comes_last() {
    let mut rig = Rig::plain(RelayConfig { concurrency: Some(1), batch: 1, ..config() });
    rig.page(0, &[(1, "a"), (1, "b"), (2, "c")]);
    assert_eq!(rig.lanes_handed_over(), [1]);
    let batch = rig.batches()[0].clone();
    rig.delivered(0, &batch, aborted(&batch));
    assert_eq!(rig.lanes_handed_over(), [2]);
}

#[test]
fn after_a_parked_key_had_its_turn_its_lane_comes_last() {
    let mut rig = parking(RelayConfig { concurrency: Some(1), ..config() }, 0);
    rig.page(0, &[(2, "x"), (4, "y")]);
    parked(&mut rig, 0, Ok(waiting()));
    let drain = rig.batches()[0].clone();
    assert!(drain.is_drain());
    rig.delivered(0, &drain, aborted(&drain));
    assert_eq!((rig.lanes_handed_over(), reads_parked(&rig)), (vec![4], false));
}

#[test]
fn one_event_probes_a_destination_that_was_down_and_nothing_else_until_it_is_answered() {
    let mut rig = Rig::plain(config());
    rig.page(0, &[(1, "a"), (1, "b"), (2, "c"), (2, "d")]);
    for batch in rig.batches() {
        rig.delivered(0, &batch, down(&batch));
    }
    assert!(rig.relay.counts(at(0)).breaker_open);
    rig.poll(499);
    assert!(rig.batches().is_empty());
    rig.poll(500);
    assert_eq!(rig.batches().iter().map(Batch::len).collect::<Vec<_>>(), [1]);
    rig.poll(7_000);
    assert!(rig.batches().is_empty(), "the probe is under way");
}

#[test]
fn a_probe_that_was_not_made_because_a_request_came_first_is_still_made() {
    let mut rig = Rig::plain(config());
    rig.page(0, &[(1, "a"), (2, "c")]);
    for batch in rig.batches() {
        rig.delivered(0, &batch, down(&batch));
    }
    let requests = vec![Request { id: 4, lane: 1, key: "k".into() }];
    let fleet = Fleet { requests, ..rig.fleet() };
    rig.beat(500, fleet);
    assert_eq!(records(&rig).expect("a record")[0].replayed, [4]);
    assert!(rig.batches().is_empty());
    rig.poll(1_000);
    assert_eq!(rig.lanes_handed_over(), [2]);
}

#[test]
fn an_event_is_to_blame_that_is_down_while_another_lane_is_answered() {
    let mut rig = Rig::plain(RelayConfig { batch: 1, ..config() });
    rig.page(0, &[(1, "a"), (2, "b"), (2, "c"), (2, "d"), (2, "e"), (2, "f")]);
    for round in 0..4 {
        assert_eq!(rig.lanes_handed_over(), [1, 2], "{round}");
        let batches = rig.batches();
        assert!(!batches[0].is_blamed(), "{round}");
        rig.delivered(0, &batches[0], down(&batches[0]));
        rig.delivered(0, &batches[1], done(&batches[1]));
        // Both go on after the answer, which came last.
        if rig.lanes_handed_over() == [2, 1] {
            rig.asked.reverse();
        }
    }
    assert!(rig.batches().iter().any(|batch| batch.lane().lane == 1 && batch.is_blamed()));
}

#[test]
fn a_recorded_move_leaves_memory_alone_and_a_failed_one_voids_it() {
    let mut rig = recording();
    recorded(&mut rig, 100, Ok(()));
    assert!(rig.loads().is_empty() && rig.relay.owes_nothing());
    let mut rig = recording();
    recorded(&mut rig, 100, Err(gone(Kind::Timeout)));
    assert!(rig.loads().is_empty() && !rig.relay.owes_nothing(), "nobody knows what became of it");
    assert_eq!(rig.relay.wake_at(at(100)), Some(at(200)), "a store in trouble is left alone");
    rig.poll(200);
    assert_eq!(rig.loads(), [1]);
    let mut rig = recording();
    recorded(&mut rig, 100, Err(gone(Kind::Stale)));
    assert_eq!(rig.loads(), [1], "at once");
    assert!(rig.relay.owes_nothing(), "the lane is another's, and so is what it brings again");
}

#[test]
fn a_record_under_way_is_owed_though_the_lane_was_lost_unless_nothing_was_handed_over() {
    let mut rig = recording();
    let mut fleet = rig.fleet();
    fleet.leases[1].token += 1;
    rig.beat(150, fleet);
    assert!(!rig.relay.owes_nothing());
    let topics = vec![TopicFilter::parse("other").expect("a topic")];
    let mut rig = Rig::plain(RelayConfig { topics, ..config() });
    rig.page(0, &[(1, "a")]);
    rig.poll(5_000);
    assert!(records(&rig).is_some() && rig.relay.owes_nothing());
}

#[test]
fn what_could_not_be_recorded_is_owed_while_it_is_not_known_to_be_given_back() {
    let mut rig = Rig::plain(config());
    rig.page(0, &[(1, "a")]);
    let batch = rig.batches()[0].clone();
    rig.delivered(0, &batch, Delivery::Void(gone(Kind::CommitUnknown)));
    rig.relay.handle(at(0), Input::Stop);
    rig.poll(100);
    let claims = released(&mut rig, 100).expect("a release");
    let result = Err(gone(Kind::Timeout));
    rig.relay.handle(at(100), Input::Released { claims, result });
    assert!(!rig.relay.owes_nothing());
}

#[test]
fn what_is_due_and_has_to_wait_for_its_turn_wakes_nobody() {
    let mut rig = parking(RelayConfig { concurrency: Some(1), ..config() }, 10);
    rig.page(0, &[(1, "a")]);
    assert_eq!(rig.relay.wake_at(at(0)), Some(at(10)));
    rig.poll(10);
    assert!(!reads_parked(&rig));
    assert_eq!(rig.relay.wake_at(at(10)), Some(at(1_000)));
}

#[test]
fn the_figures_are_those_of_this_moment() {
    let rig = Rig::plain(config());
    let counts = rig.relay.counts(at(0));
    assert_eq!((counts.lanes, counts.takeovers, counts.due), (64, 64, false));
    let mut rig = parking(RelayConfig { concurrency: Some(1), max_parked_keys: 0, ..config() }, 10);
    rig.page(0, &[(1, "a"), (2, "b")]);
    let counts = rig.relay.counts(at(0));
    assert_eq!((counts.stopped, counts.parked_keys, counts.queued), (1, 1, 1));
    assert!(counts.due && !counts.breaker_open);
    let mut rig = Rig::plain(config());
    rig.page(0, &[(1, "a")]);
    let counts = rig.relay.counts(at(0));
    assert_eq!((counts.queued, counts.due), (0, true), "it is under way");
}

#[test]
fn what_nobody_wants_is_counted() {
    let topics = vec![TopicFilter::parse("other").expect("a topic")];
    let mut rig = Rig::plain(RelayConfig { topics, ..config() });
    rig.page(0, &[(1, "a"), (2, "b")]);
    assert_eq!(rig.relay.counts(at(0)).filtered, 2);
    let mut rig = Rig::plain(config());
    rig.page(0, &[(1, "a"), (2, "b")]);
    assert_eq!(rig.relay.counts(at(0)).filtered, 0);
}

#[test]
fn every_move_is_counted_and_nothing_that_failed() {
    let moves = |rig: &Rig| rig.relay.counts(at(0)).moves;
    let mut rig = recording();
    assert_eq!(moves(&rig), 1, "a batch was confirmed");
    recorded(&mut rig, 100, Ok(()));
    assert_eq!(moves(&rig), 2, "and recorded");
    let mut rig = recording();
    recorded(&mut rig, 100, Err(gone(Kind::Stale)));
    assert_eq!(moves(&rig), 1);
    let mut rig = Rig::plain(config());
    rig.page(0, &[(1, "a"), (2, "b")]);
    let batches = rig.batches();
    let Delivery::Decided { change, rest, down: None } = done(&batches[0]) else { panic!("done") };
    rig.delivered(0, &batches[0], Delivery::Recorded { change, rest, down: None });
    assert_eq!(moves(&rig), 1, "recorded with its effect");
    rig.delivered(0, &batches[1], down(&batches[1]));
    assert_eq!(moves(&rig), 2, "the destination was found to be down");
}
