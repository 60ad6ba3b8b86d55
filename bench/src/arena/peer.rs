//! The table of Debezium's layout, and the slot that Debezium reads.

use super::Log;
use crate::tasks::{PEER_TABLE, Peer, Plan, connect};
use anyhow::Result;

impl Log {
    pub(crate) async fn make_peer_table(&self) -> Result<()> {
        let sql = format!(
            "CREATE TABLE {PEER_TABLE} (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype text NOT NULL, aggregateid text NOT NULL, type text NOT NULL, payload text NOT NULL, seq bigserial);
             CREATE PUBLICATION dbz_pub FOR TABLE {PEER_TABLE}"
        );
        Ok(self.client.batch_execute(&sql).await?)
    }
}

/// The table as it is before a turn: empty, or with the rows of the plan, which the slot sees as changes.
pub(super) async fn prepare(url: &str, peer: &Peer, plan: Plan, filled: bool) -> Result<()> {
    let client = connect(url).await?;
    client.batch_execute(&format!("TRUNCATE {PEER_TABLE}")).await?;
    if let Peer::Debezium { slot, .. } = peer {
        let make = "SELECT pg_create_logical_replication_slot($1, 'pgoutput')";
        client.execute(make, &[slot]).await?;
    }
    if !filled {
        return Ok(());
    }
    let sql = format!(
        "INSERT INTO {PEER_TABLE} (aggregatetype, aggregateid, type, payload)
         SELECT 'bench', 'key-' || n % {keys}, 'made',
                lpad(to_hex(n % {keys}), 8, '0') || lpad(to_hex(n / {keys}), 16, '0') || repeat('x', {rest})
           FROM generate_series(0::bigint, $1::bigint) n ORDER BY n",
        keys = plan.keys,
        rest = plan.bytes.saturating_sub(24),
    );
    client.execute(&sql, &[&(plan.events as i64 - 1)]).await?;
    Ok(client.batch_execute(&format!("VACUUM ANALYZE {PEER_TABLE}")).await?)
}

/// A slot that nobody reads keeps WAL for ever.
pub(super) async fn clear(url: &str, peer: &Peer) -> Result<()> {
    let Peer::Debezium { slot, .. } = peer else { return Ok(()) };
    let client = connect(url).await?;
    let active = "SELECT active FROM pg_replication_slots WHERE slot_name = $1";
    // Its reader was killed; the server notices soon.
    for _ in 0..600 {
        if !client.query_opt(active, &[slot]).await?.is_some_and(|row| row.get(0)) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    client.execute("SELECT pg_drop_replication_slot($1)", &[slot]).await?;
    Ok(())
}
