//! Transactions of sqlx for direct handlers: an attempt that is cancelled is rolled back by dropping it.

use super::errors::{of_sqlx, own};
use super::inbox::in_sqlx as inbox;
use super::record::{Value, statements};
use relevo_core::inbox::{Meet, Met, TxDriver};
use relevo_core::outbox::LaneChange;
use relevo_core::{Kind, NewEvent, Result};
use rusqlite::ffi;
use sqlx::pool::PoolConnection;
use sqlx::sqlite::SqlitePool;
use sqlx::{Connection, Sqlite, Transaction};
use std::time::Duration;

/// Gives handlers transactions of a pool of sqlx on the store's file, begun with the write lock.
///
/// SQLite has one writer at a time: while a handler's transaction is open, publishers wait up to their busy
/// timeout (5 s in sqlx and here). Keep a handler's limit below that, or declare it slow and do what takes long
/// before the first use of its transaction.
#[derive(Debug, Clone)]
pub struct SqlxSqlite {
    pool: SqlitePool,
}

impl SqlxSqlite {
    /// Over the application's own pool.
    pub fn new(pool: SqlitePool) -> Self {
        Self { pool }
    }
}

// On some errors (disk full, I/O) SQLite ends the whole transaction by itself, and what follows would run outside
// of any. The two savepoints tell: they are gone with the transaction, and naming one then fails.
const BEGIN: &str = "SAVEPOINT relevo_batch; SAVEPOINT relevo_event";
const NEXT_EVENT: &str = "RELEASE relevo_event; SAVEPOINT relevo_event";
const UNDO_EVENT: &str = "ROLLBACK TO relevo_event";
const BEFORE_END: &str = "RELEASE relevo_batch";

impl TxDriver for SqlxSqlite {
    type Conn = PoolConnection<Sqlite>;
    type Tx<'c> = Transaction<'c, Sqlite>;

    /// Publishers wait 5 s for the file (sqlx's and our own busy timeout): a quarter for the batch plus one last
    /// handler stay below that.
    const HOLD: Duration = Duration::from_secs(3);

    async fn acquire(&self) -> Result<Self::Conn> {
        loop {
            let conn = self.pool.acquire().await.map_err(of_sqlx)?;
            if !conn.is_in_transaction() {
                return Ok(conn);
            }
            // SQLite ended a transaction of its own accord and sqlx did not notice: nothing can begin on it any more.
            conn.detach().close().await.map_err(of_sqlx)?;
        }
    }

    /// SQLite has no server to end an idle session: the attempt's limit does, by dropping the transaction.
    async fn begin<'c>(
        &'c self,
        conn: &'c mut Self::Conn,
        _idle_limit: Duration,
    ) -> Result<Self::Tx<'c>> {
        let mut tx = conn.begin_with("BEGIN IMMEDIATE").await.map_err(of_sqlx)?;
        run(&mut tx, BEGIN).await?;
        Ok(tx)
    }

    async fn savepoint(tx: &mut Self::Tx<'_>) -> Result<()> {
        run(tx, NEXT_EVENT).await
    }

    async fn undo(tx: &mut Self::Tx<'_>) -> Result<()> {
        run(tx, UNDO_EVENT).await
    }

    async fn record(tx: &mut Self::Tx<'_>, change: &LaneChange) -> Result<()> {
        Self::seal(tx).await?;
        for statement in statements(change) {
            let mut query = sqlx::query(statement.sql);
            for value in &statement.params {
                query = match value {
                    Value::Null => query.bind(None::<i64>),
                    Value::Int(number) => query.bind(*number),
                    Value::Text(text) => query.bind(text.clone()),
                };
            }
            let done = query.execute(&mut **tx).await.map_err(of_sqlx)?;
            statement.judge(change, done.rows_affected())?;
        }
        Ok(())
    }

    /// The file's trouble, not the event's: nothing is parked, all of it is tried again.
    async fn seal(tx: &mut Self::Tx<'_>) -> Result<()> {
        let ended =
            "SQLite ended the transaction by itself: the disk is full, or cannot be written";
        run(tx, BEFORE_END).await.map_err(|error| own(Kind::DiskFull, ended).because(error))
    }

    async fn meet(tx: &mut Self::Tx<'_>, consumer: &str, messages: &[Meet]) -> Result<Vec<Met>> {
        inbox::meet(tx, consumer, messages).await
    }

    async fn land(
        tx: &mut Self::Tx<'_>,
        consumer: &str,
        events: Vec<NewEvent>,
        keys: &[String],
    ) -> Result<()> {
        inbox::land(tx, consumer, events, keys).await
    }

    /// The file's own trouble, rather than the event's.
    fn is_conflict(error: &(dyn std::error::Error + 'static)) -> bool {
        let code = error
            .downcast_ref::<sqlx::Error>()
            .and_then(|error| error.as_database_error())
            .and_then(|error| error.code())
            .and_then(|code| code.parse::<i32>().ok());
        code.is_some_and(|code| {
            let trouble = [ffi::SQLITE_FULL, ffi::SQLITE_IOERR, ffi::SQLITE_INTERRUPT];
            code == ffi::SQLITE_BUSY_SNAPSHOT || trouble.contains(&(code & 0xff))
        })
    }

    async fn commit(tx: Self::Tx<'_>) -> Result<()> {
        tx.commit().await.map_err(of_sqlx).map_err(|error| match error.kind() {
            // The frames were not all written: SQLite took the transaction back.
            Kind::FileLocked | Kind::DiskFull | Kind::FileReadOnly => error,
            // A deferred constraint: it stands open, and is rolled back when it is dropped.
            Kind::StoreFailed if error.to_string().contains("constraint failed") => error,
            _ => own(Kind::CommitUnknown, error.to_string()).because(error),
        })
    }
}

/// Savepoint work. It fails only if SQLite has ended the transaction.
async fn run(tx: &mut Transaction<'_, Sqlite>, sql: &'static str) -> Result<()> {
    let ended = |error: sqlx::Error| {
        let message = "SQLite ended the transaction under the handler (disk full or an I/O error)";
        own(Kind::TransactionConflict, message).because(error)
    };
    sqlx::raw_sql(sql).execute(&mut **tx).await.map(drop).map_err(ended)
}
