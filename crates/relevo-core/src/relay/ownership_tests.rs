//! Which lanes a machine has: what it takes, what it gives back and to whom, and when it looks.

use super::action::{Action, Delivery, Input};
use super::answers_tests::{Rig, at, config, gone, me};
use super::config::RelayConfig;
use super::machine::Relay;
use crate::clock::Rng;
use crate::error::Kind;
use crate::limits::LANES;
use crate::outbox::{Claim, Fleet, Lease, MemberId, Page, Position};
use std::collections::BTreeSet;

fn other() -> MemberId {
    MemberId("other".into())
}

fn released(rig: &Rig) -> Vec<Claim> {
    let release = |action: &Action| match action {
        Action::Release(claims) => Some(claims.clone()),
        _ => None,
    };
    rig.asked.iter().find_map(release).unwrap_or_default()
}

fn lanes(claims: &[Claim]) -> Vec<u16> {
    claims.iter().map(|claim| claim.lane).collect()
}

fn takes(rig: &Rig) -> bool {
    rig.asked.iter().any(|action| matches!(action, Action::Take(_)))
}

fn beats(rig: &mut Rig, millis: u64) -> bool {
    rig.poll(millis);
    rig.asked.iter().any(|action| matches!(action, Action::Beat(_)))
}

/// Another process has signed life.
fn joined(rig: &Rig) -> Fleet {
    Fleet { members: vec![(me(), 1), (other(), 1)], ..rig.fleet() }
}

/// A batch of each of these lanes is under way.
fn busy(count: u16) -> Rig {
    let mut rig = Rig::plain(RelayConfig { concurrency: Some(64), ..config() });
    let rows: Vec<(u16, &str)> = (0..count).map(|lane| (lane, "k")).collect();
    rig.page(0, &rows);
    assert_eq!(rig.batches().len(), usize::from(count));
    rig
}

/// The batch of this lane is to be redone: the lane could go on with it, or leave.
fn redo(rig: &mut Rig, millis: u64, lane: u16, batches: &[super::batch::Batch]) {
    let batch = batches.iter().find(|batch| batch.lane().lane == lane).expect("its batch").clone();
    let items = batch.clone().into_items();
    rig.delivered(millis, &batch, Delivery::Aborted { items, reason: "rolled back".into() });
}

/// Half of the lanes were given back to another, who has not taken them yet.
fn half() -> Rig {
    let mut rig = Rig::plain(config());
    let fleet = joined(&rig);
    rig.beat(1, fleet);
    let claims = released(&rig);
    for claim in &claims {
        rig.tokens.remove(&claim.lane);
    }
    rig.relay.handle(at(1), Input::Released { claims, result: Ok(()) });
    rig
}

#[test]
fn what_is_more_than_the_share_is_given_back_and_first_what_has_nothing_under_way() {
    let mut rig = busy(10);
    let fleet = joined(&rig);
    rig.beat(1, fleet);
    let gone = lanes(&released(&rig));
    assert_eq!((gone.len(), rig.relay.counts(at(1)).lanes), (32, 32));
    assert!(gone.iter().all(|lane| *lane >= 10), "{gone:?}");
}

#[test]
fn a_lane_that_is_to_leave_stays_the_one_and_leaves_when_nothing_of_it_is_under_way() {
    let mut rig = busy(LANES);
    let batches = rig.batches();
    let fleet = joined(&rig);
    rig.beat(1, fleet);
    assert!(released(&rig).is_empty(), "all are at work");
    redo(&mut rig, 2, 0, &batches);
    assert_eq!(lanes(&released(&rig)), [0]);
    redo(&mut rig, 2, 40, &batches);
    assert!(released(&rig).is_empty());
    assert_eq!(rig.lanes_handed_over(), [40], "it is among those that stay");
}

#[test]
fn whoever_is_alone_again_keeps_the_lanes_that_were_to_leave() {
    let mut rig = busy(LANES);
    let (batches, alone) = (rig.batches(), rig.fleet());
    let fleet = joined(&rig);
    rig.beat(1, fleet);
    rig.beat(2, alone);
    redo(&mut rig, 2, 0, &batches);
    assert!(released(&rig).is_empty());
    assert_eq!(rig.lanes_handed_over(), [0]);
}

#[test]
fn no_more_lanes_are_taken_than_the_share_lacks() {
    let mut rig = half();
    let fleet = joined(&rig);
    rig.beat(2, fleet);
    assert!(!takes(&rig), "others should have what is free");
    let mine = *rig.tokens.keys().next().expect("a lane");
    let mut fleet = joined(&rig);
    let lease = &mut fleet.leases[usize::from(mine)];
    (lease.owner, lease.token) = (Some(other()), 5);
    rig.beat(3, fleet);
    assert_eq!(rig.claims().len(), 1);
}

#[test]
fn the_tokens_of_a_take_are_positive_and_nobody_had_them() {
    let rig = Rig::plain(config());
    let tokens: BTreeSet<i64> = rig.tokens.values().copied().collect();
    assert!(tokens.len() == 64 && tokens.iter().all(|token| *token > 0), "{tokens:?}");
    let owned: Vec<_> = rig.relay.owned().collect();
    assert_eq!(owned, rig.tokens.into_iter().collect::<Vec<_>>());
}

#[test]
fn a_lease_in_our_name_that_is_not_held_is_given_back_once_a_look() {
    let mut rig = half();
    let left = (0..LANES).find(|lane| !rig.tokens.contains_key(lane)).expect("one given back");
    let mut fleet = joined(&rig);
    let lease = &mut fleet.leases[usize::from(left)];
    (lease.owner, lease.token) = (Some(me()), 99);
    rig.beat(2, fleet);
    let claims = released(&rig);
    assert_eq!((lanes(&claims), claims[0].seen), (vec![left], 99));
    rig.poll(2);
    assert!(released(&rig).is_empty(), "the leases were not looked at since");
}

#[test]
fn leases_of_a_take_that_is_not_answered_yet_are_not_given_back() {
    let relay = Relay::new("s", me(), config(), false, Rng::seeded(7));
    let mut rig = Rig { relay, tokens: Default::default(), asked: Vec::new() };
    rig.poll(0);
    let fleet = rig.fleet();
    rig.beat(0, fleet);
    let lease = |claim: &Claim| Lease {
        lane: claim.lane,
        owner: Some(me()),
        token: claim.fresh,
        position: Position::default(),
    };
    let leases = rig.claims().iter().map(lease).collect();
    let fleet = Fleet { leases, ..rig.fleet() };
    rig.beat(1, fleet);
    assert!(released(&rig).is_empty() && !takes(&rig));
}

#[test]
fn what_was_not_got_is_looked_at_within_a_tenth_of_the_lease() {
    let mut rig = Rig::plain(config());
    assert_eq!(rig.relay.wake_at(at(0)), Some(at(1_000)));
    assert!(!beats(&mut rig, 999) && beats(&mut rig, 1_000));
    assert!(!beats(&mut rig, 9_000), "one at a time");
}

#[test]
fn the_leases_are_looked_at_when_anothers_may_have_run_out() {
    let relay = Relay::new("s", me(), config(), false, Rng::seeded(7));
    let mut rig = Rig { relay, tokens: Default::default(), asked: Vec::new() };
    let lease =
        |lane| Lease { lane, owner: Some(other()), token: 7, position: Position::default() };
    let fleet = Fleet { leases: (0..LANES).map(lease).collect(), ..joined(&rig) };
    // The first answer takes a while: the other's silence is counted from then on.
    rig.poll(0);
    rig.relay.handle(at(300), Input::Beat { sent: at(0), result: Ok(fleet.clone()) });
    for second in 1..=10 {
        assert!(beats(&mut rig, second * 1_000), "{second}");
        rig.beat(second * 1_000, fleet.clone());
    }
    assert_eq!(rig.relay.wake_at(at(10_000)), Some(at(10_300)));
    assert!(!beats(&mut rig, 10_299) && beats(&mut rig, 10_300));
    assert_eq!(rig.relay.wake_at(at(10_300)), None, "the answer is awaited, not a time");
}

#[test]
fn whoever_stops_signs_life_until_its_lanes_are_given_back_and_gives_them_back_once() {
    let mut rig = busy(1);
    let batches = rig.batches();
    let fleet = rig.fleet();
    rig.beat(0, fleet.clone());
    rig.relay.handle(at(0), Input::Stop);
    rig.poll(0);
    assert!(released(&rig).is_empty(), "a batch is under way");
    assert!(beats(&mut rig, 5_000));
    rig.beat(5_000, fleet);
    redo(&mut rig, 5_000, 0, &batches);
    assert!(released(&rig).is_empty(), "what is decided is recorded first");
    let changes = rig.asked.iter().find_map(|action| match action {
        Action::Record(changes) => Some(changes.clone()),
        _ => None,
    });
    let changes = changes.expect("a record of where the other lanes stand");
    rig.relay.handle(at(5_000), Input::Recorded { changes, result: Ok(()) });
    rig.poll(5_000);
    let claims = released(&rig);
    assert_eq!(claims.len(), 64);
    assert!(!beats(&mut rig, 10_000) && !rig.asks_the_store());
    let page = Err(gone(Kind::Timeout));
    rig.relay.handle(at(10_000), Input::Page { reader: 0, result: page });
    assert!(!rig.relay.is_finished(), "the lanes' way back is not confirmed");
    rig.relay.handle(at(10_000), Input::Released { claims, result: Ok(()) });
    assert!(rig.relay.is_finished());
}

#[test]
fn whoever_has_nothing_to_do_is_finished_only_after_it_was_stopped_and_gave_its_lanes_back() {
    let mut rig = Rig::plain(config());
    let page = Page { rows: Vec::new(), to: None, end: Position::default() };
    for reader in 0..2 {
        rig.relay.handle(at(0), Input::Page { reader, result: Ok(page.clone()) });
    }
    assert!(!rig.relay.is_finished());
    rig.relay.handle(at(0), Input::Stop);
    assert!(!rig.relay.is_finished(), "its lanes are its own still");
}
