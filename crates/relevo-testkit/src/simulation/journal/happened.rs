//! What the database and the broker say happened, and what handlers were given.

use super::{End, Journal};
use crate::simulation::invariant::Invariant;
use crate::simulation::judge::wants;
use relevo_core::event::{Event, EventId};
use relevo_core::outbox::LaneChange;
use relevo_stores::memory::TxId;

impl Journal {
    /// The database committed this transaction; `replayed` are the dead letters its changes put back.
    pub(in crate::simulation) fn committed(&mut self, tx: TxId, replayed: &[(usize, EventId)]) {
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
            if self.is_undecided(subscriber, event) {
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
        self.skipped[subscriber] += change.skips.len() as u64;
        self.died[subscriber] += change.deaths.len() as u64;
        self.retried[subscriber] += change.retried();
        change.settled.iter().for_each(|event| self.parked(subscriber, event.id, false));
        change.waiting.iter().for_each(|event| self.parked(subscriber, event.id, true));
    }

    pub(super) fn parked(&mut self, subscriber: usize, event: EventId, waits: bool) {
        let event = self.original(event);
        let Some(delivered) = self.delivered(subscriber, event) else { return };
        delivered.parked = waits;
        delivered.to_be_read_again &= !waits;
    }

    pub(in crate::simulation) fn note_first(
        &mut self,
        subscriber: usize,
        id: EventId,
        noted: &mut Vec<(usize, EventId)>,
    ) {
        if self.is_undecided(subscriber, id) {
            noted.push((subscriber, id));
        }
    }

    fn is_undecided(&mut self, subscriber: usize, event: EventId) -> bool {
        self.delivered(subscriber, event).is_some_and(|delivered| delivered.first_decided.is_none())
    }

    /// An effect committed.
    pub(in crate::simulation) fn applied(&mut self, subscriber: usize, event: EventId, now: u64) {
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

    pub(super) fn decided(&mut self, subscriber: usize, id: EventId, now: u64, end: End) {
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

    /// A copy of the event arrived at the broker.
    pub(in crate::simulation) fn stored(&mut self, subscriber: usize, event: &Event) {
        let now = self.tick();
        self.check_bytes(subscriber, event);
        if self.is_undecided(subscriber, event.id) {
            self.check_order(subscriber, event.id);
        }
        self.decided(subscriber, event.id, now, End::Applied);
    }

    /// An event was handed over. What arrives must be what was published, byte for byte.
    pub(in crate::simulation) fn attempted(&mut self, subscriber: usize, event: &Event) -> u32 {
        self.check_bytes(subscriber, event);
        self.check_wanted(subscriber, event.id);
        let Some(delivered) = self.delivered(subscriber, event.id) else { return 0 };
        delivered.attempts += 1;
        delivered.attempts
    }

    pub(in crate::simulation) fn failed(&mut self, subscriber: usize, event: EventId, fatal: bool) {
        if let Some(delivered) = self.delivered(subscriber, event) {
            delivered.failures += 1;
            delivered.fatal += u32::from(fatal);
        }
    }
}
