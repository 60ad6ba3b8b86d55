//! What the database does for a consumer, with the journal looking on: one statement notes messages, one lands events.

use super::journal::End;
use super::landings::Landing;
use super::world::World;
use relevo_core::event::{EventId, NewEvent, header};
use relevo_core::inbox::{Meet, Met};
use relevo_stores::memory::{Refusal, Statement, TxId};

/// The name of a consumer, and of its subscription.
pub(super) const CONSUMER: &str = "consumer";
/// Some seeds have another one, which is given the same messages from queues of its own.
pub(super) const SECOND_CONSUMER: &str = "second";

/// A statement that notes messages. It may have to wait for others, message by message; what it noted stays noted.
pub(super) struct MeetStep {
    pub(super) tx: TxId,
    consumer: String,
    pub(super) messages: Vec<Meet>,
    /// In the order of their ids, as every consumer notes them: two wait for each other and do not deadlock.
    order: Vec<usize>,
    new: Vec<bool>,
    /// What a wrong inbox looked up too early.
    waited: Option<Vec<bool>>,
}

impl MeetStep {
    pub(super) fn new(tx: TxId, consumer: &str, messages: Vec<Meet>) -> Self {
        let mut order: Vec<usize> = (0..messages.len()).collect();
        order.sort_by_key(|index| (&messages[*index].source, &messages[*index].id, *index));
        let consumer = consumer.to_owned();
        Self { tx, consumer, messages, order, new: Vec::new(), waited: None }
    }
}

impl World {
    pub(super) fn meet(&mut self, step: &mut MeetStep) -> Statement<Vec<Met>> {
        self.active(step.tx);
        if mutant!(LooksBeforeItNotes) && step.waited.is_none() {
            step.waited = Some(self.waits(step)?);
        }
        while let Some(index) = step.order.get(step.new.len()) {
            let Meet { source, id, .. } = &step.messages[*index];
            let first = self.db.first_time(step.tx, &step.consumer, source, id);
            if matches!(first, Err(Refusal::Locked { .. })) {
                self.seen.sometimes("two consumers met a message at the same time");
            }
            step.new.push(first?);
        }
        let waits = step.waited.take().map_or_else(|| self.waits(step), Ok)?;
        let mut met = vec![Met::Seen; step.messages.len()];
        for (index, new) in step.order.iter().zip(&step.new) {
            met[*index] = Met::of(*new, waits[*index]);
        }
        self.look_at_met(&met);
        self.look_for_other_consumers(step, &met);
        Ok(met)
    }

    fn look_for_other_consumers(&mut self, step: &MeetStep, met: &[Met]) {
        let new = step.messages.iter().zip(met).filter(|(_, met)| **met != Met::Seen);
        let events: Vec<EventId> = new.filter_map(|(message, _)| message.id.parse().ok()).collect();
        let others = self.options.consumers.iter().filter(|other| other.name != step.consumer);
        let others: Vec<usize> = others.map(|o| self.journal.subscriber(o.name)).collect();
        let ended = |event: &EventId, other: usize| {
            self.journal.events.get(event).is_some_and(|event| event.at[other].end != End::None)
        };
        if events.iter().any(|event| others.iter().any(|other| ended(event, *other))) {
            self.seen.sometimes("a message was new to one consumer and known to another");
        }
    }

    fn waits(&mut self, step: &MeetStep) -> Statement<Vec<bool>> {
        let mut waits = Vec::with_capacity(step.messages.len());
        for message in &step.messages {
            waits.push(self.db.key_waits(step.tx, &step.consumer, &message.key)?);
        }
        Ok(waits)
    }

    fn look_at_met(&mut self, met: &[Met]) {
        if met.contains(&Met::Seen) {
            self.seen.sometimes("the inbox refused a second copy");
        }
        if met.contains(&Met::Behind) {
            self.seen.sometimes("a message came while its key waited in the consumer's log");
        }
    }
}

/// A statement that puts events into the consumer's log. It may have to wait for a key's row.
pub(super) struct LandStep {
    pub(super) tx: TxId,
    pub(super) consumer: String,
    pub(super) events: Vec<NewEvent>,
    pub(super) keys: Vec<String>,
    /// The last event's sequence number, once they are in the log.
    pub(super) last: Option<i64>,
}

impl World {
    pub(super) fn land(&mut self, step: &mut LandStep) -> Statement<()> {
        self.active(step.tx);
        let last = match step.last {
            Some(last) => last,
            None => self.land_events(step)?,
        };
        step.last = Some(last);
        self.db.keys_landed(step.tx, &step.consumer, &step.keys, last)
    }

    fn land_events(&mut self, step: &LandStep) -> Statement<i64> {
        let mut last = 0;
        for event in &step.events {
            let landing = self.landing(&step.consumer, event);
            self.seen.sometimes(if landing.tried {
                "a message landed because it failed"
            } else {
                "a message landed behind another of its key"
            });
            last = self.db.land(step.tx, event.clone())?;
            self.journal.landing(step.tx, landing);
        }
        Ok(last)
    }

    fn landing(&self, consumer: &str, event: &NewEvent) -> Landing {
        let answer = event.headers.get(header::INBOX_ANSWER);
        let original = event.headers.get(header::INBOX_ID).and_then(|id| id.parse().ok());
        Landing {
            subscriber: self.journal.subscriber(consumer),
            id: event.id,
            original: original.unwrap_or(event.id),
            tried: answer.is_some(),
            skipped: answer.is_some_and(|answer| answer.starts_with(r#"{"skip""#)),
        }
    }
}
