//! When the machine acts, on a clock of the test's own.

use super::action::{Action, Delivery, Input};
use super::batch::Batch;
use super::config::RelayConfig;
use super::machine::Relay;
use crate::clock::{Instant, Rng};
use crate::error::{Error, Kind};
use crate::limits::LANES;
use crate::outbox::{
    Fleet, LaneChange, LaneState, Lease, MemberId, MemberNote, OpenBreaker, Position, Request,
    Token,
};
use std::collections::BTreeMap;
use std::time::Duration;

const ROUND_TRIP: Duration = Duration::from_millis(20);

fn member(name: &str) -> MemberId {
    MemberId(name.into())
}

fn relay(lease: Duration) -> Relay {
    let config = RelayConfig { lease, ..RelayConfig::default() };
    Relay::new("s", member("heir"), config, false, Rng::seeded(7))
}

/// Every lane is the other's, who has signed life so often.
fn leased_to_another(beats: i64) -> Fleet {
    let lease = |lane| Lease {
        lane,
        owner: Some(member("other")),
        token: 7,
        position: Position::default(),
    };
    Fleet {
        members: vec![(member("heir"), 1), (member("other"), beats)],
        leases: (0..LANES).map(lease).collect(),
        ..Fleet::default()
    }
}

/// Works a machine on a simulated clock. Beats are answered after a round trip with what `fleet` says; ends at the first
/// action that is none.
fn until_it_acts(relay: &mut Relay, fleet: impl Fn(Instant) -> Fleet) -> (Instant, Action) {
    let mut now = Instant::ZERO;
    let mut answer: Option<(Instant, Instant)> = None;
    for _ in 0..100_000 {
        for action in relay.poll(now) {
            match action {
                Action::Beat(_) => answer = Some((now, now + ROUND_TRIP)),
                other => return (now, other),
            }
        }
        let wake = relay.wake_at(now);
        let next = answer.map(|(_, at)| at).into_iter().chain(wake).min();
        now = next.unwrap_or(now).max(now + Duration::from_micros(1));
        let input = match answer.take_if(|(_, at)| *at <= now) {
            Some((sent, _)) => Input::Beat { sent, result: Ok(fleet(now)) },
            None => Input::Wake,
        };
        relay.handle(now, input);
    }
    panic!("it never did anything");
}

#[test]
fn lanes_of_a_dead_process_are_taken_within_the_lease_and_two_seconds() {
    for lease in [1, 10, 30].map(Duration::from_secs) {
        // The other signs life ten times a lease, and dies at any moment between two signs.
        let every = lease / 10;
        for part in 0..20 {
            let died = lease * 2 + every * part / 20;
            let beats = |now: Instant| {
                let alive = now.since(Instant::ZERO).min(died);
                (alive.as_micros() / every.as_micros()) as i64
            };
            let (taken, action) =
                until_it_acts(&mut relay(lease), |now| leased_to_another(beats(now)));
            assert!(matches!(action, Action::Take(ref claims) if claims.len() == 64), "{action:?}");
            let took = taken.since(Instant::at(died));
            let last_sign = every * (died.as_micros() / every.as_micros()) as u32;
            assert!(taken.since(Instant::at(last_sign)) >= lease, "too early: {took:?}");
            // A sign of life is seen at the next look, a tenth of a lease later at most.
            let bound = lease + every + ROUND_TRIP * 4;
            assert!(
                took <= bound
                    && (lease > Duration::from_secs(10) || bound <= lease + Duration::from_secs(2)),
                "{took:?}"
            );
        }
    }
}

/// A machine that owns lane 3 and nothing else, after a beat sent at zero.
fn owner(lease: Duration, fleet: Fleet) -> Relay {
    let mut relay = relay(lease);
    relay.poll(Instant::ZERO);
    relay.handle(Instant::ZERO, Input::Beat { sent: Instant::ZERO, result: Ok(fleet) });
    relay
}

#[test]
fn while_requests_are_in_hand_the_next_ones_are_looked_for_soon() {
    let request = Request { id: 1, lane: 3, key: "k".into() };
    let lease = Duration::from_secs(10);
    let busy = Fleet { requests: vec![request], ..leased_to_another(1) };
    let mut quiet = owner(lease, leased_to_another(1));
    let mut asked = owner(lease, busy);
    let soon = Instant::at(Duration::from_millis(250));
    assert!(!quiet.poll(soon).iter().any(|action| matches!(action, Action::Beat(_))));
    assert!(asked.poll(soon).iter().any(|action| matches!(action, Action::Beat(_))));
}

/// A machine alone with a free log, one second after its beat: it has one lane, and a page is being read.
fn reading(lease: Duration) -> (Relay, (u16, usize)) {
    let free = |lane| Lease { lane, owner: None, token: 0, position: Position::default() };
    let fleet = Fleet {
        members: vec![(member("heir"), 1)],
        leases: (0..LANES).map(free).collect(),
        ..Fleet::default()
    };
    let mut relay = owner(lease, fleet);
    let now = Instant::at(Duration::from_secs(1));
    let claims = relay.poll(now).into_iter().find_map(|action| match action {
        Action::Take(claims) => Some(claims),
        _ => None,
    });
    let claims = claims.unwrap();
    let state = LaneState { position: Position::default(), parked: Vec::new() };
    let taken = vec![(claims[0].lane, state)];
    let lane = claims[0].lane;
    relay.handle(now, Input::Taken { claims, result: Ok(taken) });
    let reader = relay.poll(now).into_iter().find_map(|action| match action {
        Action::ReadPage { reader, .. } => Some(reader),
        _ => None,
    });
    (relay, (lane, reader.unwrap()))
}

/// The same, and the batch that it hands over when the page is there.
fn handing_over(lease: Duration) -> (Relay, Box<Batch>) {
    let (mut relay, (lane, reader)) = reading(lease);
    let now = Instant::at(Duration::from_secs(1));
    let page = super::batch_tests::page_of_one(lane);
    relay.handle(now, Input::Page { reader, result: Ok(page) });
    let delivered = relay.poll(now).into_iter().find_map(|action| match action {
        Action::Deliver(batch) => Some(batch),
        _ => None,
    });
    (relay, delivered.unwrap())
}

#[test]
fn a_batch_lapses_when_the_last_sign_of_life_is_a_lease_old_but_for_a_margin() {
    let (_, batch) = handing_over(Duration::from_secs(10));
    // The sign was sent at zero; the margin is a fifth.
    assert!(!batch.lapses_by(Instant::at(Duration::from_millis(7_999))));
    assert!(batch.lapses_by(Instant::at(Duration::from_secs(8))));
}

/// The note of the beat that a machine sends at this moment, if it sends one.
fn note_at(relay: &mut Relay, now: Instant) -> Option<MemberNote> {
    relay.poll(now).into_iter().find_map(|action| match action {
        Action::Beat(beat) => Some(MemberNote::read(&serde_json::from_str(&beat.note).unwrap())),
        _ => None,
    })
}

#[test]
fn a_destination_that_is_down_is_told_with_a_beat_of_its_own_and_once() {
    let (mut relay, batch) = handing_over(Duration::from_secs(10));
    let (lane, token) = (batch.lane().lane, batch.token());
    let delivery = Box::new(Delivery::Down { items: batch.into_items(), reason: "refused".into() });
    let now = Instant::at(Duration::from_secs(2));
    relay.handle(now, Input::Delivered { lane, token, delivery });
    let note = note_at(&mut relay, now).expect("a beat before its time");
    assert_eq!(note.breaker, Some(OpenBreaker { reason: "refused".into(), open_s: 0.0 }));
    // A store that does not answer either is not asked again and again for that.
    let failed = Err(Error::new(Kind::Unreachable, "gone"));
    relay.handle(now, Input::Beat { sent: now, result: failed });
    assert_eq!(note_at(&mut relay, now), None);
}

/// Half of the lanes but one are another's, who is alive; the machine has those it took.
fn shared_with_another(mine: &BTreeMap<u16, Token>, beats: i64) -> Fleet {
    let lease = |lane| match mine.get(&lane) {
        Some(token) => Lease {
            lane,
            owner: Some(member("heir")),
            token: *token,
            position: Position::default(),
        },
        None if lane < LANES / 2 - 1 => {
            Lease { lane, owner: Some(member("other")), token: 7, position: Position::default() }
        }
        None => Lease { lane, owner: None, token: 7, position: Position::default() },
    };
    Fleet {
        members: vec![(member("heir"), beats), (member("other"), beats)],
        leases: (0..LANES).map(lease).collect(),
        ..Fleet::default()
    }
}

#[test]
fn a_lane_that_cannot_be_had_does_not_stand_before_another() {
    let stuck = LANES / 2 - 1;
    let mut relay = relay(Duration::from_secs(1));
    let (mut mine, mut now, mut beats) = (BTreeMap::new(), Instant::ZERO, 0);
    while now.since(Instant::ZERO) < Duration::from_secs(60) {
        for action in relay.poll(now) {
            let input = match action {
                Action::Beat(_) => {
                    beats += 1;
                    Input::Beat { sent: now, result: Ok(shared_with_another(&mine, beats)) }
                }
                Action::Take(claims) => {
                    let had = claims.iter().filter(|claim| claim.lane != stuck);
                    let state = LaneState { position: Position::default(), parked: Vec::new() };
                    let taken: Vec<_> = had.map(|claim| (claim.lane, state.clone())).collect();
                    mine.extend(
                        claims.iter().filter(|c| c.lane != stuck).map(|c| (c.lane, c.fresh)),
                    );
                    Input::Taken { claims, result: Ok(taken) }
                }
                _ => continue,
            };
            relay.handle(now, input);
        }
        if mine.len() == usize::from(LANES / 2) {
            return;
        }
        now = relay.wake_at(now).unwrap_or(now).max(now + Duration::from_millis(1));
        relay.handle(now, Input::Wake);
    }
    panic!("only {} lanes, though another one was free", mine.len());
}

/// What the machine does about a lane it took at zero, when a beat, sent later, tells where its stored cursor stands.
fn told_that_it_stands_at(stored: Position) -> Vec<Action> {
    let mut relay = relay(Duration::from_secs(10));
    let mut mine = BTreeMap::new();
    let mut now = Instant::ZERO;
    for _ in 0..20 {
        for action in relay.poll(now) {
            let input = match action {
                Action::Beat(_) => Input::Beat { sent: now, result: Ok(fleet_of(&mine, stored)) },
                Action::Take(claims) => {
                    mine.extend(claims.iter().map(|claim| (claim.lane, claim.fresh)));
                    let state = |lane| {
                        (lane, LaneState { position: Position::default(), parked: Vec::new() })
                    };
                    let result = Ok(claims.iter().map(|claim| state(claim.lane)).collect());
                    Input::Taken { claims, result }
                }
                Action::Load(..) => return vec![action],
                _ => continue,
            };
            relay.handle(now, input);
        }
        now = now + Duration::from_secs(1);
    }
    Vec::new()
}

fn fleet_of(mine: &BTreeMap<u16, Token>, position: Position) -> Fleet {
    let lease = |lane| Lease {
        lane,
        owner: mine.get(&lane).map(|_| member("heir")),
        token: mine.get(&lane).copied().unwrap_or_default(),
        position,
    };
    Fleet {
        members: vec![(member("heir"), 1)],
        leases: (0..LANES).map(lease).collect(),
        ..Fleet::default()
    }
}

#[test]
fn a_store_that_forgot_where_a_cursor_stood_is_asked_again() {
    assert!(told_that_it_stands_at(Position::default()).is_empty());
    let elsewhere = Position { seq: 7, ..Position::default() };
    assert!(matches!(told_that_it_stands_at(elsewhere)[..], [Action::Load(..)]));
}

fn has_released(actions: &[Action]) -> bool {
    actions.iter().any(|action| matches!(action, Action::Release(_)))
}

#[test]
fn lanes_are_given_back_by_whoever_stops_though_its_lease_may_have_ended() {
    let (mut relay, batch) = handing_over(Duration::from_secs(10));
    let (lane, token) = (batch.lane().lane, batch.token());
    let late = Instant::at(Duration::from_secs(60));
    relay.handle(late, Input::Stop);
    assert!(!has_released(&relay.poll(late)), "a batch is under way");
    let delivery = Box::new(Delivery::Down { items: batch.into_items(), reason: "down".into() });
    relay.handle(late, Input::Delivered { lane, token, delivery });
    assert!(has_released(&relay.poll(late)));
}

#[test]
fn a_page_that_is_being_read_keeps_nobody_from_giving_its_lanes_back() {
    let (mut relay, _) = reading(Duration::from_secs(10));
    let now = Instant::at(Duration::from_secs(1));
    relay.handle(now, Input::Stop);
    assert!(has_released(&relay.poll(now)));
    assert!(relay.owes_nothing() && !relay.is_finished(), "the release is under way");
}

#[test]
fn something_is_owed_from_the_hand_over_of_a_batch_until_it_is_recorded() {
    let (mut relay, batch) = handing_over(Duration::from_secs(10));
    let now = Instant::at(Duration::from_secs(1));
    assert!(!relay.owes_nothing(), "handed over");
    let (lane, token) = (batch.lane().lane, batch.token());
    let mut change =
        LaneChange::moving(batch.lane().clone(), token, Position::default(), batch_end());
    change.delivered = 1;
    let delivery = Delivery::Decided { change, rest: Vec::new(), down: None };
    relay.handle(now, Input::Delivered { lane, token, delivery: Box::new(delivery) });
    assert!(!relay.owes_nothing(), "confirmed, not recorded");
    let later = now + Duration::from_secs(1);
    let changes = relay.poll(later).into_iter().find_map(|action| match action {
        Action::Record(changes) => Some(changes),
        _ => None,
    });
    assert!(!relay.owes_nothing(), "being recorded");
    relay.handle(later, Input::Recorded { changes: changes.unwrap(), result: Ok(()) });
    assert!(relay.owes_nothing(), "recorded");
}

#[test]
fn what_could_not_be_recorded_is_owed_until_the_lane_is_loaded_again_or_given_back() {
    let now = Instant::at(Duration::from_secs(1));
    for given_back in [false, true] {
        let (mut relay, batch) = handing_over(Duration::from_secs(10));
        let (lane, token) = (batch.lane().lane, batch.token());
        let lost = Delivery::Void(Error::new(Kind::StoreFailed, "no server"));
        relay.handle(now, Input::Delivered { lane, token, delivery: Box::new(lost) });
        assert!(!relay.owes_nothing(), "nobody knows what became of it");
        if given_back {
            relay.handle(now, Input::Stop);
        }
        let later = now + Duration::from_secs(2);
        let answer = relay.poll(later).into_iter().find_map(|action| match action {
            Action::Load(..) => {
                let state = LaneState { position: Position::default(), parked: Vec::new() };
                Some(Input::Loaded { lane, token, result: Ok(Some(state)) })
            }
            Action::Release(claims) => Some(Input::Released { claims, result: Ok(()) }),
            _ => None,
        });
        relay.handle(later, answer.expect("a void lane is loaded, or given back"));
        assert!(relay.owes_nothing(), "given back: {given_back}");
    }
}

fn batch_end() -> Position {
    Position { seq: 1, ..Position::default() }
}
