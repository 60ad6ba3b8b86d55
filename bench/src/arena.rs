//! The servers, the log that contenders read, and what all that costs meanwhile.

use crate::cost::cpu_of_tree;
use crate::judge::Judge;
use crate::tasks::{Plan, Sink, Task, connect_nats};
use anyhow::{Context, Result, ensure};
use async_nats::jetstream::{self, consumer, stream};
use futures::StreamExt;
use lapin::options::{
    BasicConsumeOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
    QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Connection, ConnectionProperties, ExchangeKind};
use relevo::Operate;
use relevo::postgres::PostgresStore;
use relevo::sqlite::SqliteStore;
use relevo_testkit::services::{Nats, Postgres, PostgresOptions, RabbitMq};
use std::sync::OnceLock;
use std::time::Duration;
use tokio_postgres::{Client, NoTls};

/// Rows of one seeding transaction.
const SEED_ROWS: u64 = 50_000;
/// How long what was stored may take to be read back.
const READ_BACK: Duration = Duration::from_secs(60);

/// Everything contenders meet in.
pub(crate) struct Arena {
    pub(crate) postgres: Postgres,
    pub(crate) url: String,
    watcher: Client,
    nats: OnceLock<Nats>,
    rabbitmq: OnceLock<RabbitMq>,
    folder: std::path::PathBuf,
}

/// The counters of one moment.
pub(crate) struct Meter {
    pub(crate) cpu_database_s: f64,
    pub(crate) cpu_broker_s: f64,
    pub(crate) wal_bytes: f64,
    pub(crate) dead_tuples: i64,
}

impl Arena {
    /// A server that waits for its disk, as one in production does.
    pub(crate) async fn open() -> Result<Arena> {
        let options = PostgresOptions::new(15)
            .durable()
            .setting("shared_buffers", "512MB")
            .setting("max_wal_size", "8GB")
            .setting("checkpoint_timeout", "30min")
            .setting("autovacuum_naptime", "5s");
        let postgres = Postgres::start_with(&options)?;
        let url = postgres.create_database()?;
        let (watcher, connection) = tokio_postgres::connect(&url, NoTls).await?;
        tokio::spawn(connection);
        PostgresStore::connect(&url).await?.migrate().await?;
        let tables = "CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL) WITH (fillfactor = 50);
            CREATE TABLE orders (id bigserial PRIMARY KEY, account int NOT NULL, amount bigint NOT NULL);
            CREATE TABLE bare (seq bigserial PRIMARY KEY, id uuid NOT NULL, topic text NOT NULL, key text, headers jsonb NOT NULL, payload bytea NOT NULL, created_at timestamptz NOT NULL DEFAULT clock_timestamp());
            CREATE TABLE bare_cursor (seq bigint NOT NULL); INSERT INTO bare_cursor VALUES (0);
            CREATE TABLE effects (n bigserial PRIMARY KEY, event uuid NOT NULL, payload bytea NOT NULL);
            INSERT INTO account SELECT n, 0 FROM generate_series(0, 9999) n";
        watcher.batch_execute(tables).await?;
        let folder = std::env::temp_dir().join(format!("relevo-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let (nats, rabbitmq) = (OnceLock::new(), OnceLock::new());
        Ok(Arena { postgres, url, watcher, nats, rabbitmq, folder })
    }

    pub(crate) fn nats(&self) -> Result<&Nats> {
        if self.nats.get().is_none() {
            let _ = self.nats.set(Nats::start()?);
        }
        self.nats.get().context("NATS was just started")
    }

    pub(crate) fn rabbitmq(&self) -> Result<&RabbitMq> {
        if self.rabbitmq.get().is_none() {
            let _ = self.rabbitmq.set(RabbitMq::start()?);
        }
        self.rabbitmq.get().context("RabbitMQ was just started")
    }

    /// Fills the log with exactly these events.
    pub(crate) async fn seed(&self, plan: Plan) -> Result<()> {
        let fresh = "TRUNCATE relevo.outbox, relevo.cursor, relevo.parked_ref, relevo.parked_key, relevo.subscription CASCADE";
        self.watcher.batch_execute(fresh).await.context("emptying the log")?;
        let sql = format!(
            "INSERT INTO relevo.outbox (topic, key, payload)
             SELECT 'bench.made', 'key-' || n % {keys},
                    int4send((n % {keys})::int) || int8send(n / {keys}) || decode(repeat('78', {rest}), 'hex')
               FROM generate_series($1::bigint, $2::bigint) n ORDER BY n",
            keys = plan.keys,
            rest = plan.bytes.saturating_sub(crate::judge::STAMP),
        );
        let mut at = 0;
        while at < plan.events {
            let to = (at + SEED_ROWS).min(plan.events);
            self.watcher.execute(&sql, &[&(at as i64), &(to as i64 - 1)]).await?;
            at = to;
        }
        self.watcher.batch_execute("VACUUM ANALYZE relevo.outbox").await?;
        Ok(())
    }

    /// The same events in an SQLite file.
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
        {
            let mut insert = tx.prepare(
                "INSERT INTO relevo_outbox (topic, key, payload) VALUES ('bench.made', ?1, ?2)",
            )?;
            for n in 0..plan.events {
                let (key, number) = crate::judge::nth(n, plan.keys);
                let payload = crate::judge::payload(key, number, plan.bytes);
                insert.execute(rusqlite::params![format!("key-{key}"), payload.as_ref()])?;
            }
        }
        tx.commit()?;
        Ok(format!("sqlite:{}", file.display()))
    }

    /// What a turn needs before it is timed.
    pub(crate) async fn prepare(&self, task: &Task) -> Result<()> {
        match task {
            Task::Classic { .. } => {
                let fresh = "DROP TABLE IF EXISTS classic;
                    CREATE TABLE classic (id bigserial PRIMARY KEY, topic text NOT NULL, key text, headers jsonb NOT NULL, payload bytea NOT NULL, created_at timestamptz NOT NULL, published_at timestamptz);
                    INSERT INTO classic (topic, key, headers, payload, created_at) SELECT topic, key, headers, payload, created_at FROM relevo.outbox ORDER BY seq;
                    CREATE INDEX classic_pending ON classic (id) WHERE published_at IS NULL";
                self.watcher.batch_execute(fresh).await?;
                self.watcher.batch_execute("VACUUM ANALYZE classic").await?;
            }
            Task::Direct { url, driver, .. } | Task::Loop { url, driver, .. } => match driver {
                crate::tasks::Driver::Postgres => {
                    self.watcher.batch_execute("TRUNCATE effects RESTART IDENTITY").await?;
                }
                crate::tasks::Driver::Sqlite => {
                    let connection = rusqlite::Connection::open(url.trim_start_matches("sqlite:"))?;
                    connection
                        .execute_batch("DELETE FROM effects; UPDATE bare_cursor SET seq = 0")?;
                }
            },
            _ => {}
        }
        if let Some((sink, plan)) = task.sent() {
            make(sink, plan).await?;
        }
        Ok(self.watcher.batch_execute("CHECKPOINT").await?)
    }

    /// Reads back what a broker has, and clears it away.
    pub(crate) async fn verify(&self, task: &Task) -> Result<()> {
        match task.sent() {
            Some((Sink::Nats { url, stream }, plan)) => read_nats(url, stream, plan).await,
            Some((Sink::RabbitMq { url, name, .. }, plan)) => read_rabbitmq(url, name, plan).await,
            Some((Sink::Null, _)) | None => Ok(()),
        }
    }

    pub(crate) async fn meter(&self) -> Result<Meter> {
        let sql = "SELECT (pg_current_wal_insert_lsn() - '0/0')::float8,
                          (SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables WHERE schemaname = 'relevo' OR relname = 'classic')";
        let row = self.watcher.query_one(sql, &[]).await?;
        let brokers =
            [self.nats.get().and_then(Nats::pid), self.rabbitmq.get().and_then(RabbitMq::pid)];
        Ok(Meter {
            cpu_database_s: self.postgres.pid().map_or(0.0, cpu_of_tree),
            cpu_broker_s: brokers.into_iter().flatten().map(cpu_of_tree).sum(),
            wal_bytes: row.get(0),
            dead_tuples: row.get(1),
        })
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

async fn make(sink: &Sink, _plan: Plan) -> Result<()> {
    match sink {
        Sink::Null => Ok(()),
        Sink::Nats { url, stream } => {
            let jetstream = jetstream::new(connect_nats(url).await?);
            let config = stream::Config {
                name: stream.clone(),
                subjects: vec![format!("{stream}.>")],
                ..Default::default()
            };
            jetstream.create_stream(config).await?;
            Ok(())
        }
        Sink::RabbitMq { url, name, quorum } => {
            let connection = Connection::connect(url, ConnectionProperties::default()).await?;
            let channel = connection.create_channel().await?;
            let durable = ExchangeDeclareOptions { durable: true, ..Default::default() };
            let none = FieldTable::default;
            channel
                .exchange_declare(name.as_str().into(), ExchangeKind::Topic, durable, none())
                .await?;
            let mut arguments = none();
            let kind = if *quorum { "quorum" } else { "classic" };
            arguments.insert("x-queue-type".into(), AMQPValue::LongString(kind.into()));
            let durable = QueueDeclareOptions { durable: true, ..Default::default() };
            channel.queue_declare(name.as_str().into(), durable, arguments).await?;
            let bind = QueueBindOptions::default();
            channel
                .queue_bind(name.as_str().into(), name.as_str().into(), "#".into(), bind, none())
                .await?;
            connection.close(200, "made".into()).await?;
            Ok(())
        }
    }
}

async fn read_nats(url: &str, name: &str, plan: Plan) -> Result<()> {
    let jetstream = jetstream::new(connect_nats(url).await?);
    let stream = jetstream.get_stream(name).await?;
    let ordered = consumer::pull::OrderedConfig::default();
    let mut messages = stream.create_consumer(ordered).await?.messages().await?;
    let mut judge = Judge::new(plan.events, plan.keys);
    while !judge.is_complete() {
        let message = tokio::time::timeout(READ_BACK, messages.next()).await?;
        judge.see(&message.context("the stream ended")??.payload);
    }
    jetstream.delete_stream(name).await?;
    judge.verdict()
}

async fn read_rabbitmq(url: &str, name: &str, plan: Plan) -> Result<()> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    let options = BasicConsumeOptions { no_ack: true, ..Default::default() };
    let mut messages =
        channel.basic_consume(name.into(), "judge".into(), options, FieldTable::default()).await?;
    let mut judge = Judge::new(plan.events, plan.keys);
    while !judge.is_complete() {
        let message = tokio::time::timeout(READ_BACK, messages.next()).await?;
        judge.see(&message.context("the queue ended")??.data);
    }
    ensure!(judge.is_complete());
    channel.queue_delete(name.into(), QueueDeleteOptions::default()).await?;
    connection.close(200, "read".into()).await?;
    judge.verdict()
}
