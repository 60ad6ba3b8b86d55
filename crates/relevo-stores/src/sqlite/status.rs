//! The whole state, without counting the log.

use super::errors::Sql;
use super::migrate::Migration;
use super::rows::{last_seq, now, time};
use super::{SqliteStore, log};
use relevo_core::Result;
use relevo_core::dead_letters::{LogStatus, MemberStatus, SubscriptionStatus};
use rusqlite::{OptionalExtension, Row, Transaction, params};

/// Nobody counts as working on a subscription whose members have all been silent for this long.
const SILENT_MS: i64 = 60_000;

/// The log as an operator sees it.
pub(super) async fn status(store: &SqliteStore) -> Result<LogStatus> {
    let wal = store.path().with_file_name(wal_name(store));
    let wal_bytes =
        std::fs::metadata(wal).map_or(0, |meta| i64::try_from(meta.len()).unwrap_or(i64::MAX));
    let next = store.inner.next;
    store.read(move |tx| look(tx, next.as_ref(), wal_bytes)).await
}

fn wal_name(store: &SqliteStore) -> std::ffi::OsString {
    let mut name = store.path().file_name().unwrap_or_default().to_owned();
    name.push("-wal");
    name
}

fn look(tx: &Transaction<'_>, next: Option<&Migration>, wal_bytes: i64) -> Sql<LogStatus> {
    let probe = log::probe(tx, next)?;
    let sql = "SELECT (SELECT page_count FROM pragma_page_count) * (SELECT page_size FROM pragma_page_size)";
    let bytes: i64 = tx.query_row(sql, [], |row| row.get(0))?;
    let mut status =
        LogStatus::new(probe, last_seq(tx)?, 1, Some(bytes + wal_bytes), log::newest(tx)?);
    status.subscriptions = subscriptions(tx)?;
    Ok(status)
}

/// Every subscription as an operator sees it.
pub(super) fn subscriptions(tx: &Transaction<'_>) -> Sql<Vec<SubscriptionStatus>> {
    let now = now(tx)?;
    let sql = "SELECT name, topics, destination, paused, created_at FROM relevo_subscription ORDER BY name";
    let mut statement = tx.prepare_cached(sql)?;
    let found = statement.query_map([], |row| Ok((about(row)?, row.get::<_, i64>(4)?)))?;
    let found: Vec<(SubscriptionStatus, i64)> = found.collect::<rusqlite::Result<_>>()?;
    found.into_iter().map(|(status, created_at)| fill(tx, status, created_at, now)).collect()
}

fn about(row: &Row<'_>) -> rusqlite::Result<SubscriptionStatus> {
    let mut status = SubscriptionStatus::named(row.get::<_, String>(0)?);
    status.topics = topics(&row.get::<_, String>(1)?);
    status.destination = row.get(2)?;
    status.paused = row.get(3)?;
    Ok(status)
}

/// The topic filters as the table keeps them.
pub(super) fn topics(json: &str) -> Vec<String> {
    serde_json::from_str(json).unwrap_or_default()
}

fn fill(
    tx: &Transaction<'_>,
    mut status: SubscriptionStatus,
    created_at: i64,
    now: i64,
) -> Sql<SubscriptionStatus> {
    let name = status.name.clone();
    let sql = "SELECT COALESCE(min(max(from_number, seq)), 0), max(moved_at), count(owner) FROM relevo_cursor WHERE subscription = ?1";
    let cursor =
        |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, Option<i64>>(1)?, row.get(2)?));
    let (decided, moved_at, lanes_owned) = tx.prepare_cached(sql)?.query_row([&name], cursor)?;
    let oldest = "SELECT created_at FROM relevo_outbox WHERE seq > ?1 ORDER BY seq LIMIT 1";
    let oldest: Option<i64> =
        tx.prepare_cached(oldest)?.query_row([decided], |row| row.get(0)).optional()?;
    status.lanes_owned = lanes_owned;
    status.moved_at = moved_at.map(time);
    status.backlog = (log::newest(tx)? - decided).max(0);
    status.oldest_pending_s = oldest.map_or(0.0, |at| seconds(now - at));
    status.members = members(tx, &name, now)?;
    count_exceptions(tx, &mut status)?;
    status.forgotten_for_s = forgotten(tx, &status, moved_at.unwrap_or(0).max(created_at), now)?;
    Ok(status)
}

fn seconds(ms: i64) -> f64 {
    ms.max(0) as f64 / 1000.0
}

fn count_exceptions(tx: &Transaction<'_>, status: &mut SubscriptionStatus) -> Sql<()> {
    let count =
        |sql: &str| tx.prepare_cached(sql)?.query_row([&status.name], |row| row.get::<_, i64>(0));
    let keys = count("SELECT count(*) FROM relevo_parked_key WHERE subscription = ?1")?;
    let events = count("SELECT count(*) FROM relevo_parked_ref WHERE subscription = ?1")?;
    let dead = count(
        "SELECT count(*) FROM relevo_dead_letter WHERE state = 'dead' AND subscription = ?1",
    )?;
    (status.parked_keys, status.parked_events, status.dead_letters) = (keys, events, dead);
    Ok(())
}

fn members(tx: &Transaction<'_>, subscription: &str, now: i64) -> Sql<Vec<MemberStatus>> {
    let sql = "SELECT m.member, (SELECT count(*) FROM relevo_cursor c WHERE c.subscription = m.subscription AND c.owner = m.member),
                      m.seen_at, m.note
               FROM relevo_member m WHERE m.subscription = ?1 ORDER BY m.member";
    let mut statement = tx.prepare_cached(sql)?;
    let member = |row: &Row<'_>| {
        let note: String = row.get(3)?;
        let note = serde_json::from_str(&note).unwrap_or(serde_json::Value::String(note));
        Ok(MemberStatus::new(
            row.get::<_, String>(0)?,
            row.get(1)?,
            seconds(now - row.get::<_, i64>(2)?),
            note,
        ))
    };
    let rows = statement.query_map([subscription], member)?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// Something is due and nobody has been there for a while: since when?
fn forgotten(
    tx: &Transaction<'_>,
    status: &SubscriptionStatus,
    worked_at: i64,
    now: i64,
) -> Sql<Option<f64>> {
    if status.backlog == 0 && status.parked_keys == 0 {
        return Ok(None);
    }
    let sql = "SELECT COALESCE(max(seen_at), 0) FROM relevo_member WHERE subscription = ?1";
    let seen: i64 = tx.prepare_cached(sql)?.query_row(params![status.name], |row| row.get(0))?;
    let last = worked_at.max(seen);
    Ok((now - last > SILENT_MS).then(|| seconds(now - last)))
}
