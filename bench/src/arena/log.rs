//! A database with Relevo's schema and exactly the events of a plan.

use crate::judge;
use crate::tasks::{FILL_CLASSIC, Plan, connect};
use anyhow::{Context, Result};
use relevo::postgres::PostgresStore;
use relevo::{Operate, Retention, Start, Store, Subscription};
use std::sync::atomic::{AtomicI64, Ordering};
use tokio_postgres::Client;

/// Rows of one seeding transaction.
const SEED_ROWS: u64 = 50_000;
/// Upkeep comes after so many of them: less than the segments that a log begins with have room for.
const UPKEEP_ROWS: u64 = 8 * SEED_ROWS;

/// Tables of the contenders, beside Relevo's own.
const TABLES: &str = "
    CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL) WITH (fillfactor = 50);
    CREATE TABLE orders (id bigserial PRIMARY KEY, account int NOT NULL, amount bigint NOT NULL);
    CREATE TABLE bare (seq bigserial PRIMARY KEY, id uuid NOT NULL, topic text NOT NULL, key text, headers jsonb NOT NULL, payload bytea NOT NULL, created_at timestamptz NOT NULL DEFAULT clock_timestamp());
    CREATE TABLE bare_cursor (number int PRIMARY KEY, seq bigint NOT NULL) WITH (fillfactor = 50);
    INSERT INTO bare_cursor SELECT n, 0 FROM generate_series(0, 63) n;
    CREATE TABLE effects (n bigserial PRIMARY KEY, event uuid NOT NULL, payload bytea NOT NULL);
    INSERT INTO account SELECT n, 0 FROM generate_series(0, 9999) n";

/// One database.
pub(crate) struct Log {
    pub(crate) url: String,
    pub(crate) client: Client,
    /// The last event that was seeded.
    top: AtomicI64,
}

impl Log {
    pub(crate) async fn create(url: String) -> Result<Log> {
        PostgresStore::connect(&url).await?.migrate().await?;
        let client = connect(&url).await?;
        client.batch_execute(TABLES).await?;
        Ok(Log { url, client, top: AtomicI64::new(0) })
    }

    /// The same database over a new connection.
    pub(crate) async fn again(self) -> Result<Log> {
        Ok(Log { client: connect(&self.url).await?, ..self })
    }

    /// Fills the log with exactly these events.
    pub(crate) async fn seed(&self, plan: Plan) -> Result<()> {
        let fresh = "TRUNCATE relevo.outbox, relevo.cursor, relevo.parked_ref, relevo.parked_key, relevo.subscription CASCADE";
        self.client.batch_execute(fresh).await.context("emptying the log")?;
        self.add(plan).await
    }

    /// Adds the events of a plan.
    pub(crate) async fn add(&self, plan: Plan) -> Result<()> {
        let sql = format!(
            "INSERT INTO relevo.outbox (in_lane, topic, key, payload)
             SELECT relevo.lane_of('key-' || n % {keys}), 'bench.made', 'key-' || n % {keys},
                    int4send((n % {keys})::int) || int8send(n / {keys}) || decode(repeat('78', {rest}), 'hex')
               FROM generate_series($1::bigint, $2::bigint) n ORDER BY n",
            keys = plan.keys,
            rest = plan.bytes.saturating_sub(judge::STAMP),
        );
        let mut at = 0u64;
        while at < plan.events {
            if at.is_multiple_of(UPKEEP_ROWS) {
                upkeep(&self.url).await?;
            }
            let to = (at + SEED_ROWS).min(plan.events);
            self.client.execute(&sql, &[&(at as i64), &(to as i64 - 1)]).await?;
            at = to;
        }
        self.client.batch_execute("VACUUM ANALYZE relevo.outbox").await?;
        let top = self.client.query_one("SELECT max(seq) FROM relevo.outbox", &[]).await?;
        self.top.store(top.get::<_, Option<i64>>(0).unwrap_or(0), Ordering::Relaxed);
        Ok(())
    }

    /// Takes away what came after the seed: events that a held transaction committed late.
    pub(crate) async fn trim(&self) -> Result<()> {
        let top = self.top.load(Ordering::Relaxed);
        self.client.execute("DELETE FROM relevo.outbox WHERE seq > $1", &[&top]).await?;
        Ok(())
    }

    /// A subscription that wants nothing of what is there already.
    pub(crate) async fn subscribe_now(&self, name: &str) -> Result<()> {
        let store = PostgresStore::connect(&self.url).await?;
        Ok(store.subscribe(&Subscription::new(name).start(Start::Now)).await?)
    }

    /// The same events in the table that most teams have.
    pub(crate) async fn fill_classic(&self) -> Result<()> {
        let fresh = "DROP TABLE IF EXISTS classic;
            CREATE TABLE classic (id bigserial PRIMARY KEY, topic text NOT NULL, key text, headers jsonb NOT NULL, payload bytea NOT NULL, created_at timestamptz NOT NULL, published_at timestamptz)";
        self.client.batch_execute(fresh).await?;
        self.client.batch_execute(FILL_CLASSIC).await?;
        let index = "CREATE INDEX classic_pending ON classic (id) WHERE published_at IS NULL";
        self.client.batch_execute(index).await?;
        Ok(self.client.batch_execute("VACUUM ANALYZE classic").await?)
    }

    pub(crate) async fn empty_effects(&self) -> Result<()> {
        let empty = "TRUNCATE effects RESTART IDENTITY; UPDATE bare_cursor SET seq = 0";
        Ok(self.client.batch_execute(empty).await?)
    }
}

/// What a running relay does once a minute: segments ahead of the rows to come. Without it many rows end in the default
/// segment, and the first relay that is timed has to lead the log out of it.
pub(super) async fn upkeep(url: &str) -> Result<()> {
    let store = PostgresStore::connect(url).await?;
    store.upkeep(&Retention::default()).await.context("upkeep of the log")?;
    Ok(())
}
