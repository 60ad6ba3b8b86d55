//! What goes, when: bounded deletes in transactions of their own, so that publishers wait for none of them long.

use super::SqliteStore;
use super::errors::Sql;
use super::rows::{millis, now};
use relevo_core::Result;
use relevo_core::dead_letters::{Holder, RetentionPlan, SubscriptionStatus};
use relevo_core::outbox::{Retention, Upkeep};
use rusqlite::{Transaction, params};

/// Rows of the log one transaction looks at.
const STEP: i64 = 500;
/// Such transactions in one round of upkeep; what remains waits for the next round.
const STEPS: usize = 40;
/// A member that was silent for a day is gone.
const GONE_MS: i64 = 86_400_000;
/// Rows of any other table one round deletes.
const MOST: i64 = 2_000;

/// A dead letter that died before ?1 and that nothing needs any more.
const OLD_LETTER: &str = "died_at < ?1 AND state <> 'requested'
    AND NOT EXISTS (SELECT 1 FROM relevo_parked_ref r WHERE r.letter = d.number)
    AND NOT EXISTS (SELECT 1 FROM relevo_parked_key k WHERE k.subscription = d.subscription
                    AND k.lane = d.lane AND k.key = d.order_key AND k.due IS NULL)";

/// What may go, and how far a round has come.
struct Round {
    /// Every subscription was past these rows long enough ago.
    passed: i64,
    /// Looked at so far.
    reached: i64,
}

/// One round of upkeep.
pub(super) async fn upkeep(store: &SqliteStore, retention: &Retention) -> Result<Upkeep> {
    let mut upkeep = Upkeep::default();
    let ages = Ages {
        events: millis(retention.events),
        dead_letters: millis(retention.dead_letters),
        inbox: millis(retention.inbox_kept()),
    };
    upkeep.warnings = store.read(warnings).await?;
    let mut round = store.write(move |tx| plan(tx, ages.events)).await?;
    for _ in 0..STEPS {
        let (next, dropped, more) = store.write(move |tx| drop_rows(tx, round)).await?;
        round = next;
        upkeep.rows_dropped += dropped;
        upkeep.segments_dropped += u64::from(dropped > 0);
        if !more {
            break;
        }
    }
    let (letters, ticks) = store.write(move |tx| drop_the_rest(tx, ages)).await?;
    upkeep.dead_letters_dropped = letters;
    upkeep.ticks_pruned = ticks;
    Ok(upkeep)
}

#[derive(Clone, Copy)]
struct Ages {
    events: i64,
    dead_letters: i64,
    inbox: i64,
}

/// The last row that every cursor is past. Without any subscription nothing was delivered to anybody: all of it stays.
fn decided(tx: &Transaction<'_>) -> Sql<i64> {
    let sql = "SELECT COALESCE(min(max(from_number, seq)), 0) FROM relevo_cursor";
    Ok(tx.query_row(sql, [], |row| row.get(0))?)
}

/// Notes how far all are now, and finds how far they were `keep` ago: the time since delivery counts, not since
/// publication.
fn plan(tx: &Transaction<'_>, keep: i64) -> Sql<Round> {
    let (now, decided) = (now(tx)?, decided(tx)?);
    let before = now.saturating_sub(keep);
    let recent = "SELECT EXISTS (SELECT 1 FROM relevo_passed WHERE at > ?1 AND at < ?2)";
    if !tx.query_row(recent, params![now.saturating_sub(keep / 1000), now], |row| row.get(0))? {
        let note = "INSERT INTO relevo_passed (at, seq) VALUES (?1, ?2) ON CONFLICT (at) DO UPDATE SET seq = excluded.seq";
        tx.execute(note, params![now, decided])?;
    }
    let passed = "SELECT COALESCE((SELECT seq FROM relevo_passed WHERE at <= ?1 ORDER BY at DESC LIMIT 1), 0)";
    let passed = tx.query_row(passed, [before], |row| row.get(0))?;
    let old =
        "DELETE FROM relevo_passed WHERE at < (SELECT max(at) FROM relevo_passed WHERE at <= ?1)";
    tx.execute(old, [before])?;
    Ok(Round { passed, reached: 0 })
}

/// What upkeep would do, and who keeps it from doing more.
pub(super) async fn look_ahead(
    store: &SqliteStore,
    retention: &Retention,
) -> Result<RetentionPlan> {
    let (events, letters) = (millis(retention.events), millis(retention.dead_letters));
    store.read(move |tx| describe(tx, events, letters)).await
}

fn describe(tx: &Transaction<'_>, events: i64, letters: i64) -> Sql<RetentionPlan> {
    let (now, decided) = (now(tx)?, decided(tx)?);
    let mut plan = RetentionPlan::default();
    let passed = "SELECT COALESCE((SELECT seq FROM relevo_passed WHERE at <= ?1 ORDER BY at DESC LIMIT 1), 0)";
    let passed: i64 = tx
        .query_row(passed, [now.saturating_sub(events)], |row| row.get::<_, i64>(0))?
        .min(decided);
    // Numbers of what is there, rather than a count of it.
    let span = "SELECT COALESCE(max(seq) - min(seq) + 1, 0) FROM relevo_outbox WHERE seq > ?1 AND seq <= ?2";
    plan.droppable_events = tx.query_row(span, [0, passed], |row| row.get(0))?;
    plan.young_events = tx.query_row(span, [passed, decided], |row| row.get(0))?;
    let parked = "SELECT count(*) FROM relevo_parked_ref WHERE letter IS NULL AND seq <= ?1";
    plan.parked_events = tx.query_row(parked, [decided], |row| row.get(0))?;
    let dead = format!("SELECT count(*) FROM relevo_dead_letter d WHERE {OLD_LETTER}");
    plan.dead_letters = tx.query_row(&dead, [now.saturating_sub(letters)], |row| row.get(0))?;
    let found = super::status::subscriptions(tx)?;
    plan.unread = found.is_empty();
    let newest = super::log::newest(tx)?;
    let holder = |status: &SubscriptionStatus| {
        Holder::of(status, newest - status.backlog, status.backlog, None)
    };
    plan.holders = found.iter().map(holder).collect();
    Ok(plan.sorted())
}

/// Looks at the next rows and drops those that every cursor is past, that are old enough, and whose bytes no
/// parked event needs. Answers with how many went, and whether there may be more.
fn drop_rows(tx: &Transaction<'_>, round: Round) -> Sql<(Round, u64, bool)> {
    // Looked up again in this very transaction: a cursor may have been rewound since the round began.
    let until = round.passed.min(decided(tx)?);
    let sql = "SELECT max(seq) FROM (SELECT seq FROM relevo_outbox WHERE seq > ?1 AND seq <= ?2 ORDER BY seq LIMIT ?3)";
    let last: Option<i64> =
        tx.query_row(sql, params![round.reached, until, STEP], |row| row.get(0))?;
    let Some(last) = last else { return Ok((round, 0, false)) };
    let condition = "seq > ?1 AND seq <= ?2
                     AND NOT EXISTS (SELECT 1 FROM relevo_parked_ref r WHERE r.seq = relevo_outbox.seq AND r.letter IS NULL)";
    let range = params![round.reached, last];
    note_how_far(tx, condition, range)?;
    let dropped = tx.execute(&format!("DELETE FROM relevo_outbox WHERE {condition}"), range)?;
    Ok((Round { reached: last, ..round }, dropped as u64, true))
}

/// The youngest event that went: `why` tells by it that an unknown event may be past retention.
fn note_how_far(tx: &Transaction<'_>, condition: &str, range: &[&dyn rusqlite::ToSql]) -> Sql<()> {
    let sql = format!(
        "INSERT INTO relevo_fact (name, value)
         SELECT 'dropped_until', newest FROM (SELECT max(created_at) AS newest FROM relevo_outbox WHERE {condition})
         WHERE newest IS NOT NULL
         ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value)"
    );
    tx.execute(&sql, range)?;
    Ok(())
}

/// Up to when events are known to have been dropped.
pub(super) fn dropped_until(tx: &Transaction<'_>) -> Sql<Option<i64>> {
    let sql = "SELECT max(value) FROM relevo_fact WHERE name = 'dropped_until'";
    Ok(tx.query_row(sql, [], |row| row.get(0))?)
}

/// Dead letters, inbox rows, skips, gaps and ticks that are past their time.
fn drop_the_rest(tx: &Transaction<'_>, ages: Ages) -> Sql<(u64, u64)> {
    let now = now(tx)?;
    let events = now.saturating_sub(ages.events);
    let letters = format!(
        "DELETE FROM relevo_dead_letter WHERE number IN (
             SELECT number FROM relevo_dead_letter d WHERE {OLD_LETTER} ORDER BY state = 'archived' DESC, died_at LIMIT ?2)"
    );
    let letters = tx.execute(&letters, params![now.saturating_sub(ages.dead_letters), MOST])?;
    super::horizon::forget_inbox(tx, now.saturating_sub(ages.inbox), MOST)?;
    tx.execute(super::inbox::FORGET_KEYS, params![MOST])?;
    let skips = "DELETE FROM relevo_skip WHERE (subscription, id) IN (
                     SELECT subscription, id FROM relevo_skip WHERE at < ?1 ORDER BY at LIMIT ?2)";
    tx.execute(skips, params![events, MOST])?;
    tx.execute("DELETE FROM relevo_gap WHERE at < ?1 AND up_to < (SELECT COALESCE(min(seq), 0) FROM relevo_outbox)", [events])?;
    let replays = "DELETE FROM relevo_replay WHERE created_at < ?1
                   AND NOT EXISTS (SELECT 1 FROM relevo_request q WHERE q.operation = relevo_replay.operation)";
    tx.execute(replays, [now.saturating_sub(ages.dead_letters)])?;
    // A process that was killed never took its leave; one that owns lanes is left for its heirs to see.
    let members = "DELETE FROM relevo_member WHERE seen_at < ?1 AND NOT EXISTS (SELECT 1 FROM relevo_cursor c
                   WHERE c.subscription = relevo_member.subscription AND c.owner = relevo_member.member)";
    tx.execute(members, [now.saturating_sub(GONE_MS)])?;
    // Below the first row of the log no tick is needed but the newest: a start there is a start with that row.
    let ticks = "DELETE FROM relevo_tick WHERE number < (
                     SELECT max(number) FROM relevo_tick WHERE number < (SELECT min(seq) FROM relevo_outbox))";
    let ticks = tx.execute(ticks, [])?;
    Ok((letters as u64, ticks as u64))
}

/// What needs a person.
fn warnings(tx: &Transaction<'_>) -> Sql<Vec<String>> {
    let found = super::status::subscriptions(tx)?;
    let mut warnings: Vec<String> = found
        .iter()
        .filter_map(|status| {
            let silent = status.forgotten_for_s?;
            Some(format!(
                "nobody has worked on subscription {:?} for {silent:.0} s while {}, and the log is kept for it; start its \
                 relay, or end it with `relevo subscriptions remove`",
                status.name,
                status.what_waits()
            ))
        })
        .collect();
    if found.is_empty() && super::log::newest(tx)? > 0 {
        warnings.push("no subscription reads this log: nothing of it is ever dropped".into());
    }
    Ok(warnings)
}
