//! The process that is tortured: a relay with a handler that writes effects, or towards something outside; or a consumer.
//!
//! - `work`: what it does, by its options
//! - `handler`: effects as rows, in the transaction the relay or the inbox gives
//! - `consumer`: receiving from the test's broker
//! - `outside`: publishing to the test's broker
//! - `watched`: tells which batches are in hand
//! - `tripwire`: a signal to itself at a chosen step
//! - `broken`: variants that must be caught

mod broken;
mod consumer;
mod handler;
mod outside;
pub mod tripwire;
mod watched;
mod work;

pub use broken::Broken;

use crate::adopted::{self, Table};
use crate::database;
use crate::story::{Line, tell};
use anyhow::{Context, Result};
use relevo::postgres::PostgresStore;
use relevo::sqlite::SqliteStore;
use relevo::{
    Consuming, Relay, RelayConfig, Retention, RetryPolicy, RunningRelay, Store, Subscription,
};
use relevo_core::relay::run::Destination;
use std::path::PathBuf;
use std::time::Duration;
use tokio::task::JoinSet;
use tripwire::{Tripped, Tripwire};
use watched::Watched;
use work::Work;

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
    /// Consume from the test's broker at this address instead of relaying.
    #[arg(long, conflicts_with = "outside")]
    pub consume: Option<String>,
    /// Relay the table that this file of configuration adopts instead of the log.
    #[arg(long, requires = "outside")]
    pub adopt: Option<PathBuf>,
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
    /// Handlers are slow: each event has a transaction of its own, begun by its first use.
    #[arg(long)]
    pub slow: bool,
    /// Every so many milliseconds all that everybody has had is dropped; the log has segments of a few rows. 0 leaves
    /// upkeep as it is.
    #[arg(long, default_value_t = 0)]
    pub upkeep_ms: u64,
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
        () = until_over(&running) => anyhow::bail!("the work ended by itself"),
    }
    running.stop().await.context("stopping")?;
    tell(&Line::Stopped);
    Ok(())
}

/// A relay, with the upkeep beside it, or a consumer at work.
enum Working {
    Relay(RunningRelay, JoinSet<()>),
    Consumer(Consuming),
}

impl Working {
    fn is_over(&self) -> bool {
        match self {
            Self::Relay(relay, _) => relay.subscriptions().any(|(_, running)| running.is_over()),
            Self::Consumer(consuming) => consuming.is_over(),
        }
    }

    async fn stop(self) -> relevo::Result<()> {
        let limit = Duration::from_secs(20);
        match self {
            Self::Relay(relay, upkeep) => {
                drop(upkeep);
                relay.stop_within(limit).await
            }
            Self::Consumer(consuming) => consuming.stop(limit).await,
        }
    }
}

async fn until_over(working: &Working) {
    while !working.is_over() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Starts as a service does: while its database is not there, it tries again.
async fn start(options: &RelayOptions) -> Result<Working> {
    loop {
        match try_start(options).await {
            Ok(running) => return Ok(running),
            Err(error) => tracing::warn!(error = format!("{error:#}"), "cannot start yet"),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn try_start(options: &RelayOptions) -> Result<Working> {
    if options.store.starts_with("sqlite:") {
        let store = if options.next {
            SqliteStore::open_as_next_version(&options.store, database::NEXT_SQLITE)?
        } else {
            SqliteStore::open(&options.store)?
        };
        let destination = match work::on_sqlite(options, &store).await? {
            Work::Consumer(consuming) => return Ok(Working::Consumer(consuming)),
            Work::Relay(destination) => destination,
        };
        return match adopted(options)? {
            Some(table) => {
                let adopted = store.adopt(adopted::NAME, table.mapping().clone()).await?;
                start_on(options, adopted, destination).await
            }
            None => start_on(options, store, destination).await,
        };
    }
    let store = if options.next {
        database::next_postgres(&options.store)?
    } else if options.upkeep_ms > 0 {
        database::postgres_in_small_segments(&options.store)?
    } else {
        PostgresStore::connect(&options.store).await?
    };
    let destination = match work::on_postgres(options, &store).await? {
        Work::Consumer(consuming) => return Ok(Working::Consumer(consuming)),
        Work::Relay(destination) => destination,
    };
    match adopted(options)? {
        Some(table) => {
            let adopted = store.adopt(adopted::NAME, table.mapping().clone()).await?;
            start_on(options, adopted, destination).await
        }
        None => start_on(options, store, destination).await,
    }
}

/// The table to relay instead of the log; somebody may have overlooked its key.
fn adopted(options: &RelayOptions) -> Result<Option<Table>> {
    let table = options.adopt.as_deref().map(Table::configured).transpose()?;
    Ok(table.map(|table| match options.broken {
        Some(Broken::KeyOverlooked) => table.without_key(),
        _ => table,
    }))
}

async fn start_on(
    options: &RelayOptions,
    store: impl Store + Clone,
    destination: Box<dyn Destination>,
) -> Result<Working> {
    for note in store.probe().await?.notes {
        tell(&Line::Note(note));
    }
    let store = Tripped::new(store);
    let mut upkeep = JoinSet::new();
    if options.upkeep_ms > 0 {
        let every = Duration::from_millis(options.upkeep_ms);
        upkeep.spawn(keep_short(store.clone(), retention(options), every));
    }
    let relay = Relay::on(store).named(&options.member).retention(retention(options));
    let relay = relay.subscribe_with(
        Subscription::new(SUBSCRIPTION),
        config(options),
        Watched::new(destination),
    );
    Ok(Working::Relay(relay.start().await?, upkeep))
}

/// What is kept for how long; where there is upkeep all the time, no event that all have had.
fn retention(options: &RelayOptions) -> Retention {
    let mut retention = Retention::default();
    if options.upkeep_ms > 0 {
        retention.events = Duration::ZERO;
    }
    retention
}

/// Upkeep again and again, besides that of the relay itself.
async fn keep_short(store: impl Store, retention: Retention, every: Duration) {
    loop {
        if let Err(error) = store.upkeep(&retention).await {
            tracing::warn!(%error, "upkeep failed");
        }
        tokio::time::sleep(every).await;
    }
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

/// Ends this process when the test that started it is gone.
pub fn end_with_parent() {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::abort();
    });
}
