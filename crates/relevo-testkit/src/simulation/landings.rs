//! What the journal knows of a consumer: what was handed on to it, and what landed in its log.

use super::invariant::Invariant;
use super::journal::{End, Journal};
use relevo_core::event::EventId;
use relevo_stores::memory::TxId;

/// An event that lands in a consumer's log.
#[derive(Debug, Clone)]
pub(super) struct Landing {
    pub(super) subscriber: usize,
    /// Its id there.
    pub(super) id: EventId,
    /// The id it was published with.
    pub(super) original: EventId,
    /// The handler was asked before.
    pub(super) tried: bool,
    /// The handler's answer was to skip it: that is decided, and only to be noted still.
    pub(super) skipped: bool,
}

impl Journal {
    /// Something was handed on: whoever stands behind it must come to an end with it.
    pub(super) fn handed_on(&mut self, subscriber: usize, event: EventId) {
        let now = self.tick();
        let Some(delivered) = self.delivered(subscriber, event) else { return };
        // Of all copies the first one counts: what comes of it, comes of all.
        if delivered.handed_on.is_none() {
            (delivered.handed_on, delivered.awaited) = (Some(now), true);
            self.open += 1;
        }
    }

    pub(super) fn landing(&mut self, tx: TxId, landing: Landing) {
        self.originals.insert(landing.id, landing.original);
        self.transactions.entry(tx).or_default().landings.push(landing);
    }

    /// The id an event was published with, whatever its id in a consumer's log.
    pub(super) fn original(&self, id: EventId) -> EventId {
        self.originals.get(&id).copied().unwrap_or(id)
    }

    /// A message is in the consumer's log. It lands once, and not after its effect.
    pub(super) fn landed(
        &mut self,
        landing: &Landing,
        now: u64,
        noted: &mut Vec<(usize, EventId)>,
    ) {
        let Landing { subscriber, original, skipped, .. } = *landing;
        self.check_wanted(subscriber, original);
        if skipped {
            self.note_first(subscriber, original, noted);
        }
        let Some(delivered) = self.delivered(subscriber, original) else { return };
        let again = std::mem::replace(&mut delivered.landed, true) || delivered.end != End::None;
        if skipped {
            delivered.first_decided.get_or_insert(now);
        }
        if again {
            let text = format!("{original} landed though it had landed, or had its effect, before");
            self.broken(Invariant::EffectOnce, text);
        }
    }
}
