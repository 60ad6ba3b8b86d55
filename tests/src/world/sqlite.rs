use super::effects::{DriverError, Effects, Said, row};
use super::{EffectRow, Scripted, Terms, World, consume_with};
use crate::script::{Act, Script};
use crate::stores::{Folder, sqlite_pool};
use async_trait::async_trait;
use relevo_core::broker::Subscriber;
use relevo_core::dead_letters::Operate;
use relevo_core::event::{Event, EventId, NewEvent};
use relevo_core::inbox::{Answer, Consuming, Direct, Failure, Settled};
use relevo_core::outbox::{PublishIn, Store};
use relevo_core::relay::run::Destination;
use relevo_stores::sqlite::{SqliteOutbox, SqliteStore, SqlxSqlite, SyncDirect, SyncHandler};
use sqlx::{Row, SqlitePool};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const TABLE: &str = "CREATE TABLE effects (place INTEGER PRIMARY KEY AUTOINCREMENT,
    event TEXT NOT NULL, key TEXT NOT NULL, payload TEXT NOT NULL)";
const INSERT: &str = "INSERT INTO effects (event, key, payload) VALUES (?1, ?2, ?3)";
const BAD: &str = "INSERT INTO effects (event, key, payload) VALUES (NULL, NULL, NULL)";

/// Whose transactions the handlers get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SqliteHandlers {
    /// Asynchronous handlers, transactions of sqlx.
    Sqlx,
    /// Synchronous handlers, transactions of rusqlite.
    Rusqlite,
}

/// SQLite in a file of its own.
pub struct SqliteWorld {
    store: SqliteStore,
    pool: SqlitePool,
    path: PathBuf,
    handlers: SqliteHandlers,
    folder: Arc<Folder>,
}

impl SqliteWorld {
    /// A fresh one.
    pub async fn fresh(handlers: SqliteHandlers) -> Option<Self> {
        let folder = Folder::fresh().unwrap_or_else(|error| panic!("no temporary folder: {error}"));
        let path = folder.path().join("relevo.db");
        let store = SqliteStore::open(&path.to_string_lossy()).unwrap_or_else(|e| panic!("{e}"));
        store.migrate().await.unwrap_or_else(|error| panic!("{error}"));
        let pool = sqlite_pool(&path).await;
        sqlx::raw_sql(TABLE).execute(&pool).await.unwrap_or_else(|error| panic!("{error}"));
        Some(Self { store, pool, path, handlers, folder: Arc::new(folder) })
    }
}

impl Effects for SqlxSqlite {
    async fn write(tx: &mut Self::Tx<'_>, row: &EffectRow) -> Result<(), DriverError> {
        let query =
            sqlx::query(INSERT).bind(row.event.to_string()).bind(&row.key).bind(&row.payload);
        query.execute(&mut **tx).await?;
        Ok(())
    }

    async fn publish(tx: &mut Self::Tx<'_>, event: NewEvent) -> Result<(), DriverError> {
        SqliteOutbox::default().publish(tx, event).await?;
        Ok(())
    }

    async fn fail(tx: &mut Self::Tx<'_>) -> Result<(), DriverError> {
        sqlx::raw_sql(BAD).execute(&mut **tx).await?;
        Ok(())
    }
}

struct Synchronous(Script);

impl SyncHandler for Synchronous {
    fn handle(&self, event: &Event, tx: &rusqlite::Transaction<'_>) -> Answer {
        let act = self.0.act(event);
        if let Some(gate) = &self.0.gate {
            // A synchronous handler waits by looking again.
            while gate.try_acquire().map(|permit| permit.forget()).is_err() {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        let row = row(event);
        tx.execute(INSERT, (row.event.to_string(), &row.key, &row.payload))?;
        match act {
            Act::Done => Ok(Settled::Done),
            Act::Skip(why) => Ok(Settled::Skip(why.into())),
            Act::RetryAfter(delay, why) => Err(Failure::retry_after(delay, why)),
            Act::ForGood(why) => Err(Failure::for_good(why)),
            Act::Fail(why) => Err(Said(why.into()).into()),
            Act::FailStatement => {
                tx.execute(BAD, ())?;
                panic!("a statement that must fail did not")
            }
            Act::Panic => panic!("the handler panics, as the script says"),
            Act::Hang => {
                std::thread::sleep(self.0.limit * 3);
                Ok(Settled::Done)
            }
            Act::Decode => {
                event.json::<u32>()?;
                Ok(Settled::Done)
            }
            Act::Publish(event) => {
                SqliteOutbox::default().publish_sync(tx, event)?;
                Ok(Settled::Done)
            }
            Act::PublishAndFail(event) => {
                SqliteOutbox::default().publish_sync(tx, event)?;
                Err(Said("published, then failed".into()).into())
            }
        }
    }

    fn slow(&self) -> bool {
        self.0.slow
    }

    fn limit(&self) -> Duration {
        self.0.limit
    }
}

#[async_trait]
impl World for SqliteWorld {
    fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.store.clone())
    }

    fn operate(&self) -> Arc<dyn Operate> {
        Arc::new(self.store.clone())
    }

    fn destination(&self, script: &Script) -> Arc<dyn Destination> {
        match self.handlers {
            SqliteHandlers::Sqlx => {
                let driver = SqlxSqlite::new(self.pool.clone());
                Arc::new(Direct::new(driver, Scripted(script.clone())))
            }
            SqliteHandlers::Rusqlite => {
                let direct = SyncDirect::new(&self.store, Synchronous(script.clone()));
                Arc::new(direct.unwrap_or_else(|error| panic!("{error}")))
            }
        }
    }

    async fn consume(
        &self,
        name: &str,
        subscriber: Box<dyn Subscriber>,
        terms: Terms,
        script: &Script,
    ) -> Option<Consuming> {
        match self.handlers {
            SqliteHandlers::Sqlx => {
                let driver = SqlxSqlite::new(self.pool.clone());
                consume_with(self.store(), driver, name, subscriber, terms, script).await
            }
            // Synchronous handlers have `first_time`, and no loop around a broker.
            SqliteHandlers::Rusqlite => None,
        }
    }

    async fn publish(&self, events: Vec<NewEvent>) -> Vec<EventId> {
        let mut tx =
            self.pool.begin_with("BEGIN IMMEDIATE").await.unwrap_or_else(|e| panic!("{e}"));
        let ids = self.store.outbox().publish_all(&mut tx, events).await;
        let ids = ids.unwrap_or_else(|error| panic!("{error}"));
        tx.commit().await.unwrap_or_else(|error| panic!("{error}"));
        ids
    }

    async fn effects(&self) -> Vec<EffectRow> {
        let rows = sqlx::query("SELECT event, key, payload FROM effects ORDER BY place");
        let rows = rows.fetch_all(&self.pool).await.unwrap_or_else(|error| panic!("{error}"));
        let read = |row: &sqlx::sqlite::SqliteRow| {
            let id: String = row.get(0);
            let event = id.parse().unwrap_or_else(|error| panic!("{error}"));
            EffectRow { event, key: row.get(1), payload: row.get(2) }
        };
        rows.iter().map(read).collect()
    }

    async fn another(&self) -> Box<dyn World> {
        let (path, handlers, folder) = (self.path.clone(), self.handlers, self.folder.clone());
        let store = SqliteStore::open(&path.to_string_lossy()).unwrap_or_else(|e| panic!("{e}"));
        Box::new(Self { store, pool: sqlite_pool(&path).await, path, handlers, folder })
    }

    /// There is one writer at a time: if its lock can be had, nobody is.
    async fn open_transactions(&self) -> usize {
        let path = self.path.clone();
        let locked = tokio::task::spawn_blocking(move || {
            let connection = rusqlite::Connection::open(path)?;
            connection.busy_timeout(Duration::ZERO)?;
            connection.execute_batch("BEGIN IMMEDIATE; ROLLBACK")
        });
        usize::from(locked.await.is_ok_and(|result| result.is_err()))
    }
}
