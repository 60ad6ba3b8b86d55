use super::batch::{Batch, Item};
use super::config::RelayConfig;
use super::cursor::Cursor;
use crate::clock::{Instant, Rng};
use crate::event::Event;
use crate::mutant;
use crate::outbox::{
    LaneChange, LaneId, LaneState, ParkedEvent, Position, Request, Row, TickRef, Token,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// How many refs of a parked key are read at once.
pub(super) const DRAIN_ROWS: usize = 50;

/// So many times down for one lane, while the destination answered others as often, and its first event is to blame.
const BLAMED_AFTER: u32 = 3;

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
        let parked = |key: crate::outbox::ParkedKey| {
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

    pub(super) fn is_void(&self) -> bool {
        matches!(self.work, Work::Void | Work::Doomed)
    }

    /// Nothing is under way, and another owner would hand over nothing again.
    pub(super) fn may_leave(&self) -> bool {
        !self.is_busy() && (self.is_void() || self.cursor.has_all_recorded())
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

    /// Where this lane would be read on from.
    pub(super) fn reads_from(&self) -> Option<Position> {
        (self.stopped.is_none() && !self.is_void()).then_some(self.read)
    }

    pub(super) fn has_room(&self, config: &RelayConfig) -> bool {
        self.queue.len() < config.lane_queue.div_ceil(2) || mutant!(UnboundedQueue)
    }

    /// Nothing can be read from `start` any more. A lane with something under way finds out when that has ended.
    pub(super) fn cannot_read_from(&mut self, start: Position) {
        if self.read == start && self.work == Work::Idle && !mutant!(KeepsLostTick) {
            self.void();
        }
    }

    /// A beat, sent at this moment, tells where the stored cursor stands. One that stands elsewhere means that the
    /// server lost, in a crash, a commit that it had confirmed: what memory has beyond that never happened.
    pub(super) fn compare(&mut self, sent: Instant, stored: Position) {
        let known = self.work == Work::Idle && !self.cursor.is_moving() && self.told < sent;
        if known && stored != self.cursor.durable() && !mutant!(KeepsLostTick) {
            self.void();
        }
    }

    /// Takes the lane's rows of a page that was read from `start`.
    pub(super) fn page(
        &mut self,
        start: Position,
        rows: Vec<Row>,
        to: TickRef,
        end: Position,
        config: &RelayConfig,
    ) {
        if self.read != start || self.is_void() {
            // The lane was loaded again meanwhile: the page belongs to a time before.
            return;
        }
        for row in rows.into_iter().filter(|row| config.wants(&row.event)) {
            let at = crate::outbox::EventRef {
                key: row.event.order_key(),
                to,
                seq: row.seq,
                id: row.event.id,
            };
            self.bytes += row.event.payload.len();
            self.queue.push_back(Item { from: start.from, at, event: row.event });
        }
        self.read = end;
        self.decide_nothing_waits();
    }

    /// With nothing queued or under way, whatever was read is decided.
    fn decide_nothing_waits(&mut self) {
        let none_waits = self.queue.is_empty() && self.work == Work::Idle;
        if none_waits || mutant!(RecordsWhatWasRead) {
            self.cursor.decide(self.read);
        }
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

    /// Does the lane have anything to hand over (so that asking the breaker makes sense)?
    pub(super) fn has_due(&self, now: Instant) -> bool {
        let pages = !self.queue.is_empty() && self.stopped.is_none();
        self.work == Work::Idle && !self.leaving && (pages || self.due_key(now).is_some())
    }

    fn due_key(&self, now: Instant) -> Option<String> {
        let due = self.parked.iter().filter_map(|(key, parked)| Some((parked.due?, key)));
        due.filter(|(due, _)| *due <= now).min().map(|(_, key)| key.clone())
    }

    fn carry_out_requests(&mut self) -> LaneChange {
        let mut change = self.catch_up();
        change.replayed = self.requests.iter().map(|request| request.id).collect();
        change
    }

    fn cut(&mut self, probe: bool, config: &Arc<RelayConfig>, rng: &mut Rng) -> Batch {
        let alone = self.alone > 0;
        let size = if alone || probe || self.to_blame { 1 } else { config.batch };
        let size = fitting(self.queue.iter().map(|item| &item.event), size, config);
        let items: Vec<Item> = self.queue.drain(..size).collect();
        self.bytes -= items.iter().map(|item| item.event.payload.len()).sum::<usize>();
        self.alone = self.alone.saturating_sub(items.len());
        let end = match (self.queue.front(), items.last()) {
            (Some(_), Some(last)) => {
                Position { from: last.from, to: Some(last.at.to), seq: last.at.seq }
            }
            _ => self.read,
        };
        let rng = Rng::seeded(rng.next_u64());
        let parked = |key: &str| self.parked.contains_key(key) && !mutant!(IgnoreParked);
        let batch = Batch::page(
            (self.id.clone(), self.token),
            self.cursor.durable(),
            end,
            items,
            parked,
            config.clone(),
            rng,
        );
        self.marked(batch, alone)
    }

    fn marked(&self, batch: Batch, alone: bool) -> Batch {
        let batch = if alone { batch.alone() } else { batch };
        if self.to_blame { batch.blamed() } else { batch }
    }

    /// The change that writes down what is decided; it is to be recorded.
    pub(super) fn catch_up(&mut self) -> LaneChange {
        self.cursor.catch_up()
    }

    /// The refs of a due key came.
    pub(super) fn drain(
        &mut self,
        key: &str,
        events: Vec<ParkedEvent>,
        max_rows: usize,
        config: &Arc<RelayConfig>,
        rng: &mut Rng,
    ) -> Batch {
        let parked =
            self.parked.get(key).cloned().unwrap_or(Parked { attempts: 0, deaths: 0, due: None });
        let all = events.len() < max_rows;
        let item = |event: ParkedEvent| Item {
            from: TickRef::default(),
            at: event.at,
            event: event.event,
        };
        let alone = self.alone > 0;
        let most = if alone || self.to_blame { 1 } else { config.batch };
        let rows = fitting(events.iter().map(|event| &event.event), most, config);
        let all = all && rows == events.len();
        let items: Vec<Item> = events.into_iter().take(rows).map(item).collect();
        self.alone = self.alone.saturating_sub(items.len());
        let rng = Rng::seeded(rng.next_u64());
        let key = (key.to_owned(), parked.attempts, parked.deaths);
        // A drain moves no cursor: it writes what is durable over itself, fenced like every other change.
        let batch = Batch::drain(
            (self.id.clone(), self.token),
            self.cursor.durable(),
            key,
            items,
            all,
            config.clone(),
            rng,
        );
        self.marked(batch, alone)
    }

    /// A parked key turned out to have nothing behind it.
    pub(super) fn nothing_waits_behind(&mut self, key: &str) {
        let mut change = self.cursor.staying();
        change.unparked.push(key.to_owned());
        self.decided(change, Vec::new());
    }

    /// A batch was confirmed, every event of its beginning: the lane goes on, and that is recorded later.
    pub(super) fn confirmed(&mut self, change: LaneChange, rest: Vec<Item>, now: Instant) {
        self.put_back(rest);
        self.cursor.confirm(change, now);
        self.decide_nothing_waits();
    }

    /// What became of a batch is more than confirms: it must be recorded before the lane goes on.
    pub(super) fn decided(&mut self, change: LaneChange, rest: Vec<Item>) {
        self.cursor.keep(change, rest);
    }

    /// A record of this lane came to its end. Whatever else is under way goes on, unless memory is void now.
    pub(super) fn record_ended(
        &mut self,
        change: &LaneChange,
        failed: bool,
        now: Instant,
        config: &RelayConfig,
    ) {
        self.told = now;
        match (self.cursor.end_move(change, failed), failed) {
            (true, true) => self.doom(),
            (true, false) => {}
            (false, true) => self.void(),
            (false, false) => {
                let rest = self.cursor.take_outcome();
                self.recorded_with_rest(change, rest, now, config);
            }
        }
    }

    /// A change of this lane is durable; `rest` was not decided.
    pub(super) fn recorded_with_rest(
        &mut self,
        change: &LaneChange,
        rest: Vec<Item>,
        now: Instant,
        config: &RelayConfig,
    ) {
        self.put_back(rest);
        self.recorded(change, now, config);
    }

    /// A change of this lane is durable.
    pub(super) fn recorded(&mut self, change: &LaneChange, now: Instant, config: &RelayConfig) {
        self.work = Work::Idle;
        self.told = now;
        self.cursor.recorded(change.after, self.queue.is_empty());
        for key in &change.parked {
            let due = key.retry_in.map(|delay| now + delay);
            self.parked.insert(
                key.key.clone(),
                Parked { attempts: key.attempts, deaths: key.deaths, due },
            );
        }
        for key in &change.unparked {
            self.parked.remove(key);
        }
        self.requests.retain(|request| !change.replayed.contains(&request.id));
        self.check_parked(config);
        self.decide_nothing_waits();
        if !change.replayed.is_empty() {
            // What became of a request (it may have been cancelled meanwhile) only the store knows.
            self.void();
        }
    }

    /// Nothing was recorded: undecided rows come back to the front of the queue; refs are still in the store.
    pub(super) fn put_back(&mut self, items: Vec<Item>) {
        self.work = Work::Idle;
        if self.draining {
            return;
        }
        for item in items.into_iter().rev() {
            self.bytes += item.event.payload.len();
            self.queue.push_front(item);
        }
    }

    /// The destination was down for what this lane had first; it has answered others `answers` times in all.
    pub(super) fn was_down(&mut self, answers: u64) {
        let (downs, since) = self.downs.unwrap_or((0, answers));
        self.downs = Some((downs + 1, since));
        self.to_blame = downs + 1 >= BLAMED_AFTER && answers >= since + u64::from(BLAMED_AFTER);
    }

    /// The destination answered for this lane.
    pub(super) fn was_up(&mut self) {
        self.downs = None;
        self.to_blame = false;
    }

    /// The batch of these events was rolled back whole: they are redone one by one.
    pub(super) fn redo_alone(&mut self, items: Vec<Item>) {
        self.alone = items.len();
        self.put_back(items);
    }

    /// When this lane next wants something.
    pub(super) fn wake_at(&self, config: &RelayConfig) -> Option<Instant> {
        let due = self.parked.values().filter_map(|parked| parked.due).min();
        let due = due.filter(|_| self.work == Work::Idle);
        let record = self.cursor.wake_at(config.record_every, config.lazy_record);
        [due, record].into_iter().flatten().min()
    }
}

/// How many events go into one batch: at most `most`, and no more bytes than one may have; the first always goes.
fn fitting<'e>(
    events: impl Iterator<Item = &'e Event>,
    most: usize,
    config: &RelayConfig,
) -> usize {
    let mut bytes = 0_usize;
    let fitting = events.take(most).enumerate().take_while(|(index, event)| {
        bytes = bytes.saturating_add(event.payload.len());
        *index == 0 || bytes <= config.batch_bytes
    });
    fitting.count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::NewEvent;

    #[test]
    fn a_batch_is_bounded_in_events_and_in_bytes_and_never_empty() {
        let event =
            |bytes: usize| Event::stored(NewEvent::bytes("t", vec![0; bytes]), chrono::Utc::now());
        let events: Vec<Event> = [40, 40, 40, 500, 1].map(event).into();
        let config = RelayConfig { batch_bytes: 100, ..RelayConfig::default() };
        assert_eq!(fitting(events.iter(), 10, &config), 2);
        assert_eq!(fitting(events.iter(), 1, &config), 1);
        assert_eq!(fitting(events[2..].iter(), 10, &config), 1);
        assert_eq!(fitting(events[3..].iter(), 10, &config), 1, "a larger one goes alone");
        assert_eq!(fitting([].iter(), 10, &config), 0);
    }
}
