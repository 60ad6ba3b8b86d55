//! Transactions for direct handlers, one driver each: the handler's writes, the lane's change and whatever it
//! publishes commit together.
//!
//! | driver | a handler's transaction |
//! |---|---|
//! | [`Deadpool`] | `deadpool_postgres::Transaction` |
//! | [`TokioPostgres`] | `tokio_postgres::Transaction` |
//! | `SqlxPostgres` | `sqlx::Transaction<Postgres>` |

use super::errors::{from_driver, on_commit};
use super::pooled::PooledConnection;
use super::publish::PostgresOutbox;
use super::record::to_json;
use super::session::args;
use deadpool_postgres::Pool;
use relevo_core::inbox::{Meet, Met, TxDriver};
use relevo_core::limits::Limits;
use relevo_core::outbox::{LaneChange, PublishIn};
use relevo_core::{Error, Kind, NewEvent, Result};
use std::time::Duration;

/// What follows BEGIN. The savepoint is there from the start, so that setting it again can first release it:
/// savepoints of one name would pile up.
fn opening(idle_limit: Duration) -> String {
    let limit = idle_limit.as_millis().clamp(1, i32::MAX as u128);
    format!("SET LOCAL idle_in_transaction_session_timeout = {limit}; SAVEPOINT relevo_event")
}

const SAVEPOINT: &str = "RELEASE SAVEPOINT relevo_event; SAVEPOINT relevo_event";
const UNDO: &str = "ROLLBACK TO SAVEPOINT relevo_event";
const RECORD: &str = "SELECT relevo.record($1::text::jsonb)";
/// A change that moves no cursor: were its commit lost in a crash, nobody would notice. So it waits for the disk, whatever
/// the handler's session does.
const RECORD_DURABLY: &str = "SELECT relevo.durable(true), relevo.record($1::text::jsonb)";

fn recording(change: &LaneChange) -> &'static str {
    if change.before == change.after { RECORD_DURABLY } else { RECORD }
}

async fn batch(client: &tokio_postgres::Client, sql: &str) -> Result<()> {
    client.batch_execute(sql).await.map_err(from_driver)
}

async fn record(client: &tokio_postgres::Client, change: &LaneChange) -> Result<()> {
    let text = to_json(change).to_string();
    client.query_typed(recording(change), args![text]).await.map_err(from_driver)?;
    Ok(())
}

const MEET: &str = "SELECT relevo.meet($1, $2, $3, $4)";
const KEYS_LANDED: &str = "SELECT relevo.keys_landed($1, $2)";

/// Messages, column by column: sources, ids, keys.
fn columns(messages: &[Meet]) -> [Vec<&str>; 3] {
    let column = |part: fn(&Meet) -> &str| messages.iter().map(part).collect();
    [
        column(|message| &message.source),
        column(|message| &message.id),
        column(|message| &message.key),
    ]
}

fn met(answers: Vec<i16>) -> Result<Vec<Met>> {
    let met = |answer: i16| match answer {
        0 => Ok(Met::Seen),
        1 => Ok(Met::New),
        2 => Ok(Met::Behind),
        odd => Err(Error::new(Kind::StoreFailed, format!("the inbox answered {odd}"))),
    };
    answers.into_iter().map(met).collect()
}

fn landing() -> PostgresOutbox {
    PostgresOutbox::with_limits(Limits::default().landing())
}

async fn meet(
    client: &tokio_postgres::Client,
    consumer: &str,
    messages: &[Meet],
) -> Result<Vec<Met>> {
    let [sources, ids, keys] = columns(messages);
    let rows = client.query_typed(MEET, args![consumer, sources, ids, keys]).await;
    let rows = rows.map_err(from_driver)?;
    met(rows.first().map(|row| row.get(0)).unwrap_or_default())
}

async fn keys_landed(
    client: &tokio_postgres::Client,
    consumer: &str,
    keys: &[String],
) -> Result<()> {
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    client.query_typed(KEYS_LANDED, args![consumer, keys]).await.map_err(from_driver)?;
    Ok(())
}

/// Did the server choose this transaction as the victim of a deadlock or a serialization failure?
fn is_victim(sql_state: &str) -> bool {
    matches!(sql_state, "40001" | "40P01")
}

fn driver_conflict(error: &(dyn std::error::Error + 'static)) -> bool {
    let code = error.downcast_ref::<tokio_postgres::Error>().and_then(tokio_postgres::Error::code);
    code.is_some_and(|code| is_victim(code.code()))
}

/// Handlers get `deadpool_postgres::Transaction`s of this pool.
#[derive(Debug, Clone)]
pub struct Deadpool {
    pool: Pool,
}

impl Deadpool {
    /// A driver over a pool of the database that holds the log.
    pub fn new(pool: Pool) -> Self {
        Self { pool }
    }
}

impl TxDriver for Deadpool {
    const SAVEPOINTS_TELL: bool = false;
    type Conn = PooledConnection;
    type Tx<'c> = deadpool_postgres::Transaction<'c>;

    async fn acquire(&self) -> Result<PooledConnection> {
        super::object(&self.pool).await.map(PooledConnection::from)
    }

    fn committed(&self, conn: PooledConnection) {
        conn.give_back();
    }

    fn distrust(&self, conn: Option<PooledConnection>) {
        conn.into_iter().for_each(PooledConnection::close);
        self.pool.retain(|_, _| false);
    }

    async fn begin<'c>(
        &'c self,
        conn: &'c mut PooledConnection,
        idle_limit: Duration,
    ) -> Result<Self::Tx<'c>> {
        let tx = conn.begin()?.transaction().await.map_err(from_driver)?;
        batch(tx.client(), &opening(idle_limit)).await?;
        Ok(tx)
    }

    async fn savepoint(tx: &mut Self::Tx<'_>) -> Result<()> {
        batch(tx.client(), SAVEPOINT).await
    }

    async fn undo(tx: &mut Self::Tx<'_>) -> Result<()> {
        batch(tx.client(), UNDO).await
    }

    async fn record(tx: &mut Self::Tx<'_>, change: &LaneChange) -> Result<()> {
        record(tx.client(), change).await
    }

    async fn meet(tx: &mut Self::Tx<'_>, consumer: &str, messages: &[Meet]) -> Result<Vec<Met>> {
        meet(tx.client(), consumer, messages).await
    }

    async fn land(
        tx: &mut Self::Tx<'_>,
        consumer: &str,
        events: Vec<NewEvent>,
        keys: &[String],
    ) -> Result<()> {
        landing().publish_all(tx, events).await?;
        keys_landed(tx.client(), consumer, keys).await
    }

    fn is_conflict(error: &(dyn std::error::Error + 'static)) -> bool {
        driver_conflict(error)
    }

    async fn commit(tx: Self::Tx<'_>) -> Result<()> {
        tx.commit().await.map_err(from_driver).map_err(on_commit)
    }
}

/// Handlers get `tokio_postgres::Transaction`s on connections of this pool.
#[derive(Debug, Clone)]
pub struct TokioPostgres {
    pool: Pool,
}

impl TokioPostgres {
    /// A driver over a pool of the database that holds the log.
    pub fn new(pool: Pool) -> Self {
        Self { pool }
    }
}

impl TxDriver for TokioPostgres {
    const SAVEPOINTS_TELL: bool = false;
    type Conn = PooledConnection;
    type Tx<'c> = tokio_postgres::Transaction<'c>;

    async fn acquire(&self) -> Result<PooledConnection> {
        super::object(&self.pool).await.map(PooledConnection::from)
    }

    fn committed(&self, conn: PooledConnection) {
        conn.give_back();
    }

    fn distrust(&self, conn: Option<PooledConnection>) {
        conn.into_iter().for_each(PooledConnection::close);
        self.pool.retain(|_, _| false);
    }

    async fn begin<'c>(
        &'c self,
        conn: &'c mut PooledConnection,
        idle_limit: Duration,
    ) -> Result<Self::Tx<'c>> {
        let client: &'c mut tokio_postgres::Client = conn.begin()?;
        let tx = client.transaction().await.map_err(from_driver)?;
        batch(tx.client(), &opening(idle_limit)).await?;
        Ok(tx)
    }

    async fn savepoint(tx: &mut Self::Tx<'_>) -> Result<()> {
        batch(tx.client(), SAVEPOINT).await
    }

    async fn undo(tx: &mut Self::Tx<'_>) -> Result<()> {
        batch(tx.client(), UNDO).await
    }

    async fn record(tx: &mut Self::Tx<'_>, change: &LaneChange) -> Result<()> {
        record(tx.client(), change).await
    }

    async fn meet(tx: &mut Self::Tx<'_>, consumer: &str, messages: &[Meet]) -> Result<Vec<Met>> {
        meet(tx.client(), consumer, messages).await
    }

    async fn land(
        tx: &mut Self::Tx<'_>,
        consumer: &str,
        events: Vec<NewEvent>,
        keys: &[String],
    ) -> Result<()> {
        landing().publish_all(tx, events).await?;
        keys_landed(tx.client(), consumer, keys).await
    }

    fn is_conflict(error: &(dyn std::error::Error + 'static)) -> bool {
        driver_conflict(error)
    }

    async fn commit(tx: Self::Tx<'_>) -> Result<()> {
        tx.commit().await.map_err(from_driver).map_err(on_commit)
    }
}

#[cfg(feature = "sqlx")]
pub use by_sqlx::{SqlxConnection, SqlxPostgres};

#[cfg(feature = "sqlx")]
mod by_sqlx {
    use super::*;
    use crate::postgres::errors::from_sqlx;
    use crate::postgres::pooled::ANSWER_LIMIT;
    use sqlx::pool::PoolConnection;
    use sqlx::{Acquire, AssertSqlSafe, PgPool, Postgres, Transaction};

    /// Handlers get `sqlx::Transaction<Postgres>`s of this pool.
    #[derive(Debug, Clone)]
    pub struct SqlxPostgres {
        pool: PgPool,
    }

    impl SqlxPostgres {
        /// A driver over a pool of the database that holds the log.
        pub fn new(pool: PgPool) -> Self {
            Self { pool }
        }
    }

    /// A connection that is closed, not given back, if it was dropped while beginning: sqlx would hand it on inside a
    /// transaction that nobody ends, and what the next user writes would be lost.
    ///
    /// What is given back is asked first whether it lives. sqlx would wait for a half-open one's answer for ever, and its
    /// place in the pool would be nobody's.
    #[derive(Debug)]
    pub struct SqlxConnection {
        conn: PoolConnection<Postgres>,
        beginning: bool,
    }

    impl Drop for SqlxConnection {
        fn drop(&mut self) {
            match (self.beginning, tokio::runtime::Handle::try_current()) {
                (false, Ok(runtime)) => {
                    runtime.spawn(tokio::time::timeout(ANSWER_LIMIT, self.conn.return_to_pool()));
                }
                (true, _) => self.conn.close_on_drop(),
                // Nothing can be waited for any more: sqlx decides.
                (false, Err(_)) => {}
            }
        }
    }

    async fn batch(tx: &mut Transaction<'_, Postgres>, sql: String) -> Result<()> {
        // The only text that is put together is a number.
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut **tx).await.map_err(from_sqlx)?;
        Ok(())
    }

    impl TxDriver for SqlxPostgres {
        const SAVEPOINTS_TELL: bool = false;
        type Conn = SqlxConnection;
        type Tx<'c> = Transaction<'c, Postgres>;

        async fn acquire(&self) -> Result<SqlxConnection> {
            // The pool asks a connection that idled whether it lives. A half-open one never answers; whoever stops
            // waiting for it closes it, and the next one may be better.
            for _ in 0..4 {
                if let Ok(got) = tokio::time::timeout(ANSWER_LIMIT, self.pool.acquire()).await {
                    return Ok(SqlxConnection { conn: got.map_err(from_sqlx)?, beginning: false });
                }
            }
            let conn = self.pool.acquire().await.map_err(from_sqlx)?;
            Ok(SqlxConnection { conn, beginning: false })
        }

        fn distrust(&self, conn: Option<SqlxConnection>) {
            if let Some(mut conn) = conn {
                conn.conn.close_on_drop();
            }
            for _ in 0..self.pool.num_idle() {
                drop(self.pool.try_acquire().map(PoolConnection::detach));
            }
        }

        async fn begin<'c>(
            &'c self,
            conn: &'c mut SqlxConnection,
            idle_limit: Duration,
        ) -> Result<Self::Tx<'c>> {
            conn.beginning = true;
            let mut tx = conn.conn.begin().await.map_err(from_sqlx)?;
            conn.beginning = false;
            batch(&mut tx, opening(idle_limit)).await?;
            Ok(tx)
        }

        async fn savepoint(tx: &mut Self::Tx<'_>) -> Result<()> {
            batch(tx, SAVEPOINT.to_owned()).await
        }

        async fn undo(tx: &mut Self::Tx<'_>) -> Result<()> {
            batch(tx, UNDO.to_owned()).await
        }

        async fn record(tx: &mut Self::Tx<'_>, change: &LaneChange) -> Result<()> {
            sqlx::query(recording(change))
                .bind(to_json(change).to_string())
                .execute(&mut **tx)
                .await
                .map_err(from_sqlx)?;
            Ok(())
        }

        async fn meet(
            tx: &mut Self::Tx<'_>,
            consumer: &str,
            messages: &[Meet],
        ) -> Result<Vec<Met>> {
            let [sources, ids, keys] = columns(messages);
            let asked = sqlx::query_scalar(MEET).bind(consumer).bind(sources).bind(ids).bind(keys);
            met(asked.fetch_one(&mut **tx).await.map_err(from_sqlx)?)
        }

        async fn land(
            tx: &mut Self::Tx<'_>,
            consumer: &str,
            events: Vec<NewEvent>,
            keys: &[String],
        ) -> Result<()> {
            landing().publish_all(tx, events).await?;
            let landed = sqlx::query(KEYS_LANDED).bind(consumer).bind(keys);
            landed.execute(&mut **tx).await.map_err(from_sqlx)?;
            Ok(())
        }

        fn is_conflict(error: &(dyn std::error::Error + 'static)) -> bool {
            let database =
                error.downcast_ref::<sqlx::Error>().and_then(sqlx::Error::as_database_error);
            database.and_then(|error| error.code().map(|code| is_victim(&code))).unwrap_or(false)
        }

        async fn commit(tx: Self::Tx<'_>) -> Result<()> {
            tx.commit().await.map_err(from_sqlx).map_err(on_commit)
        }
    }
}
