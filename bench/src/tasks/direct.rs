//! Effects done once by handlers, against a bare loop of the same transactions with the same batch.

use super::rows::{self, Row};
use super::{Outcome, Plan};
use anyhow::{Result, ensure};
use relevo::postgres::{Deadpool, PostgresStore};
use relevo::sqlite::{SqliteStore, SyncDirect, SyncHandler};
use relevo::{Answer, Direct, Effect, Event, Handler, Relay, Settled, Subscription};
use rusqlite::{Connection, Transaction, params};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};
use tokio_postgres::Client;

/// Whose transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Driver {
    Postgres,
    Sqlite,
}

/// Events that share a transaction: Relevo's default.
const BATCH: usize = 50;
const EFFECT: &str = "INSERT INTO effects (event, payload) VALUES ($1, $2)";
const COUNT: &str = "SELECT count(*), count(DISTINCT event) FROM effects";

struct Effects;

impl Handler<Deadpool> for Effects {
    async fn handle(&self, event: &Event, effect: &mut Effect<'_, Deadpool>) -> Answer {
        let tx = effect.tx().await?;
        let statement = tx.prepare_cached(EFFECT).await?;
        tx.execute(&statement, &[&event.id.0, &event.payload.as_ref()]).await?;
        Ok(Settled::Done)
    }
}

impl SyncHandler for Effects {
    fn handle(&self, event: &Event, tx: &Transaction<'_>) -> Answer {
        let mut statement = tx.prepare_cached(EFFECT)?;
        statement.execute(params![event.id.to_string(), event.payload.as_ref()])?;
        Ok(Settled::Done)
    }
}

/// Relevo's handlers with the settings it comes with.
pub(super) async fn relay(url: &str, plan: Plan, driver: Driver, name: &str) -> Result<Outcome> {
    let subscription = Subscription::new(name);
    let start = Instant::now();
    let relay = match driver {
        Driver::Postgres => {
            let store = PostgresStore::connect(url).await?;
            let handler = Direct::new(Deadpool::new(store.pool().clone()), Effects);
            Relay::on(store).subscribe(subscription, handler).start().await?
        }
        Driver::Sqlite => {
            let store = SqliteStore::open(url)?;
            let handler = SyncDirect::new(&store, Effects)?;
            Relay::on(store).subscribe(subscription, handler).start().await?
        }
    };
    let effects = Effected::open(url, driver).await?;
    // Looked at rarely, so that looking costs nothing worth mentioning.
    while effects.newest().await? < plan.events || effects.count().await?.0 < plan.events {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let took = start.elapsed();
    relay.stop().await?;
    effects.verify(plan).await?;
    Ok(Outcome::of(plan.events, took))
}

/// The same transactions, and a cursor in each, in a bare loop.
pub(super) async fn bare(url: &str, plan: Plan, driver: Driver) -> Result<Outcome> {
    let start = Instant::now();
    match driver {
        Driver::Postgres => bare_postgres(url).await?,
        Driver::Sqlite => bare_sqlite(url)?,
    }
    let took = start.elapsed();
    Effected::open(url, driver).await?.verify(plan).await?;
    Ok(Outcome::of(plan.events, took))
}

async fn bare_postgres(url: &str) -> Result<()> {
    let mut pages = rows::read(url).await?;
    let mut client = rows::connect(url).await?;
    let effect = client.prepare(EFFECT).await?;
    let advance = client.prepare("UPDATE bare_cursor SET seq = $1").await?;
    while let Some(page) = pages.recv().await {
        for batch in page?.chunks(BATCH) {
            let tx = client.transaction().await?;
            for Row { id, payload, .. } in batch {
                tx.execute(&effect, &[id, &payload.as_ref()]).await?;
            }
            tx.execute(&advance, &[&batch.last().map_or(0, |row| row.seq)]).await?;
            tx.commit().await?;
        }
    }
    Ok(())
}

fn bare_sqlite(file: &str) -> Result<()> {
    let mut connection = open_sqlite(file)?;
    let mut at = 0i64;
    loop {
        let tx = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let before = at;
        {
            let mut read = tx.prepare_cached(
                "SELECT seq, id, topic, key, headers, payload, created_at FROM relevo_outbox WHERE seq > ?1 ORDER BY seq LIMIT ?2",
            )?;
            let mut effect = tx.prepare_cached(EFFECT)?;
            let mut rows = read.query(params![at, BATCH as i64])?;
            while let Some(row) = rows.next()? {
                at = row.get(0)?;
                effect.execute(params![row.get::<_, String>(1)?, row.get_ref(5)?.as_blob()?])?;
            }
            tx.prepare_cached("UPDATE bare_cursor SET seq = ?1")?.execute([at])?;
        }
        tx.commit()?;
        if at == before {
            return Ok(());
        }
    }
}

/// With the same durability as Relevo's own connections.
pub(crate) fn open_sqlite(file: &str) -> Result<Connection> {
    let connection = Connection::open(file.trim_start_matches("sqlite:"))?;
    connection.busy_timeout(Duration::from_secs(30))?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    Ok(connection)
}

/// The table that effects go to.
enum Effected {
    Postgres(Client),
    Sqlite(Connection),
}

impl Effected {
    async fn open(url: &str, driver: Driver) -> Result<Effected> {
        Ok(match driver {
            Driver::Postgres => Effected::Postgres(rows::connect(url).await?),
            Driver::Sqlite => Effected::Sqlite(open_sqlite(url)?),
        })
    }

    /// The newest effect's number: effects are numbered as they are made, so this tells when all may be there.
    async fn newest(&self) -> Result<u64> {
        let newest: i64 = match self {
            Effected::Postgres(client) => {
                client.query_one("SELECT coalesce(max(n), 0) FROM effects", &[]).await?.get(0)
            }
            Effected::Sqlite(connection) => {
                connection
                    .query_row("SELECT coalesce(max(n), 0) FROM effects", [], |row| row.get(0))?
            }
        };
        Ok(newest as u64)
    }

    /// Effects, and how many events they are of.
    async fn count(&self) -> Result<(u64, u64)> {
        let (all, distinct): (i64, i64) = match self {
            Effected::Postgres(client) => {
                let row = client.query_one(COUNT, &[]).await?;
                (row.get(0), row.get(1))
            }
            Effected::Sqlite(connection) => {
                connection.query_row(COUNT, [], |row| Ok((row.get(0)?, row.get(1)?)))?
            }
        };
        Ok((all as u64, distinct as u64))
    }

    async fn verify(&self, plan: Plan) -> Result<()> {
        let (all, distinct) = self.count().await?;
        ensure!(
            all == plan.events && distinct == all,
            "{all} effects of {distinct} events; {} were to be had",
            plan.events
        );
        Ok(())
    }
}
