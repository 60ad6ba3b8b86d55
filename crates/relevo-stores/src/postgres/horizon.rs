//! The inbox's horizon: up to when its rows are gone, which of them are still needed, and what is refused behind it.

use super::errors::ADAPTER;
use super::session::{Session, Tx, args};
use chrono::{DateTime, Utc};
use relevo_core::Result;
use relevo_core::dead_letters::proof::{known_since, no_replay, no_rewind};
use relevo_core::dead_letters::{DeadLetterId, Unproven};
use relevo_core::event::{EventId, TopicFilter};
use relevo_core::outbox::Tick;
use std::time::Duration;
use tokio_postgres::Row;

/// Rows of the log that one statement brings to be looked at.
const PAGE: i64 = 1_000;

/// Since when something is on its way outside: no copy of it was met before. What a cursor has still to read committed
/// after its tick; of what waits behind a key, or is asked for, the publication is known. A tick's time is read last,
/// so a minute is given.
const NEEDED_SINCE: &str = "SELECT least(
    (SELECT min(t.at) - interval '1 minute' FROM relevo.cursor c JOIN relevo.subscription s ON s.name = c.subscription
       JOIN relevo.tick t ON t.number = c.from_number AND t.nonce = c.from_nonce
      WHERE s.outside AND t.top < relevo.last_seq()),
    (SELECT o.created_at FROM relevo.parked_ref r JOIN relevo.subscription s ON s.name = r.subscription AND s.outside
       JOIN relevo.outbox o ON o.seq = r.seq WHERE r.payload IS NULL ORDER BY r.seq LIMIT 1),
    (SELECT min(r.created_at) FROM relevo.parked_ref r JOIN relevo.subscription s ON s.name = r.subscription
      WHERE s.outside AND r.payload IS NOT NULL),
    (SELECT min(d.created_at) FROM relevo.dead_letter d JOIN relevo.subscription s ON s.name = d.subscription
      WHERE s.outside AND d.state = 'requested'))";

/// Forgets so many inbox rows that are older than `keep`, but none that something on its way outside may need. A trigger
/// notes up to when. Answers with how many went; none while somebody brings events again just now.
pub(crate) async fn forget_inbox(session: &Session, keep: Duration, most: i64) -> Result<u64> {
    let tx = session.begin().await?;
    let alone = "SELECT FROM relevo.inbox_horizon FOR UPDATE SKIP LOCKED";
    if tx.query_opt(alone, args![]).await?.is_none() {
        tx.rollback().await?;
        return Ok(0);
    }
    let sql = format!(
        "DELETE FROM relevo.inbox WHERE ctid = ANY (ARRAY(
            SELECT x.ctid FROM relevo.inbox x, (SELECT least(clock_timestamp() - make_interval(secs => $1), ({NEEDED_SINCE})) AS until OFFSET 0) c
             WHERE x.seen_at < c.until LIMIT $2))"
    );
    let forgotten = tx.execute(&sql, args![keep.as_secs_f64(), most]).await?;
    tx.commit().await?;
    Ok(forgotten)
}

/// Up to when inbox rows may be gone; it stays so until the transaction ends.
async fn horizon(tx: &Tx<'_>) -> Result<Option<DateTime<Utc>>> {
    let sql = "SELECT gone_until FROM relevo.inbox_horizon FOR SHARE";
    Ok(tx.query_opt(sql, args![]).await?.and_then(|row| row.get(0)))
}

/// Refuses to bring again, from everything after `tick`, what the inbox may have forgotten.
pub(crate) async fn prove_rewind(
    tx: &Tx<'_>,
    subscription: &str,
    tick: &Tick,
    unproven: Unproven,
) -> Result<()> {
    if unproven == Unproven::Repeat {
        return Ok(());
    }
    let sql = "SELECT topics FROM relevo.subscription WHERE name = $1 AND outside";
    let outside = tx.query_opt(sql, args![subscription]).await?;
    let (Some(row), Some(horizon)) = (outside, horizon(tx).await?) else { return Ok(()) };
    let topics: Vec<String> = row.get(0);
    let filters: Vec<_> =
        topics.iter().filter_map(|topic| TopicFilter::parse(topic).ok()).collect();
    match first_unproven(tx, tick, horizon, &filters).await? {
        Some((event, published_at)) => {
            Err(no_rewind(event, published_at, horizon).from_adapter(ADAPTER))
        }
        None => Ok(()),
    }
}

/// The first event after `tick` that is wanted and was published up to the horizon.
async fn first_unproven(
    tx: &Tx<'_>,
    tick: &Tick,
    horizon: DateTime<Utc>,
    filters: &[TopicFilter],
) -> Result<Option<(EventId, DateTime<Utc>)>> {
    // What got its number after a tick that is younger than the horizon was published after it too: the log is not
    // looked through to its end.
    let sql = "SELECT o.seq, o.id, o.topic, o.headers->>'relevo-inbox', o.created_at FROM relevo.outbox o
         WHERE o.seq > $1 AND o.created_at <= $4
           AND o.seq <= coalesce((SELECT min(t.top) FROM relevo.tick t WHERE t.at > $4 + interval '1 minute'), 9223372036854775807)
           AND (o.seq > $2 OR NOT txid_visible_in_snapshot(o.xid, $3::text::txid_snapshot))
         ORDER BY o.seq LIMIT $5";
    let (snapshot, mut after) = (tick.snapshot.to_string(), tick.floor);
    let wanted =
        |row: &&Row| TopicFilter::any_wants(filters, row.get(2), row.get::<_, Option<&str>>(3));
    loop {
        let rows = tx.query(sql, args![after, tick.top, snapshot, horizon, PAGE]).await?;
        if let Some(row) = rows.iter().find(wanted) {
            return Ok(Some((EventId(row.get(1)), row.get(4))));
        }
        match rows.last() {
            Some(last) if rows.len() as i64 == PAGE => after = last.get(0),
            _ => return Ok(None),
        }
    }
}

/// Refuses the replay of letters that the inbox may have met and forgotten.
pub(crate) async fn prove_replay(
    tx: &Tx<'_>,
    letters: &[DeadLetterId],
    unproven: Unproven,
) -> Result<()> {
    if unproven == Unproven::Repeat {
        return Ok(());
    }
    let Some(horizon) = horizon(tx).await? else { return Ok(()) };
    let sql = "SELECT d.dead_letter, d.id, d.created_at, d.copy_of FROM relevo.dead_letter d
                 JOIN relevo.subscription s ON s.name = d.subscription AND s.outside
                WHERE d.dead_letter = ANY($1) AND d.created_at <= $2 ORDER BY d.created_at, d.dead_letter";
    let since = |row: &Row| -> (DeadLetterId, DateTime<Utc>) {
        (row.get(0), known_since(EventId(row.get(1)), row.get(2), row.get(3)))
    };
    let rows = tx.query(sql, args![letters.to_vec(), horizon]).await?;
    let behind: Vec<_> = rows.iter().map(since).filter(|(_, since)| *since <= horizon).collect();
    match behind.is_empty() {
        true => Ok(()),
        false => Err(no_replay(&behind, horizon).from_adapter(ADAPTER)),
    }
}
