//! Transactions in memory, for publishing, for application rows, and for direct handlers.

use super::db::TxId;
use super::store::MemoryStore;
use bytes::Bytes;
use relevo_core::event::{EventId, NewEvent};
use relevo_core::inbox::{Meet, Met, TxDriver};
use relevo_core::outbox::LaneChange;
use relevo_core::{Error, Kind, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// The savepoint each event of a batch gets.
const SAVEPOINT: &str = "relevo_event";

/// An open transaction. Dropped without [`Self::commit`] it is rolled back.
#[derive(Debug)]
pub struct MemoryTransaction {
    store: MemoryStore,
    tx: TxId,
    published: bool,
}

impl MemoryTransaction {
    pub(super) fn begin(store: MemoryStore) -> Self {
        let tx = store.with(|db| db.begin());
        Self { store, tx, published: false }
    }

    pub(super) fn publish(&mut self, event: NewEvent) -> Result<EventId> {
        self.published = true;
        self.store.with(|db| db.publish(self.tx, event))
    }

    /// Writes a row of an application table, waiting while another transaction has it.
    pub async fn put<T: Serialize + Sync + ?Sized>(
        &mut self,
        table: &str,
        key: &str,
        value: &T,
    ) -> Result<()> {
        let bytes = serde_json::to_vec(value).map_err(|e| {
            Error::new(
                Kind::InvalidPayload,
                format!("{table}/{key} cannot be written as JSON: {e}"),
            )
        })?;
        let bytes = Bytes::from(bytes);
        self.store.statement(|db, _| db.put(self.tx, table, key, Some(bytes.clone()))).await
    }

    /// Deletes a row of an application table.
    pub async fn delete(&mut self, table: &str, key: &str) -> Result<()> {
        self.store.statement(|db, _| db.put(self.tx, table, key, None)).await
    }

    /// Locks a row of an application table until the transaction ends, as `SELECT ... FOR UPDATE` does.
    pub async fn lock(&mut self, table: &str, key: &str) -> Result<()> {
        self.store.statement(|db, _| db.lock_row(self.tx, table, key)).await
    }

    /// Reads a row as this transaction sees it.
    pub fn get<T: DeserializeOwned>(&mut self, table: &str, key: &str) -> Result<Option<T>> {
        let bytes = self.store.with(|db| db.get(self.tx, table, key))?;
        bytes.map(|bytes| decode(table, key, &bytes)).transpose()
    }

    /// Is this the first time `consumer` sees this message? The answer is kept if the transaction commits.
    pub async fn first_time(&mut self, consumer: &str, source: &str, id: &str) -> Result<bool> {
        self.store.statement(|db, _| db.first_time(self.tx, consumer, source, id)).await
    }

    /// Commits.
    pub fn commit(self) -> Result<()> {
        let result = self.store.with(|db| db.commit(self.tx));
        if result.is_ok() && self.published {
            self.store.ring();
        }
        result
    }

    /// Rolls back.
    pub fn rollback(self) {
        drop(self);
    }
}

impl Drop for MemoryTransaction {
    fn drop(&mut self) {
        self.store.with(|db| db.rollback(self.tx));
        self.store.ended();
    }
}

impl MemoryStore {
    /// Reads a committed row of an application table.
    pub fn get<T: DeserializeOwned>(&self, table: &str, key: &str) -> Result<Option<T>> {
        let bytes = self.with(|db| db.read(table, key).cloned());
        bytes.map(|bytes| decode(table, key, &bytes)).transpose()
    }
}

fn decode<T: DeserializeOwned>(table: &str, key: &str, bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|e| {
        Error::new(Kind::InvalidPayload, format!("{table}/{key} is not what was asked for: {e}"))
    })
}

/// The store is its own driver. A transaction that idles is ended by whoever drops it: nothing outlives the process.
impl TxDriver for MemoryStore {
    const SAVEPOINTS_TELL: bool = false;
    type Conn = ();
    type Tx<'c> = MemoryTransaction;

    async fn acquire(&self) -> Result<()> {
        Ok(())
    }

    async fn begin<'c>(
        &'c self,
        _conn: &'c mut (),
        _idle_limit: Duration,
    ) -> Result<MemoryTransaction> {
        Ok(MemoryTransaction::begin(self.clone()))
    }

    async fn savepoint(tx: &mut Self::Tx<'_>) -> Result<()> {
        tx.store.with(|db| db.savepoint(tx.tx, SAVEPOINT))
    }

    async fn undo(tx: &mut Self::Tx<'_>) -> Result<()> {
        tx.store.with(|db| db.rollback_to(tx.tx, SAVEPOINT))
    }

    async fn record(tx: &mut Self::Tx<'_>, change: &LaneChange) -> Result<()> {
        tx.store.statement(|db, _| db.record_in(tx.tx, change)).await
    }

    async fn meet(tx: &mut Self::Tx<'_>, consumer: &str, messages: &[Meet]) -> Result<Vec<Met>> {
        let mut new = Vec::with_capacity(messages.len());
        for message in messages {
            new.push(tx.first_time(consumer, &message.source, &message.id).await?);
        }
        // Only now: noting may have waited for somebody who landed something of these keys.
        let met = |(message, new): (&Meet, bool)| {
            let waits = tx.store.with(|db| db.key_waits(tx.tx, consumer, &message.key))?;
            Ok(Met::of(new, waits))
        };
        messages.iter().zip(new).map(met).collect()
    }

    async fn land(
        tx: &mut Self::Tx<'_>,
        consumer: &str,
        events: Vec<NewEvent>,
        keys: &[String],
    ) -> Result<()> {
        let mut last = 0;
        for event in events {
            tx.published = true;
            last = tx.store.with(|db| db.land(tx.tx, event))?;
        }
        tx.store.statement(|db, _| db.keys_landed(tx.tx, consumer, keys, last)).await
    }

    fn is_conflict(error: &(dyn std::error::Error + 'static)) -> bool {
        error.downcast_ref::<Error>().is_some_and(|error| error.kind() == Kind::TransactionConflict)
    }

    async fn commit(tx: Self::Tx<'_>) -> Result<()> {
        tx.commit()
    }
}
