//! The tables of the tortured application, and how the test reads them.

mod postgres;
mod sqlite;

pub use postgres::PostgresDatabase;
pub use sqlite::SqliteDatabase;

use crate::adopted::{self, Seen, Table};
use crate::check::Applied;
use crate::story::Published;
use anyhow::Result;
use relevo::postgres::PostgresStore;
use relevo::sqlite::SqliteStore;
use relevo::{DeadFilter, EventId, Operate, header};
use std::collections::HashSet;
use std::sync::Arc;
use uuid::Uuid;

/// What the next version might change: columns and tables that this one does not know, and functions under its feet.
const NEXT_POSTGRES: &str = "
    ALTER TABLE relevo.outbox ADD COLUMN note text;
    ALTER TABLE relevo.cursor ADD COLUMN note text DEFAULT 'next';
    ALTER TABLE relevo.parked_ref ADD COLUMN note text;
    CREATE TABLE relevo.of_the_next_version (n bigint PRIMARY KEY);
    DO $$ BEGIN EXECUTE pg_get_functiondef('relevo.record(jsonb)'::regprocedure); END $$;";
pub(crate) const NEXT_SQLITE: &str = "
    ALTER TABLE relevo_outbox ADD COLUMN note TEXT;
    ALTER TABLE relevo_cursor ADD COLUMN note TEXT DEFAULT 'next';
    CREATE TABLE relevo_of_the_next_version (n INTEGER PRIMARY KEY);";

/// Rows of a segment where the log is kept short.
const SMALL_SEGMENT: i64 = 100;

/// A store whose new segments have a few rows.
pub(crate) fn postgres_in_small_segments(url: &str) -> Result<PostgresStore> {
    let mut options = relevo::postgres::Options::default();
    options.segment_rows = Some(SMALL_SEGMENT);
    Ok(PostgresStore::open(url, options)?)
}

/// The store as the next version has it.
pub(crate) fn next_postgres(url: &str) -> Result<PostgresStore> {
    let mut options = relevo::postgres::Options::default();
    options.next_change = Some(NEXT_POSTGRES);
    Ok(PostgresStore::open(url, options)?)
}

/// The database of one run.
#[derive(Debug, Clone)]
pub enum Database {
    /// On a PostgreSQL server.
    Postgres(PostgresDatabase),
    /// In a file.
    Sqlite(SqliteDatabase),
}

impl Database {
    /// The URL for workers.
    pub fn url(&self) -> &str {
        match self {
            Self::Postgres(database) => &database.url,
            Self::Sqlite(database) => &database.url,
        }
    }

    /// Makes Relevo's tables and the application's.
    pub async fn create(&self) -> Result<()> {
        match self {
            Self::Postgres(database) if database.small_segments => {
                postgres_in_small_segments(&database.url)?.migrate().await?
            }
            _ => self.operate().await?.migrate().await?,
        };
        match self {
            Self::Postgres(database) => database.create().await,
            Self::Sqlite(database) => database.create(),
        }
    }

    /// Moves the schema to the next version, as a program of that version does.
    pub async fn move_to_next(&self) -> Result<Vec<String>> {
        Ok(match self {
            Self::Postgres(database) => next_postgres(&database.url)?.migrate().await?,
            Self::Sqlite(database) => {
                let store = SqliteStore::open_as_next_version(&database.url, NEXT_SQLITE)?;
                store.migrate().await?
            }
        })
    }

    /// Relevo's own view, for dead letters and to ask why.
    pub async fn operate(&self) -> Result<Box<dyn Operate>> {
        Ok(match self {
            Self::Postgres(database) => Box::new(PostgresStore::connect(&database.url).await?),
            Self::Sqlite(database) => Box::new(SqliteStore::open(&database.url)?),
        })
    }

    /// Every effect, in order.
    pub async fn effects(&self) -> Result<Vec<Applied>> {
        match self {
            Self::Postgres(database) => database.effects().await,
            Self::Sqlite(database) => database.effects(),
        }
    }

    /// How many effects there are.
    pub async fn count_effects(&self) -> Result<usize> {
        match self {
            Self::Postgres(database) => database.count_effects().await,
            Self::Sqlite(database) => database.count_effects(),
        }
    }

    /// Those of these events that have had their effect.
    pub async fn applied_of(&self, ids: &[Uuid]) -> Result<HashSet<Uuid>> {
        match self {
            Self::Postgres(database) => database.applied_of(ids).await,
            Self::Sqlite(database) => database.applied_of(ids),
        }
    }

    /// Every transaction that left its row.
    pub async fn business(&self) -> Result<HashSet<Uuid>> {
        match self {
            Self::Postgres(database) => database.business().await,
            Self::Sqlite(database) => database.business(),
        }
    }

    /// Publishes events of the test itself, in one transaction.
    pub async fn publish(&self, tx: Uuid, events: &[Published]) -> Result<()> {
        match self {
            Self::Postgres(database) => database.publish(tx, events).await,
            Self::Sqlite(database) => database.publish(tx, events),
        }
    }

    /// Ends what dead writers left prepared, and waits until no writer's session is at work any more.
    pub async fn quiesce(&self) -> Result<()> {
        match self {
            Self::Postgres(database) => database.quiesce().await,
            Self::Sqlite(_) => Ok(()),
        }
    }

    /// The outbox table of somebody else's, where one is relayed instead of the log.
    pub fn adopted(&self) -> Option<&Table> {
        match self {
            Self::Postgres(database) => database.adopted.as_deref(),
            Self::Sqlite(database) => database.adopted.as_deref(),
        }
    }

    /// The same database, with an outbox table of somebody else's in it.
    pub fn adopting(mut self, table: Table) -> Self {
        let adopted = match &mut self {
            Self::Postgres(database) => &mut database.adopted,
            Self::Sqlite(database) => &mut database.adopted,
        };
        *adopted = Some(Arc::new(table));
        self
    }

    /// The same database, whose first segments have a few rows. (SQLite has no segments.)
    pub fn in_small_segments(mut self) -> Self {
        if let Self::Postgres(database) = &mut self {
            database.small_segments = true;
        }
        self
    }

    /// How many rows the log has, and how many numbers were drawn for it.
    pub async fn log_length(&self) -> Result<(i64, i64)> {
        match self {
            Self::Postgres(database) => database.log_length().await,
            Self::Sqlite(database) => database.log_length(),
        }
    }

    /// Which events the owner of the adopted table sees so; `None` where the table has no word for it.
    pub async fn seen_by_owner(&self, seen: Seen) -> Result<Option<Vec<Uuid>>> {
        let Some(look) = self.adopted().and_then(|table| table.look(seen)) else {
            return Ok(None);
        };
        let payloads = match self {
            Self::Postgres(database) => database.texts(&look).await?,
            Self::Sqlite(database) => database.texts(&look)?,
        };
        let known = |payload: &String| adopted::identity(payload.as_bytes());
        Ok(Some(payloads.iter().filter_map(known).collect()))
    }

    /// The event as its writer knows it, whatever its id in the log.
    fn original(&self, event: &relevo::Event) -> Uuid {
        if self.adopted().is_some() {
            return adopted::identity_of(event);
        }
        let landed = event.headers.get(header::INBOX_ID).and_then(|id| id.parse::<EventId>().ok());
        landed.unwrap_or(event.id).0
    }

    /// Every dead letter, as `operate` shows them.
    pub async fn dead_letters(&self, operate: &dyn Operate) -> Result<Vec<Uuid>> {
        const PAGE: usize = 500;
        let (mut dead, mut before) = (Vec::new(), None);
        loop {
            let page = operate.dead_letters(&DeadFilter::default(), before, PAGE).await?;
            before = page.last().map(|letter| letter.id);
            dead.extend(page.iter().map(|letter| self.original(&letter.event)));
            if page.len() < PAGE {
                return Ok(dead);
            }
        }
    }
}
