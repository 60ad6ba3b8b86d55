//! What really happened, kept apart from the store: the checks ask this journal, never the tables alone.
//!
//! It notes what programs asked for, and counts it when (and only when) the database said that their transaction
//! committed. Every effect is noted with its attempt: loss is never inferred from a missing row.

use super::invariant::{Invariant, Violation};
use super::judge::wants;
use super::landings::Landing;
use bytes::Bytes;
use relevo_core::event::{Event, EventId, Headers, NewEvent, order_key};
use relevo_core::outbox::{LaneChange, LaneId, Position, Token};
use relevo_stores::memory::TxId;
use std::collections::BTreeMap;

/// How an event ended for a subscription, last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum End {
    #[default]
    None,
    Applied,
    Dead,
    Skipped,
}

/// One event at one subscription.
#[derive(Debug, Clone, Default)]
pub(super) struct Delivered {
    /// Effects that committed, or copies the broker stored.
    pub(super) applied: u32,
    /// When it was first applied, dead or skipped.
    pub(super) first_decided: Option<u64>,
    pub(super) deaths: u32,
    pub(super) skips: u32,
    /// Attempts the handler or broker saw, and how they ended.
    pub(super) attempts: u32,
    pub(super) failures: u32,
    pub(super) fatal: u32,
    pub(super) skip_answers: u32,
    /// Times it was put back by a replay.
    pub(super) replays: u32,
    /// Rewinds that may have brought it again.
    pub(super) rewinds: u32,
    /// It waits behind its key, apart from the log: no rewind may leave it out.
    parked: bool,
    /// A rewind brought it back into the log that is still to be read, wherever it waited before.
    to_be_read_again: bool,
    /// A rewind may have left it out.
    pub(super) optional: bool,
    /// When it was first handed on to whoever stands behind a broker.
    pub(super) handed_on: Option<u64>,
    /// It landed in the log of whoever stands behind a broker: from there on it is an event like any other.
    pub(super) landed: bool,
    /// It must still come to an end.
    pub(super) awaited: bool,
    pub(super) end: End,
}

/// An event somebody published.
#[derive(Debug, Clone)]
pub(super) struct Published {
    pub(super) key: String,
    pub(super) topic: String,
    pub(super) payload: Bytes,
    pub(super) headers: Headers,
    pub(super) tx: TxId,
    pub(super) published_at: u64,
    pub(super) committed_at: Option<u64>,
    /// An edited copy of a dead letter belongs to one subscription.
    pub(super) only_for: Option<usize>,
    pub(super) at: Vec<Delivered>,
}

/// A subscription, as far as the journal cares.
#[derive(Debug, Clone)]
pub(super) struct Subscriber {
    pub(super) name: &'static str,
    /// Effects share the cursor's transaction.
    pub(super) once: bool,
    pub(super) only_a: bool,
    pub(super) max_attempts: u32,
    /// It stands behind a broker: it awaits what another one hands on, not what is committed.
    pub(super) behind: bool,
}

#[derive(Debug, Default)]
pub(super) struct Pending {
    published: Vec<EventId>,
    effects: Vec<(usize, EventId)>,
    pub(super) landings: Vec<Landing>,
    changes: Vec<LaneChange>,
    marks: Vec<(usize, usize)>,
}

/// The journal.
#[derive(Debug, Default)]
pub(super) struct Journal {
    clock: u64,
    pub(super) subscribers: Vec<Subscriber>,
    pub(super) events: BTreeMap<EventId, Published>,
    pub(super) by_key: BTreeMap<String, Vec<EventId>>,
    pub(super) transactions: BTreeMap<TxId, Pending>,
    tokens: BTreeMap<LaneId, Token>,
    positions: BTreeMap<LaneId, Position>,
    pub(super) open: usize,
    /// Effects that committed.
    pub(super) effects: u64,
    pub(super) violation: Option<Violation>,
    pub(super) rewound: Vec<bool>,
    /// The ids that landed events were published with, by their ids in the consumer's log.
    pub(super) originals: BTreeMap<EventId, EventId>,
}

impl Journal {
    pub(super) fn new(subscribers: Vec<Subscriber>) -> Self {
        let rewound = vec![false; subscribers.len()];
        Self { subscribers, rewound, ..Self::default() }
    }

    pub(super) fn subscriber(&self, name: &str) -> usize {
        self.subscribers.iter().position(|s| s.name == name).unwrap_or(usize::MAX)
    }

    /// The first violation stands; later ones follow from it.
    pub(super) fn broken(&mut self, invariant: Invariant, text: String) {
        self.violation.get_or_insert(Violation { invariant, text });
    }

    pub(super) fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    // ---- what programs ask for ----

    /// Publishing begins now.
    pub(super) fn publishing(&mut self) -> u64 {
        self.tick()
    }

    /// An event was published by a statement that began at `published_at`.
    pub(super) fn published(&mut self, tx: TxId, event: &NewEvent, published_at: u64) {
        let key = order_key(event.key.as_deref(), event.id);
        self.by_key.entry(key.clone()).or_default().push(event.id);
        let at = vec![Delivered::default(); self.subscribers.len()];
        let row = Published {
            key,
            topic: event.topic.clone(),
            payload: event.payload.clone(),
            headers: event.headers.clone(),
            tx,
            published_at,
            committed_at: None,
            only_for: None,
            at,
        };
        self.events.insert(event.id, row);
        self.transactions.entry(tx).or_default().published.push(event.id);
    }

    pub(super) fn effect(&mut self, tx: TxId, subscriber: usize, event: EventId) {
        self.transactions.entry(tx).or_default().effects.push((subscriber, event));
    }

    pub(super) fn change(&mut self, tx: TxId, change: LaneChange) {
        self.transactions.entry(tx).or_default().changes.push(change);
    }

    pub(super) fn savepoint(&mut self, tx: TxId) {
        let pending = self.transactions.entry(tx).or_default();
        pending.marks.push((pending.published.len(), pending.effects.len()));
    }

    /// Back to the last savepoint, which stays.
    pub(super) fn undo(&mut self, tx: TxId) {
        let pending = self.transactions.entry(tx).or_default();
        let Some((published, effects)) = pending.marks.last().copied() else { return };
        pending.effects.truncate(effects);
        let gone = pending.published.split_off(published);
        self.forget(&gone);
    }

    /// The server ended this transaction's work: whatever it held failed.
    pub(super) fn failed_in(&mut self, tx: TxId) {
        let Some(pending) = self.transactions.get_mut(&tx) else { return };
        for (subscriber, event) in std::mem::take(&mut pending.effects) {
            self.failed(subscriber, event, false);
        }
    }

    pub(super) fn rolled_back(&mut self, tx: TxId) {
        self.failed_in(tx);
        if let Some(pending) = self.transactions.remove(&tx) {
            self.forget(&pending.published);
        }
    }

    /// What was rolled back is kept (a ghost must be recognised) but is in nobody's way.
    fn forget(&mut self, gone: &[EventId]) {
        for id in gone {
            let key = self.events.get(id).map(|event| event.key.clone()).unwrap_or_default();
            if let Some(events) = self.by_key.get_mut(&key) {
                events.retain(|other| other != id);
            }
        }
    }

    /// The lane changes a transaction wrote.
    pub(super) fn changes_of(&self, tx: TxId) -> impl Iterator<Item = &LaneChange> {
        self.transactions.get(&tx).into_iter().flat_map(|pending| &pending.changes)
    }

    /// True if a transaction wrote events into the log.
    pub(super) fn has_published(&self, tx: TxId) -> bool {
        let written =
            |pending: &Pending| !pending.published.is_empty() || !pending.landings.is_empty();
        self.transactions.get(&tx).is_some_and(written)
    }

    /// True if a transaction wrote lane changes and nothing else.
    pub(super) fn only_changes(&self, tx: TxId) -> bool {
        let only = |pending: &Pending| pending.effects.is_empty();
        !self.has_published(tx) && self.transactions.get(&tx).is_some_and(only)
    }

    // ---- what the database says happened ----

    /// The database committed this transaction; `replayed` are the dead letters its changes put back.
    pub(super) fn committed(&mut self, tx: TxId, replayed: &[(usize, EventId)]) {
        let Some(pending) = self.transactions.remove(&tx) else { return };
        let now = self.tick();
        self.effects += pending.effects.len() as u64;
        for id in &pending.published {
            self.event_committed(*id, now);
        }
        // Within one commit dead letters and skips have no order among the effects: they are noted first and
        // judged last.
        let mut noted = Vec::new();
        for landing in &pending.landings {
            self.landed(landing, now, &mut noted);
        }
        for change in &pending.changes {
            self.recorded(change, now, &mut noted);
        }
        for (subscriber, event) in pending.effects {
            if self
                .delivered(subscriber, event)
                .is_some_and(|delivered| delivered.first_decided.is_none())
            {
                self.check_order(subscriber, event);
            }
            self.applied(subscriber, event, now);
        }
        for (subscriber, event) in noted {
            self.check_order(subscriber, event);
        }
        for (subscriber, event) in replayed {
            self.put_back(*subscriber, *event);
        }
    }

    fn event_committed(&mut self, id: EventId, now: u64) {
        let Some(event) = self.events.get_mut(&id) else { return };
        event.committed_at = Some(now);
        for (index, subscriber) in self.subscribers.iter().enumerate() {
            if !subscriber.behind && wants(subscriber, event, index) {
                event.at[index].awaited = true;
                self.open += 1;
            }
        }
    }

    fn recorded(&mut self, change: &LaneChange, now: u64, noted: &mut Vec<(usize, EventId)>) {
        let lane = &change.lane;
        let (token, position) = (self.tokens.get(lane).copied(), self.positions.get(lane).copied());
        if token != Some(change.token) {
            let text = format!(
                "lane {} was changed under token {}, in force is {token:?}",
                lane.lane, change.token
            );
            self.broken(Invariant::Fencing, text);
        } else if position.is_some_and(|position| position != change.before) {
            let text = format!(
                "lane {} was changed from {:?}, but stood at {position:?}",
                lane.lane, change.before
            );
            self.broken(Invariant::Fencing, text);
        }
        self.positions.insert(lane.clone(), change.after);
        let subscriber = self.subscriber(&lane.subscription);
        for death in &change.deaths {
            let id = self.original(death.event.id);
            self.note_first(subscriber, id, noted);
            self.died(subscriber, id, now);
        }
        for skip in &change.skips {
            let id = self.original(skip.event.id);
            self.note_first(subscriber, id, noted);
            self.decided(subscriber, id, now, End::Skipped);
        }
        change.settled.iter().for_each(|event| self.parked(subscriber, event.id, false));
        change.waiting.iter().for_each(|event| self.parked(subscriber, event.id, true));
    }

    fn parked(&mut self, subscriber: usize, event: EventId, waits: bool) {
        let event = self.original(event);
        let Some(delivered) = self.delivered(subscriber, event) else { return };
        delivered.parked = waits;
        delivered.to_be_read_again &= !waits;
    }

    pub(super) fn note_first(
        &mut self,
        subscriber: usize,
        id: EventId,
        noted: &mut Vec<(usize, EventId)>,
    ) {
        if self.delivered(subscriber, id).is_some_and(|delivered| delivered.first_decided.is_none())
        {
            noted.push((subscriber, id));
        }
    }

    /// An effect committed.
    pub(super) fn applied(&mut self, subscriber: usize, event: EventId, now: u64) {
        self.decided(subscriber, event, now, End::Applied);
        let Some(delivered) = self.delivered(subscriber, event) else { return };
        let allowed = 1 + delivered.rewinds;
        let applied = delivered.applied;
        let Some(about) = self.subscribers.get(subscriber) else { return };
        if about.once && applied > allowed {
            let text = format!("the effect of {event} at {} happened {applied} times", about.name);
            self.broken(Invariant::EffectOnce, text);
        }
    }

    fn died(&mut self, subscriber: usize, event: EventId, now: u64) {
        let max = self.subscribers.get(subscriber).map_or(1, |s| s.max_attempts);
        let once = self.subscribers.get(subscriber).is_some_and(|s| s.once);
        self.decided(subscriber, event, now, End::Dead);
        let Some(delivered) = self.delivered(subscriber, event) else { return };
        if delivered.fatal == 0 && delivered.failures < max {
            let text = format!("{event} is dead after {} failures of {max}", delivered.failures);
            self.broken(Invariant::DeadLetters, text);
        } else if once && delivered.applied > 0 && delivered.rewinds == 0 {
            self.broken(
                Invariant::DeadLetters,
                format!("{event} is dead, but its effect happened"),
            );
        }
    }

    fn decided(&mut self, subscriber: usize, id: EventId, now: u64, end: End) {
        self.check_wanted(subscriber, id);
        let Some(delivered) = self.delivered(subscriber, id) else { return };
        delivered.first_decided.get_or_insert(now);
        delivered.end = end;
        delivered.to_be_read_again = false;
        let unasked = end == End::Skipped && delivered.skip_answers == 0;
        match end {
            End::Applied => delivered.applied += 1,
            End::Dead => delivered.deaths += 1,
            End::Skipped => delivered.skips += 1,
            End::None => {}
        }
        if std::mem::take(&mut delivered.awaited) {
            self.open -= 1;
        }
        if unasked {
            let text = format!("{id} is noted as skipped, and no handler has skipped it");
            self.broken(Invariant::NoSilentSkip, text);
        }
    }

    pub(super) fn delivered(
        &mut self,
        subscriber: usize,
        event: EventId,
    ) -> Option<&mut Delivered> {
        self.events.get_mut(&event).and_then(|event| event.at.get_mut(subscriber))
    }

    /// A copy of the event arrived at the broker.
    pub(super) fn stored(&mut self, subscriber: usize, event: &Event) {
        let now = self.tick();
        self.check_bytes(subscriber, event);
        if self
            .delivered(subscriber, event.id)
            .is_some_and(|delivered| delivered.first_decided.is_none())
        {
            self.check_order(subscriber, event.id);
        }
        self.decided(subscriber, event.id, now, End::Applied);
    }

    /// An event was handed over. What arrives must be what was published, byte for byte.
    pub(super) fn attempted(&mut self, subscriber: usize, event: &Event) -> u32 {
        self.check_bytes(subscriber, event);
        self.check_wanted(subscriber, event.id);
        let Some(delivered) = self.delivered(subscriber, event.id) else { return 0 };
        delivered.attempts += 1;
        delivered.attempts
    }

    pub(super) fn failed(&mut self, subscriber: usize, event: EventId, fatal: bool) {
        if let Some(delivered) = self.delivered(subscriber, event) {
            delivered.failures += 1;
            delivered.fatal += u32::from(fatal);
        }
    }

    // ---- operators ----

    fn put_back(&mut self, subscriber: usize, event: EventId) {
        let event = self.original(event);
        let Some(delivered) = self.delivered(subscriber, event) else { return };
        delivered.replays += 1;
        delivered.parked = true;
        delivered.to_be_read_again = false;
        if !std::mem::replace(&mut delivered.awaited, true) {
            self.open += 1;
        }
    }

    /// An edited copy of a dead letter was asked for.
    pub(super) fn edited(
        &mut self,
        subscriber: usize,
        original: EventId,
        copy: EventId,
        payload: Bytes,
    ) {
        let now = self.tick();
        let original = self.original(original);
        let Some(original) = self.events.get(&original) else { return };
        let mut copied = original.clone();
        copied.payload = payload;
        copied.headers = Headers::default();
        copied.committed_at = Some(now);
        copied.only_for = Some(subscriber);
        copied.at = vec![Delivered::default(); self.subscribers.len()];
        // Not awaited yet: the lane's owner has to put it back first.
        self.events.insert(copy, copied);
    }

    /// Cursors were moved. What was applied may come again (`back`); what still waits in the log, for the first time or
    /// because an earlier rewind returned it there, may be left out (`forward`). What is parked goes on waiting, or the
    /// log brings it again. What never landed in a consumer's log, no rewind of that reaches.
    pub(super) fn rewound(&mut self, subscriber: usize, back: bool, forward: bool) {
        self.rewound[subscriber] = true;
        let behind = self.subscribers[subscriber].behind;
        for event in self.events.values_mut().filter(|event| event.committed_at.is_some()) {
            let copy = event.only_for == Some(subscriber);
            let delivered = &mut event.at[subscriber];
            if behind && !delivered.landed && !copy {
                continue;
            }
            delivered.rewinds += 1;
            let first = delivered.end == End::None && !delivered.parked;
            if forward && (first || delivered.to_be_read_again) {
                delivered.optional |= first;
                if std::mem::take(&mut delivered.awaited) {
                    self.open -= 1;
                }
            }
            delivered.to_be_read_again |= back;
            delivered.parked &= !back;
        }
    }

    // ---- leases ----

    pub(super) fn token_swapped(&mut self, lane: LaneId, seen: Token, fresh: Token) {
        let before = self.tokens.insert(lane.clone(), fresh).unwrap_or(0);
        if before != seen {
            self.broken(
                Invariant::Fencing,
                format!("lane {} was taken over token {seen}, in force was {before}", lane.lane),
            );
        }
    }

    /// What an operator's statement made of a lane.
    pub(super) fn lane_reset(&mut self, lane: LaneId, token: Token, position: Position) {
        self.tokens.insert(lane.clone(), token);
        self.positions.insert(lane, position);
    }
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
