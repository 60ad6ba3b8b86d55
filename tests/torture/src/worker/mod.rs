//! The process that is tortured: a relay with a handler that writes effects, or towards something outside.
//!
//! - `handler`: effects as rows, in the transaction the relay gives
//! - `outside`: publishing to the test's broker
//! - `watched`: tells which batches are in hand
//! - `tripwire`: a signal to itself at a chosen step
//! - `broken`: variants that must be caught

mod broken;
mod handler;
mod outside;
pub mod tripwire;
mod watched;

pub use broken::Broken;

use crate::database;
use crate::story::{Line, tell};
use anyhow::{Context, Result};
use handler::Effects;
use relevo::postgres::{Deadpool, PostgresStore, SqlxPostgres, TokioPostgres};
use relevo::sqlite::{SqliteStore, SqlxSqlite};
use relevo::{Direct, Relay, RelayConfig, RetryPolicy, RunningRelay, Store, Subscription};
use relevo_core::broker::ToBroker;
use relevo_core::relay::run::Destination;
use std::sync::Arc;
use std::time::Duration;
use tripwire::Tripwire;
use watched::Watched;

/// The subscription all workers share.
pub const SUBSCRIPTION: &str = "torture";

/// How a worker is to work.
#[derive(Debug, Clone, clap::Args)]
pub struct RelayOptions {
    /// URL of the log's database.
    #[arg(long)]
    pub store: String,
    /// This process's name.
    #[arg(long)]
    pub member: String,
    /// How long a silent owner keeps its lanes.
    #[arg(long, default_value_t = 1000)]
    pub lease_ms: u64,
    /// How long the server lets a handler's session idle inside its transaction.
    #[arg(long, default_value_t = 800)]
    pub idle_limit_ms: u64,
    /// Whose transactions handlers get.
    #[arg(long, value_enum, default_value_t = Driver::Deadpool)]
    pub driver: Driver,
    /// Publish to the test's broker at this address instead of handling events.
    #[arg(long)]
    pub outside: Option<String>,
    /// Most events of a batch.
    #[arg(long, default_value_t = 20)]
    pub batch: usize,
    /// Connections of the handlers' pool.
    #[arg(long, default_value_t = 8)]
    pub pool: usize,
    /// How long a handler waits for one of them.
    #[arg(long, default_value_t = 5000)]
    pub pool_wait_ms: u64,
    /// Is of the next version: knows one more change of the schema.
    #[arg(long)]
    pub next: bool,
    /// Handlers take up to so many milliseconds.
    #[arg(long, default_value_t = 2)]
    pub handler_ms: u64,
    /// Handlers fight over shared rows, so that the database must choose victims.
    #[arg(long)]
    pub conflicts: bool,
    /// Sends itself a signal at a step: `commit:before:3:kill`.
    #[arg(long)]
    pub trip: Option<Tripwire>,
    /// Works wrongly on purpose.
    #[arg(long, value_enum)]
    pub broken: Option<Broken>,
}

/// The drivers whose transactions a handler may get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Driver {
    /// deadpool-postgres.
    Deadpool,
    /// tokio-postgres.
    Tokio,
    /// sqlx, for either database.
    Sqlx,
}

/// Works until it is told to stop or dies.
pub async fn run(options: RelayOptions) -> Result<()> {
    if let Some(tripwire) = options.trip.clone() {
        tripwire::set(tripwire);
    }
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let running = tokio::select! {
        running = start(&options) => running?,
        _ = terminate.recv() => {
            tell(&Line::Stopped);
            return Ok(());
        }
    };
    tell(&Line::Ready);
    tokio::select! {
        _ = terminate.recv() => {}
        ended = until_over(&running) => anyhow::bail!("the work on {ended} ended by itself"),
    }
    running.stop_within(Duration::from_secs(20)).await.context("stopping")?;
    tell(&Line::Stopped);
    Ok(())
}

async fn until_over(running: &RunningRelay) -> String {
    loop {
        if let Some((name, _)) = running.subscriptions().find(|(_, running)| running.is_over()) {
            return name.to_owned();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Starts as a service does: while its database is not there, it tries again.
async fn start(options: &RelayOptions) -> Result<RunningRelay> {
    loop {
        match try_start(options).await {
            Ok(running) => return Ok(running),
            Err(error) => tracing::warn!(error = format!("{error:#}"), "cannot start yet"),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn try_start(options: &RelayOptions) -> Result<RunningRelay> {
    if options.store.starts_with("sqlite:") {
        let store = if options.next {
            SqliteStore::open_as_next_version(&options.store, database::NEXT_SQLITE)?
        } else {
            SqliteStore::open(&options.store)?
        };
        return start_on(options, store.clone(), sqlite(options, store)?).await;
    }
    let store = if options.next {
        database::next_postgres(&options.store)?
    } else {
        PostgresStore::connect(&options.store).await?
    };
    let destination = postgres(options, store.clone()).await?;
    start_on(options, store, destination).await
}

async fn start_on(
    options: &RelayOptions,
    store: impl Store,
    destination: Box<dyn Destination>,
) -> Result<RunningRelay> {
    for note in store.probe().await?.notes {
        tell(&Line::Note(note));
    }
    let relay = Relay::on(tripwire::Tripped::new(store)).named(&options.member);
    let relay = relay.subscribe_with(
        Subscription::new(SUBSCRIPTION),
        config(options),
        Watched::new(destination),
    );
    Ok(relay.start().await?)
}

fn config(options: &RelayOptions) -> RelayConfig {
    let mut config = RelayConfig::default();
    config.lease = Duration::from_millis(options.lease_ms);
    config.batch = options.batch;
    config.poll = (Duration::from_millis(5), Duration::from_millis(200));
    config.lazy_record = Duration::from_millis(500);
    // A flaky event must never die of bad luck: dead letters are to be exact.
    config.retry = RetryPolicy::linear(Duration::from_millis(20), Duration::from_millis(100))
        .max_attempts(10_000);
    config
}

async fn postgres(options: &RelayOptions, store: PostgresStore) -> Result<Box<dyn Destination>> {
    if let Some(address) = &options.outside {
        return Ok(outside(options, address));
    }
    Ok(match options.driver {
        Driver::Deadpool => direct(options, Arc::new(store), Deadpool::new(pool(options)?)),
        Driver::Tokio => direct(options, Arc::new(store), TokioPostgres::new(pool(options)?)),
        Driver::Sqlx => {
            let pool = sqlx::postgres::PgPoolOptions::new()
                .max_connections(options.pool as u32)
                .acquire_timeout(Duration::from_millis(options.pool_wait_ms))
                .connect(&options.store)
                .await?;
            direct(options, Arc::new(store), SqlxPostgres::new(pool))
        }
    })
}

fn pool(options: &RelayOptions) -> Result<deadpool_postgres::Pool> {
    let config: tokio_postgres::Config = options.store.parse()?;
    let manager = deadpool_postgres::Manager::new(config, tokio_postgres::NoTls);
    let pool = deadpool_postgres::Pool::builder(manager)
        .max_size(options.pool)
        .wait_timeout(Some(Duration::from_millis(options.pool_wait_ms)))
        .create_timeout(Some(Duration::from_secs(5)))
        .runtime(deadpool_postgres::Runtime::Tokio1);
    Ok(pool.build()?)
}

fn sqlite(options: &RelayOptions, store: SqliteStore) -> Result<Box<dyn Destination>> {
    if let Some(address) = &options.outside {
        return Ok(outside(options, address));
    }
    let file = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(store.path())
        .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal)
        .busy_timeout(Duration::from_secs(5));
    let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(2).connect_lazy_with(file);
    Ok(direct(options, Arc::new(store), SqlxSqlite::new(pool)))
}

fn outside(options: &RelayOptions, address: &str) -> Box<dyn Destination> {
    let early = options.broken == Some(Broken::ConfirmEarly);
    Box::new(ToBroker::new(outside::Outside::new(address, &options.member, early)))
}

fn direct<D: handler::Writes>(
    options: &RelayOptions,
    store: Arc<dyn Store>,
    driver: D,
) -> Box<dyn Destination> {
    let effects = Effects::new(options);
    let idle_limit = Duration::from_millis(options.idle_limit_ms);
    let driver = tripwire::Tripped::new(driver);
    match options.broken {
        Some(Broken::RecordFirst | Broken::RecordLast) => {
            let first = options.broken == Some(Broken::RecordFirst);
            Box::new(
                Direct::new(broken::Apart::new(driver, store, first), effects)
                    .idle_limit(idle_limit),
            )
        }
        _ => Box::new(Direct::new(driver, effects).idle_limit(idle_limit)),
    }
}

/// Ends this process when the test that started it is gone.
pub fn end_with_parent() {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::abort();
    });
}
