//! Segments made ahead and emptied when nobody needs them, ticks thinned, old exceptions dropped.

use super::PostgresStore;
use super::errors::could_not_lock;
use super::horizon::forget_inbox;
use super::migrate::FIRST_ROWS;
use super::session::{Session, args};
use super::status::subscriptions;
use relevo_core::Result;
use relevo_core::dead_letters::{Holder, RetentionPlan};
use relevo_core::outbox::{Retention, Upkeep};
use std::time::Duration;

/// Most rows of a segment.
const MOST_ROWS: i64 = 5_000_000;
/// A segment is dropped this long after it was emptied: readers' plans have forgotten it by then.
const DROP_AFTER_S: f64 = 600.0;
/// A subscription that nobody works and that holds this many bytes is named.
const HELD_BYTES: i64 = 1 << 30;
/// How long the rows of a large default segment may be looked through.
const LONG_LOOK: Duration = Duration::from_secs(1800);
/// Statements of one kind that delete old marks in one round.
const MOST_PIECES: usize = 100;
/// Rows of one statement that copies or deletes.
const BATCH: i64 = 5_000;

/// A segment as `relevo.segments()` shows it.
pub(crate) struct Segment {
    pub(crate) name: String,
    pub(crate) from_seq: i64,
    pub(crate) to_seq: i64,
    pub(crate) last_row: Option<i64>,
    pub(crate) bytes: i64,
    row_estimate: i64,
    /// Its newest row is the one that every subscription was last seen to be past.
    settled: bool,
    emptied_for: Option<f64>,
}

/// A dead letter that is past its time; the one that a held key waits for is what releases it.
const OLD_LETTER: &str = "d.state <> 'requested' AND d.died_at < clock_timestamp() - make_interval(secs => $1)
    AND NOT EXISTS (SELECT FROM relevo.parked_key k WHERE k.subscription = d.subscription AND k.lane = d.lane
                      AND k.key = d.key AND k.due IS NULL)";

impl Segment {
    /// Every subscription is past every row of it, and it has one.
    fn is_past(&self, floor: Option<i64>) -> bool {
        matches!((self.last_row, floor), (Some(last), Some(floor)) if last <= floor)
    }

    /// From its numbers, or from what the server last estimated: it is not counted.
    fn rows_at_most(&self) -> i64 {
        match self.is_default() {
            true => self.row_estimate,
            false => self.last_row.map_or(0, |last| last + 1 - self.from_seq),
        }
    }

    pub(crate) fn is_default(&self) -> bool {
        self.name == "outbox_default"
    }
}

pub(crate) async fn segments(session: &Session) -> Result<Vec<Segment>> {
    let sql = "SELECT segment_name, from_seq, to_seq, last_row, bytes, row_estimate, settled, emptied_for FROM relevo.segments()";
    let rows = session.query(sql, args![]).await?;
    let segment = |row: &tokio_postgres::Row| Segment {
        name: row.get(0),
        from_seq: row.get(1),
        to_seq: row.get(2),
        last_row: row.get(3),
        bytes: row.get(4),
        row_estimate: row.get(5),
        settled: row.get(6),
        emptied_for: row.get(7),
    };
    Ok(rows.iter().map(segment).collect())
}

impl PostgresStore {
    pub(crate) async fn keep_up(&self, retention: &Retention) -> Result<Upkeep> {
        let session = self.session().await?;
        let mut upkeep = Upkeep::default();
        self.make_ahead(&session, &mut upkeep).await?;
        self.raise_floor(&session).await?;
        let floor = floor_of_all(&session).await?;
        for segment in segments(&session).await? {
            empty_if_past(&session, &segment, floor, retention.events, &mut upkeep).await?;
            drop_if_emptied(&session, &segment, floor).await?;
        }
        upkeep.ticks_pruned = prune_ticks(&session, retention.events).await?;
        upkeep.dead_letters_dropped = drop_dead_letters(&session, retention.dead_letters).await?;
        drop_traces(&session, retention).await?;
        warn(&session, &mut upkeep).await?;
        Ok(upkeep)
    }

    async fn make_ahead(&self, session: &Session, upkeep: &mut Upkeep) -> Result<()> {
        let last_seq: i64 = session.query_one("SELECT relevo.last_seq()", args![]).await?.get(0);
        let rows = match self.inner.options.segment_rows {
            Some(rows) => rows,
            None => rows_of_a_day(session, last_seq).await?,
        };
        self.leave_default(session, rows, upkeep).await?;
        let last_seq: i64 = session.query_one("SELECT relevo.last_seq()", args![]).await?.get(0);
        let ahead =
            segments(session).await?.iter().filter(|segment| segment.from_seq > last_seq).count();
        for _ in ahead..self.inner.options.segments_ahead {
            if !make_segment(session, rows).await? {
                break;
            }
            upkeep.segments_made += 1;
        }
        Ok(())
    }

    /// Brings a log that ran into its default segment back into segments of its own. `guard_default` in
    /// `migrations/0005_upkeep.sql` says why it takes four steps.
    async fn leave_default(&self, session: &Session, rows: i64, upkeep: &mut Upkeep) -> Result<()> {
        if asked(session.query_one("SELECT relevo.guard_default()", args![]).await)? == Some(true) {
            let patient = Session::get(&self.inner, LONG_LOOK).await?;
            let checked =
                patient.query("SELECT relevo.check_default_guard()", args![]).await.map(drop);
            passing_over_locks(checked)?;
            let sql = "SELECT relevo.make_segments_beyond_guard($1, $2)";
            let count = self.inner.options.segments_ahead as i32;
            let made: Option<i32> = asked(session.query_one(sql, args![rows, count]).await)?;
            upkeep.segments_made += made.unwrap_or(0) as u64;
        }
        if asked(session.query_one("SELECT relevo.jump_to_segments()", args![]).await)?
            == Some(true)
        {
            tracing::warn!(
                "the log left its default segment: the numbers of its events jump ahead"
            );
        }
        Ok(())
    }

    /// A log that fell silent makes no ticks by itself; the last rows are known to be decided only by one more.
    async fn raise_floor(&self, session: &Session) -> Result<()> {
        let sql = "SELECT floor < relevo.last_seq() FROM relevo.tick ORDER BY number DESC LIMIT 1";
        if session.query_one(sql, args![]).await?.get(0) {
            self.fresh_tick(session).await?;
        }
        Ok(())
    }

    /// Summarises pages above `floor` for the search for late commits; a lock that is not to be had can wait.
    pub(crate) async fn summarize(&self, session: &Session, floor: i64) -> Result<()> {
        passing_over_locks(session.query("SELECT relevo.summarize($1)", args![floor]).await)?;
        Ok(())
    }
}

/// What upkeep would do, and who keeps it from doing more.
impl PostgresStore {
    pub(crate) async fn plan_retention(&self, retention: &Retention) -> Result<RetentionPlan> {
        let session = self.session().await?;
        let (segments, floor) = (segments(&session).await?, floor_of_all(&session).await?);
        let mut plan = RetentionPlan::default();
        plan.unread = floor.is_none();
        (plan.droppable_bytes, plan.young_bytes) = (Some(0), Some(0));
        let sql = "SELECT coalesce(passed_at <= clock_timestamp() - make_interval(secs => $2), false) FROM relevo.segment WHERE name = $1";
        for segment in segments.iter().filter(|segment| segment.is_past(floor)) {
            let args = args![segment.name, retention.events.as_secs_f64()];
            let old = segment.settled && session.query_one(sql, args).await?.get(0);
            let (events, bytes) = match old {
                true => (&mut plan.droppable_events, &mut plan.droppable_bytes),
                false => (&mut plan.young_events, &mut plan.young_bytes),
            };
            *events += segment.rows_at_most();
            *bytes = bytes.map(|sum| sum + segment.bytes);
        }
        let row = session
            .query_one(
                "SELECT count(*) FROM relevo.parked_ref WHERE payload IS NULL AND seq <= $1",
                args![floor.unwrap_or(-1)],
            )
            .await?;
        plan.parked_events = row.get(0);
        let old = format!("SELECT count(*) FROM relevo.dead_letter d WHERE {OLD_LETTER}");
        let row = session.query_one(&old, args![retention.dead_letters.as_secs_f64()]).await?;
        plan.dead_letters = row.get(0);
        plan.holders = who_holds(&session, &segments).await?;
        Ok(plan.sorted())
    }
}

async fn who_holds(session: &Session, segments: &[Segment]) -> Result<Vec<Holder>> {
    let mut holders = Vec::new();
    for status in subscriptions(session).await? {
        let sql = "SELECT f.floor, relevo.events_between(f.floor, relevo.last_seq()) FROM (
            SELECT coalesce(min(t.floor), 0) AS floor FROM relevo.cursor c
              JOIN relevo.tick t ON t.number = c.from_number AND t.nonce = c.from_nonce WHERE c.subscription = $1) f";
        let row = session.query_one(sql, args![status.name]).await?;
        let (floor, events): (i64, i64) = (row.get(0), row.get(1));
        let held =
            segments.iter().filter(|segment| segment.last_row.is_some_and(|last| last > floor));
        let bytes = held.map(|segment| segment.bytes).sum();
        holders.push(Holder::of(&status, floor, events, Some(bytes)));
    }
    Ok(holders)
}

/// `None` where a lock was not to be had in the moment given to it: next time, then.
fn passing_over_locks<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(cause) if could_not_lock(&cause) => {
            tracing::debug!(%cause, "a lock was not to be had; later");
            Ok(None)
        }
        Err(cause) => Err(cause),
    }
}

/// What a function answered; `None` where it could not get a lock.
fn asked<T: for<'r> tokio_postgres::types::FromSql<'r>>(
    row: Result<tokio_postgres::Row>,
) -> Result<Option<T>> {
    Ok(passing_over_locks(row)?.map(|row| row.get(0)))
}

async fn make_segment(session: &Session, rows: i64) -> Result<bool> {
    let row = session.query_one("SELECT relevo.make_segment($1)", args![rows]).await;
    Ok(asked::<Option<String>>(row)?.flatten().is_some())
}

async fn rows_of_a_day(session: &Session, last_seq: i64) -> Result<i64> {
    let sql =
        "SELECT relevo.events_between(top, $1) FROM relevo.tick
               WHERE at <= clock_timestamp() - interval '1 day' OR number = 0 ORDER BY number DESC LIMIT 1";
    let rows: i64 = session.query_one(sql, args![last_seq]).await?.get(0);
    Ok(rows.clamp(FIRST_ROWS, MOST_ROWS))
}

pub(crate) async fn floor_of_all(session: &Session) -> Result<Option<i64>> {
    Ok(session.query_one("SELECT relevo.floor_of_all()", args![]).await?.get(0))
}

/// Empties a segment whose every row all subscriptions have been past for long enough.
async fn empty_if_past(
    session: &Session,
    segment: &Segment,
    floor: Option<i64>,
    keep: Duration,
    upkeep: &mut Upkeep,
) -> Result<()> {
    let Some(last) = segment.last_row.filter(|_| segment.is_past(floor)) else { return Ok(()) };
    if !segment.settled {
        let sql = "UPDATE relevo.segment SET passed_seq = $2, passed_at = clock_timestamp() WHERE name = $1";
        session.execute(sql, args![segment.name, last]).await?;
    }
    let sql = "SELECT passed_at <= clock_timestamp() - make_interval(secs => $2) FROM relevo.segment WHERE name = $1";
    let old: Option<bool> =
        session.query_one(sql, args![segment.name, keep.as_secs_f64()]).await?.get(0);
    if old != Some(true) {
        return Ok(());
    }
    copy_bytes_to_refs(session, segment, last).await?;
    let emptied = passing_over_locks(
        session.query_one("SELECT relevo.empty_segment($1)", args![segment.name]).await,
    )?;
    if emptied.is_some_and(|row| row.get(0)) {
        upkeep.segments_dropped += 1;
        upkeep.rows_dropped += segment.row_estimate as u64;
    }
    Ok(())
}

/// Events that still wait behind a key take their bytes with them before their segment goes.
async fn copy_bytes_to_refs(session: &Session, segment: &Segment, last: i64) -> Result<()> {
    let first = if segment.is_default() { 0 } else { segment.from_seq };
    let sql = "WITH bare AS MATERIALIZED (
            SELECT r.ctid AS place, r.seq FROM relevo.parked_ref r
             WHERE r.payload IS NULL AND r.seq BETWEEN $1 AND $2 ORDER BY r.seq LIMIT $3)
        UPDATE relevo.parked_ref r
           SET topic = o.topic, event_key = o.key, headers = o.headers, payload = o.payload, created_at = o.created_at
          FROM bare JOIN relevo.outbox o ON o.seq = bare.seq AND o.seq BETWEEN $1 AND $2
         WHERE r.ctid = bare.place AND r.seq = bare.seq AND r.payload IS NULL";
    while session.execute(sql, args![first, last, BATCH]).await? > 0 {}
    Ok(())
}

async fn drop_if_emptied(session: &Session, segment: &Segment, floor: Option<i64>) -> Result<()> {
    let past = floor.is_some_and(|floor| segment.to_seq - 1 <= floor);
    let long_ago = segment.emptied_for.is_some_and(|seconds| seconds >= DROP_AFTER_S);
    if past && long_ago && segment.last_row.is_none() && !segment.is_default() {
        passing_over_locks(
            session.query("SELECT relevo.drop_segment($1)", args![segment.name]).await,
        )?;
    }
    Ok(())
}

/// Below the oldest cursor, ticks serve rewinding by time only: one a second is enough, and none once the log
/// behind it is gone. The beginning of the log and of each generation stay.
async fn prune_ticks(session: &Session, events: Duration) -> Result<u64> {
    let tx = session.begin().await?;
    if passing_over_locks(tx.query("SELECT relevo.lock_history()", args![]).await)?.is_none() {
        tx.rollback().await?;
        return Ok(0);
    }
    let sql = "WITH below AS (
            SELECT coalesce(min(c.from_number), (SELECT max(number) FROM relevo.tick)) AS number FROM relevo.cursor c),
        thinned AS (SELECT coalesce((SELECT value::bigint FROM relevo.meta WHERE name = 'ticks_thinned_to'), 0) AS number),
        doubled AS (
            SELECT t.number, date_trunc('second', t.at) = date_trunc('second', lag(t.at) OVER (ORDER BY t.number)) AS same
              FROM relevo.tick t, below, thinned WHERE t.number < below.number AND t.number >= thinned.number),
        noted AS (
            INSERT INTO relevo.meta AS m (name, value) SELECT 'ticks_thinned_to', number::text FROM below
            ON CONFLICT (name) DO UPDATE SET value = greatest(m.value::bigint, excluded.value::bigint)::text)
        DELETE FROM relevo.tick t USING below
         WHERE t.number > 0 AND t.number < below.number
           AND (t.number IN (SELECT number FROM doubled WHERE same)
                OR t.at < clock_timestamp() - make_interval(secs => $1) - interval '1 day')
           AND t.number <> (SELECT min(first.number) FROM relevo.tick first WHERE first.generation = t.generation)";
    let pruned = tx.execute(sql, args![events.as_secs_f64()]).await?;
    tx.commit().await?;
    Ok(pruned)
}

async fn drop_dead_letters(session: &Session, keep: Duration) -> Result<u64> {
    let sql = format!(
        "DELETE FROM relevo.dead_letter WHERE dead_letter IN (
        SELECT d.dead_letter FROM relevo.dead_letter d WHERE {OLD_LETTER}
         ORDER BY d.state = 'archived' DESC, d.dead_letter LIMIT $2)"
    );
    session.execute(&sql, args![keep.as_secs_f64(), BATCH]).await
}

/// Old marks: inbox rows, skips, moves, settled requests and replays without any, members that never said goodbye. In
/// pieces, so that no statement holds many locks or runs for long; what is left after some of them waits for next time.
async fn drop_traces(session: &Session, retention: &Retention) -> Result<()> {
    let exceptions = retention.dead_letters.as_secs_f64();
    for _ in 0..MOST_PIECES {
        if forget_inbox(session, retention.inbox_kept(), BATCH).await? < BATCH as u64 {
            break;
        }
    }
    for (table, condition, age) in [
        ("inbox_key", "NOT relevo.key_waits(x) AND $1 >= interval '0'", 0.0),
        ("skip", "x.at < clock_timestamp() - $1", exceptions),
        ("moved", "x.at < clock_timestamp() - $1", exceptions),
        ("request", "x.state <> 'waiting' AND x.settled_at < clock_timestamp() - $1", exceptions),
        ("replay", "x.asked_at < clock_timestamp() - $1
           AND NOT EXISTS (SELECT FROM relevo.request q WHERE q.operation = x.operation)", exceptions),
        ("member", "x.seen_at < clock_timestamp() - $1
           AND NOT EXISTS (SELECT FROM relevo.cursor c WHERE c.subscription = x.subscription AND c.owner = x.member)", 86_400.0),
    ] {
        let condition = condition.replace("$1", "make_interval(secs => $1)");
        let sql = format!(
            "DELETE FROM relevo.{table} WHERE ctid = ANY (ARRAY(SELECT x.ctid FROM relevo.{table} x WHERE {condition} LIMIT $2))"
        );
        for _ in 0..MOST_PIECES {
            if session.execute(&sql, args![age, BATCH]).await? < BATCH as u64 {
                break;
            }
        }
    }
    Ok(())
}

async fn warn(session: &Session, upkeep: &mut Upkeep) -> Result<()> {
    let segments = segments(session).await?;
    if let Some(default) =
        segments.iter().find(|segment| segment.is_default() && segment.last_row.is_some())
    {
        upkeep.warnings.push(format!(
            "the default segment holds events up to seq {}: no segment was made ahead in time; they are delivered as all others, and go when they are old",
            default.last_row.unwrap_or_default()
        ));
    }
    upkeep.warnings.extend(holders(session, &segments).await?);
    Ok(())
}

/// Subscriptions that nobody works, or that are paused, and that keep much of the log from going.
async fn holders(session: &Session, segments: &[Segment]) -> Result<Vec<String>> {
    let sql = "SELECT s.name, s.paused IS NOT NULL, min(t.floor) FROM relevo.subscription s
                 JOIN relevo.cursor c ON c.subscription = s.name JOIN relevo.tick t ON t.number = c.from_number
                WHERE s.paused IS NOT NULL OR NOT EXISTS (SELECT FROM relevo.member m WHERE m.subscription = s.name
                      AND m.seen_at > clock_timestamp() - interval '1 minute')
                GROUP BY s.name ORDER BY s.name";
    let rows = session.query(sql, args![]).await?;
    let held = |floor: i64| -> i64 {
        segments
            .iter()
            .filter(|s| s.last_row.is_some_and(|last| last > floor))
            .map(|s| s.bytes)
            .sum()
    };
    let lines = rows.iter().filter(|row| held(row.get(2)) >= HELD_BYTES).map(|row| {
        let why = if row.get(1) { "is paused" } else { "has nobody at work" };
        let name: &str = row.get(0);
        let bytes = held(row.get(2));
        format!("subscription {name} {why} and holds {bytes} bytes of the log; resume it, or end it with `relevo subscriptions remove {name}`")
    });
    Ok(lines.collect())
}
