//! Batches: cut from the queue or from what waits behind a parked key, and put back if nothing came of them. What went
//! wrong before says how much goes at once.

use super::{Lane, Parked, Work};
use crate::clock::Rng;
use crate::event::Event;
use crate::mutant;
use crate::outbox::{ParkedEvent, Position, TickRef};
use crate::relay::batch::{Batch, Item};
use crate::relay::config::RelayConfig;
use std::sync::Arc;

/// How many refs of a parked key are read at once.
pub(in crate::relay) const DRAIN_ROWS: usize = 50;

/// So many times down for one lane, while the destination answered others as often, and its first event is to blame.
const BLAMED_AFTER: u32 = 3;

impl Lane {
    pub(super) fn cut(&mut self, probe: bool, config: &Arc<RelayConfig>, rng: &mut Rng) -> Batch {
        let (alone, most) = self.at_once(probe, config);
        let size = fitting(self.queue.iter().map(|item| &item.event), most, config);
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

    /// Does the next batch go alone, and how many events may it have?
    fn at_once(&self, probe: bool, config: &RelayConfig) -> (bool, usize) {
        let alone = self.alone > 0;
        (alone, if alone || probe || self.to_blame { 1 } else { config.batch })
    }

    fn marked(&self, batch: Batch, alone: bool) -> Batch {
        let batch = if alone { batch.alone() } else { batch };
        if self.to_blame { batch.blamed() } else { batch }
    }

    /// The refs of a due key came.
    pub(in crate::relay) fn drain(
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
        let (alone, most) = self.at_once(false, config);
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

    /// Nothing was recorded: undecided rows come back to the front of the queue; refs are still in the store.
    pub(in crate::relay) fn put_back(&mut self, items: Vec<Item>) {
        self.work = Work::Idle;
        if self.draining {
            return;
        }
        for item in items.into_iter().rev() {
            self.bytes += item.event.payload.len();
            self.queue.push_front(item);
        }
    }

    /// The batch of these events was rolled back whole: they are redone one by one.
    pub(in crate::relay) fn redo_alone(&mut self, items: Vec<Item>) {
        self.alone = items.len();
        self.put_back(items);
    }

    /// The destination was down for what this lane had first; it has answered others `answers` times in all.
    pub(in crate::relay) fn was_down(&mut self, answers: u64) {
        let (downs, since) = self.downs.unwrap_or((0, answers));
        self.downs = Some((downs + 1, since));
        self.to_blame = downs + 1 >= BLAMED_AFTER && answers >= since + u64::from(BLAMED_AFTER);
    }

    /// The destination answered for this lane.
    pub(in crate::relay) fn was_up(&mut self) {
        self.downs = None;
        self.to_blame = false;
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
        *index == 0 || bytes <= config.batch_bytes || mutant!(HeavyBatch)
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
