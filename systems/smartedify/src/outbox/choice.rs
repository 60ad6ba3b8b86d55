//! Which broker the outbox goes to: chosen before the start and kept beside the table. Another one may be chosen only while
//! nothing is under way to the first; else the later events of a tenant could arrive through it before the earlier ones.

use super::Outbox;
use crate::broker::Broker;
use crate::db::{Conn, Db, Sql};
use anyhow::{Result, ensure};

/// Whoever chooses at the same time waits. SQLite's transaction has the write lock already.
const ALONE: Sql = Sql::each("LOCK TABLE outbox_broker IN EXCLUSIVE MODE", "SELECT 1");
const CHOSEN: Sql = Sql::both("SELECT broker FROM outbox_broker");
const CHOOSE: Sql = Sql::both(
    "INSERT INTO outbox_broker (one, broker) VALUES (1, $1)
     ON CONFLICT (one) DO UPDATE SET broker = excluded.broker, chosen_at = CURRENT_TIMESTAMP",
);
const PENDING: Sql = Sql::both("SELECT count(*) FROM outbox_events WHERE published_at IS NULL");

/// Chooses this broker, or says why it cannot be chosen now.
pub async fn choose(db: &Db, outbox: &Outbox, broker: &Broker) -> Result<()> {
    let (wanted, relays) = (broker.name(), outbox.relays_at_work().await?);
    let mut tx = db.begin().await?;
    let mut conn = tx.conn();
    conn.run(&ALONE, &[]).await?;
    let chosen: Option<(String,)> = conn.row(&CHOSEN, &[]).await?;
    match chosen {
        Some((chosen,)) if chosen == wanted => return Ok(()),
        Some((chosen,)) => may_change(&mut conn, &chosen, &wanted, relays).await?,
        None => {}
    }
    conn.run(&CHOOSE, &[wanted.into()]).await?;
    Ok(tx.commit().await?)
}

async fn may_change(conn: &mut Conn<'_>, chosen: &str, wanted: &str, relays: usize) -> Result<()> {
    let pending: Option<(i64,)> = conn.row(&PENDING, &[]).await?;
    let pending = pending.map_or(0, |(pending,)| pending);
    ensure!(
        pending == 0,
        "the outbox goes to {chosen} and {pending} of its events are pending: through {wanted} later ones could overtake \
         them. Let {chosen} take them, then start with {wanted}"
    );
    ensure!(
        relays == 0,
        "the outbox goes to {chosen} and {relays} of its relays are at work: stop them, then start with {wanted}"
    );
    Ok(())
}
