mod answers;
mod ownership;

use super::action::{Action, Input};
use super::batch::Batch;
use super::config::RelayConfig;
use super::lane::{DRAIN_ROWS, Lane, Wish};
use super::reader::Readers;
use crate::clock::{Instant, Rng};
use crate::flow::{Breaker, Leases, Pace};
use crate::mutant;
use crate::outbox::{LaneChange, MemberId, Token};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// The machine of one subscription in one process.
///
/// Give it inputs with [`Relay::handle`], do what [`Relay::poll`] says, come back at [`Relay::wake_at`]. It is
/// deterministic: the same inputs at the same times give the same actions.
#[derive(Debug)]
pub struct Relay {
    subscription: Arc<str>,
    member: MemberId,
    config: Arc<RelayConfig>,
    rng: Rng,
    lanes: BTreeMap<u16, Lane>,
    leases: Leases,
    readers: Readers,
    breaker: Breaker,
    beats: Beats,
    /// After an error of the store nothing new is asked of it until this pause is over.
    trouble: Pace,
    /// Takes, loads, releases, batches and records under way.
    under_way: usize,
    delivering: usize,
    /// Batches handed over, and records of what became of such, whose answer is still to come.
    at_stake: usize,
    /// Lanes of which something was handed over and could not be recorded, until somebody starts over where the store has
    /// them: this process, or whoever gets them when they were given back.
    unrecorded: BTreeSet<u16>,
    /// How often the destination answered.
    answers: u64,
    /// Batches of parked events, read and ready to go.
    drained: Vec<Batch>,
    /// Where the next round of deliveries begins, so that no lane is always last.
    turn: u16,
    taking: bool,
    /// The leases were looked at since the last take.
    looked: bool,
    paused: bool,
    stopping: bool,
    removed: bool,
    released: bool,
    /// When actions were last asked for.
    polled: Instant,
    counts: Counts,
}

/// When life was signed.
#[derive(Debug)]
struct Beats {
    next: Instant,
    under_way: bool,
    /// When the last beat that succeeded was *sent*.
    last_good: Option<Instant>,
    /// The last beat, answered or not, said that the destination is down.
    told_down: bool,
}

/// What the shell shows as metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Lanes owned.
    pub lanes: usize,
    /// Lanes that need a person.
    pub stopped: usize,
    /// Parked keys of the owned lanes.
    pub parked_keys: usize,
    /// Events in memory.
    pub queued: usize,
    /// Bytes of their payloads.
    pub queued_bytes: usize,
    /// Events in memory of lanes that need a person: none, or others lack the room.
    pub queued_stopped: usize,
    /// Lanes taken so far.
    pub takeovers: u64,
    /// Events the subscription did not want, so far.
    pub filtered: u64,
    /// True while the destination is taken to be down.
    pub breaker_open: bool,
    /// Grows with every cursor, park or probe that moved.
    pub moves: u64,
    /// True if something is due: events in memory or parked keys past their time.
    pub due: bool,
}

impl Relay {
    /// A machine that owns nothing yet. `doorbell` says that the store rings when something comes.
    pub fn new(
        subscription: impl Into<Arc<str>>,
        member: MemberId,
        config: RelayConfig,
        doorbell: bool,
        rng: Rng,
    ) -> Self {
        let config = Arc::new(config);
        Self {
            subscription: subscription.into(),
            leases: Leases::new(member.clone(), config.lease),
            member,
            readers: Readers::new(&config, doorbell),
            trouble: Pace::new(
                Duration::from_millis(100),
                (config.lease / 2).min(Duration::from_secs(5)),
            ),
            config,
            rng,
            lanes: BTreeMap::new(),
            breaker: Breaker::default(),
            beats: Beats {
                next: Instant::ZERO,
                under_way: false,
                last_good: None,
                told_down: false,
            },
            under_way: 0,
            delivering: 0,
            at_stake: 0,
            unrecorded: BTreeSet::new(),
            answers: 0,
            drained: Vec::new(),
            turn: 0,
            taking: false,
            looked: false,
            paused: false,
            stopping: false,
            removed: false,
            released: false,
            polled: Instant::ZERO,
            counts: Counts::default(),
        }
    }

    /// True once it has stopped and given everything back.
    pub fn is_finished(&self) -> bool {
        (self.stopping || self.removed)
            && self.released
            && self.under_way == 0
            && self.readers.is_idle()
    }

    /// True if nothing handed over is still to be decided or recorded. Whatever else is under way (reads, beats, lanes that
    /// are taken or given back) may go without its answer: leases run out by themselves.
    pub fn owes_nothing(&self) -> bool {
        self.at_stake == 0
            && self.unrecorded.is_empty()
            && self.lanes.values().all(Lane::owes_nothing)
    }

    /// True if an operator removed the subscription.
    pub fn is_removed(&self) -> bool {
        self.removed
    }

    /// The figures of this moment.
    pub fn counts(&self, now: Instant) -> Counts {
        let (lanes, breaker_open) = (self.lanes.len(), self.breaker.is_open());
        let mut counts = Counts { lanes, breaker_open, ..self.counts };
        for lane in self.lanes.values() {
            counts.parked_keys += lane.parked_keys();
            counts.queued += lane.queued();
            counts.queued_bytes += lane.queued_bytes();
            counts.due |= lane.is_busy() || lane.has_due(now);
            if lane.stopped.is_some() {
                counts.stopped += 1;
                counts.queued_stopped += lane.queued();
            }
        }
        counts
    }

    /// The tokens under which this process works its lanes.
    pub fn owned(&self) -> impl Iterator<Item = (u16, Token)> {
        self.lanes.iter().map(|(number, lane)| (*number, lane.token))
    }

    /// Takes in what happened.
    pub fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::Wake => {}
            Input::Rung => self.readers.ring(),
            Input::Stop => self.stopping = true,
            Input::Beat { sent, result } => self.beaten(now, sent, result),
            Input::Taken { claims, result } => self.taken(now, &claims, result),
            Input::Loaded { lane, token, result } => self.loaded(now, lane, token, result),
            Input::Released { claims, result } => {
                self.under_way -= 1;
                let given_back = |lane: &u16| claims.iter().any(|claim| claim.lane == *lane);
                self.unrecorded.retain(|lane| result.is_err() || !given_back(lane));
                self.note_trouble(now, result.err());
            }
            Input::Page { reader, result } => self.page(now, reader, result),
            Input::Parked { lane, token, key, max_rows, result } => {
                self.under_way -= 1;
                self.parked(now, (lane, token), &key, max_rows, result);
            }
            Input::Delivered { lane, token, delivery } => {
                self.delivered(now, lane, token, *delivery)
            }
            Input::Recorded { changes, result } => self.recorded(now, &changes, result),
        }
    }

    /// What should be done now.
    pub fn poll(&mut self, now: Instant) -> Vec<Action> {
        self.polled = now;
        let mut actions = Vec::new();
        self.sign_life(now, &mut actions);
        self.hand_over_drained(now, &mut actions);
        if !self.trouble.is_over(now) {
            return actions;
        }
        self.record_decided(now, &mut actions);
        if self.stopping || self.removed {
            // Whether or not the lease still runs: the fence and the tokens decide what of it is still ours.
            self.give_back_everything(&mut actions);
            return actions;
        }
        if !self.is_current(now) {
            return actions;
        }
        if !self.paused {
            self.take_and_give(now, &mut actions);
            self.work_lanes(now, &mut actions);
            self.read(now, &mut actions);
        }
        actions
    }

    /// Parked events that were read go out, or are left in the store if this owner is no longer current.
    fn hand_over_drained(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let current = self.is_current(now);
        for batch in std::mem::take(&mut self.drained) {
            if current {
                self.at_stake += 1;
                actions.push(Action::Deliver(Box::new(batch.lapsing(self.lapses()))));
                continue;
            }
            self.under_way -= 1;
            self.delivering -= 1;
            self.breaker.inconclusive(now);
            if let Some(lane) =
                self.lanes.get_mut(&batch.lane().lane).filter(|lane| lane.token == batch.token())
            {
                lane.void();
            }
        }
    }

    /// What is decided and not durable yet. What lanes wait for is recorded at once; confirms are gathered for a while,
    /// and when those of one lane are due, those of all go along. The fence decides whether this owner still may.
    fn record_decided(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let outcomes: Vec<LaneChange> =
            self.lanes.values_mut().filter_map(Lane::outcome_to_record).collect();
        let config = &self.config;
        let due = self.lanes.values().any(|lane| lane.flush_is_due(now, config));
        let confirms: Vec<LaneChange> = match due {
            true => self.lanes.values_mut().filter_map(Lane::flush).collect(),
            false => Vec::new(),
        };
        for changes in [outcomes, confirms].into_iter().filter(|changes| !changes.is_empty()) {
            self.send_record(changes, actions);
        }
    }

    fn send_record(&mut self, changes: Vec<LaneChange>, actions: &mut Vec<Action>) {
        self.under_way += 1;
        self.at_stake += usize::from(is_at_stake(&changes));
        actions.push(Action::Record(changes));
    }

    fn record(&mut self, changes: Vec<LaneChange>, actions: &mut Vec<Action>) {
        for change in &changes {
            if let Some(lane) = self.lanes.get_mut(&change.lane.lane) {
                lane.set_busy();
            }
        }
        self.send_record(changes, actions);
    }

    fn work_lanes(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let mut records = Vec::new();
        let order: Vec<u16> = self
            .lanes
            .range(self.turn..)
            .chain(self.lanes.range(..self.turn))
            .map(|(n, _)| *n)
            .collect();
        for number in order {
            self.work_lane(now, number, actions, &mut records);
        }
        if !records.is_empty() {
            self.record(records, actions);
        }
    }

    fn work_lane(
        &mut self,
        now: Instant,
        number: u16,
        actions: &mut Vec<Action>,
        records: &mut Vec<LaneChange>,
    ) {
        let lapses = self.lapses();
        let Some(lane) = self.lanes.get_mut(&number) else { return };
        let mut admitted = None;
        let at_once = if mutant!(OneHangsAll) { 1 } else { self.config.batches_at_once() };
        if self.delivering < at_once && lane.has_due(now) {
            admitted = self.breaker.admit(now);
        }
        let probe = admitted == Some(true);
        let wish = lane.wish(now, admitted.is_some(), probe, &self.config, &mut self.rng);
        let probed = matches!(wish, Some(Wish::Deliver(_) | Wish::ReadParked(_)));
        if probe && !probed && !mutant!(ProbeForgotten) {
            // The lane has something else to do first: the probe is still to be made.
            self.breaker.inconclusive(now);
        }
        let (id, token) = (lane.id.clone(), lane.token);
        let action = match wish {
            None => return,
            Some(Wish::Record(change)) => return records.push(change),
            Some(Wish::Load) => Action::Load(id, token),
            Some(Wish::Deliver(batch)) => {
                self.delivering += 1;
                self.at_stake += 1;
                self.turn = number + 1;
                Action::Deliver(Box::new(batch.lapsing(lapses)))
            }
            Some(Wish::ReadParked(key)) => {
                self.delivering += 1;
                self.turn = number + 1;
                Action::ReadParked {
                    lane: id,
                    token,
                    key,
                    max_rows: if probe { 1 } else { DRAIN_ROWS },
                }
            }
        };
        lane.set_busy();
        self.under_way += 1;
        actions.push(action);
    }

    fn read(&mut self, now: Instant, actions: &mut Vec<Action>) {
        // A backlog lives on disk: what is in memory is bounded in bytes whatever the payloads' size.
        let full = self.queued_bytes() > self.config.queue_bytes && !mutant!(UnboundedBytes);
        let pages = match full {
            false => self.readers.begin(&self.lanes, now, &self.config),
            true if self.waits_for_slow_calls(now) => {
                self.readers.begin_for_idle(&self.lanes, now, &self.config)
            }
            true => return,
        };
        actions.extend(
            pages.into_iter().map(|(reader, request)| Action::ReadPage { reader, request }),
        );
    }

    /// More could be handed over at once, and whatever is in memory stands behind something under way: one slow lane must
    /// not stop the others by what waits behind it.
    fn waits_for_slow_calls(&self, now: Instant) -> bool {
        let room = self.delivering < self.config.batches_at_once();
        room && !self.lanes.values().any(|lane| lane.has_due(now)) && !mutant!(FullMemoryStopsAll)
    }

    fn queued_bytes(&self) -> usize {
        self.lanes.values().map(Lane::queued_bytes).sum()
    }

    /// When to come back if nothing happens before.
    pub fn wake_at(&self, now: Instant) -> Option<Instant> {
        let lanes = self.lanes.values().filter_map(|lane| lane.wake_at(&self.config));
        let beat = (!self.beats.under_way).then_some(self.beats.next);
        let claims = self.next_expiry().filter(|_| !self.beats.under_way);
        let trouble = (!self.trouble.is_over(now)).then(|| self.trouble.until());
        let moments = lanes
            .chain(beat)
            .chain(claims)
            .chain(trouble)
            .chain(self.readers.wake_at(&self.config))
            .chain(self.breaker.wake_at());
        // Whatever was due at the last poll is under way, or waits for an answer rather than for time.
        moments.filter(|moment| *moment > self.polled).min().map(|moment| moment.max(now))
    }
}

/// Does any of these tell what became of something handed over? A cursor that only passed rows nobody wants is no loss.
fn is_at_stake(changes: &[LaneChange]) -> bool {
    changes.iter().any(LaneChange::is_at_stake)
}
