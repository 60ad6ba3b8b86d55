//! Ticks: frozen points of the log on stores whose writers commit out of order.
//!
//! A tick is made by separate statements, each its own transaction; the order of the statements is what
//! makes windows exact. [`TickMaker`] fixes that order for every store: it says which statement comes next.

use super::snapshot::{Snapshot, Xid};
use crate::error::{Error, Kind, Result};
use crate::mutant;

/// A tick's number with the nonce that tells it from another of the same number after a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct TickRef {
    /// Its place in the row of ticks; 0 is the beginning of the log.
    pub number: i64,
    /// Random; 0 where the store has no need of it.
    pub nonce: i64,
}

/// A frozen point of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tick {
    /// Number and nonce.
    pub tick: TickRef,
    /// Grows when the log moves to another cluster: transaction ids compare only within one generation.
    pub generation: i64,
    /// What was visible.
    pub snapshot: Snapshot,
    /// The sequence's last value, read before the snapshot.
    pub low: i64,
    /// The sequence's last value, read after the snapshot.
    pub top: i64,
    /// Every row undecided at this tick has `seq > floor`.
    pub floor: i64,
}

impl Tick {
    /// The beginning of every log.
    pub fn zero() -> Self {
        Self {
            tick: TickRef::default(),
            generation: 1,
            snapshot: Snapshot::empty(),
            low: 0,
            top: 0,
            floor: 0,
        }
    }

    /// Was this row decided here, so that no window from this tick brings it? A row above `top` was not, and one up to
    /// `floor` was, whichever cluster its transaction id is of.
    pub fn has_decided(&self, seq: i64, xid: Xid) -> bool {
        seq <= self.floor || seq <= self.top && self.snapshot.sees(xid)
    }
}

/// What a store should do next to make a tick. Each is one statement and one transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TickStep {
    /// Read the newest tick there is, and the newest whose snapshot is wholly below `xmin` later on.
    ReadNewest,
    /// Read the sequence's last value (0 if it was never called).
    ReadLow,
    /// Take a transaction id and commit, so that no running transaction lies beyond the snapshot's `xmax`.
    BurnXid,
    /// Read the current snapshot.
    ReadSnapshot,
    /// Read the sequence's last value again.
    ReadTop,
    /// Find the newest tick of this generation with `xmax <= xmin`, and return its `low` (or 0).
    FindFloor {
        /// The new tick's generation.
        generation: i64,
        /// The new snapshot's `xmin`.
        xmin: Xid,
    },
    /// Insert it under a number that must still be free; a conflict throws it away.
    Insert(Tick),
}

/// What the store found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TickReply {
    /// The newest tick.
    Newest(Tick),
    /// A value of the sequence.
    Value(i64),
    /// The statement is committed.
    Done,
    /// A snapshot.
    Snapshot(Snapshot),
}

/// The machine that makes one tick.
#[derive(Debug)]
pub struct TickMaker {
    nonce: i64,
    newest: Option<Tick>,
    low: Option<i64>,
    burnt: bool,
    snapshot: Option<Snapshot>,
    top: Option<i64>,
    floor: Option<i64>,
}

impl TickMaker {
    /// A maker whose tick will carry this random nonce.
    pub fn new(nonce: i64) -> Self {
        Self {
            nonce,
            newest: None,
            low: None,
            burnt: false,
            snapshot: None,
            top: None,
            floor: None,
        }
    }

    /// The statement that comes next.
    pub fn step(&self) -> TickStep {
        let Some(newest) = &self.newest else { return TickStep::ReadNewest };
        let low_late = mutant!(LowAfterSnapshot);
        if self.low.is_none() && !low_late {
            return TickStep::ReadLow;
        }
        if !self.burnt && !mutant!(NoBurntXid) {
            return TickStep::BurnXid;
        }
        let Some(snapshot) = &self.snapshot else { return TickStep::ReadSnapshot };
        let Some(low) = self.low else { return TickStep::ReadLow };
        let Some(top) = self.top else { return TickStep::ReadTop };
        let Some(floor) = self.floor else {
            return TickStep::FindFloor { generation: newest.generation, xmin: snapshot.xmin };
        };
        TickStep::Insert(Tick {
            tick: TickRef { number: newest.tick.number + 1, nonce: self.nonce },
            generation: newest.generation,
            snapshot: snapshot.clone(),
            low,
            top,
            floor: floor.max(newest.floor),
        })
    }

    /// Takes the answer to [`Self::step`]; an error means the log must not be read on.
    pub fn reply(&mut self, reply: TickReply) -> Result<()> {
        match (self.step(), reply) {
            (TickStep::ReadNewest, TickReply::Newest(tick)) => self.newest = Some(tick),
            (TickStep::ReadLow, TickReply::Value(low)) => {
                self.refuse_reset(low)?;
                self.low = Some(low);
            }
            (TickStep::BurnXid, TickReply::Done) => self.burnt = true,
            (TickStep::ReadSnapshot, TickReply::Snapshot(snapshot)) => {
                self.snapshot = Some(snapshot)
            }
            (TickStep::ReadTop, TickReply::Value(top)) => self.top = Some(top),
            (TickStep::FindFloor { .. }, TickReply::Value(floor)) => self.floor = Some(floor),
            (step, reply) => {
                return Err(Error::new(
                    Kind::StoreFailed,
                    format!("{reply:?} does not answer {step:?}"),
                ));
            }
        }
        Ok(())
    }

    fn refuse_reset(&self, low: i64) -> Result<()> {
        match &self.newest {
            Some(newest) if low < newest.top => Err(Error::new(
                Kind::SequenceReset,
                format!(
                    "the log's sequence stands at {low}, but tick {} has seen {}; set it to at least that with setval()",
                    newest.tick.number, newest.top
                ),
            )),
            _ => Ok(()),
        }
    }
}

/// Is there, or will there be, anything beyond `newest` worth a new tick?
pub fn tick_is_due(newest: &Tick, last_value: i64, now: &Snapshot) -> bool {
    // Backwards too: the maker then refuses a sequence that was reset, aloud.
    let moved = last_value != newest.top;
    if mutant!(OnlyLastValueRings) {
        return moved;
    }
    // A row between low and top may have been undecided; a transaction of xip may have committed late.
    moved
        || newest.low < newest.top && newest.snapshot != *now
        || !newest.snapshot.finished_by(now).is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(low: i64, snapshot: &str, top: i64) -> Result<Tick> {
        let mut maker = TickMaker::new(7);
        maker.reply(TickReply::Newest(Tick { top: 5, ..Tick::zero() }))?;
        assert_eq!(maker.step(), TickStep::ReadLow);
        maker.reply(TickReply::Value(low))?;
        assert_eq!(maker.step(), TickStep::BurnXid);
        maker.reply(TickReply::Done)?;
        assert_eq!(maker.step(), TickStep::ReadSnapshot);
        maker.reply(TickReply::Snapshot(snapshot.parse()?))?;
        maker.reply(TickReply::Value(top))?;
        assert!(matches!(maker.step(), TickStep::FindFloor { .. }));
        maker.reply(TickReply::Value(3))?;
        match maker.step() {
            TickStep::Insert(tick) => Ok(tick),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_tick_reads_low_then_burns_then_snapshots_then_reads_top() {
        let tick = make(6, "10:20:10,14", 9).unwrap();
        assert_eq!((tick.tick.number, tick.low, tick.top, tick.floor), (1, 6, 9, 3));
    }

    #[test]
    fn a_sequence_that_went_backwards_is_refused() {
        assert_eq!(make(4, "1:1:", 4).unwrap_err().kind(), Kind::SequenceReset);
    }

    #[test]
    fn ids_of_another_cluster_do_not_decide_what_a_tick_has_seen() {
        // The first tick after a move: everything up to 50 came along, under ids that mean nothing here.
        let moved =
            Tick { snapshot: "7:7:".parse().unwrap(), low: 50, top: 50, floor: 50, ..Tick::zero() };
        assert!(moved.has_decided(50, 9_000) && !moved.has_decided(51, 3));
        let before =
            Tick { snapshot: "900:900:".parse().unwrap(), low: 40, top: 40, ..Tick::zero() };
        assert!(before.has_decided(40, 899) && !before.has_decided(41, 3));
    }

    #[test]
    fn a_late_commit_makes_a_tick_due_though_the_sequence_stands_still() {
        let newest = Tick { snapshot: "10:20:10".parse().unwrap(), low: 9, top: 9, ..Tick::zero() };
        assert!(!tick_is_due(&newest, 9, &"10:25:10".parse().unwrap()));
        assert!(tick_is_due(&newest, 9, &"25:25:".parse().unwrap()));
        assert!(tick_is_due(&newest, 10, &"10:25:10".parse().unwrap()));
    }

    #[test]
    fn a_sequence_that_was_reset_makes_a_tick_due_so_that_it_is_refused_aloud() {
        let newest = Tick { snapshot: "20:20:".parse().unwrap(), low: 9, top: 9, ..Tick::zero() };
        assert!(tick_is_due(&newest, 3, &"20:20:".parse().unwrap()));
    }

    #[test]
    fn a_sequence_that_stands_where_the_newest_tick_saw_it_is_no_reset() {
        assert_eq!(make(5, "1:1:", 5).unwrap().low, 5);
    }

    #[test]
    fn rows_undecided_when_a_tick_was_made_make_the_next_one_due_once_anything_ended() {
        let snapshot: Snapshot = "20:20:".parse().unwrap();
        let newest = Tick { snapshot: snapshot.clone(), low: 8, top: 9, ..Tick::zero() };
        assert!(!tick_is_due(&newest, 9, &snapshot), "nothing has ended since");
        assert!(tick_is_due(&newest, 9, &"21:21:".parse().unwrap()));
        let decided = Tick { low: 9, ..newest };
        assert!(!tick_is_due(&decided, 9, &"21:21:".parse().unwrap()));
    }
}
