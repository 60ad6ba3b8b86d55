//! What operators ask for and a lane's owner carries out: replays, and held keys that may go on.

use super::errors::{Sql, own};
use super::horizon::prove_replay;
use super::rows::{event, now, text, time};
use bytes::Bytes;
use relevo_core::dead_letters::{
    DeadFilter, DeadLetter, DeadLetterId, DeadState, ReplayProgress, Unproven,
};
use relevo_core::outbox::{MemberId, Request};
use relevo_core::{ErrorClass, EventId, Headers, Kind};
use rusqlite::types::Value;
use rusqlite::{OptionalExtension, Row, Transaction, params, params_from_iter};

/// How many due requests a beat brings at most.
const REQUESTS_PER_BEAT: i64 = 100;

/// Requests that are due, those of the member's own lanes first: what nobody can carry out yet must not
/// hide what this member can.
pub(super) fn due(
    tx: &Transaction<'_>,
    subscription: &str,
    member: &MemberId,
) -> Sql<Vec<Request>> {
    let now = now(tx)?;
    let sql = "SELECT q.id, q.lane, q.key FROM relevo_request q
               LEFT JOIN relevo_cursor c ON c.subscription = q.subscription AND c.lane = q.lane
               WHERE q.subscription = ?1 AND q.due <= ?2
               ORDER BY c.owner IS NOT ?3, q.due, q.id LIMIT ?4";
    let mut statement = tx.prepare_cached(sql)?;
    let request =
        |row: &Row<'_>| Ok(Request { id: row.get(0)?, lane: row.get(1)?, key: row.get(2)? });
    let rows =
        statement.query_map(params![subscription, now, &*member.0, REQUESTS_PER_BEAT], request)?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// A filter as a condition on `relevo_dead_letter`.
struct Condition {
    sql: String,
    params: Vec<Value>,
}

impl Condition {
    fn of(filter: &DeadFilter) -> Self {
        let mut this = Self {
            sql: "state = ?".into(),
            params: vec![state_of(filter).as_str().to_owned().into()],
        };
        if !filter.ids.is_empty() {
            let ids = serde_json::json!(filter.ids).to_string();
            this.and("number IN (SELECT value FROM json_each(?))", Some(ids));
        }
        this.and("subscription = ?", filter.subscription.clone());
        this.and("topic = ?", filter.topic.clone());
        this.and("key = ?", filter.key.clone());
        this.and("class = ?", filter.class.map(|class| class.as_str().to_owned()));
        this.and("instr(error, ?) > 0", filter.text.clone());
        this.and("event_id = ?", filter.event.map(|id| id.to_string()));
        this.and("number <= CAST(? AS INTEGER)", filter.up_to.map(|id| id.to_string()));
        this
    }

    fn and(&mut self, sql: &str, value: Option<String>) {
        if let Some(value) = value {
            self.sql.push_str(" AND ");
            self.sql.push_str(sql);
            self.params.push(value.into());
        }
    }
}

fn state_of(filter: &DeadFilter) -> DeadState {
    filter.state.unwrap_or(DeadState::Dead)
}

/// Dead letters that match, newest first.
pub(super) fn find(
    tx: &Transaction<'_>,
    filter: &DeadFilter,
    before: Option<DeadLetterId>,
    max: usize,
) -> Sql<Vec<DeadLetter>> {
    let Condition { sql, mut params } = Condition::of(filter);
    let sql = format!(
        "SELECT number, subscription, lane, class, error, attempts, first_failed_at, died_at, state, copy_of,
                event_id, topic, key, headers, payload, created_at
         FROM relevo_dead_letter WHERE {sql} AND number < ? ORDER BY number DESC LIMIT ?"
    );
    params.push(before.unwrap_or(i64::MAX).into());
    params.push(i64::try_from(max).unwrap_or(i64::MAX).into());
    let mut statement = tx.prepare(&sql)?;
    let rows = statement.query_map(params_from_iter(params), dead_letter)?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

fn dead_letter(row: &Row<'_>) -> rusqlite::Result<DeadLetter> {
    let word = |column: usize| row.get_ref(column).map(|value| text(value).unwrap_or_default());
    let class = ErrorClass::parse(&word(3)?).unwrap_or(ErrorClass::Unknown);
    let state = DeadState::parse(&word(8)?).unwrap_or(DeadState::Dead);
    Ok(DeadLetter::stored(
        row.get(0)?,
        row.get(1)?,
        row.get(2)?,
        event(row, 10)?,
        (class, word(4)?, row.get(5)?),
        time(row.get(6)?),
        time(row.get(7)?),
        state,
        row.get(9)?,
    ))
}

fn refused(message: String) -> super::errors::Fault {
    own(Kind::ReplayRefused, message).into()
}

/// Freezes what matches and asks for its replay: oldest place first, `rate` a second at most.
pub(super) fn replay(
    tx: &Transaction<'_>,
    filter: &DeadFilter,
    rate: Option<f64>,
    unproven: Unproven,
) -> Sql<ReplayProgress> {
    if state_of(filter) != DeadState::Dead {
        return Err(refused(format!(
            "only dead letters in state dead are replayed, not {}",
            state_of(filter).as_str()
        )));
    }
    if rate.is_some_and(|rate| !rate.is_finite() || rate <= 0.0) {
        return Err(own(Kind::InvalidArgument, "the rate must be above 0 a second").into());
    }
    every_id_is_dead(tx, &filter.ids)?;
    let letters = frozen(tx, filter)?;
    prove_replay(tx, &letters, unproven)?;
    tx.execute(
        "INSERT INTO relevo_replay (total, created_at) VALUES (?1, ?2)",
        params![letters.len() as i64, now(tx)?],
    )?;
    let operation = tx.last_insert_rowid();
    let start = now(tx)?;
    for (nth, letter) in letters.iter().enumerate() {
        let wait = rate.map_or(0, |rate| (nth as f64 * 1000.0 / rate) as i64);
        request_replay(tx, *letter, Some(operation), start.saturating_add(wait))?;
    }
    progress(tx, operation)
}

fn every_id_is_dead(tx: &Transaction<'_>, ids: &[DeadLetterId]) -> Sql<()> {
    for id in ids {
        let sql = "SELECT state FROM relevo_dead_letter WHERE number = ?1";
        match tx
            .prepare_cached(sql)?
            .query_row([id], |row| row.get::<_, String>(0))
            .optional()?
            .as_deref()
        {
            Some("dead") => {}
            Some(state) => return Err(refused(format!("dead letter {id} is {state} already"))),
            None => return Err(refused(format!("there is no dead letter {id}"))),
        }
    }
    Ok(())
}

/// The numbers of the dead letters that match, in the order they once stood in.
fn frozen(tx: &Transaction<'_>, filter: &DeadFilter) -> Sql<Vec<DeadLetterId>> {
    let Condition { sql, params } = Condition::of(filter);
    let orphan = format!(
        "SELECT subscription FROM relevo_dead_letter WHERE {sql} AND subscription NOT IN (SELECT name FROM relevo_subscription)"
    );
    let orphan: Option<String> =
        tx.query_row(&orphan, params_from_iter(&params), |row| row.get(0)).optional()?;
    if let Some(name) = orphan {
        return Err(refused(format!(
            "subscription {name:?} was removed: nobody would work on its dead letters"
        )));
    }
    let mut statement = tx.prepare(&format!(
        "SELECT number FROM relevo_dead_letter WHERE {sql} ORDER BY to_number, seq, number"
    ))?;
    let rows = statement.query_map(params_from_iter(params), |row| row.get(0))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

fn request_replay(
    tx: &Transaction<'_>,
    letter: DeadLetterId,
    operation: Option<i64>,
    due: i64,
) -> Sql<()> {
    tx.prepare_cached("UPDATE relevo_dead_letter SET state = 'requested' WHERE number = ?1")?
        .execute([letter])?;
    let sql = "INSERT INTO relevo_request (subscription, lane, key, kind, letter, operation, due)
               SELECT subscription, lane, order_key, 'replay', number, ?2, ?3 FROM relevo_dead_letter WHERE number = ?1";
    tx.prepare_cached(sql)?.execute(params![letter, operation, due])?;
    Ok(())
}

/// How far a replay is. What is no longer waiting and was not taken out has been put back.
pub(super) fn progress(tx: &Transaction<'_>, operation: i64) -> Sql<ReplayProgress> {
    let sql = "SELECT total, cancelled FROM relevo_replay WHERE operation = ?1";
    let found: Option<(i64, i64)> =
        tx.query_row(sql, [operation], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    let Some((total, cancelled)) = found else {
        return Err(own(Kind::InvalidArgument, format!("there is no replay {operation}")).into());
    };
    let sql = "SELECT count(*) FROM relevo_request WHERE operation = ?1";
    let waiting: i64 = tx.query_row(sql, [operation], |row| row.get(0))?;
    Ok(ReplayProgress::new(operation, total, waiting, total - waiting - cancelled, cancelled))
}

/// Takes out of a replay what was not put back yet.
pub(super) fn cancel(tx: &Transaction<'_>, operation: i64) -> Sql<ReplayProgress> {
    progress(tx, operation)?;
    let sql = "UPDATE relevo_dead_letter SET state = 'dead' WHERE state = 'requested'
               AND number IN (SELECT letter FROM relevo_request WHERE operation = ?1)";
    tx.execute(sql, [operation])?;
    let taken = tx.execute("DELETE FROM relevo_request WHERE operation = ?1", [operation])?;
    tx.execute(
        "UPDATE relevo_replay SET cancelled = cancelled + ?2 WHERE operation = ?1",
        params![operation, taken as i64],
    )?;
    progress(tx, operation)
}

/// Makes an edited copy with an id of its own, archives the original and asks for the copy's replay.
pub(super) fn replay_edited(
    tx: &Transaction<'_>,
    id: DeadLetterId,
    payload: &Bytes,
    headers: &Headers,
) -> Sql<EventId> {
    let mut filter = DeadFilter::default();
    filter.ids = vec![id];
    every_id_is_dead(tx, &filter.ids)?;
    frozen(tx, &filter)?;
    let fresh = EventId::fresh();
    let sql = "INSERT INTO relevo_dead_letter (subscription, lane, order_key, to_number, seq, event_id, topic, key, headers,
                   payload, created_at, class, error, attempts, first_failed_at, died_at, state, copy_of)
               SELECT subscription, lane, order_key, to_number, seq, ?2, topic, key, ?3, ?4, created_at, class, error,
                   attempts, first_failed_at, died_at, 'requested', number FROM relevo_dead_letter WHERE number = ?1";
    tx.execute(sql, params![id, fresh.to_string(), headers.to_json(), &**payload])?;
    let copy = tx.last_insert_rowid();
    tx.execute("UPDATE relevo_dead_letter SET state = 'archived' WHERE number = ?1", [id])?;
    request_replay(tx, copy, None, now(tx)?)?;
    Ok(fresh)
}

/// Sets dead letters aside; a key that is held for them may go on.
pub(super) fn archive(tx: &Transaction<'_>, filter: &DeadFilter) -> Sql<u64> {
    if state_of(filter) == DeadState::Requested {
        return Err(own(
            Kind::InvalidArgument,
            "a requested replay is cancelled first, then archived",
        )
        .into());
    }
    let Condition { sql, params } = Condition::of(filter);
    let now = now(tx)?;
    let held = format!(
        "INSERT INTO relevo_request (subscription, lane, key, kind, due)
         SELECT DISTINCT k.subscription, k.lane, k.key, 'release', {now} FROM relevo_parked_key k
         WHERE k.due IS NULL
         AND (k.subscription, k.lane, k.key) IN (SELECT subscription, lane, order_key FROM relevo_dead_letter WHERE {sql})
         AND NOT EXISTS (SELECT 1 FROM relevo_request q
                         WHERE q.subscription = k.subscription AND q.lane = k.lane AND q.key = k.key)"
    );
    tx.execute(&held, params_from_iter(&params))?;
    let archived = tx.execute(
        &format!("UPDATE relevo_dead_letter SET state = 'archived' WHERE {sql}"),
        params_from_iter(&params),
    )?;
    Ok(archived as u64)
}
