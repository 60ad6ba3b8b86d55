//! Behind a broker: Relevo receives, hands each event to [`apply`] with a transaction, and acknowledges after its commit.
//!
//! Relevo's own inbox absorbs copies before the handler sees them. `processed_event_ids` is the document's table: it says
//! the same to whoever reads this database, and is all that the direct way has.

use super::directory::{Applied, CONSUMER, NotApplied, apply};
use crate::broker::Broker;
use crate::db::{Conn, Db};
use crate::migrate;
use anyhow::Result;
use relevo::postgres::{PostgresStore, SqlxPostgres};
use relevo::sqlite::{SqliteStore, SqlxSqlite};
use relevo::{
    Answer, Consumer, Consuming, Effect, Event, Failure, Handler, MemberId, Operate, Settled,
};
use std::sync::Arc;

/// The handler.
#[derive(Debug, Clone, Copy)]
pub struct Directory;

impl Handler<SqlxPostgres> for Directory {
    async fn handle(&self, event: &Event, effect: &mut Effect<'_, SqlxPostgres>) -> Answer {
        let tx = effect.tx().await?;
        answer(apply(&mut Conn::Postgres(tx), event).await)
    }
}

impl Handler<SqlxSqlite> for Directory {
    async fn handle(&self, event: &Event, effect: &mut Effect<'_, SqlxSqlite>) -> Answer {
        let tx = effect.tx().await?;
        answer(apply(&mut Conn::Sqlite(tx), event).await)
    }
}

fn answer(applied: Result<Applied, NotApplied>) -> Answer {
    match applied {
        Ok(Applied::Now) => Ok(Settled::Done),
        Ok(Applied::Before) => Ok(Settled::Skip("it is in processed_event_ids".into())),
        Err(NotApplied::Invalid(why)) => Err(Failure::for_good(why.to_string())),
        Err(NotApplied::Database(error)) => Err(error.into()),
    }
}

/// Starts consuming from `broker` into the database at `url`.
pub async fn start(url: &str, broker: &Broker, member: &str) -> Result<Consuming> {
    let db = Db::open(url).await?;
    migrate::downstream(&db).await?;
    let (subscriber, member) = (broker.subscriber(CONSUMER)?, MemberId(member.into()));
    Ok(match db {
        Db::Postgres(pool) => {
            let store = PostgresStore::connect(url).await?;
            store.migrate().await?;
            let driver = SqlxPostgres::new(pool);
            Consumer::new(CONSUMER, subscriber, driver, Directory)
                .start(Arc::new(store), member)
                .await?
        }
        Db::Sqlite(pool) => {
            let store = SqliteStore::open(url)?;
            store.migrate().await?;
            let driver = SqlxSqlite::new(pool);
            Consumer::new(CONSUMER, subscriber, driver, Directory)
                .start(Arc::new(store), member)
                .await?
        }
    })
}
