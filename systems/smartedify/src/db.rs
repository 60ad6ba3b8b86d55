//! The service's own statements on PostgreSQL and on SQLite: one text where the two agree, two where they do not.

use sqlx::postgres::{PgConnection, PgPool, PgPoolOptions, PgRow};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions,
    SqliteRow,
};
use sqlx::{AssertSqlSafe, FromRow, Postgres, Result, Sqlite, Transaction};
use std::str::FromStr;
use std::time::Duration;

/// SQLite has one writer: the others wait this long for it.
const BUSY: Duration = Duration::from_secs(30);

/// Connections of the service itself; the relay has its own.
const CONNECTIONS: u32 = 8;

/// A statement in both dialects. Arguments are `$1`, `$2` ... in both.
#[derive(Debug, Clone, Copy)]
pub struct Sql {
    postgres: &'static str,
    sqlite: &'static str,
}

impl Sql {
    /// One text for both.
    pub const fn both(text: &'static str) -> Self {
        Self { postgres: text, sqlite: text }
    }

    /// A text for each.
    pub const fn each(postgres: &'static str, sqlite: &'static str) -> Self {
        Self { postgres, sqlite }
    }
}

/// An argument.
#[derive(Debug, Clone)]
pub enum Arg {
    /// Text; PostgreSQL's statements cast it to what a column needs.
    Text(String),
    /// A number.
    Int(i64),
}

impl From<&str> for Arg {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Arg {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for Arg {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

/// What a row can be read into on either database: tuples of texts and numbers.
pub trait Readable:
    for<'r> FromRow<'r, PgRow> + for<'r> FromRow<'r, SqliteRow> + Send + Unpin
{
}

impl<T> Readable for T where
    T: for<'r> FromRow<'r, PgRow> + for<'r> FromRow<'r, SqliteRow> + Send + Unpin
{
}

/// A connection inside a transaction, the service's own or one that Relevo hands to a handler.
#[derive(Debug)]
pub enum Conn<'c> {
    /// To a server.
    Postgres(&'c mut PgConnection),
    /// To a file.
    Sqlite(&'c mut SqliteConnection),
}

macro_rules! bound {
    ($query:expr, $args:expr) => {
        $args.iter().fold($query, |query, arg| match arg.clone() {
            Arg::Text(text) => query.bind(text),
            Arg::Int(number) => query.bind(number),
        })
    };
}

impl Conn<'_> {
    /// Runs a statement; answers how many rows it changed.
    pub async fn run(&mut self, sql: &Sql, args: &[Arg]) -> Result<u64> {
        Ok(match self {
            Self::Postgres(conn) => {
                bound!(sqlx::query(sql.postgres), args).execute(&mut **conn).await?.rows_affected()
            }
            Self::Sqlite(conn) => {
                bound!(sqlx::query(sql.sqlite), args).execute(&mut **conn).await?.rows_affected()
            }
        })
    }

    /// Every row of a query.
    pub async fn rows<R: Readable>(&mut self, sql: &Sql, args: &[Arg]) -> Result<Vec<R>> {
        match self {
            Self::Postgres(conn) => {
                bound!(sqlx::query_as(sql.postgres), args).fetch_all(&mut **conn).await
            }
            Self::Sqlite(conn) => {
                bound!(sqlx::query_as(sql.sqlite), args).fetch_all(&mut **conn).await
            }
        }
    }

    /// The first row of a query, if there is one.
    pub async fn row<R: Readable>(&mut self, sql: &Sql, args: &[Arg]) -> Result<Option<R>> {
        Ok(self.rows(sql, args).await?.into_iter().next())
    }

    /// A statement that was put together out of names this system knows, by the database or by a migration.
    pub async fn run_made(&mut self, statement: String) -> Result<()> {
        let statement = sqlx::raw_sql(AssertSqlSafe(statement));
        match self {
            Self::Postgres(conn) => statement.execute(&mut **conn).await.map(drop),
            Self::Sqlite(conn) => statement.execute(&mut **conn).await.map(drop),
        }
    }

    /// Several statements at once, without arguments.
    pub async fn script(&mut self, text: &'static str) -> Result<()> {
        match self {
            Self::Postgres(conn) => sqlx::raw_sql(text).execute(&mut **conn).await.map(drop),
            Self::Sqlite(conn) => sqlx::raw_sql(text).execute(&mut **conn).await.map(drop),
        }
    }
}

/// A transaction of the service's own.
#[derive(Debug)]
pub enum Tx {
    /// On a server.
    Postgres(Transaction<'static, Postgres>),
    /// On a file, begun with its write lock.
    Sqlite(Transaction<'static, Sqlite>),
}

impl Tx {
    /// Its connection.
    pub fn conn(&mut self) -> Conn<'_> {
        match self {
            Self::Postgres(tx) => Conn::Postgres(tx),
            Self::Sqlite(tx) => Conn::Sqlite(tx),
        }
    }

    /// Commits. Dropped without it, everything is rolled back.
    pub async fn commit(self) -> Result<()> {
        match self {
            Self::Postgres(tx) => tx.commit().await,
            Self::Sqlite(tx) => tx.commit().await,
        }
    }
}

/// A database of the service's. Cheap to clone.
#[derive(Debug, Clone)]
pub enum Db {
    /// A server.
    Postgres(PgPool),
    /// A file.
    Sqlite(SqlitePool),
}

impl Db {
    /// Opens `postgres://...` or `sqlite:file`, which is made if it is not there.
    pub async fn open(url: &str) -> Result<Self> {
        if !url.starts_with("sqlite:") {
            let options = PgPoolOptions::new().max_connections(CONNECTIONS);
            return options.connect(url).await.map(Self::Postgres);
        }
        let options = SqliteConnectOptions::from_str(url)?
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .busy_timeout(BUSY);
        let pool = SqlitePoolOptions::new().max_connections(CONNECTIONS);
        pool.connect_with(options).await.map(Self::Sqlite)
    }

    /// Begins.
    pub async fn begin(&self) -> Result<Tx> {
        Ok(match self {
            Self::Postgres(pool) => Tx::Postgres(pool.begin().await?),
            // With the write lock: a transaction that reads first and writes later would fail, not wait.
            Self::Sqlite(pool) => Tx::Sqlite(pool.begin_with("BEGIN IMMEDIATE").await?),
        })
    }

    /// Every row of a query, outside of any transaction.
    pub async fn rows<R: Readable>(&self, sql: &Sql, args: &[Arg]) -> Result<Vec<R>> {
        match self {
            Self::Postgres(pool) => {
                Conn::Postgres(&mut *pool.acquire().await?).rows(sql, args).await
            }
            Self::Sqlite(pool) => Conn::Sqlite(&mut *pool.acquire().await?).rows(sql, args).await,
        }
    }

    /// The number that a query answers with; 0 if it has none.
    pub async fn number(&self, sql: &Sql, args: &[Arg]) -> Result<i64> {
        let rows: Vec<(i64,)> = self.rows(sql, args).await?;
        Ok(rows.first().map_or(0, |(number,)| *number))
    }

    /// Ends its connections.
    pub async fn close(&self) {
        match self {
            Self::Postgres(pool) => pool.close().await,
            Self::Sqlite(pool) => pool.close().await,
        }
    }
}
