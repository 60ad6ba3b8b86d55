//! PostgreSQL or SQLite. Everything above says its statements once; what differs between the two is in here.
//!
//! - [`Database`]: pools, Relevo's store, the adopted table
//! - [`Session`], [`Value`], [`Row`]: one statement and its answer, inside a transaction or not
//! - [`Driver`]: a session of a Relevo handler's own transaction

mod schema;
mod session;
mod value;

pub use schema::ProcessedKey;
pub use session::{Connection, Driver, Session, Transaction};
pub use value::{Row, Value};

use crate::clock::Clock;
use crate::dispatcher::BATCH;
use crate::retention;
use anyhow::{Context, Result};
use relevo::adopt::{AdoptedTable, Preset, TableName};
use relevo::postgres::PostgresStore;
use relevo::sqlite::SqliteStore;
use relevo::{NewEvent, Operate, PublishIn, Relay, Store};
use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use std::sync::Arc;

/// The name under which `Outbox` is adopted.
const ADOPTED: &str = "tickets";

/// Where tickets are kept, with Relevo's tables beside them. Cheap to clone.
#[derive(Debug, Clone)]
pub enum Database {
    /// A PostgreSQL database.
    Postgres(PostgresStore),
    /// An SQLite file.
    Sqlite(SqliteStore, SqlitePool),
}

/// The adopted `Outbox`: a relay on it, and what waits in it.
pub struct Adopted {
    /// Add a subscription, and start.
    pub relay: Relay,
    /// The table.
    pub table: Arc<dyn AdoptedTable>,
}

impl Database {
    /// Opens `postgres://...` or `sqlite:file`.
    pub async fn open(url: &str) -> Result<Self> {
        if url.starts_with("postgres") {
            return Ok(Self::Postgres(PostgresStore::connect(url).await?));
        }
        let store = SqliteStore::open(url)?;
        let file = SqliteConnectOptions::new()
            .filename(store.path())
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal);
        let pool = SqlitePoolOptions::new().max_connections(8).connect_with(file).await?;
        Ok(Self::Sqlite(store, pool))
    }

    /// Makes Relevo's tables and our own, or leaves them as they are.
    pub async fn migrate(&self) -> Result<()> {
        self.migrate_with(ProcessedKey::default(), false).await
    }

    /// [`Self::migrate`]; `partitioned` makes a new `Outbox` of PostgreSQL one partition a month.
    pub async fn migrate_with(&self, key: ProcessedKey, partitioned: bool) -> Result<()> {
        self.operate().migrate().await.context("Relevo's tables")?;
        let mut connection = self.connect().await?;
        let statements = schema::statements(self, key, partitioned);
        // Several processes may start at once; PostgreSQL lets one after the other make what is missing.
        let first = match self {
            Self::Postgres(_) => "SELECT pg_advisory_xact_lock(5436728190);",
            Self::Sqlite(..) => "",
        };
        connection.batch(&format!("{first}{statements}")).await.context("TicketFlow's tables")?;
        drop(connection);
        retention::partitions(self, &Clock::default()).await.context("the partitions of Outbox")
    }

    /// Relevo's log in this database.
    pub fn store(&self) -> Arc<dyn Store> {
        match self {
            Self::Postgres(store) => Arc::new(store.clone()),
            Self::Sqlite(store, _) => Arc::new(store.clone()),
        }
    }

    /// The operator's view of it.
    pub fn operate(&self) -> Arc<dyn Operate> {
        match self {
            Self::Postgres(store) => Arc::new(store.clone()),
            Self::Sqlite(store, _) => Arc::new(store.clone()),
        }
    }

    /// A relay on Relevo's own log.
    pub fn relay(&self) -> Relay {
        match self {
            Self::Postgres(store) => Relay::on(store.clone()),
            Self::Sqlite(store, _) => Relay::on(store.clone()),
        }
    }

    /// Adopts `Outbox` as it is: no column is added, `DispatchedAt` is set when an event was confirmed. A claim takes a
    /// hundred rows at most.
    pub async fn adopt(&self) -> Result<Adopted> {
        let mapping = Preset::TicketFlow.mapping(TableName::parse(Preset::TicketFlow.table())?);
        Ok(match self {
            Self::Postgres(store) => {
                let table = store.adopt(ADOPTED, mapping).await?.claim_rows(BATCH);
                Adopted { relay: Relay::on(table.clone()), table: Arc::new(table) }
            }
            Self::Sqlite(store, _) => {
                let table = store.adopt(ADOPTED, mapping).await?.claim_rows(BATCH);
                Adopted { relay: Relay::on(table.clone()), table: Arc::new(table) }
            }
        })
    }

    /// A connection of the pool.
    pub async fn connect(&self) -> Result<Connection> {
        Ok(match self {
            Self::Postgres(store) => Connection::Postgres(store.pool().get().await?),
            Self::Sqlite(_, pool) => Connection::Sqlite(pool.acquire().await?),
        })
    }

    /// Publishes into Relevo's own log, all or nothing.
    pub async fn publish(&self, events: Vec<NewEvent>) -> Result<()> {
        let mut connection = self.connect().await?;
        let mut tx = connection.begin().await?;
        match (self, &mut tx) {
            (Self::Postgres(store), Transaction::Postgres(tx)) => {
                store.outbox().publish_all(tx, events).await?;
            }
            (Self::Sqlite(store, _), Transaction::Sqlite(tx)) => {
                store.outbox().publish_all(tx, events).await?;
            }
            _ => anyhow::bail!("a transaction of another database"),
        }
        tx.commit().await
    }
}
