//! Subscriptions: known, paused, moved, removed. Every change of theirs gives their lanes fresh tokens, so that
//! whoever works them is fenced off at once.

use super::errors::Sql;
use super::horizon::prove_rewind;
use super::rows::{last_seq, now, now_ms};
use super::{lanes, unknown_subscription};
use relevo_core::dead_letters::Unproven;
use relevo_core::limits::LANES;
use relevo_core::outbox::{LEFT_OUT, Start, Subscription};
use relevo_core::relay::AfterDead;
use rusqlite::{Transaction, params};

/// Makes a subscription known, or updates what may change of a known one.
pub(super) fn subscribe(tx: &Transaction<'_>, subscription: &Subscription) -> Sql<()> {
    let name = &*subscription.name;
    let topics = topics_json(subscription);
    let after_dead = match subscription.after_dead {
        AfterDead::Continue => "continue",
        AfterDead::Hold => "hold",
    };
    let sql = "UPDATE relevo_subscription SET topics = ?2, after_dead = ?3, destination = ?4, outside = ?5 WHERE name = ?1";
    let Subscription { destination, outside, .. } = subscription;
    if tx.execute(sql, params![name, topics, after_dead, destination, outside])? == 1 {
        return Ok(());
    }
    lanes::note_tick(tx)?;
    let start = start_number(tx, subscription.start)?;
    let sql = concat!(
        "INSERT INTO relevo_subscription (name, topics, after_dead, destination, outside, start_seq, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ",
        now_ms!(),
        ")"
    );
    tx.execute(sql, params![name, topics, after_dead, destination, outside, start])?;
    let sql = "INSERT INTO relevo_cursor (subscription, lane, token, from_number, seq) VALUES (?1, ?2, random(), ?3, 0)";
    for lane in 0..LANES {
        tx.prepare_cached(sql)?.execute(params![name, lane, start])?;
    }
    Ok(())
}

fn topics_json(subscription: &Subscription) -> String {
    let topics: Vec<&str> = subscription.topics.iter().map(|topic| topic.as_str()).collect();
    serde_json::json!(topics).to_string()
}

/// The number everything up to which lies before the start.
fn start_number(tx: &Transaction<'_>, start: Start) -> Sql<i64> {
    match start {
        Start::Beginning => Ok(0),
        Start::Now => last_seq(tx),
        Start::Time(time) => {
            // Not by created_at: that is when a statement ran, and its transaction may have committed much later.
            let sql = "SELECT COALESCE(max(number), 0) FROM relevo_tick WHERE at <= ?1";
            Ok(tx.query_row(sql, [time.timestamp_millis()], |row| row.get(0))?)
        }
    }
}

fn require(tx: &Transaction<'_>, name: &str) -> Sql<()> {
    let known =
        tx.prepare_cached("SELECT 1 FROM relevo_subscription WHERE name = ?1")?.exists([name])?;
    if known { Ok(()) } else { Err(unknown_subscription(name).into()) }
}

fn fence_off(tx: &Transaction<'_>, name: &str) -> Sql<()> {
    tx.execute(
        "UPDATE relevo_cursor SET token = random(), owner = NULL WHERE subscription = ?1",
        [name],
    )?;
    Ok(())
}

/// Pauses a subscription; its owners are fenced off.
pub(super) fn pause(tx: &Transaction<'_>, name: &str, by: &str) -> Sql<()> {
    require(tx, name)?;
    tx.execute("UPDATE relevo_subscription SET paused = ?2 WHERE name = ?1", params![name, by])?;
    fence_off(tx, name)
}

/// Lets a paused subscription go on.
pub(super) fn resume(tx: &Transaction<'_>, name: &str) -> Sql<()> {
    require(tx, name)?;
    tx.execute("UPDATE relevo_subscription SET paused = NULL WHERE name = ?1", [name])?;
    Ok(())
}

/// Moves every cursor. Backwards: what will be read again is no longer parked. Forwards: what is left out is
/// noted, so that `why` can tell; what is parked goes on waiting.
pub(super) fn rewind(tx: &Transaction<'_>, name: &str, to: Start, unproven: Unproven) -> Sql<()> {
    require(tx, name)?;
    fence_off(tx, name)?;
    lanes::note_tick(tx)?;
    let number = start_number(tx, to)?;
    prove_rewind(tx, name, number, unproven)?;
    note_gaps(tx, name, number)?;
    let sql = concat!(
        "UPDATE relevo_cursor SET from_number = ?2, to_number = NULL, seq = 0, moved_at = ",
        now_ms!(),
        " WHERE subscription = ?1"
    );
    tx.execute(sql, params![name, number])?;
    tx.execute(
        "UPDATE relevo_subscription SET start_seq = min(start_seq, ?2) WHERE name = ?1",
        params![name, number],
    )?;
    unpark_what_comes_again(tx, name, number)
}

fn note_gaps(tx: &Transaction<'_>, name: &str, number: i64) -> Sql<()> {
    let now = now(tx)?;
    // What is read again is no longer left out.
    tx.execute(
        "DELETE FROM relevo_gap WHERE subscription = ?1 AND above >= ?2",
        params![name, number],
    )?;
    tx.execute(
        "UPDATE OR REPLACE relevo_gap SET up_to = min(up_to, ?2) WHERE subscription = ?1",
        params![name, number],
    )?;
    let sql = "INSERT OR REPLACE INTO relevo_gap (subscription, lane, above, up_to, reason, at)
               SELECT subscription, lane, max(from_number, seq), ?2, ?4, ?3
               FROM relevo_cursor WHERE subscription = ?1 AND max(from_number, seq) < ?2";
    tx.execute(sql, params![name, number, now, LEFT_OUT])?;
    Ok(())
}

fn unpark_what_comes_again(tx: &Transaction<'_>, name: &str, number: i64) -> Sql<()> {
    // An edited copy has an id of its own: the log does not bring it again.
    let sql = "DELETE FROM relevo_parked_ref WHERE subscription = ?1 AND seq > ?2
               AND EXISTS (SELECT 1 FROM relevo_outbox o WHERE o.seq = relevo_parked_ref.seq AND o.id = relevo_parked_ref.id)";
    tx.execute(sql, params![name, number])?;
    let sql = "DELETE FROM relevo_parked_key WHERE subscription = ?1 AND due IS NOT NULL AND NOT EXISTS (
                   SELECT 1 FROM relevo_parked_ref r WHERE r.subscription = relevo_parked_key.subscription
                   AND r.lane = relevo_parked_key.lane AND r.key = relevo_parked_key.key)";
    tx.execute(sql, [name])?;
    Ok(())
}

/// Ends a subscription. Dead letters stay; what was asked of them is dropped.
pub(super) fn remove(tx: &Transaction<'_>, name: &str) -> Sql<()> {
    require(tx, name)?;
    let sql = "UPDATE relevo_dead_letter SET state = 'dead' WHERE state = 'requested' AND subscription = ?1";
    tx.execute(sql, [name])?;
    let sql =
        "UPDATE relevo_replay SET cancelled = cancelled + (SELECT count(*) FROM relevo_request q
                   WHERE q.operation = relevo_replay.operation AND q.subscription = ?1)
               WHERE operation IN (SELECT operation FROM relevo_request WHERE subscription = ?1)";
    tx.execute(sql, [name])?;
    for table in ["cursor", "member", "parked_key", "parked_ref", "skip", "gap", "request"] {
        tx.execute(&format!("DELETE FROM relevo_{table} WHERE subscription = ?1"), [name])?;
    }
    tx.execute("DELETE FROM relevo_subscription WHERE name = ?1", [name])?;
    Ok(())
}
