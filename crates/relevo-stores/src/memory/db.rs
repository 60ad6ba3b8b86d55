use super::lanes::{CursorRow, MemberRow, SubscriptionRow};
use super::log::LogRow;
use super::record::{DeadRow, ParkedRow, RefKey, RefRow, SkipRow};
use super::requests::RequestRow;
use super::ticks::TickRow;
use super::transaction::Transaction;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use relevo_core::dead_letters::DeadLetterId;
use relevo_core::event::EventId;
use relevo_core::outbox::{LaneId, MemberId, Moved, RequestId, Snapshot, Tick, TickRef, Xid};
use relevo_core::{Error, Kind};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A transaction of [`Db`]: a session with something open, which has a transaction id only once it wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TxId(pub u64);

/// Why a statement did not run.
#[derive(Debug)]
pub enum Refusal {
    /// Another transaction holds a row it needs: the same statement again when that one has ended.
    Locked {
        /// Who holds it.
        by: TxId,
    },
    /// It failed, and with it the transaction it ran in.
    Failed(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// What a statement comes to.
pub type Statement<T> = Result<T, Refusal>;

/// What a row lock is on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lock {
    /// A lane's cursor.
    Cursor(LaneId),
    /// A row of an application table.
    Row(String, String),
}

/// A database in memory, one statement at a time. Nothing in it asks for the time or for chance: both come in.
#[derive(Debug, Clone)]
pub struct Db {
    pub(super) now: DateTime<Utc>,
    pub(super) next_tx: u64,
    pub(super) next_xid: Xid,
    pub(super) last_completed: Xid,
    /// Ids that a wrong tick maker burns only at its end.
    pub(super) open_burns: Vec<Xid>,
    /// The sequence's last value; 0 while it was never called.
    pub(super) sequence: i64,
    pub(super) transactions: BTreeMap<TxId, Transaction>,
    /// Top-level transaction ids in progress.
    pub(super) in_progress: BTreeMap<Xid, TxId>,
    pub(super) locks: BTreeMap<Lock, TxId>,
    pub(super) waits: BTreeMap<TxId, TxId>,
    pub(super) log: BTreeMap<i64, LogRow>,
    pub(super) ticks: BTreeMap<i64, TickRow>,
    /// Ticks that a crash lost: nothing may depend on them any more.
    pub(super) lost_ticks: BTreeMap<TickRef, Tick>,
    /// The newest event that retention dropped.
    pub(super) dropped_up_to: Option<EventId>,
    pub(super) subscriptions: BTreeMap<Arc<str>, SubscriptionRow>,
    pub(super) cursors: BTreeMap<LaneId, CursorRow>,
    pub(super) members: BTreeMap<(Arc<str>, MemberId), MemberRow>,
    pub(super) parked_keys: BTreeMap<(LaneId, String), ParkedRow>,
    pub(super) parked_refs: BTreeMap<RefKey, RefRow>,
    pub(super) dead_letters: BTreeMap<DeadLetterId, DeadRow>,
    pub(super) skips: Vec<SkipRow>,
    /// Cursors that an operator moved, in order.
    pub(super) moves: Vec<(LaneId, Moved)>,
    pub(super) requests: BTreeMap<RequestId, RequestRow>,
    pub(super) next_operation: i64,
    pub(super) inbox: BTreeMap<(String, String, String), DateTime<Utc>>,
    /// Inbox rows up to this time may be gone.
    pub(super) inbox_gone_until: Option<DateTime<Utc>>,
    pub(super) tables: BTreeMap<(String, String), Bytes>,
}

impl Db {
    /// An empty database with its log's first tick, at this time.
    pub fn new(now: DateTime<Utc>) -> Self {
        Self {
            now,
            next_tx: 1,
            // Where transaction ids begin says nothing; PostgreSQL's own bootstrap uses up the first ones too.
            next_xid: 3,
            last_completed: 2,
            open_burns: Vec::new(),
            sequence: 0,
            transactions: BTreeMap::new(),
            in_progress: BTreeMap::new(),
            locks: BTreeMap::new(),
            waits: BTreeMap::new(),
            log: BTreeMap::new(),
            ticks: BTreeMap::from([(0, TickRow::zero(now))]),
            lost_ticks: BTreeMap::new(),
            dropped_up_to: None,
            subscriptions: BTreeMap::new(),
            cursors: BTreeMap::new(),
            members: BTreeMap::new(),
            parked_keys: BTreeMap::new(),
            parked_refs: BTreeMap::new(),
            dead_letters: BTreeMap::new(),
            skips: Vec::new(),
            moves: Vec::new(),
            requests: BTreeMap::new(),
            next_operation: 1,
            inbox: BTreeMap::new(),
            inbox_gone_until: None,
            tables: BTreeMap::new(),
        }
    }

    /// The database's clock.
    pub fn now(&self) -> DateTime<Utc> {
        self.now
    }

    /// Sets the database's clock. It may jump; what is written never depends on its being steady.
    pub fn set_now(&mut self, now: DateTime<Utc>) {
        self.now = now;
    }

    /// What a statement that starts now sees: `xmax` is one past the last *completed* transaction, so a running
    /// one beyond it is in no list.
    pub fn snapshot(&self) -> Snapshot {
        let xmax = self.last_completed + 1;
        let xip: Vec<Xid> = self.in_progress.range(..xmax).map(|(xid, _)| *xid).collect();
        Snapshot { xmin: xip.first().copied().unwrap_or(xmax), xmax, xip }
    }

    /// The sequence's last value, as if it were read by a statement of its own.
    pub fn last_value(&self) -> i64 {
        self.sequence
    }

    /// Takes a transaction id and commits at once.
    pub fn burn_xid(&mut self) -> Xid {
        let xid = self.take_xid();
        self.complete(xid);
        xid
    }

    /// The server comes back after a crash. Ids from `next` on, given out before but never flushed, are given out
    /// again; the sequence jumps ahead by `skipped`. Every transaction must have been rolled back.
    pub fn restart(&mut self, next: Xid, skipped: i64) {
        self.next_xid = next.min(self.next_xid);
        self.last_completed = self.next_xid - 1;
        self.sequence += skipped;
    }

    /// A crash of the server lost every commit since this copy was taken, all of them asynchronous. Signs of life stay, and
    /// so does what no crash gives back: numbers that were drawn. Every transaction must have been rolled back.
    pub fn lose_since(&mut self, copy: Self) {
        let now = std::mem::replace(self, copy);
        self.log.retain(|_, row| row.committed);
        self.transactions.clear();
        self.in_progress.clear();
        self.open_burns.clear();
        self.locks.clear();
        self.waits.clear();
        (self.now, self.next_tx, self.next_xid) = (now.now, now.next_tx, now.next_xid);
        (self.last_completed, self.sequence) = (now.last_completed, now.sequence);
        (self.members, self.lost_ticks) = (now.members, now.lost_ticks);
        self.next_operation = now.next_operation;
    }

    /// The highest id that was given out.
    pub fn last_given(&self) -> Xid {
        self.next_xid - 1
    }

    /// The highest id of a transaction that has ended.
    pub fn last_completed(&self) -> Xid {
        self.last_completed
    }

    pub(super) fn take_xid(&mut self) -> Xid {
        let xid = self.next_xid;
        self.next_xid += 1;
        xid
    }

    pub(super) fn complete(&mut self, xid: Xid) {
        self.in_progress.remove(&xid);
        self.last_completed = self.last_completed.max(xid);
    }

    /// Locks for `tx`, or says who is in the way. A circle of waiting transactions is a deadlock, which ends the
    /// one that would close it.
    pub(super) fn take_lock(&mut self, tx: TxId, lock: Lock) -> Statement<()> {
        match self.locks.get(&lock) {
            Some(&by) if by != tx => self.wait_for(tx, by),
            Some(_) => Ok(()),
            None => {
                self.waits.remove(&tx);
                self.locks.insert(lock.clone(), tx);
                self.transaction(tx)?.locks.push(lock);
                Ok(())
            }
        }
    }

    fn wait_for(&mut self, tx: TxId, by: TxId) -> Statement<()> {
        let mut next = Some(by);
        while let Some(waiting) = next {
            if waiting == tx {
                self.waits.remove(&tx);
                let deadlock = Error::new(
                    Kind::TransactionConflict,
                    "deadlock: two transactions wait for each other",
                );
                return Err(Refusal::Failed(deadlock));
            }
            next = self.waits.get(&waiting).copied();
        }
        self.waits.insert(tx, by);
        Err(Refusal::Locked { by })
    }

    /// A statement outside any transaction needs this row unlocked.
    pub(super) fn must_be_free(&self, lock: &Lock) -> Statement<()> {
        match self.locks.get(lock) {
            Some(&by) => Err(Refusal::Locked { by }),
            None => Ok(()),
        }
    }
}
