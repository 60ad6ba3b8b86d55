//! `ProcessedEvents`: which consumer has processed which event.
//!
//! The document keys it by the event's id alone; whichever queue's consumer came second would then skip every event. It
//! is keyed by both. And the row is written in the transaction of the effect, not after it.

use super::Crew;
use crate::database::{ProcessedKey, Session};
use anyhow::Result;
use chrono::{DateTime, Utc};
use relevo::EventId;

/// Notes it; false if it was noted before, and nothing is to be done.
pub(super) async fn first_time(
    session: &mut Session<'_>,
    consumer: &str,
    event: EventId,
    now: DateTime<Utc>,
) -> Result<bool> {
    const NOTE: &str = r#"INSERT INTO "ProcessedEvents" ("Consumer", "EventId", "ProcessedAt") VALUES ($1, $2, $3)
        ON CONFLICT DO NOTHING"#;
    Ok(session.execute(NOTE, &[consumer.into(), event.0.into(), now.into()]).await? == 1)
}

/// Looks, before work that cannot be rolled back.
pub(super) async fn is_known(crew: &Crew, consumer: &str, event: EventId) -> Result<bool> {
    const LOOK: &str =
        r#"SELECT "Consumer" FROM "ProcessedEvents" WHERE "EventId" = $2 AND "Consumer" = $1"#;
    const BY_EVENT_ALONE: &str =
        r#"SELECT "Consumer" FROM "ProcessedEvents" WHERE "EventId" = $2 AND $1 <> ''"#;
    let look = match crew.processed_key {
        ProcessedKey::ConsumerAndEvent => LOOK,
        ProcessedKey::EventAlone => BY_EVENT_ALONE,
    };
    let mut connection = crew.database.connect().await?;
    let found = connection.session().query_one(look, &[consumer.into(), event.0.into()]).await?;
    Ok(found.is_some())
}
