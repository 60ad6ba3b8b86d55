//! Publishing inside the caller's own transaction.

use super::errors::of_rusqlite;
use super::rows::now_ms;
use chrono::{DateTime, Utc};
use relevo_core::limits::Limits;
use relevo_core::{EventId, NewEvent, Result};
use rusqlite::Transaction;

const INSERT: &str =
    "INSERT INTO relevo_outbox (id, topic, key, headers, payload) VALUES (?1, ?2, ?3, ?4, ?5)";

/// Publishes events into the log of the file the caller's transaction is on.
///
/// With `sqlx` by [`PublishIn`](relevo_core::outbox::PublishIn), with `rusqlite` by the synchronous twins. Take the
/// write lock when you begin (`BEGIN IMMEDIATE`): a transaction that reads first and writes later may find
/// that somebody wrote between.
#[derive(Debug, Clone, Default)]
pub struct SqliteOutbox {
    limits: Limits,
}

impl SqliteOutbox {
    /// With tighter limits than the file's own (1 MiB of payload, 16 KiB of headers, 255 bytes of topic and key).
    pub fn with_limits(limits: Limits) -> Self {
        Self { limits }
    }

    /// Publishes one event in a transaction of rusqlite.
    pub fn publish_sync(&self, tx: &Transaction<'_>, event: NewEvent) -> Result<EventId> {
        self.limits.check(&event)?;
        insert(tx, &event)
    }

    /// Publishes many events in their order in a transaction of rusqlite. All are checked before the first is written.
    pub fn publish_all_sync(
        &self,
        tx: &Transaction<'_>,
        events: Vec<NewEvent>,
    ) -> Result<Vec<EventId>> {
        self.check_all(&events)?;
        events.iter().map(|event| insert(tx, event)).collect()
    }

    fn check_all(&self, events: &[NewEvent]) -> Result<()> {
        events.iter().try_for_each(|event| self.limits.check(event))
    }
}

fn insert(tx: &Transaction<'_>, event: &NewEvent) -> Result<EventId> {
    let params =
        (event.id.to_string(), &event.topic, &event.key, event.headers.to_json(), &*event.payload);
    tx.prepare_cached(INSERT)
        .and_then(|mut statement| statement.execute(params))
        .map_err(of_rusqlite)?;
    Ok(event.id)
}

/// An event taken over from elsewhere, with the time it had there; none lies in the future.
pub(super) fn insert_landed(
    tx: &Transaction<'_>,
    event: &NewEvent,
    created_at: Option<DateTime<Utc>>,
) -> rusqlite::Result<()> {
    let sql = concat!(
        "INSERT INTO relevo_outbox (id, topic, key, headers, payload, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5, min(COALESCE(?6, ",
        now_ms!(),
        "), ",
        now_ms!(),
        "))"
    );
    let created_at = created_at.map(|time| time.timestamp_millis());
    let NewEvent { id, topic, key, headers, payload, .. } = event;
    let params = (id.to_string(), topic, key, headers.to_json(), &**payload, created_at);
    tx.prepare_cached(sql)?.execute(params).map(drop)
}

#[cfg(feature = "sqlx")]
mod in_sqlx {
    use super::{INSERT, SqliteOutbox};
    use crate::sqlite::errors::of_sqlx;
    use relevo_core::outbox::PublishIn;
    use relevo_core::{EventId, NewEvent, Result};
    use sqlx::{QueryBuilder, Sqlite, Transaction};

    /// Rows of one statement: five parameters each, well below SQLite's limit of 32,766.
    const ROWS: usize = 500;

    impl PublishIn<Transaction<'_, Sqlite>> for SqliteOutbox {
        async fn publish(
            &self,
            tx: &mut Transaction<'_, Sqlite>,
            event: NewEvent,
        ) -> Result<EventId> {
            self.limits.check(&event)?;
            let id = event.id;
            sqlx::query(INSERT)
                .bind(id.to_string())
                .bind(event.topic)
                .bind(event.key)
                .bind(event.headers.to_json())
                .bind(event.payload.to_vec())
                .execute(&mut **tx)
                .await
                .map_err(of_sqlx)?;
            Ok(id)
        }

        async fn publish_all(
            &self,
            tx: &mut Transaction<'_, Sqlite>,
            events: Vec<NewEvent>,
        ) -> Result<Vec<EventId>> {
            self.check_all(&events)?;
            for some in events.chunks(ROWS) {
                insert_many(tx, some).await?;
            }
            Ok(events.iter().map(|event| event.id).collect())
        }
    }

    async fn insert_many(tx: &mut Transaction<'_, Sqlite>, events: &[NewEvent]) -> Result<()> {
        let mut query = QueryBuilder::<Sqlite>::new(
            "INSERT INTO relevo_outbox (id, topic, key, headers, payload) ",
        );
        query.push_values(events, |mut row, event| {
            row.push_bind(event.id.to_string())
                .push_bind(event.topic.clone())
                .push_bind(event.key.clone())
                .push_bind(event.headers.to_json())
                .push_bind(event.payload.to_vec());
        });
        query.build().execute(&mut **tx).await.map_err(of_sqlx)?;
        Ok(())
    }
}
