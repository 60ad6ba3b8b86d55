//! The table that effects go to, and what must be in it in the end.

use super::Plan;
use super::limit::Limit;
use super::rows;
use crate::judge::Judge;
use anyhow::{Result, ensure};
use futures::TryStreamExt;
use relevo::postgres::Deadpool;
use relevo::sqlite::SyncHandler;
use relevo::{Answer, Effect, Event, Handler, Settled};
use rusqlite::{Connection, Transaction, params};
use serde::{Deserialize, Serialize};
use std::pin::pin;
use std::time::Duration;
use tokio_postgres::Client;

/// Whose transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Driver {
    Postgres,
    Sqlite,
}

/// Events that share a transaction: Relevo's default.
pub(crate) const BATCH: usize = 50;
pub(crate) const EFFECT: &str = "INSERT INTO effects (event, payload) VALUES ($1, $2)";
const NEWEST: &str = "SELECT coalesce(max(n), 0) FROM effects";
const COUNT: &str = "SELECT count(*), count(DISTINCT event) FROM effects";
const IN_ORDER: &str = "SELECT payload FROM effects ORDER BY n";

/// A handler whose effect is a row.
pub(crate) struct Effects;

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

/// With the same durability as Relevo's own connections.
pub(crate) fn open_sqlite(file: &str) -> Result<Connection> {
    let connection = Connection::open(file.trim_start_matches("sqlite:"))?;
    connection.busy_timeout(Duration::from_secs(30))?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    Ok(connection)
}

/// What was done.
pub(crate) enum Effected {
    Postgres(Client),
    Sqlite(Connection),
}

impl Effected {
    pub(crate) async fn open(url: &str, driver: Driver) -> Result<Effected> {
        Ok(match driver {
            Driver::Postgres => Effected::Postgres(rows::connect(url).await?),
            Driver::Sqlite => Effected::Sqlite(open_sqlite(url)?),
        })
    }

    /// Waits until so many are there; looks rarely, so that looking costs nothing worth mentioning.
    pub(crate) async fn wait_for(&self, events: u64) -> Result<()> {
        let done = async || match self.newest().await? {
            newest if newest < events => Ok(newest),
            _ => Ok(self.count().await?.0),
        };
        Limit::of(events).look(Duration::from_millis(20), done).await
    }

    /// The newest effect's number: effects are numbered as they are made, so this tells when all may be there.
    async fn newest(&self) -> Result<u64> {
        let newest: i64 = match self {
            Effected::Postgres(client) => client.query_one(NEWEST, &[]).await?.get(0),
            Effected::Sqlite(connection) => connection.query_row(NEWEST, [], |row| row.get(0))?,
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

    /// Every event had its effect once, and each key's were done in order.
    pub(crate) async fn verify(&self, plan: Plan) -> Result<()> {
        let (all, distinct) = self.count().await?;
        ensure!(
            all == plan.events && distinct == all,
            "{all} effects of {distinct} events; {} were to be had",
            plan.events
        );
        let mut judge = Judge::new(plan.events, plan.keys);
        self.each_in_order(|payload| judge.see(payload)).await?;
        judge.verdict()
    }

    async fn each_in_order(&self, mut see: impl FnMut(&[u8])) -> Result<()> {
        match self {
            Effected::Postgres(client) => {
                let none: [&(dyn tokio_postgres::types::ToSql + Sync); 0] = [];
                let mut rows = pin!(client.query_raw(IN_ORDER, none).await?);
                while let Some(row) = rows.try_next().await? {
                    see(row.get(0));
                }
            }
            Effected::Sqlite(connection) => {
                let mut statement = connection.prepare(IN_ORDER)?;
                let mut rows = statement.query([])?;
                while let Some(row) = rows.next()? {
                    see(row.get_ref(0)?.as_blob()?);
                }
            }
        }
        Ok(())
    }
}
