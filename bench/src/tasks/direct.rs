//! Effects done once by handlers, against a bare loop of the same transactions with the same batch.

use super::bare::part_of;
use super::effects::{BATCH, Driver, EFFECT, Effected, Effects, open_sqlite};
use super::rows::{self, Pages, Row};
use super::{Outcome, Plan};
use anyhow::Result;
use relevo::postgres::{Deadpool, PostgresStore};
use relevo::sqlite::{SqliteStore, SyncDirect};
use relevo::{Direct, Relay, Subscription};
use rusqlite::params;
use std::time::Instant;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_postgres::{Client, Statement};

/// Rows that wait for a loop: enough that none waits for the others' rows to be read.
const AHEAD: usize = 20 * BATCH;

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

/// The same transactions, and a cursor in each, in bare loops side by side.
pub(super) async fn bare(url: &str, plan: Plan, driver: Driver, loops: usize) -> Result<Outcome> {
    let start = Instant::now();
    match driver {
        Driver::Postgres => bare_postgres(url, loops).await?,
        Driver::Sqlite => bare_sqlite(url)?,
    }
    let took = start.elapsed();
    Effected::open(url, driver).await?.verify(plan).await?;
    Ok(Outcome::of(plan.events, took))
}

/// Each loop has a connection and the rows of its keys.
async fn bare_postgres(url: &str, loops: usize) -> Result<()> {
    let (mut working, mut rows_of) = (JoinSet::new(), Vec::new());
    for number in 0..loops {
        let (sender, rows) = mpsc::channel(AHEAD);
        working.spawn(Loop::open(url, number as i32).await?.work(rows));
        rows_of.push(sender);
    }
    hand_out(rows::read(url).await?, rows_of).await?;
    while let Some(worked) = working.join_next().await {
        worked??;
    }
    Ok(())
}

/// Rows of a key go to the same loop, in their order. A loop that fails takes no more, and says why itself.
async fn hand_out(mut pages: Pages, rows_of: Vec<mpsc::Sender<Row>>) -> Result<()> {
    while let Some(page) = pages.recv().await {
        for row in page? {
            let number = part_of(&row.message.key, rows_of.len());
            if rows_of[number].send(row).await.is_err() {
                return Ok(());
            }
        }
    }
    Ok(())
}

struct Loop {
    client: Client,
    effect: Statement,
    advance: Statement,
    number: i32,
}

impl Loop {
    async fn open(url: &str, number: i32) -> Result<Loop> {
        let client = rows::connect(url).await?;
        let effect = client.prepare(EFFECT).await?;
        let advance = client.prepare("UPDATE bare_cursor SET seq = $1 WHERE number = $2").await?;
        Ok(Loop { client, effect, advance, number })
    }

    /// Whole batches, and what is left in the end.
    async fn work(mut self, mut rows: mpsc::Receiver<Row>) -> Result<()> {
        let mut batch = Vec::with_capacity(BATCH);
        while let Some(row) = rows.recv().await {
            batch.push(row);
            if batch.len() == BATCH {
                self.transaction(&batch).await?;
                batch.clear();
            }
        }
        if !batch.is_empty() {
            self.transaction(&batch).await?;
        }
        Ok(())
    }

    async fn transaction(&mut self, batch: &[Row]) -> Result<()> {
        let tx = self.client.transaction().await?;
        for Row { message, .. } in batch {
            tx.execute(&self.effect, &[&message.id, &message.payload.as_ref()]).await?;
        }
        let last = batch.last().map_or(0, |row| row.seq);
        tx.execute(&self.advance, &[&last, &self.number]).await?;
        Ok(tx.commit().await?)
    }
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
