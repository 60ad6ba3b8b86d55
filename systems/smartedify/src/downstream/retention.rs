//! How long `processed_event_ids` remembers.
//!
//! An id must outlive whatever can bring its event again: the broker's stream, for a week, and a dead letter, which can be
//! sent again for as long as it is kept. A dead letter may have taken effect: where only its answer was lost, again and
//! again, nobody but this table knows. [`crate::config::RetentionArgs`] allows no shorter time, and its default is twice as
//! long as dead letters stay, since one that is sent again and dies again stays anew.

use crate::Clock;
use crate::db::{Db, Sql};
use crate::outbox::cleanup::delete;
use chrono::{DateTime, TimeDelta, Utc};
use std::time::Duration;

const PROCESSED: Sql = Sql::each(
    "DELETE FROM processed_event_ids WHERE (consumer, event_id) IN
        (SELECT consumer, event_id FROM processed_event_ids WHERE processed_at < $1::timestamptz ORDER BY processed_at LIMIT $2)",
    "DELETE FROM processed_event_ids WHERE (consumer, event_id) IN
        (SELECT consumer, event_id FROM processed_event_ids WHERE processed_at < $1 ORDER BY processed_at LIMIT $2)",
);

/// Forgets, as of `now`, the ids of events that nobody can send again any more; answers how many.
pub async fn forget(db: &Db, now: DateTime<Utc>, keep: TimeDelta) -> sqlx::Result<u64> {
    delete(db, &PROCESSED, now - keep).await
}

/// Forgets again and again, by this clock.
pub async fn run(db: Db, clock: Clock, keep: TimeDelta, every: Duration) {
    let mut interval = tokio::time::interval(every);
    loop {
        interval.tick().await;
        match forget(&db, clock(), keep).await {
            Ok(0) => {}
            Ok(gone) => tracing::info!(gone, "processed event ids were forgotten"),
            Err(error) => tracing::warn!(%error, "forgetting failed; it is tried again"),
        }
    }
}
