//! The servers, the logs that contenders read, and what all that costs meanwhile.
//!
//! - [`log`]: a database with the events of a plan
//! - [`brokers`]: streams, queues and topics: made before a turn, read back after it
//! - [`fair`]: bare clients and Relevo's adapters write the same
//! - [`peer`]: the table that peers relay
//! - [`meter`]: CPU time, WAL, dead tuples and queries
//! - [`versions`]: which servers these are

mod brokers;
mod fair;
mod log;
mod meter;
mod peer;
mod versions;

pub(crate) use brokers::{fill, receive};
pub(crate) use log::Log;
pub(crate) use meter::{Meter, queries};
pub(crate) use versions::debezium;

use crate::figure::Results;
use crate::ledger::Ledger;
use crate::tasks::{Driver, Plan, Task, open_sqlite};
use anyhow::{Context, Result};
use relevo::Operate;
use relevo::sqlite::SqliteStore;
use relevo_testkit::services::{self, Kafka, Nats, Postgres, PostgresOptions, RabbitMq};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Everything contenders meet in.
pub(crate) struct Arena {
    pub(crate) postgres: Postgres,
    pub(crate) main: Log,
    pub(crate) queries_are: &'static str,
    nats: OnceLock<Option<Nats>>,
    rabbitmq: OnceLock<Option<RabbitMq>>,
    kafka: OnceLock<Option<Kafka>>,
    /// What this run could not have.
    missing: Mutex<Vec<String>>,
    ledger: Mutex<Ledger>,
    folder: std::path::PathBuf,
}

impl Arena {
    /// A server that waits for its disk, as one in production does.
    pub(crate) async fn open(mut ledger: Ledger) -> Result<Arena> {
        let options = PostgresOptions::new(15)
            .durable()
            .setting("shared_buffers", "512MB")
            .setting("max_wal_size", "8GB")
            .setting("checkpoint_timeout", "30min")
            .setting("autovacuum_naptime", "5s");
        let postgres = Postgres::start_with(&options)?;
        let main = Log::create(postgres.create_database()?).await?;
        let main = count_statements(&postgres, main).await?;
        let queries_are = meter::queries_are(&main.client).await?;
        let version = main.client.query_one("SHOW server_version", &[]).await?;
        ledger.has("PostgreSQL", Some(version.get(0)));
        ledger.queries_are(queries_are);
        let folder = std::env::temp_dir().join(format!("relevo-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let (nats, rabbitmq, kafka) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        let (missing, ledger) = (Mutex::default(), Mutex::new(ledger));
        Ok(Arena { postgres, main, queries_are, nats, rabbitmq, kafka, missing, ledger, folder })
    }

    /// Another database on the same server.
    pub(crate) async fn another_log(&self) -> Result<Log> {
        let log = Log::create(self.postgres.create_database()?).await?;
        if self.queries_are.starts_with("statements") {
            log.client.batch_execute("CREATE EXTENSION pg_stat_statements").await?;
        }
        Ok(log)
    }

    /// NATS, started when it is first needed; `None` if it is not on this machine, which is told in the end.
    pub(crate) fn nats(&self) -> Option<&Nats> {
        self.nats.get_or_init(|| self.had("NATS", Nats::start(), versions::nats)).as_ref()
    }

    pub(crate) fn rabbitmq(&self) -> Option<&RabbitMq> {
        let start = || self.had("RabbitMQ", RabbitMq::start(), versions::rabbitmq);
        self.rabbitmq.get_or_init(start).as_ref()
    }

    pub(crate) fn kafka(&self) -> Option<&Kafka> {
        let start = || self.had("Apache Kafka", Kafka::start(), versions::kafka);
        self.kafka.get_or_init(start).as_ref()
    }

    fn had<T>(
        &self,
        name: &str,
        server: services::Result<T>,
        version: fn(&T) -> Option<String>,
    ) -> Option<T> {
        let server = services::require(server);
        match &server {
            Some(server) => self.has(name, version(server)),
            None => self.lacks(name, format!("{name} is not on this machine")),
        }
        server
    }

    /// Something can be measured here.
    pub(crate) fn has(&self, name: &str, version: Option<String>) {
        self.ledger().has(name, version);
    }

    /// Something cannot be measured here: named, never faked.
    pub(crate) fn lacks(&self, name: &str, why: String) {
        eprintln!("COULD NOT BE HAD: {why}");
        self.ledger().lacks(name, &why);
        self.missing.lock().unwrap_or_else(PoisonError::into_inner).push(why);
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A contest is over: its figures are safe.
    pub(crate) fn keep(&self, results: &Results, rounds: usize) -> Result<()> {
        self.ledger().keep(results, rounds)
    }

    /// With what was had and what was not, even if nothing was measured.
    pub(crate) fn close_ledger(&self) -> Result<()> {
        self.ledger().write()
    }

    pub(crate) fn missing(&self) -> Vec<String> {
        self.missing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn broker_pids(&self) -> impl Iterator<Item = u32> {
        let nats = self.nats.get().and_then(Option::as_ref).and_then(Nats::pid);
        let rabbitmq = self.rabbitmq.get().and_then(Option::as_ref).and_then(RabbitMq::pid);
        let kafka = self.kafka.get().and_then(Option::as_ref).and_then(Kafka::pid);
        [nats, rabbitmq, kafka].into_iter().flatten()
    }

    /// The events of a plan in an SQLite file.
    pub(crate) async fn seed_sqlite(&self, plan: Plan) -> Result<String> {
        let file = self.folder.join("bench.db");
        for suffix in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{suffix}", file.display()));
        }
        let store = SqliteStore::open(&file.display().to_string())?;
        store.migrate().await?;
        let mut connection = rusqlite::Connection::open(&file)?;
        connection.execute_batch("CREATE TABLE effects (n INTEGER PRIMARY KEY, event TEXT NOT NULL, payload BLOB NOT NULL);
             CREATE TABLE bare_cursor (seq INTEGER NOT NULL); INSERT INTO bare_cursor VALUES (0)")?;
        let tx = connection.transaction()?;
        let sql = "INSERT INTO relevo_outbox (topic, key, payload) VALUES ('bench.made', ?1, ?2)";
        for n in 0..plan.events {
            let (key, number) = crate::judge::nth(n, plan.keys);
            let payload = crate::judge::payload(key, number, plan.bytes);
            let row = rusqlite::params![format!("key-{key}"), payload.as_ref()];
            tx.prepare_cached(sql)?.execute(row)?;
        }
        tx.commit()?;
        Ok(format!("sqlite:{}", file.display()))
    }

    /// What a turn needs before it is timed. Upkeep too: writers of the turns before have used segments up.
    pub(crate) async fn prepare(&self, task: &Task) -> Result<()> {
        if let Some(url) = postgres_of(task) {
            log::upkeep(url).await?;
        }
        match task {
            Task::Classic { .. } => {
                self.main.trim().await?;
                self.main.fill_classic().await?;
            }
            Task::Direct { url, driver: Driver::Sqlite, .. }
            | Task::Loop { url, driver: Driver::Sqlite, .. } => {
                let empty = "DELETE FROM effects; UPDATE bare_cursor SET seq = 0";
                open_sqlite(url)?.execute_batch(empty)?;
            }
            Task::Direct { .. } | Task::Loop { .. } | Task::Consume { .. } => {
                self.main.empty_effects().await?;
            }
            Task::Relay { .. } => self.main.trim().await?,
            Task::Latency { .. } => self.main.empty_effects().await?,
            Task::Idle { subscription, .. }
            | Task::TakeOver { subscription, .. }
            | Task::Write { beside: Some((_, subscription)), .. } => {
                self.main.subscribe_now(subscription).await?;
            }
            Task::Peer { url, plan, peer, rate, .. } => {
                peer::prepare(url, peer, *plan, rate.is_none()).await?;
            }
            _ => {}
        }
        if let Some((sink, plan)) = task.sink() {
            brokers::make(sink).await.context("making where events go")?;
            if let Task::Consume { .. } = task {
                fill(sink, plan).await.context("filling the broker")?;
            }
        }
        Ok(self.main.client.batch_execute("CHECKPOINT").await?)
    }

    pub(crate) async fn meter(&self, task: &Task) -> Result<Meter> {
        self.counters(postgres_of(task).unwrap_or(&self.main.url)).await
    }

    /// Reads back what a broker has, and clears it away.
    pub(crate) async fn verify(&self, task: &Task) -> Result<()> {
        if let Task::Peer { url, peer, .. } = task {
            peer::clear(url, peer).await?;
        }
        match (task, task.sink()) {
            // Consumed, or received: judged where it was.
            (
                Task::Consume { .. } | Task::Latency { .. } | Task::TakeOver { .. },
                Some((sink, _)),
            ) => brokers::clear(sink).await,
            (_, Some((sink, plan))) => {
                brokers::read_back(sink, plan).await.context("what the broker has")?;
                brokers::clear(sink).await
            }
            (_, None) => Ok(()),
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The PostgreSQL database it works on.
fn postgres_of(task: &Task) -> Option<&str> {
    task.url().filter(|url| url.starts_with("postgres"))
}

/// Statements can be counted where the server comes with the extension, which has to be there from its start.
async fn count_statements(postgres: &Postgres, log: Log) -> Result<Log> {
    let there =
        "SELECT EXISTS (SELECT FROM pg_available_extensions WHERE name = 'pg_stat_statements')";
    if !log.client.query_one(there, &[]).await?.get::<_, bool>(0) {
        return Ok(log);
    }
    let preload = "ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements'";
    log.client.batch_execute(preload).await?;
    postgres.restart()?;
    let log = log.again().await?;
    log.client.batch_execute("CREATE EXTENSION pg_stat_statements").await?;
    Ok(log)
}
