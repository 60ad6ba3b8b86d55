//! Reading rows without ever failing on what a writer put into them.

use super::errors::Sql;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use relevo_core::event::{Event, EventId, Headers, NewEvent};
use relevo_core::outbox::TickRef;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row};
use std::time::Duration;
use uuid::Uuid;

/// Milliseconds since 1970 by SQLite's clock: what every calendar time in the tables is.
macro_rules! now_ms {
    () => {
        "CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER)"
    };
}
pub(super) use now_ms;

/// Text as it is, or as near as possible: SQLite does not check that text is UTF-8, and one bad row must
/// not make a page unreadable.
pub(super) fn text(value: ValueRef<'_>) -> Option<String> {
    match value {
        ValueRef::Null => None,
        ValueRef::Integer(number) => Some(number.to_string()),
        ValueRef::Real(number) => Some(number.to_string()),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
            Some(String::from_utf8_lossy(bytes).into_owned())
        }
    }
}

/// The bytes as they are; a payload written as text is its UTF-8.
pub(super) fn payload(value: ValueRef<'_>) -> Bytes {
    match value {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Bytes::copy_from_slice(bytes),
        other => Bytes::from(text(other).unwrap_or_default()),
    }
}

pub(super) fn event_id(value: ValueRef<'_>) -> EventId {
    EventId(text(value).and_then(|text| Uuid::parse_str(&text).ok()).unwrap_or(Uuid::nil()))
}

/// The columns `id, topic, key, headers, payload, created_at`, from column `first` on.
pub(super) fn event(row: &Row<'_>, first: usize) -> rusqlite::Result<Event> {
    let mut event = NewEvent::with_id(
        event_id(row.get_ref(first)?),
        text(row.get_ref(first + 1)?).unwrap_or_default(),
        payload(row.get_ref(first + 4)?),
    );
    event.key = text(row.get_ref(first + 2)?);
    event.headers = Headers::from_json_text(&text(row.get_ref(first + 3)?).unwrap_or_default());
    Ok(Event::stored(event, time(row.get(first + 5)?)))
}

/// A calendar time from milliseconds; one that no calendar has is the beginning of 1970.
pub(super) fn time(ms: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_millis(ms).unwrap_or_default()
}

pub(super) fn tick(number: i64) -> TickRef {
    TickRef { number, nonce: 0 }
}

/// Whole milliseconds, as far as the tables reach.
pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 4).min(i64::MAX / 4)
}

/// Now, by SQLite's clock.
pub(super) fn now(conn: &Connection) -> Sql<i64> {
    Ok(conn.prepare_cached(concat!("SELECT ", now_ms!()))?.query_row([], |row| row.get(0))?)
}

/// The highest number the log ever gave, also if its rows are gone.
pub(super) fn last_seq(conn: &Connection) -> Sql<i64> {
    let sql = "SELECT seq FROM sqlite_sequence WHERE name = 'relevo_outbox'";
    let last = conn.prepare_cached(sql)?.query_row([], |row| row.get(0)).optional()?;
    Ok(last.unwrap_or(0))
}
