//! What really happened, kept apart from the store: the checks ask this journal, never the tables alone.
//!
//! It notes what programs asked for, and counts it when (and only when) the database said that their transaction
//! committed. Every effect is noted with its attempt: loss is never inferred from a missing row.
//!
//! # Layout
//! - `asked`: what programs ask for
//! - `happened`: what the database and the broker say happened
//! - `lost`: what a crash of the database takes back
//! - `operators`: replays, rewinds and leases

mod asked;
mod happened;
mod lost;
mod operators;
#[cfg(test)]
mod tests;

pub(super) use lost::Undecided;

use super::invariant::{Invariant, Violation};
use super::landings::Landing;
use bytes::Bytes;
use relevo_core::event::{EventId, Headers};
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
    /// A process died that had a replay of it to carry out, or to bring to its end.
    pub(super) replay_orphaned: bool,
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
    /// Times a crash of the database took back what had been decided.
    pub(super) taken_back: u32,
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
    /// Events of a key come in their order.
    pub(super) ordered: bool,
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
    /// Events that came before an earlier one of their key, where order does not matter.
    pub(super) overtakers: u64,
    /// Effects that committed.
    pub(super) effects: u64,
    pub(super) violation: Option<Violation>,
    /// How many skips each subscription noted, whatever a crash took back of them.
    pub(super) skipped: Vec<u64>,
    /// How many dead letters, likewise.
    pub(super) died: Vec<u64>,
    /// How many failed attempts that were to be tried again, likewise.
    pub(super) retried: Vec<u64>,
    /// The ids that landed events were published with, by their ids in the consumer's log.
    pub(super) originals: BTreeMap<EventId, EventId>,
}

impl Journal {
    pub(super) fn new(subscribers: Vec<Subscriber>) -> Self {
        let none = vec![0; subscribers.len()];
        let (skipped, died) = (none.clone(), none.clone());
        Self { subscribers, skipped, died, retried: none, ..Self::default() }
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

    pub(super) fn delivered(
        &mut self,
        subscriber: usize,
        event: EventId,
    ) -> Option<&mut Delivered> {
        self.events.get_mut(&event).and_then(|event| event.at.get_mut(subscriber))
    }
}
