//! One lane under our lease: its life from the take to the hand-over, and what it wants done next.
//!
//! # Layout
//! - `read`: pages into the queue
//! - `cut`: batches out of the queue and from behind parked keys, and back
//! - `learn`: what was confirmed, decided and recorded

mod cut;
mod learn;
mod read;

use super::batch::{Batch, Item};
use super::config::RelayConfig;
use super::cursor::Cursor;
use crate::clock::{Instant, Rng};
use crate::mutant;
use crate::outbox::{LaneChange, LaneId, LaneState, ParkedKey, Position, Request, Token};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

pub(super) use cut::DRAIN_ROWS;

/// One lane under our lease.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) id: LaneId,
    pub(super) token: Token,
    /// When we took it: an older answer to a beat says nothing about it.
    pub(super) taken: Instant,
    /// When the store last told where the cursor stands, or that it moved.
    told: Instant,
    cursor: Cursor,
    /// It goes to another owner as soon as nothing of it is under way or unrecorded.
    pub(super) leaving: bool,
    /// Up to where rows were read.
    read: Position,
    queue: VecDeque<Item>,
    /// Bytes of the queue's payloads.
    bytes: usize,
    parked: BTreeMap<String, Parked>,
    requests: Vec<Request>,
    work: Work,
    /// The next so many events go one by one: a shared transaction with them was rolled back.
    alone: usize,
    last_was_page: bool,
    /// What is under way concerns refs of a parked key, not rows of the queue.
    draining: bool,
    /// How often the destination was down for what stands first, and how often it had answered before that.
    downs: Option<(u32, u64)>,
    /// It is this lane's first event that fails, rather than the destination.
    to_blame: bool,
    /// Why this lane reads no further and needs a person. Its parked keys are still tried.
    pub(super) stopped: Option<String>,
    /// The store has more parked keys than memory.
    truncated: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    /// Nothing is under way.
    Idle,
    /// Memory is void: it must be read again before anything else.
    Void,
    /// One thing is under way, beside a record that only moves the cursor.
    Busy,
    /// As busy, but memory is void by now.
    Doomed,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Parked {
    attempts: u32,
    deaths: u32,
    due: Option<Instant>,
}

/// What a lane wants done.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "lives for the length of one call")]
pub(super) enum Wish {
    Load,
    Deliver(Box<Batch>),
    ReadParked(String),
    Record(LaneChange),
}

impl Lane {
    pub(super) fn taken(
        id: LaneId,
        token: Token,
        state: LaneState,
        now: Instant,
        config: &RelayConfig,
    ) -> Self {
        let mut lane = Self {
            cursor: Cursor::at(id.clone(), token, state.position),
            id,
            token,
            taken: now,
            told: now,
            leaving: false,
            read: Position::default(),
            queue: VecDeque::new(),
            bytes: 0,
            parked: BTreeMap::new(),
            requests: Vec::new(),
            work: Work::Idle,
            alone: 0,
            last_was_page: false,
            draining: false,
            downs: None,
            to_blame: false,
            stopped: None,
            truncated: false,
        };
        lane.loaded(state, now, config);
        lane
    }

    /// Starts over from what the store has.
    pub(super) fn loaded(&mut self, state: LaneState, now: Instant, config: &RelayConfig) {
        self.told = now;
        self.cursor = Cursor::at(self.id.clone(), self.token, state.position);
        self.read = state.position;
        self.queue.clear();
        self.bytes = 0;
        self.requests.clear();
        self.alone = 0;
        self.work = Work::Idle;
        let parked = |key: ParkedKey| {
            let due = key.due_in.map(|delay| now + delay);
            (key.key, Parked { attempts: key.attempts, deaths: key.deaths, due })
        };
        self.parked = state.parked.into_iter().map(parked).collect();
        self.truncated = self.parked.len() > config.max_parked_keys;
        self.check_parked(config);
    }

    fn check_parked(&mut self, config: &RelayConfig) {
        let too_many = self.parked.len() > config.max_parked_keys;
        if self.truncated && !too_many {
            self.void();
        }
        if too_many {
            // It reads no further, and what it has read must not fill the memory that other lanes need.
            self.queue.clear();
            self.bytes = 0;
            self.read = self.cursor.decided();
        }
        self.stopped = too_many.then(|| {
            let code = crate::error::Kind::TooManyParkedKeys.code();
            format!(
                "{code}: more than {} parked keys; mend the cause, they are still tried",
                config.max_parked_keys
            )
        });
    }

    pub(super) fn is_busy(&self) -> bool {
        matches!(self.work, Work::Busy | Work::Doomed)
    }

    /// Nothing is under way, and no row waits in memory.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && !self.is_busy()
    }

    pub(super) fn is_void(&self) -> bool {
        matches!(self.work, Work::Void | Work::Doomed)
    }

    /// Nothing is under way, and another owner would hand over nothing again.
    pub(super) fn may_leave(&self) -> bool {
        !self.is_busy() && (self.is_void() || self.cursor.has_all_recorded())
    }

    /// Everything that was handed over, as far as it is decided, is recorded.
    pub(super) fn owes_nothing(&self) -> bool {
        self.cursor.has_all_recorded() && !self.cursor.has_outcome()
    }

    /// Nothing is under way and nothing decided is unrecorded.
    pub(super) fn is_settled(&self) -> bool {
        self.work == Work::Idle && self.cursor.is_settled()
    }

    pub(super) fn set_busy(&mut self) {
        self.work = Work::Busy;
    }

    /// What memory has of this lane is no longer trusted. What was under way has ended.
    pub(super) fn void(&mut self) {
        self.work = Work::Void;
        self.cursor.forget();
    }

    /// What memory has of this lane is no longer trusted, from the moment on at which what is under way has ended.
    fn doom(&mut self) {
        match self.work {
            // Nothing is heard any more of a batch whose outcome is known.
            Work::Busy if !self.cursor.has_outcome() => {
                self.work = Work::Doomed;
                self.cursor.forget();
            }
            _ => self.void(),
        }
    }

    /// What was under way has ended: was memory void before that?
    pub(super) fn ends_doomed(&mut self) -> bool {
        let doomed = self.work == Work::Doomed;
        if doomed {
            self.void();
        }
        doomed
    }

    pub(super) fn parked_keys(&self) -> usize {
        self.parked.len()
    }

    pub(super) fn queued_bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn ask(&mut self, request: Request) {
        if !self.requests.contains(&request) {
            self.requests.push(request);
        }
    }

    /// What should happen next; `may_deliver` is false while nothing may be handed over.
    pub(super) fn wish(
        &mut self,
        now: Instant,
        may_deliver: bool,
        probe: bool,
        config: &Arc<RelayConfig>,
        rng: &mut Rng,
    ) -> Option<Wish> {
        match self.work {
            Work::Busy | Work::Doomed => return None,
            Work::Void => return (!self.cursor.is_moving()).then_some(Wish::Load),
            Work::Idle => {}
        }
        // A lane's records come one after the other.
        if !self.requests.is_empty() && !self.cursor.is_moving() {
            return Some(Wish::Record(self.carry_out_requests()));
        }
        if may_deliver && !self.leaving {
            let due = self.due_key(now);
            let held = mutant!(ParkedKeyStopsLane) && !self.parked.is_empty();
            let pages = !self.queue.is_empty() && self.stopped.is_none() && !held;
            if let Some(key) = due.filter(|_| self.last_was_page || !pages) {
                self.last_was_page = false;
                self.draining = true;
                return Some(Wish::ReadParked(key));
            }
            if pages {
                self.last_was_page = true;
                self.draining = false;
                return Some(Wish::Deliver(Box::new(self.cut(probe, config, rng))));
            }
        }
        self.cursor.lag(now, config.lazy_record).map(Wish::Record)
    }

    /// Is it time to record what was confirmed?
    pub(super) fn flush_is_due(&self, now: Instant, config: &RelayConfig) -> bool {
        self.cursor.flush_is_due(now, config.record_every)
            || self.leaving && !self.cursor.has_all_recorded() && !self.cursor.is_moving()
    }

    /// The change that records what was confirmed.
    pub(super) fn flush(&mut self) -> Option<LaneChange> {
        if self.is_void() { None } else { self.cursor.flush() }
    }

    /// What must be recorded before the lane goes on.
    pub(super) fn outcome_to_record(&mut self) -> Option<LaneChange> {
        self.cursor.outcome_to_record()
    }

    /// The change that writes down what is decided; it is to be recorded.
    pub(super) fn catch_up(&mut self) -> LaneChange {
        self.cursor.catch_up()
    }

    fn carry_out_requests(&mut self) -> LaneChange {
        let mut change = self.catch_up();
        change.replayed = self.requests.iter().map(|request| request.id).collect();
        change
    }

    /// Does the lane have anything to hand over (so that asking the breaker makes sense)?
    pub(super) fn has_due(&self, now: Instant) -> bool {
        let pages = !self.queue.is_empty() && self.stopped.is_none();
        self.work == Work::Idle && !self.leaving && (pages || self.due_key(now).is_some())
    }

    fn due_key(&self, now: Instant) -> Option<String> {
        let due = self.parked.iter().filter_map(|(key, parked)| Some((parked.due?, key)));
        due.filter(|(due, _)| *due <= now).min().map(|(_, key)| key.clone())
    }

    /// When this lane next wants something.
    pub(super) fn wake_at(&self, config: &RelayConfig) -> Option<Instant> {
        let due = self.parked.values().filter_map(|parked| parked.due).min();
        let due = due.filter(|_| self.work == Work::Idle);
        let record = self.cursor.wake_at(config.record_every, config.lazy_record);
        [due, record].into_iter().flatten().min()
    }
}
