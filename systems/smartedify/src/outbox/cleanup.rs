//! What goes after so many days: published events, and dead letters nobody wanted. What is not published never goes.

use crate::Clock;
use crate::db::{Conn, Db, Sql};
use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use std::time::Duration;

/// How long rows stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// Published events, after they were published.
    pub published: TimeDelta,
    /// Dead letters, after their last error.
    pub dead: TimeDelta,
    /// The ids in the downstream service's `processed_event_ids`, after their effect ([`crate::downstream::retention`]).
    pub processed: TimeDelta,
}

impl Default for Keep {
    fn default() -> Self {
        let days = TimeDelta::days;
        Self { published: days(30), dead: days(90), processed: days(180) }
    }
}

/// A process cleans up so often.
pub const EVERY: Duration = Duration::from_secs(3600);

/// What went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Gone {
    /// Published events.
    pub published: u64,
    /// Dead letters.
    pub dead: u64,
}

/// Rows of one transaction: the table is never held for long.
const ROWS: i64 = 1000;

const PUBLISHED: Sql = Sql::each(
    "DELETE FROM outbox_events WHERE id IN
        (SELECT id FROM outbox_events WHERE published_at < $1::timestamptz ORDER BY published_at LIMIT $2)",
    "DELETE FROM outbox_events WHERE id IN
        (SELECT id FROM outbox_events WHERE published_at < $1 ORDER BY published_at LIMIT $2)",
);
const DEAD: Sql = Sql::each(
    "DELETE FROM outbox_events_dlq WHERE id IN
        (SELECT id FROM outbox_events_dlq WHERE last_error_at < $1::timestamptz ORDER BY last_error_at LIMIT $2)",
    "DELETE FROM outbox_events_dlq WHERE id IN
        (SELECT id FROM outbox_events_dlq WHERE last_error_at < $1 ORDER BY last_error_at LIMIT $2)",
);

/// Cleans up as of `now`.
pub async fn sweep(db: &Db, now: DateTime<Utc>, keep: Keep) -> sqlx::Result<Gone> {
    let published = delete(db, &PUBLISHED, now - keep.published).await?;
    let dead = delete(db, &DEAD, now - keep.dead).await?;
    if let Db::Postgres(_) = db {
        partitions(db, now, keep).await?;
    }
    Ok(Gone { published, dead })
}

/// Deletes what is older, some rows at a time: `sql` takes the time and how many.
pub(crate) async fn delete(db: &Db, sql: &Sql, before: DateTime<Utc>) -> sqlx::Result<u64> {
    // As SQLite writes it: there times are compared as texts.
    let before = before.to_rfc3339_opts(SecondsFormat::Millis, true);
    let mut all = 0;
    loop {
        let mut tx = db.begin().await?;
        let gone = tx.conn().run(sql, &[before.clone().into(), ROWS.into()]).await?;
        tx.commit().await?;
        all += gone;
        if gone < ROWS.unsigned_abs() {
            return Ok(all);
        }
    }
}

const MONTHS: Sql = Sql::each(include_str!("partitions.sql"), "SELECT 1");

/// Where the table is partitioned: this month and the next two have a partition, and empty ones of the past go.
async fn partitions(db: &Db, now: DateTime<Utc>, keep: Keep) -> sqlx::Result<()> {
    let mut tx = db.begin().await?;
    let mut conn: Conn<'_> = tx.conn();
    let is_partitioned = Sql::both(
        "SELECT count(*) FROM pg_class WHERE oid = 'outbox_events'::regclass AND relkind = 'p'",
    );
    let found: Option<(i64,)> = conn.row(&is_partitioned, &[]).await?;
    if found == Some((1,)) {
        let texts = [now, now - keep.published].map(|time| time.to_rfc3339().into());
        for (statement,) in conn.rows::<(String,)>(&MONTHS, &texts).await? {
            conn.run_made(statement).await?;
        }
    }
    tx.commit().await
}

/// Cleans up again and again, by this clock.
pub async fn run(db: Db, clock: Clock, keep: Keep, every: Duration) {
    let mut interval = tokio::time::interval(every);
    loop {
        interval.tick().await;
        match sweep(&db, clock(), keep).await {
            Ok(gone) if gone == Gone::default() => {}
            Ok(gone) => tracing::info!(published = gone.published, dead = gone.dead, "cleaned up"),
            Err(error) => tracing::warn!(%error, "cleaning up failed; it is tried again"),
        }
    }
}
