//! Transactions: ids, savepoints, locks, and writes that appear at the commit.

use super::db::{Db, Lock, Statement, TxId};
use super::mutant;
use bytes::Bytes;
use relevo_core::outbox::{LaneChange, Xid};
use relevo_core::{Error, Kind, Result};

/// A write that other transactions see when this one commits.
#[derive(Debug, Clone)]
pub(super) enum Write {
    Put { table: String, key: String, value: Option<Bytes> },
    Inbox { consumer: String, source: String, id: String },
    Lane(Box<LaneChange>),
}

/// A savepoint: how much there was, and the id of the subtransaction if it wrote.
#[derive(Debug, Clone)]
struct Savepoint {
    name: String,
    writes: usize,
    rows: usize,
    locks: usize,
    xid: Option<Xid>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Transaction {
    pub(super) xid: Option<Xid>,
    /// Ids of subtransactions; they complete with the transaction, or when they are rolled back.
    children: Vec<Xid>,
    pub(super) writes: Vec<Write>,
    /// Sequence numbers of its rows of the log.
    pub(super) rows: Vec<i64>,
    pub(super) locks: Vec<Lock>,
    savepoints: Vec<Savepoint>,
    failed: bool,
}

impl Db {
    /// Begins a transaction.
    pub fn begin(&mut self) -> TxId {
        let tx = TxId(self.next_tx);
        self.next_tx += 1;
        self.transactions.insert(tx, Transaction::default());
        tx
    }

    pub(super) fn transaction(&mut self, tx: TxId) -> Result<&mut Transaction> {
        self.transactions.get_mut(&tx).ok_or_else(|| {
            Error::new(Kind::StoreFailed, "this transaction has ended").from_adapter("memory")
        })
    }

    /// True while the transaction is open.
    pub fn is_open(&self, tx: TxId) -> bool {
        self.transactions.contains_key(&tx)
    }

    /// How many transactions are open.
    pub fn open_transactions(&self) -> usize {
        self.transactions.len()
    }

    /// The transaction, if it can still run statements.
    pub(super) fn working(&mut self, tx: TxId) -> Result<&mut Transaction> {
        let transaction = self.transaction(tx)?;
        if transaction.failed {
            let message = "an earlier statement failed: the transaction can only be rolled back";
            return Err(Error::new(Kind::TransactionConflict, message).from_adapter("memory"));
        }
        Ok(transaction)
    }

    /// Gives the transaction its id, as its first write does; each savepoint around the write takes one more.
    pub fn assign_xid(&mut self, tx: TxId) -> Result<Xid> {
        let has = self.working(tx)?.xid;
        let xid = has.unwrap_or_else(|| self.take_xid());
        self.in_progress.insert(xid, tx);
        let mut next = self.next_xid;
        let transaction = self.transaction(tx)?;
        transaction.xid = Some(xid);
        for savepoint in transaction.savepoints.iter_mut().filter(|s| s.xid.is_none()) {
            savepoint.xid = Some(next);
            transaction.children.push(next);
            next += 1;
        }
        self.next_xid = next;
        Ok(xid)
    }

    /// Sets a savepoint; one of the same name before it stays hidden behind it.
    pub fn savepoint(&mut self, tx: TxId, name: &str) -> Result<()> {
        let transaction = self.working(tx)?;
        let savepoint = Savepoint {
            name: name.to_owned(),
            writes: transaction.writes.len(),
            rows: transaction.rows.len(),
            locks: transaction.locks.len(),
            xid: None,
        };
        transaction.savepoints.push(savepoint);
        Ok(())
    }

    /// Undoes everything since the savepoint, which stays; a failed transaction works again.
    pub fn rollback_to(&mut self, tx: TxId, name: &str) -> Result<()> {
        let transaction = self.transaction(tx)?;
        let Some(at) = transaction.savepoints.iter().rposition(|s| s.name == name) else {
            transaction.failed = true;
            return Err(Error::new(Kind::StoreFailed, format!("there is no savepoint {name}"))
                .from_adapter("memory"));
        };
        let undone: Vec<Xid> = transaction.savepoints[at..].iter().filter_map(|s| s.xid).collect();
        transaction.savepoints.truncate(at + 1);
        let savepoint = transaction.savepoints[at].clone();
        transaction.savepoints[at].xid = None;
        transaction.failed = false;
        transaction.writes.truncate(savepoint.writes);
        let rows = transaction.rows.split_off(savepoint.rows);
        let locks = transaction.locks.split_off(savepoint.locks);
        transaction.children.retain(|xid| !undone.contains(xid));
        self.forget(&rows, &locks);
        undone.into_iter().for_each(|xid| self.complete(xid));
        Ok(())
    }

    /// Commits: everything written becomes visible at once. A transaction in which a statement failed rolls back
    /// and says so.
    pub fn commit(&mut self, tx: TxId) -> Result<()> {
        if let Err(error) = self.working(tx) {
            self.rollback(tx);
            return Err(error);
        }
        let Some(transaction) = self.end(tx) else { return Ok(()) };
        for seq in &transaction.rows {
            if let Some(row) = self.log.get_mut(seq) {
                row.committed = true;
            }
        }
        for write in transaction.writes {
            self.apply(write);
        }
        Ok(())
    }

    /// Rolls back; an ended transaction stays as it ended.
    pub fn rollback(&mut self, tx: TxId) {
        if let Some(transaction) = self.end(tx) {
            self.forget(&transaction.rows, &[]);
        }
    }

    /// Notes that a statement failed: the transaction can only be rolled back, or back to a savepoint.
    pub fn fail(&mut self, tx: TxId) {
        if let Some(transaction) = self.transactions.get_mut(&tx) {
            transaction.failed = true;
        }
    }

    fn end(&mut self, tx: TxId) -> Option<Transaction> {
        let transaction = self.transactions.remove(&tx)?;
        self.waits.remove(&tx);
        self.forget(&[], &transaction.locks);
        let ids = transaction.children.iter().chain(&transaction.xid);
        ids.copied().collect::<Vec<_>>().into_iter().for_each(|xid| self.complete(xid));
        Some(transaction)
    }

    fn forget(&mut self, rows: &[i64], locks: &[Lock]) {
        for seq in rows {
            self.log.remove(seq);
        }
        for lock in locks {
            self.locks.remove(lock);
        }
    }

    fn apply(&mut self, write: Write) {
        match write {
            Write::Put { table, key, value: Some(value) } => {
                self.tables.insert((table, key), value);
            }
            Write::Put { table, key, value: None } => {
                self.tables.remove(&(table, key));
            }
            Write::Inbox { consumer, source, id } => {
                self.inbox.insert((consumer, source, id), self.now);
            }
            Write::Lane(change) => self.apply_change(&change),
        }
    }

    /// Locks a row of an application table, whether or not it is there.
    pub fn lock_row(&mut self, tx: TxId, table: &str, key: &str) -> Statement<()> {
        self.working(tx)?;
        self.in_transaction(tx, |db| db.take_lock(tx, Lock::Row(table.to_owned(), key.to_owned())))
    }

    /// Writes (or with `None` deletes) a row of an application table.
    pub fn put(&mut self, tx: TxId, table: &str, key: &str, value: Option<Bytes>) -> Statement<()> {
        self.lock_row(tx, table, key)?;
        self.assign_xid(tx)?;
        self.working(tx)?.writes.push(Write::Put {
            table: table.to_owned(),
            key: key.to_owned(),
            value,
        });
        Ok(())
    }

    /// Reads a row of an application table as the transaction sees it.
    pub fn get(&mut self, tx: TxId, table: &str, key: &str) -> Result<Option<Bytes>> {
        let own = self.working(tx)?.writes.iter().rev().find_map(|write| match write {
            Write::Put { table: t, key: k, value } if t == table && k == key => Some(value.clone()),
            _ => None,
        });
        Ok(own.unwrap_or_else(|| self.read(table, key).cloned()))
    }

    /// Reads a committed row of an application table.
    pub fn read(&self, table: &str, key: &str) -> Option<&Bytes> {
        self.tables.get(&(table.to_owned(), key.to_owned()))
    }

    /// The committed rows of an application table, by key.
    pub fn rows<'a>(&'a self, table: &'a str) -> impl Iterator<Item = (&'a str, &'a Bytes)> {
        let start = (table.to_owned(), String::new());
        self.tables
            .range(start..)
            .take_while(move |((t, _), _)| t == table)
            .map(|((_, key), value)| (key.as_str(), value))
    }

    /// Is this the first time `consumer` sees the message? If so it is noted, with the transaction.
    pub fn first_time(
        &mut self,
        tx: TxId,
        consumer: &str,
        source: &str,
        id: &str,
    ) -> Statement<bool> {
        if mutant!(InboxRemembersHighest) {
            return self.is_higher(tx, consumer, id);
        }
        let consumer = if mutant!(InboxWithoutConsumer) { "" } else { consumer };
        let row = (consumer.to_owned(), source.to_owned(), self.id_of_the_day(id));
        // A concurrent transaction that noted the same message must end before anyone can tell.
        let lock = Lock::Row("relevo_inbox".into(), format!("{consumer}\n{source}\n{id}"));
        self.working(tx)?;
        if !mutant!(InboxNotLocked) {
            self.in_transaction(tx, |db| db.take_lock(tx, lock))?;
        }
        let mine = self.working(tx)?.writes.iter().any(|write| {
            matches!(write, Write::Inbox { consumer: c, source: s, id: i } if (c, s, i) == (&row.0, &row.1, &row.2))
        });
        if mine || self.inbox.contains_key(&row) {
            return Ok(false);
        }
        self.assign_xid(tx)?;
        self.working(tx)?.writes.push(Write::Inbox { consumer: row.0, source: row.1, id: row.2 });
        Ok(true)
    }

    /// Runs a statement; if it fails, the transaction has failed.
    pub(super) fn in_transaction<T>(
        &mut self,
        tx: TxId,
        statement: impl FnOnce(&mut Self) -> Statement<T>,
    ) -> Statement<T> {
        let result = statement(self);
        if let Err(super::Refusal::Failed(_)) = &result {
            self.fail(tx);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::DateTime;

    fn db() -> Db {
        Db::new(DateTime::UNIX_EPOCH)
    }

    #[test]
    fn a_running_transaction_beyond_the_last_completed_one_is_in_no_list_until_an_id_is_burnt() {
        let mut db = db();
        let tx = db.begin();
        let xid = db.assign_xid(tx).unwrap();
        let before = db.snapshot();
        assert!(before.xip.is_empty() && before.xmax <= xid);
        db.burn_xid();
        assert_eq!(db.snapshot().xip, [xid]);
        db.commit(tx).unwrap();
        assert!(db.snapshot().sees(xid));
    }

    #[test]
    fn a_savepoint_takes_an_id_of_its_own_and_undoes_rows_and_locks() {
        let mut db = db();
        let tx = db.begin();
        db.put(tx, "t", "a", Some("1".into())).unwrap();
        db.savepoint(tx, "s").unwrap();
        db.put(tx, "t", "b", Some("2".into())).unwrap();
        db.rollback_to(tx, "s").unwrap();
        // The undone subtransaction has completed, so the snapshot reaches beyond its parent.
        assert_eq!(db.snapshot().xip.len(), 1);
        let other = db.begin();
        db.put(other, "t", "b", Some("3".into())).unwrap();
        assert!(
            matches!(db.put(other, "t", "a", None), Err(super::super::Refusal::Locked { by }) if by == tx)
        );
        db.commit(tx).unwrap();
        db.commit(other).unwrap();
        assert_eq!(db.rows("t").map(|(k, _)| k).collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn a_circle_of_waiting_transactions_is_a_deadlock_and_fails_the_one_that_closes_it() {
        let mut db = db();
        let (a, b) = (db.begin(), db.begin());
        db.lock_row(a, "t", "1").unwrap();
        db.lock_row(b, "t", "2").unwrap();
        assert!(matches!(db.lock_row(a, "t", "2"), Err(super::super::Refusal::Locked { .. })));
        assert!(matches!(db.lock_row(b, "t", "1"), Err(super::super::Refusal::Failed(_))));
        assert_eq!(db.commit(b).unwrap_err().kind(), Kind::TransactionConflict);
        db.lock_row(a, "t", "2").unwrap();
    }

    #[test]
    fn the_inbox_says_first_time_once_and_forgets_a_rolled_back_note() {
        let mut db = db();
        let tx = db.begin();
        assert!(db.first_time(tx, "c", "s", "1").unwrap());
        assert!(!db.first_time(tx, "c", "s", "1").unwrap());
        db.rollback(tx);
        let tx = db.begin();
        assert!(db.first_time(tx, "c", "s", "1").unwrap());
        db.commit(tx).unwrap();
        let tx = db.begin();
        assert!(!db.first_time(tx, "c", "s", "1").unwrap());
        assert!(db.first_time(tx, "other", "s", "1").unwrap());
    }

    #[test]
    fn a_lost_commit_leaves_nothing_but_the_numbers_that_it_used_up() {
        let mut db = db();
        let tx = db.begin();
        db.put(tx, "t", "kept", Some("1".into())).unwrap();
        db.commit(tx).unwrap();
        let (tx, open) = (db.begin(), db.begin());
        db.put(tx, "t", "lost", Some("2".into())).unwrap();
        db.put(open, "t", "never", Some("3".into())).unwrap();
        let copy = db.clone();
        db.commit(tx).unwrap();
        db.rollback(open);
        let (seq, xid) = (db.draw_seq(), db.last_given());
        db.lose_since(copy);
        assert_eq!(db.rows("t").map(|(key, _)| key).collect::<Vec<_>>(), ["kept"]);
        assert_eq!((db.last_value(), db.last_given(), db.open_transactions()), (seq, xid, 0));
        let next = db.begin();
        assert!(next != tx && next != open);
        db.put(next, "t", "lost", Some("4".into())).expect("its lock is gone with it");
    }
}
