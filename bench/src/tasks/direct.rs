//! Effects done once by handlers, against a bare loop of the same transactions with the same batch.

use super::effects::{BATCH, Driver, EFFECT, Effected, Effects, open_sqlite};
use super::rows::{self, Row};
use super::{Outcome, Plan};
use anyhow::Result;
use relevo::postgres::{Deadpool, PostgresStore};
use relevo::sqlite::{SqliteStore, SyncDirect};
use relevo::{Direct, Relay, Subscription};
use rusqlite::params;
use std::time::Instant;

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
    effects.wait_for(plan.events).await?;
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
            for Row { message, .. } in batch {
                tx.execute(&effect, &[&message.id, &message.payload.as_ref()]).await?;
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
