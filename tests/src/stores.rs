//! Harnesses: each store, fresh for every case.

use crate::writer::{self, failed};
use async_trait::async_trait;
use relevo_core::Result;
use relevo_core::dead_letters::Operate;
use relevo_core::outbox::Store;
use relevo_stores::memory::MemoryStore;
use relevo_stores::sqlite::{SqliteStore, first_time};
use relevo_testkit::conformance::{StoreHarness, StoreUnderTest, Writer};
use rusqlite::TransactionBehavior;
use sqlx::SqlitePool;
use sqlx::sqlite::SqliteConnectOptions;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use postgres::{PgDriver, PostgresHarness};

/// A folder of one test, gone with the value.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// A fresh one.
    pub fn fresh() -> std::io::Result<Self> {
        let path = std::env::temp_dir().join(format!("relevo-test-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir(&path).map(|()| Self(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A file that is still open on some systems stays in the temporary folder.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The store in memory.
pub struct MemoryHarness;

#[async_trait]
impl StoreHarness for MemoryHarness {
    async fn fresh(&self) -> Option<Box<dyn StoreUnderTest>> {
        Some(Box::new(Memory(MemoryStore::new())))
    }
}

struct Memory(MemoryStore);

#[async_trait]
impl StoreUnderTest for Memory {
    fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.0.clone())
    }

    fn operate(&self) -> Arc<dyn Operate> {
        Arc::new(self.0.clone())
    }

    async fn another(&self) -> Result<(Arc<dyn Store>, Arc<dyn Operate>)> {
        Ok((self.store(), self.operate()))
    }

    async fn begin(&self) -> Result<Box<dyn Writer>> {
        Ok(writer::InMemory::begin(&self.0))
    }

    async fn first_time(&self, consumer: &str, source: &str, id: &str) -> Result<bool> {
        let mut tx = self.0.begin();
        let first = tx.first_time(consumer, source, id).await?;
        tx.commit().map(|()| first)
    }
}

/// SQLite, with the application's transactions of either driver.
pub enum SqliteHarness {
    /// Transactions of sqlx.
    Sqlx,
    /// Transactions of rusqlite.
    Rusqlite,
}

#[async_trait]
impl StoreHarness for SqliteHarness {
    async fn fresh(&self) -> Option<Box<dyn StoreUnderTest>> {
        let folder = Folder::fresh().unwrap_or_else(|error| panic!("no temporary folder: {error}"));
        let path = folder.path().join("relevo.db");
        let store = open(&path);
        let pool = match self {
            Self::Sqlx => Some(sqlite_pool(&path).await),
            Self::Rusqlite => None,
        };
        Some(Box::new(Sqlite { store, path, pool, _folder: folder }))
    }
}

fn open(path: &Path) -> SqliteStore {
    SqliteStore::open(&path.to_string_lossy()).unwrap_or_else(|error| panic!("{error}"))
}

/// A pool of sqlx on a file.
pub async fn sqlite_pool(path: &Path) -> SqlitePool {
    let options = SqliteConnectOptions::new().filename(path).create_if_missing(true);
    SqlitePool::connect_with(options).await.unwrap_or_else(|error| panic!("{error}"))
}

struct Sqlite {
    store: SqliteStore,
    path: PathBuf,
    pool: Option<SqlitePool>,
    _folder: Folder,
}

#[async_trait]
impl StoreUnderTest for Sqlite {
    fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.store.clone())
    }

    fn operate(&self) -> Arc<dyn Operate> {
        Arc::new(self.store.clone())
    }

    async fn another(&self) -> Result<(Arc<dyn Store>, Arc<dyn Operate>)> {
        let store = open(&self.path);
        Ok((Arc::new(store.clone()), Arc::new(store)))
    }

    async fn begin(&self) -> Result<Box<dyn Writer>> {
        match &self.pool {
            Some(pool) => writer::SqlxOnSqlite::begin(pool).await,
            None => writer::begin_rusqlite(self.path.clone()).await,
        }
    }

    async fn first_time(&self, consumer: &str, source: &str, id: &str) -> Result<bool> {
        let mut connection = rusqlite::Connection::open(&self.path).map_err(failed)?;
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate);
        let tx = tx.map_err(failed)?;
        let first = first_time(&tx, consumer, source, id)?;
        tx.commit().map_err(failed).map(|()| first)
    }
}

mod postgres {
    use crate::writer::{self, failed};
    use async_trait::async_trait;
    use relevo_core::Result;
    use relevo_core::dead_letters::Operate;
    use relevo_core::outbox::Store;
    use relevo_stores::postgres::{Options, PostgresStore};
    use relevo_testkit::conformance::{StoreHarness, StoreUnderTest, Writer};
    use relevo_testkit::services::{self, Postgres};
    use sqlx::PgPool;
    use std::sync::Arc;

    /// Few enough that a test fills several segments quickly.
    const SEGMENT_ROWS: i64 = 100;

    /// Whose transactions the application uses.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum PgDriver {
        /// sqlx
        Sqlx,
        /// tokio-postgres
        TokioPostgres,
        /// deadpool-postgres
        Deadpool,
    }

    /// PostgreSQL of one major version; a database for each case.
    pub struct PostgresHarness(pub u16, pub PgDriver);

    #[async_trait]
    impl StoreHarness for PostgresHarness {
        async fn fresh(&self) -> Option<Box<dyn StoreUnderTest>> {
            let server = services::require(Postgres::shared(self.0))?;
            let url = server.create_database().unwrap_or_else(|error| panic!("{error}"));
            let sqlx = match self.1 {
                PgDriver::Sqlx => {
                    Some(PgPool::connect(&url).await.unwrap_or_else(|e| panic!("{e}")))
                }
                _ => None,
            };
            Some(Box::new(Pg { store: open(&url), driver: self.1, sqlx, url }))
        }
    }

    fn open(url: &str) -> PostgresStore {
        let mut options = Options::default();
        options.segment_rows = Some(SEGMENT_ROWS);
        PostgresStore::open(url, options).unwrap_or_else(|error| panic!("{error}"))
    }

    struct Pg {
        store: PostgresStore,
        driver: PgDriver,
        sqlx: Option<PgPool>,
        url: String,
    }

    #[async_trait]
    impl StoreUnderTest for Pg {
        fn store(&self) -> Arc<dyn Store> {
            Arc::new(self.store.clone())
        }

        fn operate(&self) -> Arc<dyn Operate> {
            Arc::new(self.store.clone())
        }

        async fn another(&self) -> Result<(Arc<dyn Store>, Arc<dyn Operate>)> {
            let store = open(&self.url);
            Ok((Arc::new(store.clone()), Arc::new(store)))
        }

        async fn begin(&self) -> Result<Box<dyn Writer>> {
            match (self.driver, &self.sqlx) {
                (_, Some(pool)) => writer::SqlxOnPostgres::begin(pool).await,
                (PgDriver::Deadpool, _) => writer::begin_deadpool(self.store.pool().clone()).await,
                _ => writer::begin_tokio_postgres(self.store.pool().clone()).await,
            }
        }

        async fn first_time(&self, consumer: &str, source: &str, id: &str) -> Result<bool> {
            let client = self.store.pool().get().await.map_err(failed)?;
            let sql = "SELECT relevo.first_time($1, $2, $3)";
            let row = client.query_one(sql, &[&consumer, &source, &id]).await.map_err(failed)?;
            Ok(row.get(0))
        }

        /// The shared server does without fsync, which is right for a test and wrong for anything else.
        fn expected_problems(&self) -> &'static [&'static str] {
            &["settings"]
        }

        fn rows_of_a_segment(&self) -> usize {
            SEGMENT_ROWS as usize
        }
    }
}
