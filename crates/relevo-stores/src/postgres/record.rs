//! One lane transaction: a change as JSON, for the functions `relevo.record` and `relevo.record_all`.

use super::PostgresStore;
use super::errors::on_commit;
use super::session::{Session, args};
use relevo_core::Result;
use relevo_core::outbox::{Death, EventRef, LaneChange, ParkKey, Position, Skip};
use serde_json::{Map, Value, json};

/// Most characters of an error that are kept.
const ERROR_CHARS: usize = 4000;

impl PostgresStore {
    /// Applies changes of several lanes, all or nothing.
    pub(crate) async fn record_changes(&self, changes: &[LaneChange]) -> Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        let session = self.session().await?;
        record_in(&session, changes).await.map_err(on_commit)
    }
}

/// The changes, as one statement: a transaction by itself, or the last one of the caller's.
pub(crate) async fn record_in(session: &Session, changes: &[LaneChange]) -> Result<()> {
    let together = |change: &LaneChange| {
        change.only_moves() && change.lane.subscription == changes[0].lane.subscription
    };
    if changes.iter().all(together) {
        return move_all(session, changes).await;
    }
    let text = Value::Array(changes.iter().map(to_json).collect()).to_string();
    session.query("SELECT relevo.record_all($1::text::jsonb)", args![text]).await?;
    Ok(())
}

/// Cursors of one subscription that only move.
async fn move_all(session: &Session, changes: &[LaneChange]) -> Result<()> {
    let subscription = &*changes[0].lane.subscription;
    let lanes: Vec<i16> = changes.iter().map(|change| change.lane.lane as i16).collect();
    let tokens: Vec<i64> = changes.iter().map(|change| change.token).collect();
    let delivered: Vec<i64> = changes.iter().map(|change| change.delivered as i64).collect();
    let before = Columns::of(changes.iter().map(|change| change.before));
    let after = Columns::of(changes.iter().map(|change| change.after));
    let sql = "SELECT relevo.move_all($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)";
    let args = args![
        subscription,
        lanes,
        tokens,
        delivered,
        before.from,
        before.from_nonce,
        before.to,
        before.to_nonce,
        before.seq,
        after.from,
        after.from_nonce,
        after.to,
        after.to_nonce,
        after.seq,
    ];
    session.query(sql, args).await?;
    Ok(())
}

/// Positions as columns.
#[derive(Default)]
struct Columns {
    from: Vec<i64>,
    from_nonce: Vec<i64>,
    to: Vec<Option<i64>>,
    to_nonce: Vec<Option<i64>>,
    seq: Vec<i64>,
}

impl Columns {
    fn of(positions: impl Iterator<Item = Position>) -> Self {
        let mut columns = Self::default();
        for position in positions {
            columns.from.push(position.from.number);
            columns.from_nonce.push(position.from.nonce);
            columns.to.push(position.to.map(|to| to.number));
            columns.to_nonce.push(position.to.map(|to| to.nonce));
            columns.seq.push(position.seq);
        }
        columns
    }
}

/// A change as `relevo.record` reads it; what is empty is left out.
pub(crate) fn to_json(change: &LaneChange) -> Value {
    let mut object = Map::new();
    let mut set = |name: &str, value: Value| {
        if value.as_array().is_none_or(|list| !list.is_empty()) {
            object.insert(name.to_owned(), value);
        }
    };
    set("subscription", json!(&*change.lane.subscription));
    set("lane", json!(change.lane.lane));
    set("token", json!(change.token));
    set("before", position(&change.before));
    set("after", position(&change.after));
    set("deaths", change.deaths.iter().map(death).collect());
    set("skips", change.skips.iter().map(skip).collect());
    set("settled", change.settled.iter().map(event).collect());
    set("waiting", change.waiting.iter().map(event).collect());
    set("parked", change.parked.iter().map(parked).collect());
    set("unparked", json!(change.unparked));
    set("replayed", json!(change.replayed));
    set("delivered", json!(change.delivered));
    Value::Object(object)
}

fn position(position: &Position) -> Value {
    json!({
        "from_number": position.from.number,
        "from_nonce": position.from.nonce,
        "to_number": position.to.map(|to| to.number),
        "to_nonce": position.to.map(|to| to.nonce),
        "seq": position.seq,
    })
}

fn event(event: &EventRef) -> Value {
    json!({
        "key": event.key,
        "to_number": event.to.number,
        "to_nonce": event.to.nonce,
        "seq": event.seq,
        "id": event.id,
    })
}

fn with(mut object: Value, more: Value) -> Value {
    if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
        object.extend(more);
    }
    object
}

fn death(death: &Death) -> Value {
    let more =
        json!({ "class": death.class, "error": shown(&death.error), "attempts": death.attempts });
    with(event(&death.event), more)
}

fn skip(skip: &Skip) -> Value {
    with(event(&skip.event), json!({ "reason": shown(&skip.reason) }))
}

fn parked(key: &ParkKey) -> Value {
    json!({
        "key": key.key,
        "attempts": key.attempts,
        "deaths": key.deaths,
        "retry_in": key.retry_in.map(|delay| delay.as_secs_f64()),
        "class": key.class,
        "error": shown(&key.error),
    })
}

/// A text of somebody else's as it can be kept: PostgreSQL has no NUL, and an error is no place for megabytes.
pub(crate) fn shown(text: &str) -> String {
    text.chars().take(ERROR_CHARS).map(|c| if c == '\0' { '\u{FFFD}' } else { c }).collect()
}

/// JSON text without the one escape that jsonb refuses.
pub(crate) fn storable(json: &str) -> String {
    json.replace("\\u0000", "\\ufffd")
}

#[cfg(test)]
mod tests {
    use super::*;
    use relevo_core::outbox::LaneId;

    #[test]
    fn a_change_that_only_moves_says_nothing_else() {
        let lane = LaneId { subscription: "s".into(), lane: 3 };
        let json =
            to_json(&LaneChange::moving(lane, i64::MAX, Position::default(), Position::default()));
        let names: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(names, ["after", "before", "delivered", "lane", "subscription", "token"]);
        assert!(json.to_string().contains(&i64::MAX.to_string()), "tokens keep all their digits");
    }

    #[test]
    fn a_nul_in_an_error_does_not_stop_its_recording() {
        assert_eq!(shown("a\0b"), "a\u{FFFD}b");
    }
}
