//! The inbox as a function, for consumers whose messages come from elsewhere.

use super::errors::of_rusqlite;
use relevo_core::Result;
use rusqlite::Transaction;

/// A key of a consumer waits while its subscription has not decided the last event that landed.
macro_rules! key_waits {
    () => {
        "(EXISTS (SELECT 1 FROM relevo_parked_key p
                   WHERE p.subscription = k.consumer AND p.lane = k.lane AND p.key = k.key)
          OR NOT EXISTS (SELECT 1 FROM relevo_cursor c
                   WHERE c.subscription = k.consumer AND c.lane = k.lane AND max(c.from_number, c.seq) >= k.seq))"
    };
}

/// Forgets keys that do not wait any more.
pub(super) const FORGET_KEYS: &str = concat!(
    "DELETE FROM relevo_inbox_key WHERE (consumer, key) IN (
         SELECT k.consumer, k.key FROM relevo_inbox_key k WHERE NOT ",
    key_waits!(),
    " LIMIT ?1)"
);

const INSERT: &str =
    "INSERT INTO relevo_inbox (consumer, source, id) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING";

/// True if `consumer` sees message `id` of `source` for the first time, and notes it in the caller's
/// transaction: effect and note commit together, or neither.
pub fn first_time(tx: &Transaction<'_>, consumer: &str, source: &str, id: &str) -> Result<bool> {
    let noted = tx
        .prepare_cached(INSERT)
        .and_then(|mut statement| statement.execute((consumer, source, id)));
    noted.map(|rows| rows == 1).map_err(of_rusqlite)
}

/// [`first_time`] in a transaction of sqlx.
#[cfg(feature = "sqlx")]
pub async fn first_time_in(
    tx: &mut sqlx::Transaction<'_, sqlx::Sqlite>,
    consumer: &str,
    source: &str,
    id: &str,
) -> Result<bool> {
    let query = sqlx::query(INSERT).bind(consumer).bind(source).bind(id);
    let noted = query.execute(&mut **tx).await.map_err(super::errors::of_sqlx)?;
    Ok(noted.rows_affected() == 1)
}

/// What a consumer's messages are, and which of its keys wait in the log, in transactions of sqlx.
#[cfg(feature = "sqlx")]
pub(super) mod in_sqlx {
    use super::super::errors::of_sqlx;
    use super::super::publish::SqliteOutbox;
    use super::first_time_in;
    use relevo_core::event::lane_of;
    use relevo_core::inbox::{Meet, Met};
    use relevo_core::limits::Limits;
    use relevo_core::outbox::PublishIn;
    use relevo_core::{NewEvent, Result};
    use sqlx::{Sqlite, Transaction};

    const WAITS: &str = concat!(
        "SELECT count(*) FROM relevo_inbox_key k WHERE k.consumer = ?1 AND k.key = ?2 AND ",
        key_waits!()
    );

    const LANDED: &str = "INSERT INTO relevo_inbox_key (consumer, key, lane, seq)
        VALUES (?1, ?2, ?3, (SELECT seq FROM sqlite_sequence WHERE name = 'relevo_outbox'))
        ON CONFLICT (consumer, key) DO UPDATE SET seq = excluded.seq";

    /// Notes the messages and tells what each is.
    pub(in super::super) async fn meet(
        tx: &mut Transaction<'_, Sqlite>,
        consumer: &str,
        messages: &[Meet],
    ) -> Result<Vec<Met>> {
        let mut met = Vec::with_capacity(messages.len());
        for message in messages {
            met.push(if !first_time_in(tx, consumer, &message.source, &message.id).await? {
                Met::Seen
            } else if waits(tx, consumer, &message.key).await? {
                Met::Behind
            } else {
                Met::New
            });
        }
        Ok(met)
    }

    async fn waits(tx: &mut Transaction<'_, Sqlite>, consumer: &str, key: &str) -> Result<bool> {
        let asked = sqlx::query_scalar::<_, i64>(WAITS).bind(consumer).bind(key);
        Ok(asked.fetch_one(&mut **tx).await.map_err(of_sqlx)? > 0)
    }

    /// Puts events into the consumer's log.
    pub(in super::super) async fn land(
        tx: &mut Transaction<'_, Sqlite>,
        consumer: &str,
        events: Vec<NewEvent>,
        keys: &[String],
    ) -> Result<()> {
        SqliteOutbox::with_limits(Limits::default().landing()).publish_all(tx, events).await?;
        for key in keys {
            let landed = sqlx::query(LANDED).bind(consumer).bind(key).bind(i64::from(lane_of(key)));
            landed.execute(&mut **tx).await.map_err(of_sqlx)?;
        }
        Ok(())
    }
}
