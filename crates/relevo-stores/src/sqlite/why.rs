//! Why is this event where it is? Walks the same tables as the relay does.

use super::adopt::why::why_in_table;
use super::errors::Sql;
use super::retention::dropped_until;
use super::rows::{now, text, time};
use super::status::topics;
use relevo_core::EventId;
use relevo_core::dead_letters::{Answer, Why};
use relevo_core::event::{TopicFilter, lane_of, order_key};
use relevo_core::outbox::{MemberNote, OpenBreaker};
use rusqlite::{OptionalExtension, Row, Transaction, params};

/// An event, wherever it was found.
struct Found {
    id: EventId,
    topic: String,
    /// The consumer whose log it landed in.
    inbox: Option<String>,
    key: Option<String>,
    lane: u16,
    seq: i64,
    created_at: i64,
    /// An edited copy belongs to this subscription only.
    only: Option<String>,
}

/// Why an event is where it is.
pub(super) fn why(tx: &Transaction<'_>, id: EventId) -> Sql<Answer> {
    let found = find(tx, id)?;
    let inbox = found.as_ref().and_then(|found| found.inbox.as_deref());
    if let Some(answer) = why_in_table(tx, id, found.is_some(), inbox)? {
        return Ok(answer);
    }
    let Some(found) = found else {
        // One writer at a time, in any process: SQLite does not tell who it is.
        return Ok(Answer::Unknown {
            suspects: Vec::new(),
            past_retention: past_retention(tx, id)?,
        });
    };
    let mut statement = tx.prepare_cached(
        "SELECT name, topics, start_seq, paused FROM relevo_subscription ORDER BY name",
    )?;
    let mut rows = statement.query([])?;
    let mut subscriptions = Vec::new();
    while let Some(row) = rows.next()? {
        let name: String = row.get(0)?;
        if found.only.as_ref().is_none_or(|only| *only == name) {
            let why = for_one(tx, &found, &name, row)?;
            subscriptions.push((name, why));
        }
    }
    let Found { topic, key, lane, seq, created_at, .. } = found;
    Ok(Answer::Known {
        topic,
        key,
        lane,
        seq: Some(seq),
        created_at: time(created_at),
        subscriptions,
    })
}

fn find(tx: &Transaction<'_>, id: EventId) -> Sql<Option<Found>> {
    let sql = "SELECT topic, key, seq, created_at, NULL, iif(json_valid(headers), headers ->> '$.\"relevo-inbox\"', NULL) FROM relevo_outbox WHERE id = ?1
               UNION ALL
               SELECT topic, key, seq, created_at, iif(copy_of IS NULL, NULL, subscription),
                      iif(json_valid(headers), headers ->> '$.\"relevo-inbox\"', NULL) FROM relevo_dead_letter WHERE event_id = ?1
               LIMIT 1";
    let found = |row: &Row<'_>| {
        let key = text(row.get_ref(1)?);
        let topic = text(row.get_ref(0)?).unwrap_or_default();
        let lane = lane_of(&order_key(key.as_deref(), id));
        Ok(Found {
            id,
            topic,
            inbox: text(row.get_ref(5)?),
            key,
            lane,
            seq: row.get(2)?,
            created_at: row.get(3)?,
            only: row.get(4)?,
        })
    };
    let found = tx.prepare_cached(sql)?.query_row([id.to_string()], found).optional()?;
    found.map(|found| in_its_lane(tx, found)).transpose()
}

/// A copy without a key keeps the order key, and so the lane, of its original.
fn in_its_lane(tx: &Transaction<'_>, mut found: Found) -> Sql<Found> {
    if found.only.is_some() {
        let sql = "SELECT lane FROM relevo_dead_letter WHERE event_id = ?1 LIMIT 1";
        found.lane = tx.query_row(sql, [found.id.to_string()], |row| row.get(0))?;
    }
    Ok(found)
}

/// An id made before the youngest event that retention dropped may have been one of those.
fn past_retention(tx: &Transaction<'_>, id: EventId) -> Sql<bool> {
    let Some((seconds, nanos)) = id.0.get_timestamp().map(|made| made.to_unix()) else {
        return Ok(false);
    };
    let made =
        i64::try_from(seconds).unwrap_or(i64::MAX / 1000) * 1000 + i64::from(nanos / 1_000_000);
    Ok(dropped_until(tx)?.is_some_and(|until| made <= until))
}

fn for_one(tx: &Transaction<'_>, found: &Found, name: &str, row: &Row<'_>) -> Sql<Why> {
    let wanted = topics(&row.get::<_, String>(1)?);
    let start: i64 = row.get(2)?;
    let paused: Option<String> = row.get(3)?;
    if let Some(why) = exception(tx, found, name)? {
        return Ok(why.while_paused(paused.as_deref()));
    }
    let filters: Vec<_> =
        wanted.iter().filter_map(|filter| TopicFilter::parse(filter).ok()).collect();
    if !TopicFilter::any_wants(&filters, &found.topic, found.inbox.as_deref()) {
        return Ok(Why::FilteredOut { topics: wanted });
    }
    if found.seq <= start {
        return Ok(Why::BeforeStart);
    }
    let sql = "SELECT max(from_number, seq), owner FROM relevo_cursor WHERE subscription = ?1 AND lane = ?2";
    let cursor = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, Option<String>>(1)?));
    let (decided, owner) = tx.prepare_cached(sql)?.query_row(params![name, found.lane], cursor)?;
    match (found.seq <= decided, paused) {
        (true, _) => Ok(left_out(tx, found, name)?.unwrap_or(Why::Delivered)),
        (false, Some(by)) => Ok(Why::Paused { by, then: None }),
        (false, None) => pending(tx, found, name, owner),
    }
}

/// What the cursor does not tell: parked, dead or skipped.
fn exception(tx: &Transaction<'_>, found: &Found, name: &str) -> Sql<Option<Why>> {
    if let Some(why) = parked(tx, found, name)? {
        return Ok(Some(why));
    }
    let id = found.id.to_string();
    let sql = "SELECT number, state, class, error FROM relevo_dead_letter WHERE event_id = ?1 AND subscription = ?2
               ORDER BY number DESC LIMIT 1";
    let dead = |row: &Row<'_>| {
        Ok(Why::Dead {
            dead_letter: row.get(0)?,
            dead_state: row.get(1)?,
            class: row.get(2)?,
            error: row.get(3)?,
        })
    };
    let dead = tx.prepare_cached(sql)?.query_row(params![id, name], dead).optional()?;
    match dead {
        // Put back and not parked any more: its replay was decided.
        Some(Why::Dead { dead_state, .. }) if dead_state == "replayed" => {}
        Some(why) => return Ok(Some(why)),
        None => {}
    }
    let sql = "SELECT reason FROM relevo_skip WHERE subscription = ?1 AND id = ?2";
    let skip = |row: &Row<'_>| Ok(Why::Skipped { reason: row.get(0)? });
    Ok(tx.prepare_cached(sql)?.query_row(params![name, id], skip).optional()?)
}

fn parked(tx: &Transaction<'_>, found: &Found, name: &str) -> Sql<Option<Why>> {
    let sql = "SELECT lane, key, to_number, seq FROM relevo_parked_ref WHERE id = ?1 AND subscription = ?2
               ORDER BY to_number, seq LIMIT 1";
    let at = |row: &Row<'_>| {
        Ok((
            row.get::<_, u16>(0)?,
            row.get::<_, String>(1)?,
            row.get::<_, i64>(2)?,
            row.get::<_, i64>(3)?,
        ))
    };
    let id = found.id.to_string();
    let Some((lane, key, to, seq)) =
        tx.prepare_cached(sql)?.query_row(params![id, name], at).optional()?
    else {
        return Ok(None);
    };
    let sql = "SELECT count(*), (SELECT id FROM relevo_parked_ref WHERE subscription = ?1 AND lane = ?2 AND key = ?3
                                 ORDER BY to_number, seq, id LIMIT 1)
               FROM relevo_parked_ref WHERE subscription = ?1 AND lane = ?2 AND key = ?3 AND (to_number, seq, id) < (?4, ?5, ?6)";
    let before =
        |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, super::rows::event_id(row.get_ref(1)?)));
    let (before, first) =
        tx.prepare_cached(sql)?.query_row(params![name, lane, key, to, seq, id], before)?;
    if let Some(why) = held(tx, name, lane, &key, before)? {
        return Ok(Some(why));
    }
    let sql = "SELECT attempts, due, class, error FROM relevo_parked_key WHERE subscription = ?1 AND lane = ?2 AND key = ?3";
    let why = |row: &Row<'_>| {
        let due = row.get::<_, Option<i64>>(1)?.map(time);
        let error = row.get(3)?;
        Ok(match before {
            0 => Why::Parked { attempts: row.get(0)?, due, class: row.get(2)?, error },
            _ => Why::ParkedBehind { event: first, before, due, error },
        })
    };
    Ok(tx.prepare_cached(sql)?.query_row(params![name, lane, key], why).optional()?)
}

/// The dead letter that holds a key until a person decides, if one does.
fn held(tx: &Transaction<'_>, name: &str, lane: u16, key: &str, before: i64) -> Sql<Option<Why>> {
    let sql = "SELECT d.number, d.event_id, d.class, d.error FROM relevo_parked_key k
               JOIN relevo_dead_letter d ON d.state IN ('dead', 'requested') AND d.subscription = k.subscription
                    AND d.lane = k.lane AND d.order_key = k.key
               WHERE k.subscription = ?1 AND k.lane = ?2 AND k.key = ?3 AND k.due IS NULL
               ORDER BY d.number DESC LIMIT 1";
    let held = |row: &Row<'_>| {
        Ok(Why::Held {
            dead_letter: row.get(0)?,
            event: super::rows::event_id(row.get_ref(1)?),
            before,
            class: row.get(2)?,
            error: row.get(3)?,
        })
    };
    Ok(tx.prepare_cached(sql)?.query_row(params![name, lane, key], held).optional()?)
}

fn left_out(tx: &Transaction<'_>, found: &Found, name: &str) -> Sql<Option<Why>> {
    let sql = "SELECT reason FROM relevo_gap WHERE subscription = ?1 AND lane = ?2 AND above < ?3 AND up_to >= ?3 LIMIT 1";
    let skip = |row: &Row<'_>| Ok(Why::Skipped { reason: row.get(0)? });
    Ok(tx.prepare_cached(sql)?.query_row(params![name, found.lane, found.seq], skip).optional()?)
}

/// Not decided yet: who has its lane, and what keeps them?
fn pending(tx: &Transaction<'_>, found: &Found, name: &str, owner: Option<String>) -> Sql<Why> {
    let lane = found.lane;
    let Some(owner) = owner else { return Ok(Why::NobodyWorks { lane }) };
    let sql = "SELECT note, seen_at FROM relevo_member WHERE subscription = ?1 AND member = ?2";
    let member = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?));
    let Some((note, seen_at)) =
        tx.prepare_cached(sql)?.query_row(params![name, owner], member).optional()?
    else {
        return Ok(Why::NobodyWorks { lane });
    };
    let note: serde_json::Value = serde_json::from_str(&note).unwrap_or_default();
    let silent_s = (now(tx)? - seen_at).max(0) as f64 / 1000.0;
    Ok(match MemberNote::read(&note).breaker_after(silent_s) {
        Some(OpenBreaker { reason, open_s }) => Why::BreakerOpen { reason, open_s },
        None => Why::LaneLeased { lane, owner, silent_s },
    })
}
