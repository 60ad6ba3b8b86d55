use super::{Row, Value};
use anyhow::Result;
use deadpool_postgres::Object;
use relevo::TxDriver;
use relevo::postgres::Deadpool;
use relevo::sqlite::SqlxSqlite;
use sqlx::pool::PoolConnection;
use sqlx::{Connection as _, Executor, Sqlite, SqliteConnection};
use tokio_postgres::types::ToSql;

/// A connection of the pool.
pub enum Connection {
    /// To PostgreSQL.
    Postgres(Object),
    /// To an SQLite file.
    Sqlite(PoolConnection<Sqlite>),
}

/// A transaction: rolled back unless it is committed.
pub enum Transaction<'c> {
    /// Of PostgreSQL.
    Postgres(deadpool_postgres::Transaction<'c>),
    /// Of SQLite, begun with the write lock.
    Sqlite(sqlx::Transaction<'c, Sqlite>),
}

/// Where statements are said: the same ones for both databases, with `$1`, `$2` ...
pub enum Session<'t> {
    /// To PostgreSQL.
    Postgres(&'t tokio_postgres::Client),
    /// To SQLite.
    Sqlite(&'t mut SqliteConnection),
}

impl Connection {
    /// Begins. Do not let the future be dropped half-way (see [`crate::tickets`]): sqlx 0.9 then loses what follows.
    pub async fn begin(&mut self) -> Result<Transaction<'_>> {
        Ok(match self {
            Self::Postgres(client) => Transaction::Postgres(client.transaction().await?),
            Self::Sqlite(connection) => {
                Transaction::Sqlite(connection.begin_with("BEGIN IMMEDIATE").await?)
            }
        })
    }

    /// Statements that each commit by themselves.
    pub fn session(&mut self) -> Session<'_> {
        match self {
            Self::Postgres(client) => Session::Postgres(client),
            Self::Sqlite(connection) => Session::Sqlite(connection),
        }
    }

    /// Statements without parameters, parted by semicolons.
    pub async fn batch(&mut self, sql: &str) -> Result<()> {
        match self {
            Self::Postgres(client) => client.batch_execute(sql).await?,
            Self::Sqlite(connection) => {
                connection.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned()))).await?;
            }
        }
        Ok(())
    }
}

impl Transaction<'_> {
    /// Says statements inside.
    pub fn session(&mut self) -> Session<'_> {
        match self {
            Self::Postgres(tx) => Session::Postgres(tx.client()),
            Self::Sqlite(tx) => Session::Sqlite(tx),
        }
    }

    /// All of it, or nothing.
    pub async fn commit(self) -> Result<()> {
        match self {
            Self::Postgres(tx) => tx.commit().await?,
            Self::Sqlite(tx) => tx.commit().await?,
        }
        Ok(())
    }
}

impl Session<'_> {
    /// How many rows it changed.
    pub async fn execute(&mut self, sql: &'static str, values: &[Value]) -> Result<u64> {
        Ok(match self {
            Self::Postgres(client) => client.execute(sql, &parameters(values)).await?,
            Self::Sqlite(connection) => {
                bound(sql, values).execute(&mut **connection).await?.rows_affected()
            }
        })
    }

    /// The rows it found.
    pub async fn query(&mut self, sql: &'static str, values: &[Value]) -> Result<Vec<Row>> {
        Ok(match self {
            Self::Postgres(client) => {
                let rows = client.query(sql, &parameters(values)).await?;
                rows.into_iter().map(Row::Postgres).collect()
            }
            Self::Sqlite(connection) => {
                let rows = bound(sql, values).fetch_all(&mut **connection).await?;
                rows.into_iter().map(Row::Sqlite).collect()
            }
        })
    }

    /// The row it found, if any.
    pub async fn query_one(&mut self, sql: &'static str, values: &[Value]) -> Result<Option<Row>> {
        Ok(self.query(sql, values).await?.into_iter().next())
    }
}

fn parameters(values: &[Value]) -> Vec<&(dyn ToSql + Sync)> {
    values.iter().map(|value| value as &(dyn ToSql + Sync)).collect()
}

fn bound<'q>(
    sql: &'static str,
    values: &[Value],
) -> sqlx::query::Query<'q, Sqlite, sqlx::sqlite::SqliteArguments> {
    values.iter().fold(sqlx::query(sql), |query, value| match value {
        Value::Text(text) => query.bind(text.clone()),
        Value::Number(number) => query.bind(*number),
        Value::Time(_) => query.bind(value.sortable()),
        Value::Null => query.bind(None::<String>),
    })
}

/// A driver of Relevo's whose transactions a [`Session`] can speak in.
pub trait Driver: TxDriver + Clone {
    /// Says statements in a handler's own transaction.
    fn session<'t>(tx: &'t mut Self::Tx<'_>) -> Session<'t>;
}

impl Driver for Deadpool {
    fn session<'t>(tx: &'t mut Self::Tx<'_>) -> Session<'t> {
        Session::Postgres(tx.client())
    }
}

impl Driver for SqlxSqlite {
    fn session<'t>(tx: &'t mut Self::Tx<'_>) -> Session<'t> {
        Session::Sqlite(tx)
    }
}
