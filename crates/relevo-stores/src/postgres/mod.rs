//! PostgreSQL 14 to 18: a log in schema `relevo`, read by ticks and windows.
//!
//! [`PostgresStore`] is the engine's side (it works the log), [`PostgresOutbox`] the publisher's (it writes into
//! the caller's own transaction); [`effects`] has one driver per kind of transaction a handler may want.

mod address;
mod adopt;
mod dead_letters;
mod doctor;
mod doorbell;
pub mod effects;
mod errors;
#[doc(hidden)]
pub mod fuzzing;
mod horizon;
mod lanes;
mod log;
mod migrate;
mod operate;
mod pooled;
mod probe;
mod publish;
mod record;
mod replication;
mod reserved;
mod retention;
mod session;
mod status;
mod store;
mod ticks;
mod tls;
mod why;

pub use adopt::Adopted;
#[cfg(feature = "sqlx")]
pub use effects::SqlxPostgres;
pub use effects::{Deadpool, TokioPostgres};
pub use migrate::print;
pub use pooled::PooledConnection;
pub use publish::PostgresOutbox;

use address::Address;
use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod, Runtime};
use errors::from_pool;
use relevo_core::{Error, Kind, Result};
use reserved::ReservedPool;
use session::Session;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How a store uses its server.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// Most connections at once, beside two that are kept for signs of life and take-overs.
    pub connections: usize,
    /// How long to wait for a connection, and for one to be made.
    pub connect_limit: Duration,
    /// How long one statement may take before its connection is given up.
    pub statement_limit: Duration,
    /// Rows of a new segment; `None` fits it to a day of the log's pace.
    pub segment_rows: Option<i64>,
    /// Segments kept ahead of the log.
    pub segments_ahead: usize,
    /// For tests of rolling upgrades only: one more schema change, as the next version would bring it along.
    #[doc(hidden)]
    pub next_change: Option<&'static str>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connections: 16,
            connect_limit: Duration::from_secs(10),
            statement_limit: Duration::from_secs(30),
            segment_rows: None,
            segments_ahead: 8,
            next_change: None,
        }
    }
}

/// A log in a PostgreSQL database. Cheap to clone; clones share pool and memory.
#[derive(Clone)]
pub struct PostgresStore {
    inner: Arc<Inner>,
}

struct Inner {
    pool: Pool,
    reserved: OnceLock<ReservedPool>,
    options: Options,
    ticks: ticks::Memory,
    doorbell: doorbell::Doorbell,
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresStore")
            .field("options", &self.inner.options)
            .finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// Opens the store at `url` (`postgres://user:password@host:port/database`) and looks whether it answers.
    /// `sslmode`, `sslrootcert`, `sslcert` and `sslkey` in the URL mean what they mean to libpq, if the feature `tls` is
    /// on.
    pub async fn connect(url: &str) -> Result<Self> {
        let store = Self::open(url, Options::default())?;
        store.session().await?.batch("SELECT").await?;
        Ok(store)
    }

    /// Opens the store at `url` without talking to it yet.
    pub fn open(url: &str, options: Options) -> Result<Self> {
        let address = Address::parse(url, &options)?;
        let pool = pool(address.clone(), &options)?;
        Ok(Self::with(pool, options, Some(address)))
    }

    /// Works over a pool of the caller's, for TLS or settings of its own. The pool needs a few connections
    /// for each subscription at work; two more are made as it makes its own, for signs of life and take-overs.
    pub fn from_pool(pool: Pool) -> Self {
        Self::with(pool, Options::default(), None)
    }

    /// [`Self::from_pool`] with options; those about connecting are the pool's own.
    pub fn from_pool_with(pool: Pool, options: Options) -> Self {
        Self::with(pool, options, None)
    }

    fn with(pool: Pool, options: Options, address: Option<Address>) -> Self {
        let (ticks, doorbell) = (ticks::Memory::default(), doorbell::Doorbell::new(address));
        Self {
            inner: Arc::new(Inner { pool, reserved: OnceLock::new(), options, ticks, doorbell }),
        }
    }

    /// The publisher's side, with the default limits.
    pub fn outbox(&self) -> PostgresOutbox {
        PostgresOutbox::new()
    }

    /// The pool, for handlers that write to the same database ([`Deadpool`], [`TokioPostgres`]).
    pub fn pool(&self) -> &Pool {
        &self.inner.pool
    }

    async fn session(&self) -> Result<Session> {
        Session::get(&self.inner, self.inner.options.statement_limit).await
    }

    /// For what must not wait behind handlers.
    async fn reserved_session(&self) -> Result<Session> {
        Session::reserved(&self.inner, self.inner.options.statement_limit).await
    }
}

impl Inner {
    fn reserved(&self) -> Result<&ReservedPool> {
        match self.reserved.get() {
            Some(pool) => Ok(pool),
            None => {
                let fresh = reserved::beside(&self.pool, self.options.connect_limit)?;
                Ok(self.reserved.get_or_init(|| fresh))
            }
        }
    }

    /// Who does not answer on one connection may not answer on others either. Those that idle, in either pool, are made
    /// anew: patience spent on each of them in turn would add up to minutes.
    fn distrust_idle_ones(&self) {
        self.pool.retain(|_, _| false);
        if let Some(reserved) = self.reserved.get() {
            reserved.retain(|_, _| false);
        }
    }
}

fn pool(address: Address, options: &Options) -> Result<Pool> {
    let manager = Manager::from_config(
        address.config,
        address.tls,
        ManagerConfig { recycling_method: RecyclingMethod::Fast },
    );
    Pool::builder(manager)
        .max_size(options.connections)
        .wait_timeout(Some(options.connect_limit))
        .create_timeout(Some(options.connect_limit))
        .runtime(Runtime::Tokio1)
        .build()
        .map_err(|cause| {
            Error::new(Kind::StoreFailed, cause.to_string()).from_adapter(errors::ADAPTER)
        })
}

/// A fresh random number, for tokens and nonces.
fn random() -> i64 {
    let (high, _) = uuid::Uuid::new_v4().as_u64_pair();
    // The version's four bits are the same in all of them: leave them out.
    ((high >> 16) as i64) << 15 ^ (uuid::Uuid::new_v4().as_u128() & 0x7FFF) as i64
}

/// A connection of the pool as it is, for handlers.
async fn object(pool: &Pool) -> Result<deadpool_postgres::Object> {
    pool.get().await.map_err(from_pool)
}
