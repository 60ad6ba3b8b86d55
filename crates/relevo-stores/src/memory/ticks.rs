//! Ticks: frozen points of the log, made by one statement after the other.

use super::CursorRow;
use super::db::Db;
use super::mutant;
use chrono::{DateTime, Utc};
use relevo_core::limits::LANES;
use relevo_core::outbox::{Tick, TickMaker, TickRef, TickReply, TickStep, Xid, tick_is_due};
use relevo_core::{Error, Kind, Result};

#[derive(Debug, Clone)]
pub(super) struct TickRow {
    pub(super) tick: Tick,
    /// Never decreasing from tick to tick.
    pub(super) at: DateTime<Utc>,
}

impl TickRow {
    pub(super) fn zero(now: DateTime<Utc>) -> Self {
        Self { tick: Tick::zero(), at: now }
    }
}

impl Db {
    /// The newest tick.
    pub fn newest_tick(&self) -> Tick {
        self.ticks.last_key_value().map_or_else(Tick::zero, |(_, row)| row.tick.clone())
    }

    /// Every tick there is, in the order of their numbers.
    pub fn ticks(&self) -> impl DoubleEndedIterator<Item = &Tick> {
        self.ticks.values().map(|row| &row.tick)
    }

    /// The tick a cursor names; one of the same number and another nonce is not it. One that no cursor stands at is
    /// stale memory; one that a cursor needs is a fault.
    pub fn tick(&self, wanted: TickRef) -> Result<Tick> {
        let found = self
            .ticks
            .get(&wanted.number)
            .filter(|row| row.tick.tick == wanted || mutant!(NoTickSwap) || mutant!(NoNonce));
        if let Some(row) = found {
            return Ok(row.tick.clone());
        }
        if let Some(lost) = self.lost_ticks.get(&wanted).filter(|_| mutant!(RemembersLostTicks)) {
            return Ok(lost.clone());
        }
        if mutant!(LostTickIsNewest) {
            return Ok(Tick { tick: wanted, ..self.newest_tick() });
        }
        let stands =
            |row: &CursorRow| row.position.from == wanted || row.position.to == Some(wanted);
        let kind = if self.cursors.values().any(stands) { Kind::TickMissing } else { Kind::Stale };
        Err(Error::new(kind, format!("tick {} ({}) is not there", wanted.number, wanted.nonce))
            .from_adapter("memory"))
    }

    /// Is a tick beyond the newest worth making?
    pub fn tick_is_due(&self) -> bool {
        tick_is_due(&self.newest_tick(), self.sequence, &self.snapshot())
    }

    /// Runs the statement that a tick maker asks for.
    pub fn tick_statement(&mut self, step: &TickStep) -> TickReply {
        match step {
            TickStep::ReadNewest => TickReply::Newest(self.newest_tick()),
            TickStep::ReadLow if mutant!(LowStartsAtOne) => TickReply::Value(self.sequence.max(1)),
            TickStep::ReadLow | TickStep::ReadTop => TickReply::Value(self.sequence),
            TickStep::BurnXid if mutant!(TickInOneTransaction) => {
                self.open_burns.push(self.next_xid);
                self.next_xid += 1;
                TickReply::Done
            }
            TickStep::BurnXid => {
                self.burn_xid();
                TickReply::Done
            }
            TickStep::ReadSnapshot => TickReply::Snapshot(self.snapshot()),
            TickStep::FindFloor { generation, xmin } => {
                TickReply::Value(self.find_floor(*generation, *xmin))
            }
            TickStep::Insert(tick) => {
                self.insert_tick(tick);
                std::mem::take(&mut self.open_burns).into_iter().for_each(|xid| self.complete(xid));
                TickReply::Done
            }
        }
    }

    fn find_floor(&self, generation: i64, xmin: Xid) -> i64 {
        let below =
            |row: &&TickRow| row.tick.generation == generation && row.tick.snapshot.xmax <= xmin;
        self.ticks.values().rev().find(below).map_or(0, |row| row.tick.low)
    }

    fn insert_tick(&mut self, tick: &Tick) -> bool {
        // A number that was pruned is nobody's, either: whoever slept that long throws the tick away, too.
        let free = self.newest_tick().tick.number == tick.tick.number - 1;
        if free || mutant!(NoTickSwap) {
            let at =
                self.ticks.last_key_value().map_or(self.now, |(_, newest)| newest.at.max(self.now));
            self.ticks.insert(tick.tick.number, TickRow { tick: tick.clone(), at });
        }
        free
    }

    /// Makes a tick, all statements in a row.
    pub fn make_tick(&mut self, nonce: i64) -> Result<Tick> {
        let mut maker = TickMaker::new(nonce);
        loop {
            let step = maker.step();
            let reply = self.tick_statement(&step);
            if matches!(step, TickStep::Insert(_)) {
                return Ok(self.newest_tick());
            }
            maker.reply(reply)?;
        }
    }

    /// The tick that a window from `from` leads to: the newest, but never past the first one of another cluster.
    pub(super) fn newest_from(&self, from: &Tick) -> Option<Tick> {
        let newest = self.newest_tick();
        let beyond = newest.tick.number > from.tick.number;
        if newest.generation == from.generation || mutant!(RebaseComparesXids) {
            return beyond.then_some(newest);
        }
        let first = self.ticks.values().find(|row| row.tick.generation == newest.generation);
        first.map(|row| row.tick.clone()).filter(|_| beyond)
    }

    /// The newest tick made at or before `time`.
    pub(super) fn tick_at(&self, time: DateTime<Utc>) -> Tick {
        let found =
            self.ticks.values().rev().find(|row| row.at <= time).or(self.ticks.values().next());
        found.map_or_else(Tick::zero, |row| row.tick.clone())
    }

    /// The database was dumped and restored in another cluster. Rows keep the transaction ids they had, new ones begin
    /// at `next`, and a new generation of ticks begins. Every transaction must have been rolled back.
    pub fn move_to_another_cluster(&mut self, next: Xid, nonce: i64) {
        if mutant!(LaneRecomputed) {
            self.recompute_lanes();
        }
        let newest = self.newest_tick();
        self.next_xid = next;
        self.last_completed = next - 1;
        let number = newest.tick.number + 1;
        self.insert_tick(&Tick {
            tick: TickRef { number, nonce },
            generation: newest.generation + 1,
            snapshot: self.snapshot(),
            low: self.sequence,
            top: self.sequence,
            floor: self.sequence,
        });
    }

    /// What a wrong restore does: rows get lanes of another function than the one that new rows have theirs of.
    fn recompute_lanes(&mut self) {
        for row in self.log.values_mut() {
            row.lane = (row.lane + 1) % LANES;
        }
    }

    /// A crash of the server lost this tick, which had been committed asynchronously.
    pub fn lose_tick(&mut self, number: i64) {
        if let Some(row) = self.ticks.remove(&number) {
            self.lost_ticks.insert(row.tick.tick, row.tick);
        }
    }
}
