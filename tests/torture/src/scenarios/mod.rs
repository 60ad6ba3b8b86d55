//! What is done to a run. Each scenario takes its bounds, so that tests run a little of it and campaigns a lot.

mod adopted;
mod adopted_conflicts;
mod commit_order;
mod conflicts;
mod consumers;
mod disk_full;
mod kills;
mod network;
mod outside;
mod promotion;
mod restore;
mod rolling;
mod sqlite_busy;
mod steps;
mod upkeep;
mod zombies;

pub use adopted::adopted;
pub use adopted_conflicts::conflicts_with_owners;
pub use commit_order::commit_order;
pub use conflicts::conflicts;
pub use consumers::{consumers, network_under_consumers, server_kills_under_consumers};
pub use disk_full::{SmallDisk, disk_full_on_postgres, disk_full_on_sqlite};
pub use kills::{kills, server_kills, server_kills_of_asynchronous_handlers, terminations};
pub use network::network;
pub use outside::outside;
pub use promotion::promoted_under_relays;
pub use restore::{moved_under_relays, restore, restore_of_a_file};
pub use rolling::rolling_schema;
pub use sqlite_busy::sqlite_busy;
pub use steps::{
    every_step, every_step_of_consumers, signals_at_steps, signals_at_steps_of_consumers,
    zombies_at_steps,
};
pub use upkeep::upkeep;
pub use zombies::{sleeper_with_a_lock, zombies};

use crate::adopted::Table;
use crate::database::{Database, PostgresDatabase, SqliteDatabase};
use crate::rig::Run;
use anyhow::Result;
use relevo_testkit::services::{Postgres, PostgresOptions, ServiceError};
use std::path::Path;

/// A server whose commits are durable, and which is quick to find deadlocks.
pub fn server(major: u16) -> Result<Postgres, ServiceError> {
    let options = PostgresOptions::new(major)
        .durable()
        .setting("deadlock_timeout", "50ms")
        .setting("max_wal_size", "256MB");
    Postgres::start_with(&options)
}

/// A database of its own on a server.
pub fn on_postgres(server: &Postgres) -> Result<Database> {
    Ok(Database::Postgres(PostgresDatabase::new(server.create_database()?)))
}

/// The same database with an outbox table of somebody else's in it, its names and states drawn from the run's seed: any
/// scenario then relays that one, by what a file of configuration says of it.
pub fn adopting(run: &Run, database: Database) -> Database {
    let postgres = matches!(database, Database::Postgres(_));
    database.adopting(Table::drawn(run.seed, postgres))
}

/// What is relayed, where a scenario makes its databases itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The log.
    Log,
    /// An outbox table of somebody else's, as [`adopting`] draws it.
    Adopted,
}

impl Source {
    fn of(self, run: &Run, database: Database) -> Database {
        match self {
            Self::Log => database,
            Self::Adopted => adopting(run, database),
        }
    }
}

/// The URL of a database for sessions with a setting of their own.
pub(crate) fn with_setting(url: &str, setting: &str) -> String {
    format!("{url}?options=-c%20{}", setting.replace('=', "%3D").replace(' ', "%5C%20"))
}

/// A database file of its own in a folder.
pub fn on_sqlite(folder: &Path) -> Database {
    Database::Sqlite(SqliteDatabase::new(format!("sqlite:{}", folder.join("torture.db").display())))
}

/// The pause between rounds of upkeep where there is to be much of it.
const UPKEEP_MS: u64 = 30;

/// A load that keeps every lane busy and leaves the machine air to breathe: take-overs are measured under it.
pub(crate) struct Load {
    pub(crate) writers: u64,
    pub(crate) args: &'static [&'static str],
}

impl Load {
    pub(crate) fn on(database: &Database) -> Self {
        match database {
            Database::Postgres(_) => Self { writers: 12, args: &["--pause-ms", "300"] },
            // One writer at a time: whoever waits inside a transaction keeps everybody waiting.
            Database::Sqlite(_) => {
                Self { writers: 3, args: &["--pause-ms", "120", "--inside-ms", "1"] }
            }
        }
    }
}
