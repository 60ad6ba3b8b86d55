//! `outbox_events_dlq`: what failed for good, and how it is sent again.

use super::{Outbox, SUBSCRIPTION};
use crate::db::{Db, Sql};
use relevo::{DeadFilter, ErrorClass, EventId, ReplayProgress, Result};
use serde::{Deserialize, Serialize};

/// A row of the table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeadEvent {
    /// The event.
    pub id: String,
    /// Whose.
    pub aggregate_id: String,
    /// What.
    pub event_type: String,
    /// Attempts it had.
    pub retry_count: i64,
    /// Why it died.
    pub last_error: Option<String>,
    /// Class of that error.
    pub error_class: Option<String>,
    /// When.
    pub last_error_at: Option<String>,
}

const LIST: Sql = Sql::each(
    "SELECT id::text, aggregate_id, event_type, retry_count::bigint, last_error, error_class,
            to_char(last_error_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')
       FROM outbox_events_dlq ORDER BY last_error_at DESC, id LIMIT $1",
    "SELECT id, aggregate_id, event_type, retry_count, last_error, error_class, last_error_at
       FROM outbox_events_dlq ORDER BY last_error_at DESC, id LIMIT $1",
);
const COUNT: Sql = Sql::both("SELECT count(*) FROM outbox_events_dlq");

type Row = (String, String, String, i64, Option<String>, Option<String>, Option<String>);

/// The newest, at most so many.
pub async fn list(db: &Db, limit: i64) -> sqlx::Result<Vec<DeadEvent>> {
    let rows: Vec<Row> = db.rows(&LIST, &[limit.clamp(1, 1000).into()]).await?;
    let read = |row: Row| {
        let (id, aggregate_id, event_type, retry_count, last_error, error_class, last_error_at) =
            row;
        DeadEvent {
            id,
            aggregate_id,
            event_type,
            retry_count,
            last_error,
            error_class,
            last_error_at,
        }
    };
    Ok(rows.into_iter().map(read).collect())
}

/// How many there are.
pub async fn count(db: &Db) -> sqlx::Result<i64> {
    db.number(&COUNT, &[]).await
}

/// Which of them to send again. Nothing named means all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Which {
    /// This one.
    pub event_id: Option<EventId>,
    /// Those of this class.
    pub error_class: Option<ErrorClass>,
}

/// Asks for them to be sent again: the same ids and bytes, at their old place. The relay does it; a row is back in
/// `outbox_events`, marked, once its broker has it. Asking twice does nothing more.
pub async fn reprocess(outbox: &Outbox, which: &Which) -> Result<ReplayProgress> {
    let mut filter = DeadFilter::default();
    filter.subscription = Some(SUBSCRIPTION.to_owned());
    filter.event = which.event_id;
    filter.class = which.error_class;
    outbox.operate().replay(&filter, None).await
}
