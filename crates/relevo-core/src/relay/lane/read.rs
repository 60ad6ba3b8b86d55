//! Pages: what a lane still reads, and what it takes of them into its queue.

use super::{Lane, Work};
use crate::clock::Instant;
use crate::mutant;
use crate::outbox::{EventRef, Position, Row, TickRef};
use crate::relay::batch::Item;
use crate::relay::config::RelayConfig;

impl Lane {
    /// Where this lane would be read on from.
    pub(in crate::relay) fn reads_from(&self) -> Option<Position> {
        (self.stopped.is_none() && !self.is_void()).then_some(self.read)
    }

    pub(in crate::relay) fn has_room(&self, config: &RelayConfig) -> bool {
        self.queue.len() < config.lane_queue.div_ceil(2) || mutant!(UnboundedQueue)
    }

    /// Nothing can be read from `start` any more. A lane with something under way finds out when that has ended.
    pub(in crate::relay) fn cannot_read_from(&mut self, start: Position) {
        if self.read == start && self.work == Work::Idle && !mutant!(KeepsLostTick) {
            self.void();
        }
    }

    /// A beat, sent at this moment, tells where the stored cursor stands. One that stands elsewhere means that the
    /// server lost, in a crash, a commit that it had confirmed: what memory has beyond that never happened.
    pub(in crate::relay) fn compare(&mut self, sent: Instant, stored: Position) {
        let known = self.work == Work::Idle && !self.cursor.is_moving() && self.told < sent;
        if known && stored != self.cursor.durable() && !mutant!(KeepsLostTick) {
            self.void();
        }
    }

    /// Takes the lane's rows of a page that was read from `start`; answers how many of them nobody wants.
    pub(in crate::relay) fn page(
        &mut self,
        start: Position,
        rows: Vec<Row>,
        to: TickRef,
        end: Position,
        config: &RelayConfig,
    ) -> u64 {
        if self.read != start || self.is_void() {
            // The lane was loaded again meanwhile: the page belongs to a time before.
            return 0;
        }
        if self.stopped.is_some() && !mutant!(FillsStoppedLane) {
            // It stopped while the page was read, and reads it again when it goes on: what it does not hand over must
            // not fill the memory that other lanes need.
            return 0;
        }
        let mut unwanted = 0;
        for row in rows {
            if !config.wants(&row.event) {
                unwanted += 1;
                continue;
            }
            let at = EventRef { key: row.event.order_key(), to, seq: row.seq, id: row.event.id };
            self.bytes += row.event.payload.len();
            self.queue.push_back(Item { from: start.from, at, event: row.event });
        }
        self.read = end;
        self.decide_nothing_waits();
        unwanted
    }

    /// With nothing queued or under way, whatever was read is decided.
    pub(super) fn decide_nothing_waits(&mut self) {
        let none_waits = self.queue.is_empty() && self.work == Work::Idle;
        if none_waits || mutant!(RecordsWhatWasRead) {
            self.cursor.decide(self.read);
        }
    }
}
