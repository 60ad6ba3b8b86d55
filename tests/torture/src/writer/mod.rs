//! Processes that publish: business transactions of many shapes, each told of before it commits.
//!
//! Every transaction that changes a key counts the key's version up under its row lock, so versions are in commit
//! order, without gaps. Most lock first and publish then; some publish first, and may be overtaken while they wait.

mod plan;
mod postgres;
mod sqlite;

pub use plan::{HELD, KEYS, Plan, Shape};
pub(crate) use postgres::APPLICATION as WRITER_SESSIONS;

use crate::adopted::Table;
use crate::story::{Fate, Line, Published, now_ns, tell};
use crate::worker::Broken;
use anyhow::Result;
use relevo_core::clock::Rng;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::watch;
use uuid::Uuid;

/// How a writer is to write.
#[derive(Debug, Clone, clap::Args)]
pub struct WriterOptions {
    /// URL of the database.
    #[arg(long)]
    pub store: String,
    /// What the run is decided by.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How many at once.
    #[arg(long, default_value_t = 8)]
    pub writers: u64,
    /// The longest pause between two transactions of one of them.
    #[arg(long, default_value_t = 40)]
    pub pause_ms: u64,
    /// The longest wait inside a transaction.
    #[arg(long, default_value_t = 10)]
    pub inside_ms: u64,
    /// One more writer holds its transactions open for so long; on SQLite everybody else waits for it.
    #[arg(long, default_value_t = 0)]
    pub hold_ms: u64,
    /// Also prepare transactions and commit them later.
    #[arg(long)]
    pub two_phase: bool,
    /// Half of the events fail at first, or for good.
    #[arg(long)]
    pub trouble: bool,
    /// No event fails: every batch has effects.
    #[arg(long, conflicts_with = "trouble")]
    pub plain: bool,
    /// Publishes as the next version of the schema allows.
    #[arg(long)]
    pub next: bool,
    /// Inserts into an outbox table of its own, which this file of configuration adopts, instead of publishing.
    #[arg(long)]
    pub adopt: Option<PathBuf>,
    /// Works wrongly on purpose.
    #[arg(long, value_enum)]
    pub broken: Option<Broken>,
}

/// Writes until it is told to stop.
pub async fn run(options: WriterOptions) -> Result<()> {
    let (stop, stopped) = watch::channel(false);
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::spawn(async move {
        terminate.recv().await;
        stop.send_replace(true);
    });
    let table = options.adopt.as_deref().map(Table::configured).transpose()?;
    tell(&Line::Ready);
    if options.store.starts_with("sqlite:") {
        sqlite::run(&options, table, stopped).await?;
    } else {
        postgres::run(&options, table, stopped).await?;
    }
    tell(&Line::Stopped);
    Ok(())
}

/// An event of a plan, as it is told and as it is published.
fn published(key: &str, fate: Fate, place: u32, locked: bool) -> Published {
    let id = Uuid::now_v7();
    Published { id, key: key.to_owned(), fate, version: 0, place, locked, begun_ns: now_ns() }
}

async fn pause(rng: &mut Rng, longest_ms: u64) {
    tokio::time::sleep(Duration::from_micros(rng.below(longest_ms * 1000 + 1))).await;
}
