//! The inbox's horizon: up to when its rows are gone, which of them are still needed, and what is refused behind it.

use super::ADAPTER;
use super::errors::Sql;
use super::rows::{event_id, text, time};
use chrono::{DateTime, Utc};
use relevo_core::dead_letters::proof::{known_since, no_replay, no_rewind};
use relevo_core::dead_letters::{DeadLetterId, Unproven};
use relevo_core::event::TopicFilter;
use rusqlite::{OptionalExtension, Row, Transaction, params};

/// The log is in the order of its times but for what a clock was set back: so far beyond the horizon is looked.
const UNEVEN_MS: i64 = 60_000;

/// Forgets so many inbox rows from before `old`, but none that something on its way outside may need. A trigger notes
/// up to when.
pub(super) fn forget_inbox(tx: &Transaction<'_>, old: i64, most: i64) -> Sql<()> {
    let until = needed_since(tx)?.map_or(old, |needed| needed.min(old));
    let sql = "DELETE FROM relevo_inbox WHERE (consumer, source, id) IN (
                   SELECT consumer, source, id FROM relevo_inbox WHERE first_at < ?1 ORDER BY first_at LIMIT ?2)";
    tx.execute(sql, params![until, most])?;
    Ok(())
}

/// The publication of the oldest event that is still on its way outside: no copy of it was met before. The log is in
/// commit order, so the first row beyond the cursors is the oldest there.
fn needed_since(tx: &Transaction<'_>) -> Sql<Option<i64>> {
    let sql = "WITH outside AS (SELECT name FROM relevo_subscription WHERE outside),
        parked AS (SELECT r.seq, r.id, r.letter FROM relevo_parked_ref r JOIN outside ON name = r.subscription)
        SELECT min(at) FROM (
            SELECT (SELECT o.created_at FROM relevo_outbox o WHERE o.seq > c.decided ORDER BY o.seq LIMIT 1) AS at
              FROM (SELECT min(max(from_number, seq)) AS decided FROM relevo_cursor JOIN outside ON name = subscription) c
            UNION ALL SELECT min(o.created_at) FROM parked p JOIN relevo_outbox o ON o.seq = p.seq WHERE p.letter IS NULL
            UNION ALL SELECT min(d.created_at) FROM parked p JOIN relevo_dead_letter d ON d.number = p.letter
            UNION ALL SELECT min(d.created_at) FROM relevo_dead_letter d JOIN outside ON name = d.subscription
                       WHERE d.state = 'requested')";
    Ok(tx.prepare_cached(sql)?.query_row([], |row| row.get(0))?)
}

/// Up to when inbox rows may be gone.
fn horizon(tx: &Transaction<'_>) -> Sql<Option<i64>> {
    let sql = "SELECT max(value) FROM relevo_fact WHERE name = 'inbox_gone_until'";
    Ok(tx.query_row(sql, [], |row| row.get(0))?)
}

/// Refuses to bring again, from everything after `number`, what the inbox may have forgotten.
pub(super) fn prove_rewind(
    tx: &Transaction<'_>,
    name: &str,
    number: i64,
    unproven: Unproven,
) -> Sql<()> {
    let (Unproven::Refuse, Some(horizon)) = (unproven, horizon(tx)?) else { return Ok(()) };
    let sql = "SELECT topics FROM relevo_subscription WHERE name = ?1 AND outside";
    let topics: Option<String> = tx.query_row(sql, [name], |row| row.get(0)).optional()?;
    let Some(topics) = topics else { return Ok(()) };
    let topics = super::status::topics(&topics);
    let filters: Vec<_> =
        topics.iter().filter_map(|topic| TopicFilter::parse(topic).ok()).collect();
    let sql = "SELECT id, topic, iif(json_valid(headers), headers ->> '$.\"relevo-inbox\"', NULL), created_at
                 FROM relevo_outbox WHERE seq > ?1 ORDER BY seq";
    let mut statement = tx.prepare(sql)?;
    let mut rows = statement.query([number])?;
    while let Some(row) = rows.next()? {
        let published: i64 = row.get(3)?;
        if published > horizon.saturating_add(UNEVEN_MS) {
            break;
        }
        let topic = text(row.get_ref(1)?).unwrap_or_default();
        let wanted = TopicFilter::any_wants(&filters, &topic, text(row.get_ref(2)?).as_deref());
        if wanted && published <= horizon {
            let refused = no_rewind(event_id(row.get_ref(0)?), time(published), time(horizon));
            return Err(refused.from_adapter(ADAPTER).into());
        }
    }
    Ok(())
}

/// Refuses the replay of letters that the inbox may have met and forgotten.
pub(super) fn prove_replay(
    tx: &Transaction<'_>,
    letters: &[DeadLetterId],
    unproven: Unproven,
) -> Sql<()> {
    let (Unproven::Refuse, Some(horizon)) = (unproven, horizon(tx)?) else { return Ok(()) };
    let sql = "SELECT d.number, d.event_id, d.created_at, d.copy_of FROM relevo_dead_letter d
               JOIN relevo_subscription s ON s.name = d.subscription AND s.outside
               WHERE d.number IN (SELECT value FROM json_each(?1)) AND d.created_at <= ?2
               ORDER BY d.created_at, d.number";
    let mut statement = tx.prepare(sql)?;
    let since = |row: &Row<'_>| -> rusqlite::Result<(DeadLetterId, DateTime<Utc>)> {
        let event = event_id(row.get_ref(1)?);
        Ok((row.get(0)?, known_since(event, time(row.get(2)?), row.get(3)?)))
    };
    let numbers = serde_json::json!(letters).to_string();
    let found = statement.query_map(params![numbers, horizon], since)?;
    let mut behind: Vec<(DeadLetterId, DateTime<Utc>)> = found.collect::<Result<_, _>>()?;
    behind.retain(|(_, since)| *since <= time(horizon));
    match behind.is_empty() {
        true => Ok(()),
        false => Err(no_replay(&behind, time(horizon)).from_adapter(ADAPTER).into()),
    }
}
