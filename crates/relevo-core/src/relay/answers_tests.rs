//! What the machine makes of answers: whom it believes, what it asks next, and how much at once.

use super::action::{Action, Delivery, Input};
use super::batch::Batch;
use super::config::RelayConfig;
use super::machine::Relay;
use crate::clock::{Instant, Rng};
use crate::error::{Error, Kind};
use crate::event::{Event, NewEvent};
use crate::limits::LANES;
use crate::outbox::{
    Claim, EventRef, Fleet, LaneState, Lease, MemberId, Page, ParkedEvent, ParkedKey, Position,
    Row, TickRef, Token,
};
use std::collections::BTreeMap;
use std::time::Duration;

const TO: TickRef = TickRef { number: 5, nonce: 9 };

pub(super) fn at(millis: u64) -> Instant {
    Instant::at(Duration::from_millis(millis))
}

pub(super) fn gone(kind: Kind) -> Error {
    Error::new(kind, "no")
}

pub(super) fn me() -> MemberId {
    MemberId("me".into())
}

pub(super) fn nowhere() -> LaneState {
    LaneState { position: Position::default(), parked: Vec::new() }
}

/// A machine alone in the world that has every lane, and what it asked for since.
pub(super) struct Rig {
    pub(super) relay: Relay,
    pub(super) tokens: BTreeMap<u16, Token>,
    pub(super) asked: Vec<Action>,
}

impl Rig {
    /// All lanes are taken at zero; lane 3 is found like this.
    pub(super) fn new(config: RelayConfig, lane_3: LaneState) -> Self {
        let relay = Relay::new("s", me(), config, false, Rng::seeded(7));
        let mut rig = Self { relay, tokens: BTreeMap::new(), asked: Vec::new() };
        rig.poll(0);
        let fleet = rig.fleet();
        rig.beat(0, fleet);
        let claims = rig.claims();
        rig.tokens = claims.iter().map(|claim| (claim.lane, claim.fresh)).collect();
        let state = |lane| if lane == 3 { lane_3.clone() } else { nowhere() };
        let taken = claims.iter().map(|claim| (claim.lane, state(claim.lane))).collect();
        rig.relay.handle(at(0), Input::Taken { claims, result: Ok(taken) });
        rig.poll(0);
        rig
    }

    pub(super) fn plain(config: RelayConfig) -> Self {
        Self::new(config, nowhere())
    }

    pub(super) fn fleet(&self) -> Fleet {
        let lease = |lane| Lease {
            lane,
            owner: self.tokens.get(&lane).map(|_| me()),
            token: self.tokens.get(&lane).copied().unwrap_or_default(),
            position: Position::default(),
        };
        let leases = (0..LANES).map(lease).collect();
        Fleet { members: vec![(me(), 1)], leases, ..Fleet::default() }
    }

    pub(super) fn poll(&mut self, millis: u64) {
        self.asked = self.relay.poll(at(millis));
    }

    pub(super) fn beat(&mut self, millis: u64, fleet: Fleet) {
        self.relay.handle(at(millis), Input::Beat { sent: at(millis), result: Ok(fleet) });
        self.poll(millis);
    }

    pub(super) fn claims(&self) -> Vec<Claim> {
        let claims = self.asked.iter().find_map(|action| match action {
            Action::Take(claims) => Some(claims.clone()),
            _ => None,
        });
        claims.expect("lanes to take")
    }

    /// The page that is being read brings one event for each of these lanes and keys.
    pub(super) fn page(&mut self, millis: u64, rows: &[(u16, &str)]) {
        let reader = self.asked.iter().find_map(|action| match action {
            Action::ReadPage { reader, .. } => Some(*reader),
            _ => None,
        });
        let row = |(seq, (lane, key)): (usize, &(u16, &str))| Row {
            lane: *lane,
            seq: seq as i64 + 1,
            event: event(key),
        };
        let rows = rows.iter().enumerate().map(row).collect();
        let page = Page { rows, to: Some(TO), end: Position::at(TO) };
        let reader = reader.expect("a page to read");
        self.relay.handle(at(millis), Input::Page { reader, result: Ok(page) });
        self.poll(millis);
    }

    pub(super) fn batches(&self) -> Vec<Batch> {
        let batch = |action: &Action| match action {
            Action::Deliver(batch) => Some((**batch).clone()),
            _ => None,
        };
        self.asked.iter().filter_map(batch).collect()
    }

    pub(super) fn lanes_handed_over(&self) -> Vec<u16> {
        self.batches().iter().map(|batch| batch.lane().lane).collect()
    }

    pub(super) fn loads(&self) -> Vec<u16> {
        let load = |action: &Action| match action {
            Action::Load(lane, _) => Some(lane.lane),
            _ => None,
        };
        self.asked.iter().filter_map(load).collect()
    }

    pub(super) fn asks_the_store(&self) -> bool {
        self.asked.iter().any(|action| !matches!(action, Action::Beat(_)))
    }

    pub(super) fn delivered(&mut self, millis: u64, batch: &Batch, delivery: Delivery) {
        let (lane, token) = (batch.lane().lane, batch.token());
        let delivery = Box::new(delivery);
        self.relay.handle(at(millis), Input::Delivered { lane, token, delivery });
        self.poll(millis);
    }
}

fn event(key: &str) -> Event {
    Event::stored(NewEvent::bytes("t", vec![0; 10]).key(key), chrono::Utc::now())
}

pub(super) fn config() -> RelayConfig {
    RelayConfig::default()
}

#[test]
fn no_more_batches_are_under_way_than_may_be_and_lanes_take_turns() {
    let mut rig = Rig::plain(RelayConfig { concurrency: Some(2), batch: 1, ..config() });
    rig.page(0, &[(1, "a"), (1, "b"), (2, "c"), (3, "d")]);
    assert_eq!(rig.lanes_handed_over(), [1, 2]);
    let first = rig.batches()[0].clone();
    rig.delivered(0, &first, Delivery::Down { items: Vec::new(), reason: "down".into() });
    assert!(rig.batches().is_empty(), "the destination is down");
    let mut rig = Rig::plain(RelayConfig { concurrency: Some(2), batch: 1, ..config() });
    rig.page(0, &[(1, "a"), (1, "b"), (2, "c"), (3, "d")]);
    let first = rig.batches()[0].clone();
    rig.delivered(0, &first, Delivery::Aborted { items: Vec::new(), reason: "rolled back".into() });
    assert_eq!(rig.lanes_handed_over(), [3], "lane 1 had its turn");
}

#[test]
fn memory_is_bounded_in_bytes_before_more_is_read() {
    let mut rig = Rig::plain(RelayConfig { concurrency: Some(1), queue_bytes: 20, ..config() });
    rig.page(0, &[(1, "a"), (2, "b"), (3, "c")]);
    let reads = |rig: &Rig| rig.asked.iter().any(|a| matches!(a, Action::ReadPage { .. }));
    assert!(reads(&rig), "twenty bytes wait, which is no more than may");
    let mut rig = Rig::plain(RelayConfig { concurrency: Some(1), queue_bytes: 19, ..config() });
    rig.page(0, &[(1, "a"), (2, "b"), (3, "c")]);
    assert!(!reads(&rig));
}

#[test]
fn what_waits_in_memory_behind_a_slow_lane_keeps_no_idle_lane_from_being_read_for() {
    let limits = RelayConfig { batch: 1, queue_bytes: 19, page_bytes: 1000, ..config() };
    let pages = |rig: &Rig| -> Vec<(usize, usize, bool)> {
        let page = |action: &Action| match action {
            Action::ReadPage { request: page, .. } => {
                Some((page.lanes.len(), page.max_bytes, page.lanes.contains(&1)))
            }
            _ => None,
        };
        rig.asked.iter().filter_map(page).collect()
    };
    let slow = [(1, "a"), (1, "b"), (1, "c")];
    let mut rig = Rig::plain(RelayConfig { concurrency: Some(4), ..limits.clone() });
    rig.page(0, &slow);
    assert_eq!(rig.lanes_handed_over(), [1], "twenty bytes wait behind that, which is too much");
    assert_eq!(pages(&rig), [(usize::from(LANES) - 1, 250, false)], "a batch's share of a page");
    let mut rig = Rig::plain(RelayConfig { concurrency: Some(1), ..limits });
    rig.page(0, &slow);
    assert_eq!(pages(&rig), [], "nothing more could be handed over");
}

#[test]
fn lanes_that_fell_behind_are_read_no_further_than_where_others_wait() {
    let place = |seq| Position { from: TickRef::default(), to: Some(TO), seq };
    let config = RelayConfig { concurrency: Some(1), batch: 1, lane_queue: 2, ..config() };
    let mut rig = Rig::new(config, LaneState { position: place(2), parked: Vec::new() });
    let mut answer = |reader, rows: &[(u16, i64)], end| {
        let row = |(lane, seq): &(u16, i64)| Row { lane: *lane, seq: *seq, event: event("k") };
        let page = Page { rows: rows.iter().map(row).collect(), to: Some(TO), end };
        rig.relay.handle(at(0), Input::Page { reader, result: Ok(page) });
        rig.poll(0);
    };
    // Lane 3 is ahead, hands over one event, and is full with the other. Then the page of the others comes.
    answer(0, &[(3, 3), (3, 4)], place(4));
    answer(1, &[(1, 1), (1, 4), (2, 6)], Position::at(TO));
    assert_eq!(rig.relay.counts(at(0)).queued, 3, "what lies beyond lane 3 is read again");
    let reads = rig.asked.iter().filter_map(|action| match action {
        Action::ReadPage { request, .. } => Some(request.position),
        _ => None,
    });
    assert_eq!(reads.collect::<Vec<_>>(), [place(4)], "all go on from there");
}

#[test]
fn a_lane_whose_batch_has_no_known_outcome_is_loaded_after_a_pause_and_others_are_not() {
    let mut rig = Rig::plain(config());
    rig.page(0, &[(1, "a"), (2, "b")]);
    let batch = rig.batches()[0].clone();
    rig.delivered(0, &batch, Delivery::Void(gone(Kind::CommitUnknown)));
    assert!(!rig.asks_the_store(), "a store in trouble is left alone for a moment");
    rig.poll(99);
    assert!(!rig.asks_the_store());
    rig.poll(100);
    assert_eq!(rig.loads(), [1]);
}

#[test]
fn a_stale_answer_is_no_trouble_of_the_store() {
    let mut rig = Rig::plain(config());
    rig.page(0, &[(1, "a")]);
    let batch = rig.batches()[0].clone();
    rig.delivered(0, &batch, Delivery::Void(gone(Kind::Stale)));
    assert_eq!(rig.loads(), [1], "at once");
}

#[test]
fn a_lane_that_is_anothers_when_it_is_loaded_is_let_go() {
    for (state, lanes) in [(None, 63), (Some(nowhere()), 64)] {
        let mut rig = Rig::plain(config());
        rig.page(0, &[(1, "a")]);
        let batch = rig.batches()[0].clone();
        rig.delivered(0, &batch, Delivery::Void(gone(Kind::Stale)));
        let token = batch.token();
        rig.relay.handle(at(0), Input::Loaded { lane: 1, token, result: Ok(state) });
        assert_eq!(rig.relay.counts(at(0)).lanes, lanes);
    }
}

#[test]
fn an_answer_under_another_token_says_nothing_about_the_lane() {
    let mut rig = Rig::plain(config());
    rig.page(0, &[(1, "a")]);
    let batch = rig.batches()[0].clone();
    let (lane, token) = (1, batch.token() + 1);
    let delivery = Box::new(Delivery::Void(gone(Kind::Stale)));
    rig.relay.handle(at(0), Input::Delivered { lane, token, delivery });
    rig.poll(0);
    assert!(rig.loads().is_empty());
}

#[test]
fn lanes_that_a_beat_shows_under_another_token_are_lost_unless_they_were_taken_since() {
    let stolen = |sent: u64| {
        let mut rig = Rig::plain(config());
        let mut fleet = rig.fleet();
        fleet.leases[3].token += 1;
        rig.relay.handle(at(10), Input::Beat { sent: at(sent), result: Ok(fleet) });
        64 - rig.relay.counts(at(10)).lanes
    };
    assert_eq!(stolen(1), 1);
    assert_eq!(stolen(0), 0, "the beat was sent when the lane was taken: it may be older");
}

#[test]
fn a_pause_or_a_removal_takes_every_lane_and_only_the_removal_ends_the_work() {
    for removed in [false, true] {
        let mut rig = Rig::plain(config());
        rig.page(0, &[(1, "a")]);
        let batch = rig.batches()[0].clone();
        let fleet = Fleet { paused: !removed, removed, ..rig.fleet() };
        rig.beat(1, fleet);
        assert_eq!(rig.relay.counts(at(1)).lanes, 0);
        assert!(!rig.asks_the_store() && !rig.relay.is_finished(), "a batch is under way");
        rig.delivered(1, &batch, Delivery::Void(gone(Kind::Stale)));
        assert_eq!((rig.relay.is_removed(), rig.relay.is_finished()), (removed, false));
        let page = Page { rows: Vec::new(), to: None, end: Position::default() };
        for reader in 0..2 {
            rig.relay.handle(at(1), Input::Page { reader, result: Ok(page.clone()) });
        }
        rig.poll(1);
        assert_eq!(rig.relay.is_finished(), removed);
    }
}

#[test]
fn an_owner_that_is_not_heard_hands_over_nothing_more_and_a_good_beat_lets_it_go_on() {
    let mut rig = Rig::plain(RelayConfig { concurrency: Some(1), batch: 1, ..config() });
    rig.page(0, &[(1, "a"), (2, "b")]);
    let batch = rig.batches()[0].clone();
    // A lease of ten seconds, less its margin of a fifth.
    let aborted = Delivery::Aborted { items: Vec::new(), reason: "rolled back".into() };
    rig.delivered(8_000, &batch, aborted);
    assert!(!rig.asks_the_store());
    let fleet = rig.fleet();
    rig.beat(8_000, fleet);
    assert_eq!(rig.lanes_handed_over(), [2]);
}

#[test]
fn a_beat_that_failed_is_repeated_within_a_tenth_of_the_lease() {
    let mut rig = Rig::plain(config());
    let fleet = rig.fleet();
    rig.beat(0, fleet);
    let beats = |rig: &mut Rig, millis| {
        rig.poll(millis);
        rig.asked.iter().any(|action| matches!(action, Action::Beat(_)))
    };
    assert!(!beats(&mut rig, 4_999) && beats(&mut rig, 5_000), "alone: twice a lease");
    rig.relay.handle(at(5_000), Input::Beat { sent: at(5_000), result: Err(gone(Kind::Timeout)) });
    assert!(!beats(&mut rig, 5_999) && beats(&mut rig, 6_000));
}

fn with_parked_key() -> Rig {
    let key = ParkedKey { key: "k".into(), attempts: 1, deaths: 0, due_in: Some(Duration::ZERO) };
    Rig::new(config(), LaneState { position: Position::default(), parked: vec![key] })
}

fn parked(rig: &mut Rig, millis: u64, result: Result<Vec<ParkedEvent>, Error>) {
    assert!(rig.asked.iter().any(|action| matches!(action, Action::ReadParked { .. })));
    let token = rig.tokens[&3];
    let key = "k".to_owned();
    rig.relay.handle(at(millis), Input::Parked { lane: 3, token, key, max_rows: 50, result });
    rig.poll(millis);
}

pub(super) fn waiting() -> Vec<ParkedEvent> {
    let event = event("k");
    vec![ParkedEvent { at: EventRef { key: "k".into(), to: TO, seq: 1, id: event.id }, event }]
}

#[test]
fn what_waits_behind_a_due_key_is_handed_over() {
    let mut rig = with_parked_key();
    parked(&mut rig, 0, Ok(waiting()));
    let batches = rig.batches();
    assert!(batches.len() == 1 && batches[0].is_drain());
    assert!(!rig.relay.owes_nothing());
}

#[test]
fn what_waits_behind_a_due_key_stays_in_the_store_when_the_lease_may_have_ended() {
    let mut rig = with_parked_key();
    parked(&mut rig, 8_000, Ok(waiting()));
    assert!(rig.batches().is_empty() && rig.relay.owes_nothing());
    let fleet = rig.fleet();
    rig.beat(8_000, fleet);
    assert_eq!(rig.loads(), [3], "what memory has of it is void");
}

#[test]
fn a_due_key_with_nothing_behind_it_is_recorded_as_such() {
    let mut rig = with_parked_key();
    parked(&mut rig, 0, Ok(Vec::new()));
    let records = rig.asked.iter().find_map(|action| match action {
        Action::Record(changes) => Some(changes.clone()),
        _ => None,
    });
    assert_eq!(records.expect("a record")[0].unparked, ["k"]);
}

#[test]
fn a_due_key_that_cannot_be_read_voids_its_lane() {
    let mut rig = with_parked_key();
    parked(&mut rig, 0, Err(gone(Kind::Timeout)));
    rig.poll(100);
    assert_eq!(rig.loads(), [3]);
}

#[test]
fn a_lost_tick_voids_the_lanes_that_were_read_from_it_and_other_trouble_does_not() {
    for (kind, loads) in [(Kind::TickMissing, 64), (Kind::Stale, 64), (Kind::Timeout, 0)] {
        let mut rig = Rig::plain(config());
        let result = Err(gone(kind));
        rig.relay.handle(at(0), Input::Page { reader: 0, result });
        rig.poll(100);
        assert_eq!(rig.loads().len(), loads, "{kind:?}");
    }
}

#[test]
fn it_comes_back_when_its_next_beat_or_look_is_due() {
    let rig = Rig::plain(config());
    let fleet = rig.fleet();
    let mut rig = rig;
    rig.beat(0, fleet);
    assert_eq!(rig.relay.wake_at(at(0)), Some(at(5_000)), "twice a lease");
    let page = Page { rows: Vec::new(), to: None, end: Position::default() };
    rig.relay.handle(at(0), Input::Page { reader: 0, result: Ok(page) });
    assert_eq!(rig.relay.wake_at(at(0)), Some(at(50)), "the log is quiet");
    rig.relay.handle(at(0), Input::Rung);
    rig.poll(0);
    assert!(rig.asked.iter().any(|action| matches!(action, Action::ReadPage { .. })), "at once");
}
