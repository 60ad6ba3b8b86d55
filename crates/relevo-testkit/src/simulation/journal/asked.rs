//! What programs ask for: it counts once their transaction has committed.

use super::{Delivered, Journal, Pending, Published};
use relevo_core::event::{EventId, NewEvent, order_key};
use relevo_core::outbox::LaneChange;
use relevo_stores::memory::TxId;

impl Journal {
    /// Publishing begins now.
    pub(in crate::simulation) fn publishing(&mut self) -> u64 {
        self.tick()
    }

    /// An event was published by a statement that began at `published_at`.
    pub(in crate::simulation) fn published(
        &mut self,
        tx: TxId,
        event: &NewEvent,
        published_at: u64,
    ) {
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

    pub(in crate::simulation) fn effect(&mut self, tx: TxId, subscriber: usize, event: EventId) {
        self.transactions.entry(tx).or_default().effects.push((subscriber, event));
    }

    pub(in crate::simulation) fn change(&mut self, tx: TxId, change: LaneChange) {
        self.transactions.entry(tx).or_default().changes.push(change);
    }

    pub(in crate::simulation) fn savepoint(&mut self, tx: TxId) {
        let pending = self.transactions.entry(tx).or_default();
        pending.marks.push((pending.published.len(), pending.effects.len()));
    }

    /// Back to the last savepoint, which stays.
    pub(in crate::simulation) fn undo(&mut self, tx: TxId) {
        let pending = self.transactions.entry(tx).or_default();
        let Some((published, effects)) = pending.marks.last().copied() else { return };
        pending.effects.truncate(effects);
        let gone = pending.published.split_off(published);
        self.forget(&gone);
    }

    /// The server ended this transaction's work: whatever it held failed.
    pub(in crate::simulation) fn failed_in(&mut self, tx: TxId) {
        let Some(pending) = self.transactions.get_mut(&tx) else { return };
        for (subscriber, event) in std::mem::take(&mut pending.effects) {
            self.failed(subscriber, event, false);
        }
    }

    pub(in crate::simulation) fn rolled_back(&mut self, tx: TxId) {
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
    pub(in crate::simulation) fn changes_of(&self, tx: TxId) -> impl Iterator<Item = &LaneChange> {
        self.transactions.get(&tx).into_iter().flat_map(|pending| &pending.changes)
    }

    /// True if a transaction wrote events into the log.
    pub(in crate::simulation) fn has_published(&self, tx: TxId) -> bool {
        let written =
            |pending: &Pending| !pending.published.is_empty() || !pending.landings.is_empty();
        self.transactions.get(&tx).is_some_and(written)
    }

    /// True if a handler wrote in this transaction.
    pub(in crate::simulation) fn has_effects(&self, tx: TxId) -> bool {
        self.transactions.get(&tx).is_some_and(|pending| !pending.effects.is_empty())
    }

    /// True if a transaction wrote lane changes and nothing else.
    pub(in crate::simulation) fn only_changes(&self, tx: TxId) -> bool {
        let known = self.transactions.contains_key(&tx);
        known && !self.has_published(tx) && !self.has_effects(tx)
    }
}
