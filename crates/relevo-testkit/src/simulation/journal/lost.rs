//! What a crash of the database takes back, though it had said that it is committed.

use super::{Delivered, Journal};
use relevo_core::event::EventId;
use relevo_core::outbox::LaneChange;
use relevo_stores::memory::TxId;
use std::collections::BTreeSet;

/// A delivery as it stood before a commit.
#[derive(Debug, Clone)]
pub(in crate::simulation) struct Undecided {
    subscriber: usize,
    event: EventId,
    delivered: Delivered,
}

impl Journal {
    /// Every delivery that this transaction decides, as it stands before its commit.
    pub(in crate::simulation) fn undecided_before(&self, tx: TxId) -> Vec<Undecided> {
        let Some(pending) = self.transactions.get(&tx) else { return Vec::new() };
        let changed = pending.changes.iter().flat_map(|change| self.touched_by(change));
        let touched: BTreeSet<(usize, EventId)> =
            pending.effects.iter().copied().chain(changed).collect();
        let undecided = |(subscriber, event): (usize, EventId)| {
            let delivered = self.events.get(&event)?.at.get(subscriber)?.clone();
            Some(Undecided { subscriber, event, delivered })
        };
        touched.into_iter().filter_map(undecided).collect()
    }

    fn touched_by(&self, change: &LaneChange) -> Vec<(usize, EventId)> {
        let subscriber = self.subscriber(&change.lane.subscription);
        let deaths = change.deaths.iter().map(|death| death.event.id);
        let skips = change.skips.iter().map(|skip| skip.event.id);
        let refs = change.settled.iter().chain(&change.waiting).map(|event| event.id);
        deaths.chain(skips).chain(refs).map(|id| (subscriber, self.original(id))).collect()
    }

    /// The commit is lost: nothing of what it decided happened. What handlers saw, they saw.
    pub(in crate::simulation) fn take_back(&mut self, deliveries: Vec<Undecided>) {
        for Undecided { subscriber, event, delivered: before } in deliveries {
            let Some(delivered) = self.delivered(subscriber, event) else { continue };
            let (was_awaited, is_awaited) = (delivered.awaited, before.awaited);
            *delivered = Delivered {
                attempts: delivered.attempts,
                failures: delivered.failures,
                fatal: delivered.fatal,
                skip_answers: delivered.skip_answers,
                handed_on: delivered.handed_on,
                landed: delivered.landed,
                taken_back: before.taken_back + 1,
                ..before
            };
            match (was_awaited, is_awaited) {
                (false, true) => self.open += 1,
                (true, false) => self.open -= 1,
                _ => {}
            }
        }
    }
}
