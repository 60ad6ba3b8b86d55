//! One lane transaction, written once for every driver: a list of statements whose last is the fence.

use super::errors::{Sql, own};
use super::rows::{millis, now_ms};
use relevo_core::outbox::{Death, EventRef, LaneChange, ParkKey, RequestId, Skip};
use relevo_core::{Error, Kind};
use rusqlite::types::ToSqlOutput;
use rusqlite::{ToSql, Transaction, params_from_iter};

/// Errors are kept whole up to here; what a handler says may be of any length.
const MAX_ERROR_BYTES: usize = 8 << 10;

/// A parameter, for any driver.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Null,
    Int(i64),
    Text(String),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Self::Int(number.into())
    }
}

impl From<u16> for Value {
    fn from(number: u16) -> Self {
        Self::Int(number.into())
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        match self {
            Self::Null => Ok(ToSqlOutput::from(rusqlite::types::Null)),
            Self::Int(number) => number.to_sql(),
            Self::Text(text) => text.to_sql(),
        }
    }
}

/// One statement of a lane transaction.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Statement {
    pub(super) sql: &'static str,
    pub(super) params: Vec<Value>,
    /// If set, exactly one row must change; otherwise the transaction fails so, for this reason.
    must_match: Option<(Kind, &'static str)>,
}

impl Statement {
    fn new(sql: &'static str, params: Vec<Value>) -> Self {
        Self { sql, params, must_match: None }
    }

    fn or_fail(mut self, kind: Kind, why: &'static str) -> Self {
        self.must_match = Some((kind, why));
        self
    }

    /// Judges how many rows it changed.
    pub(super) fn judge(&self, change: &LaneChange, rows: u64) -> Result<(), Error> {
        match self.must_match {
            Some((kind, why)) if rows != 1 => {
                let (subscription, lane) = (&change.lane.subscription, change.lane.lane);
                Err(own(
                    kind,
                    format!("lane {lane} of {subscription} under token {}: {why}", change.token),
                ))
            }
            _ => Ok(()),
        }
    }
}

/// Applies the changes of different lanes in one transaction; its caller commits or rolls back.
pub(super) fn record_all(tx: &Transaction<'_>, changes: &[LaneChange]) -> Sql<()> {
    changes.iter().try_for_each(|change| record(tx, change))
}

/// Applies one lane's change.
pub(super) fn record(tx: &Transaction<'_>, change: &LaneChange) -> Sql<()> {
    for statement in statements(change) {
        let rows =
            tx.prepare_cached(statement.sql)?.execute(params_from_iter(&statement.params))?;
        statement.judge(change, rows as u64)?;
    }
    Ok(())
}

/// What a change writes, in order, the fence last.
pub(super) fn statements(change: &LaneChange) -> Vec<Statement> {
    let mut list = Vec::new();
    list.extend(change.deaths.iter().map(|death| bury(change, death)));
    list.extend(change.skips.iter().map(|skip| note_skip(change, skip)));
    list.extend(change.settled.iter().map(|at| drop_ref(change, at)));
    list.extend(change.waiting.iter().map(|at| add_ref(change, at)));
    list.extend(change.parked.iter().map(|key| park(change, key)));
    list.extend(change.unparked.iter().map(|key| unpark(change, key)));
    list.extend(change.replayed.iter().flat_map(|id| carry_out(change, *id)));
    list.push(fence(change));
    list
}

fn lane_params(change: &LaneChange) -> Vec<Value> {
    vec![Value::from(&*change.lane.subscription), change.lane.lane.into()]
}

/// The parameters ?1 to ?6: where an event stands in its lane.
fn ref_params(change: &LaneChange, at: &EventRef) -> Vec<Value> {
    let mut params = lane_params(change);
    params.extend([
        at.key.as_str().into(),
        at.to.number.into(),
        at.seq.into(),
        Value::Text(at.id.to_string()),
    ]);
    params
}

/// The bytes come from the dead letter the ref points to, or from the log.
fn bury(change: &LaneChange, death: &Death) -> Statement {
    let sql = concat!(
        "INSERT INTO relevo_dead_letter (subscription, lane, order_key, to_number, seq, event_id, topic, key, headers, payload,
             created_at, class, error, attempts, first_failed_at, died_at, state, copy_of)
         SELECT ?1, ?2, ?3, ?4, ?5, ?6, topic, key, headers, payload, created_at, ?7, ?8, ?9,
             COALESCE((SELECT first_failed_at FROM relevo_parked_key
                       WHERE subscription = ?1 AND lane = ?2 AND key = ?3 AND attempts > 0 AND ?9 > 1), ",
        now_ms!(),
        "), ",
        now_ms!(),
        ", 'dead', copy_of
         FROM (SELECT d.topic, d.key, d.headers, d.payload, d.created_at, d.copy_of
               FROM relevo_parked_ref r JOIN relevo_dead_letter d ON d.number = r.letter
               WHERE r.subscription = ?1 AND r.lane = ?2 AND r.key = ?3 AND r.to_number = ?4 AND r.seq = ?5 AND r.id = ?6
               UNION ALL
               SELECT topic, key, headers, payload, created_at, NULL FROM relevo_outbox WHERE seq = ?5 AND id = ?6
               LIMIT 1)"
    );
    let mut params = ref_params(change, &death.event);
    params.extend([
        death.class.as_str().into(),
        shortened(&death.error).into(),
        death.attempts.into(),
    ]);
    Statement::new(sql, params)
        .or_fail(Kind::EventNotFound, "the event that died is neither in its place nor in the log")
}

fn note_skip(change: &LaneChange, skip: &Skip) -> Statement {
    let sql = concat!(
        "INSERT INTO relevo_skip (subscription, id, seq, reason, at) VALUES (?1, ?2, ?3, ?4, ",
        now_ms!(),
        ") ON CONFLICT (subscription, id) DO UPDATE SET reason = excluded.reason, at = excluded.at"
    );
    let id = Value::Text(skip.event.id.to_string());
    let params = vec![
        (&*change.lane.subscription).into(),
        id,
        skip.event.seq.into(),
        shortened(&skip.reason).into(),
    ];
    Statement::new(sql, params)
}

fn drop_ref(change: &LaneChange, at: &EventRef) -> Statement {
    let sql = "DELETE FROM relevo_parked_ref
               WHERE subscription = ?1 AND lane = ?2 AND key = ?3 AND to_number = ?4 AND seq = ?5 AND id = ?6";
    Statement::new(sql, ref_params(change, at))
}

/// A ref that is there already means that somebody else was here; unless a replay put it there while the
/// log, rewound, brings the same event again: then it waits once.
fn add_ref(change: &LaneChange, at: &EventRef) -> Statement {
    let sql = "INSERT INTO relevo_parked_ref (subscription, lane, key, to_number, seq, id) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
               ON CONFLICT DO UPDATE SET letter = letter WHERE letter IS NOT NULL";
    Statement::new(sql, ref_params(change, at))
        .or_fail(Kind::Stale, "an event waits behind its key already")
}

fn park(change: &LaneChange, key: &ParkKey) -> Statement {
    let sql = concat!(
        "INSERT INTO relevo_parked_key (subscription, lane, key, attempts, deaths, due, class, error, first_failed_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6 + ",
        now_ms!(),
        ", ?7, ?8, ",
        now_ms!(),
        ") ON CONFLICT (subscription, lane, key) DO UPDATE SET
             first_failed_at = iif(attempts > 0 AND excluded.attempts > 1, first_failed_at, excluded.first_failed_at),
             attempts = excluded.attempts, deaths = excluded.deaths, due = excluded.due,
             class = excluded.class, error = excluded.error"
    );
    let mut params = lane_params(change);
    params.extend([key.key.as_str().into(), key.attempts.into(), key.deaths.into()]);
    params.push(key.retry_in.map(millis).into());
    params.extend([key.class.as_str().into(), shortened(&key.error).into()]);
    Statement::new(sql, params)
}

fn unpark(change: &LaneChange, key: &str) -> Statement {
    let mut params = lane_params(change);
    params.push(key.into());
    Statement::new(
        "DELETE FROM relevo_parked_key WHERE subscription = ?1 AND lane = ?2 AND key = ?3",
        params,
    )
}

/// Carries a request out: its dead letter waits at its old place again, its key is due at once. One that was
/// taken back meanwhile changes nothing.
fn carry_out(change: &LaneChange, request: RequestId) -> [Statement; 4] {
    const PUT_BACK: &str =
        "INSERT INTO relevo_parked_ref (subscription, lane, key, to_number, seq, id, letter)
        SELECT d.subscription, d.lane, d.order_key, d.to_number, d.seq, d.event_id, d.number
        FROM relevo_request q JOIN relevo_dead_letter d ON d.number = q.letter
        WHERE q.id = ?3 AND q.subscription = ?1 AND q.lane = ?2 ON CONFLICT DO NOTHING";
    const DUE_AT_ONCE: &str = concat!(
        "INSERT INTO relevo_parked_key (subscription, lane, key, attempts, deaths, due, class, error, first_failed_at)
         SELECT subscription, lane, key, 0, 0, ",
        now_ms!(),
        ", 'transient', 'asked for by an operator', ",
        now_ms!(),
        " FROM relevo_request WHERE id = ?3 AND subscription = ?1 AND lane = ?2
         ON CONFLICT (subscription, lane, key) DO UPDATE SET attempts = 0, deaths = 0, due = excluded.due,
             class = excluded.class, error = excluded.error, first_failed_at = excluded.first_failed_at"
    );
    const REPLAYED: &str = "UPDATE relevo_dead_letter SET state = 'replayed'
        WHERE number = (SELECT letter FROM relevo_request WHERE id = ?3 AND subscription = ?1 AND lane = ?2)";
    const DONE: &str =
        "DELETE FROM relevo_request WHERE id = ?3 AND subscription = ?1 AND lane = ?2";
    [PUT_BACK, DUE_AT_ONCE, REPLAYED, DONE].map(|sql| {
        let mut params = lane_params(change);
        params.push(request.into());
        Statement::new(sql, params)
    })
}

/// The last statement: without exactly one row of this token at this position, nothing of the change may stay.
fn fence(change: &LaneChange) -> Statement {
    let sql = concat!(
        "UPDATE relevo_cursor SET from_number = ?4, to_number = ?5, seq = ?6,
             moved_at = iif(?4 = ?7 AND ?5 IS ?8 AND ?6 = ?9, moved_at, ",
        now_ms!(),
        ") WHERE subscription = ?1 AND lane = ?2 AND token = ?3
             AND from_number = ?7 AND to_number IS ?8 AND seq = ?9"
    );
    let mut params = lane_params(change);
    params.push(change.token.into());
    for position in [change.after, change.before] {
        params.extend([
            position.from.number.into(),
            position.to.map(|to| to.number).into(),
            position.seq.into(),
        ]);
    }
    Statement::new(sql, params).or_fail(Kind::Stale, "another owner has it, or its cursor moved")
}

/// The text, cut where it gets too long.
pub(super) fn shortened(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_ERROR_BYTES)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use relevo_core::outbox::{LaneId, Position, TickRef};

    #[test]
    fn the_fence_is_the_last_statement_of_every_change() {
        let lane = LaneId { subscription: "s".into(), lane: 3 };
        let after = Position::at(TickRef { number: 9, nonce: 0 });
        let mut change = LaneChange::moving(lane, 7, Position::default(), after);
        change.unparked.push("k".into());
        change.replayed.push(1);
        let list = statements(&change);
        assert_eq!(list.len(), 6);
        assert!(list[5].sql.starts_with("UPDATE relevo_cursor"));
        assert_eq!(list[5].judge(&change, 0).unwrap_err().kind(), Kind::Stale);
        assert!(list[5].judge(&change, 1).is_ok());
    }

    #[test]
    fn an_endless_error_is_cut_between_characters() {
        let long = "é".repeat(MAX_ERROR_BYTES);
        assert_eq!(shortened(&long).len(), MAX_ERROR_BYTES);
        assert_eq!(shortened("short"), "short");
    }
}
