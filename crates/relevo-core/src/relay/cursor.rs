use super::batch::Item;
use crate::clock::Instant;
use crate::event::EventId;
use crate::outbox::{LaneChange, LaneId, Position, Token};
use std::time::Duration;

/// Where a lane stands: what is stored, and what is decided beyond that. Its records come one after the other.
#[derive(Debug)]
pub(super) struct Cursor {
    lane: LaneId,
    token: Token,
    /// Where the stored cursor stands.
    durable: Position,
    /// Up to where all is decided; ahead of `durable` by rows that were confirmed and by rows that nobody wants.
    decided: Position,
    /// How many of the rows between the two were confirmed.
    confirmed: u64,
    /// Which ones.
    done: Vec<EventId>,
    /// Since when there are any.
    since: Option<Instant>,
    /// A change that only moves the cursor is being recorded, whatever else is under way.
    moving: bool,
    outcome: Option<Outcome>,
}

/// What became of a batch if it is more than confirms (parks, dead letters, skips).
#[derive(Debug)]
struct Outcome {
    change: LaneChange,
    rest: Vec<Item>,
    /// It is being recorded.
    sent: bool,
}

impl Cursor {
    pub(super) fn at(lane: LaneId, token: Token, position: Position) -> Self {
        Self {
            lane,
            token,
            durable: position,
            decided: position,
            confirmed: 0,
            done: Vec::new(),
            since: None,
            moving: false,
            outcome: None,
        }
    }

    pub(super) fn durable(&self) -> Position {
        self.durable
    }

    pub(super) fn decided(&self) -> Position {
        self.decided
    }

    /// Is a change being recorded that only moves the cursor?
    pub(super) fn is_moving(&self) -> bool {
        self.moving
    }

    /// Is everything recorded that is decided?
    pub(super) fn is_settled(&self) -> bool {
        self.durable == self.decided && !self.moving
    }

    /// Is everything recorded that was handed over?
    pub(super) fn has_all_recorded(&self) -> bool {
        self.confirmed == 0 && !self.moving
    }

    pub(super) fn has_outcome(&self) -> bool {
        self.outcome.is_some()
    }

    /// What memory has is void: nothing of it is to be recorded.
    pub(super) fn forget(&mut self) {
        (self.outcome, self.confirmed, self.since) = (None, 0, None);
        self.done.clear();
    }

    /// Everything before `position` is decided.
    pub(super) fn decide(&mut self, position: Position) {
        self.decided = position;
    }

    /// The change says nothing but that events were confirmed.
    pub(super) fn confirm(&mut self, change: LaneChange, now: Instant) {
        self.decided = change.after;
        self.confirmed += change.delivered;
        self.done.extend(change.done);
        self.since.get_or_insert(now);
    }

    /// The change says more than that.
    pub(super) fn keep(&mut self, change: LaneChange, rest: Vec<Item>) {
        self.outcome = Some(Outcome { change, rest, sent: false });
    }

    /// What became of a batch is to be recorded now, once, unless the cursor is being moved.
    pub(super) fn outcome_to_record(&mut self) -> Option<LaneChange> {
        let moving = self.moving;
        let Outcome { change, sent, .. } =
            self.outcome.as_mut().filter(|outcome| !outcome.sent && !moving)?;
        *sent = true;
        // What was confirmed before goes along. A batch of parked events moves no cursor of its own.
        if change.after == change.before {
            change.after = self.decided;
        }
        change.before = self.durable;
        change.delivered += std::mem::take(&mut self.confirmed);
        change.done.append(&mut self.done);
        Some(change.clone())
    }

    /// The outcome is recorded: what was not decided.
    pub(super) fn take_outcome(&mut self) -> Vec<Item> {
        self.outcome.take().map(|outcome| outcome.rest).unwrap_or_default()
    }

    pub(super) fn flush_is_due(&self, now: Instant, every: Duration) -> bool {
        let due = |since: Instant| now.since(since) >= every;
        self.confirmed > 0 && !self.moving && self.since.is_some_and(due)
    }

    /// What was confirmed is to be recorded now, unless a record is under way or has to come.
    pub(super) fn flush(&mut self) -> Option<LaneChange> {
        if self.confirmed == 0 || self.moving || self.outcome.is_some() {
            return None;
        }
        self.moving = true;
        Some(self.catch_up())
    }

    /// The change that writes down what is decided; it is to be recorded.
    pub(super) fn catch_up(&mut self) -> LaneChange {
        let mut change = self.staying();
        change.after = self.decided;
        change.delivered = std::mem::take(&mut self.confirmed);
        change.done = std::mem::take(&mut self.done);
        self.since = None;
        change
    }

    /// A change that leaves the cursor where it is.
    pub(super) fn staying(&self) -> LaneChange {
        LaneChange::moving(self.lane.clone(), self.token, self.durable, self.durable)
    }

    /// A cursor that only passed rows nobody wants is written late, when nothing else writes it.
    pub(super) fn lag(&mut self, now: Instant, late: Duration) -> Option<LaneChange> {
        if self.moving || self.confirmed > 0 || self.durable == self.decided {
            return None;
        }
        let since = *self.since.get_or_insert(now);
        (now.since(since) >= late).then(|| self.catch_up())
    }

    /// A record came to its end: was it one that only moved the cursor?
    pub(super) fn end_move(&mut self, change: &LaneChange, failed: bool) -> bool {
        let moved = std::mem::take(&mut self.moving);
        if moved && !failed {
            self.durable = change.after;
        }
        moved
    }

    /// A record of anything else is durable; `nothing_waits` if nothing is queued.
    pub(super) fn recorded(&mut self, after: Position, nothing_waits: bool) {
        self.durable = after;
        self.since = None;
        self.decided = if nothing_waits { after } else { self.decided.max(after) };
    }

    pub(super) fn wake_at(&self, every: Duration, late: Duration) -> Option<Instant> {
        let pause = if self.confirmed > 0 { every } else { late };
        self.since.map(|since| since + pause)
    }
}
