//! Events into the caller's own transaction.

use super::errors::from_driver;
use super::session::{Args, Session, args};
use chrono::{DateTime, Utc};
use relevo_core::limits::Limits;
use relevo_core::outbox::PublishIn;
use relevo_core::{EventId, NewEvent, Result};
use tokio_postgres::types::Type;
use uuid::Uuid;

/// Most events, and most payload bytes, of one statement.
const BATCH: (usize, usize) = (1000, 16 << 20);

const ONE: &str = "INSERT INTO relevo.outbox (in_lane, id, topic, key, headers, payload) VALUES ($6, $1, $2, $3, $4::text::jsonb, $5)";

/// Defaults (the transaction's id, then the number) are computed row by row, in the order of the events.
const MANY: &str = "INSERT INTO relevo.outbox (in_lane, id, topic, key, headers, payload)
    SELECT e.lane, e.id, e.topic, e.key, e.headers::jsonb, e.payload
      FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::smallint[])
           WITH ORDINALITY AS e (id, topic, key, headers, payload, lane, place)
     ORDER BY e.place";

/// The publisher's side of the log. It holds nothing but limits: the transaction it is given is all it needs.
///
/// ```no_run
/// use relevo_core::{NewEvent, outbox::PublishIn};
/// use relevo_stores::postgres::PostgresOutbox;
///
/// # async fn example(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let outbox = PostgresOutbox::new();
/// let mut tx = client.transaction().await?;
/// tx.execute("INSERT INTO ticket (id) VALUES ('t-1')", &[]).await?;
/// outbox.publish(&mut tx, NewEvent::bytes("ticket.created", "...").key("t-1")).await?;
/// tx.commit().await?;
/// # Ok(()) }
/// ```
///
/// A pool, or a connection that commits by itself, does not compile:
///
/// ```compile_fail
/// use relevo_core::{NewEvent, outbox::PublishIn};
/// use relevo_stores::postgres::PostgresOutbox;
///
/// async fn example(client: &mut tokio_postgres::Client) {
///     PostgresOutbox::new().publish(client, NewEvent::bytes("a", "b")).await.unwrap();
/// }
/// ```
#[derive(Debug, Clone, Default)]
pub struct PostgresOutbox {
    limits: Limits,
    prepared: bool,
}

impl PostgresOutbox {
    /// An outbox with the default limits, which the tables enforce too.
    pub fn new() -> Self {
        Self::default()
    }

    /// Stricter limits than the tables have.
    pub fn with_limits(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Has the server parse and plan the statement once per connection of a deadpool pool, which saves a tenth of a small
    /// transaction. Not behind a pooler that gives every transaction another session (PgBouncer in transaction mode),
    /// unless that knows prepared statements.
    ///
    /// Transactions of tokio-postgres have nowhere to keep a statement; sqlx prepares by itself.
    pub fn prepared(mut self) -> Self {
        self.prepared = true;
        self
    }

    fn check(&self, event: &NewEvent) -> Result<()> {
        self.limits.check(event)
    }

    fn check_all(&self, events: &[NewEvent]) -> Result<()> {
        events.iter().try_for_each(|event| self.check(event))
    }
}

/// Cuts events into what one statement carries.
fn batches(events: &[NewEvent]) -> Vec<&[NewEvent]> {
    let (mut cuts, mut start, mut bytes) = (Vec::new(), 0, 0);
    for (index, event) in events.iter().enumerate() {
        let size = event.payload.len();
        if index > start && (index - start == BATCH.0 || bytes + size > BATCH.1) {
            cuts.push(&events[start..index]);
            (start, bytes) = (index, 0);
        }
        bytes += size;
    }
    if start < events.len() {
        cuts.push(&events[start..]);
    }
    cuts
}

/// Many events, column by column.
struct Columns<'e> {
    ids: Vec<Uuid>,
    topics: Vec<&'e str>,
    keys: Vec<Option<&'e str>>,
    headers: Vec<String>,
    payloads: Vec<&'e [u8]>,
    lanes: Vec<i16>,
}

impl<'e> Columns<'e> {
    fn of(events: impl Iterator<Item = &'e NewEvent> + Clone) -> Self {
        Self {
            ids: events.clone().map(|event| event.id.0).collect(),
            topics: events.clone().map(|event| event.topic.as_str()).collect(),
            keys: events.clone().map(|event| event.key.as_deref()).collect(),
            headers: events.clone().map(|event| event.headers.to_json()).collect(),
            lanes: events.clone().map(lane).collect(),
            payloads: events.map(|event| &event.payload[..]).collect(),
        }
    }
}

fn lane(event: &NewEvent) -> i16 {
    event.lane() as i16
}

fn ids(events: &[NewEvent]) -> Vec<EventId> {
    events.iter().map(|event| event.id).collect()
}

/// A statement of the driver's, in the caller's transaction.
async fn execute(client: &tokio_postgres::Client, sql: &str, args: &Args<'_>) -> Result<()> {
    client.execute_typed(sql, args).await.map_err(from_driver)?;
    Ok(())
}

async fn insert_one(client: &tokio_postgres::Client, event: &NewEvent) -> Result<()> {
    let (topic, key, headers) =
        (event.topic.as_str(), event.key.as_deref(), event.headers.to_json());
    let payload = &event.payload[..];
    execute(client, ONE, args![event.id.0, topic, key, headers, payload, lane(event)]).await
}

async fn insert_prepared(tx: &deadpool_postgres::Transaction<'_>, event: &NewEvent) -> Result<()> {
    let types = [Type::UUID, Type::TEXT, Type::TEXT, Type::TEXT, Type::BYTEA, Type::INT2];
    let statement = tx.prepare_typed_cached(ONE, &types).await.map_err(from_driver)?;
    let (headers, payload, lane) = (event.headers.to_json(), &event.payload[..], lane(event));
    tx.execute(&statement, &[&event.id.0, &event.topic, &event.key, &headers, &payload, &lane])
        .await
        .map_err(from_driver)?;
    Ok(())
}

async fn insert_all(client: &tokio_postgres::Client, events: &[NewEvent]) -> Result<()> {
    for batch in batches(events) {
        let Columns { ids, topics, keys, headers, payloads, lanes } = Columns::of(batch.iter());
        execute(client, MANY, args![ids, topics, keys, headers, payloads, lanes]).await?;
    }
    Ok(())
}

/// Like [`MANY`], with the times they had elsewhere; none lies in the future.
const LANDED: &str = "INSERT INTO relevo.outbox (in_lane, id, topic, key, headers, payload, created_at)
    SELECT e.lane, e.id, e.topic, e.key, e.headers::jsonb, e.payload, least(coalesce(e.created_at, clock_timestamp()), clock_timestamp())
      FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::smallint[], $7::timestamptz[])
           WITH ORDINALITY AS e (id, topic, key, headers, payload, lane, created_at, place)
     ORDER BY e.place";

/// An event of somebody else's, and when it happened there.
pub(crate) type Landed<'e> = (&'e NewEvent, Option<DateTime<Utc>>);

/// Events taken over from elsewhere, in a transaction of this store's own: one statement, sent before anything is waited for.
pub(crate) async fn insert_landed(session: &Session, events: &[Landed<'_>]) -> Result<()> {
    let times: Vec<Option<DateTime<Utc>>> = events.iter().map(|(_, time)| *time).collect();
    let Columns { ids, topics, keys, headers, payloads, lanes } =
        Columns::of(events.iter().map(|(event, _)| *event));
    session.execute(LANDED, args![ids, topics, keys, headers, payloads, lanes, times]).await?;
    Ok(())
}

impl PublishIn<tokio_postgres::Transaction<'_>> for PostgresOutbox {
    async fn publish(
        &self,
        tx: &mut tokio_postgres::Transaction<'_>,
        event: NewEvent,
    ) -> Result<EventId> {
        self.check(&event)?;
        insert_one(tx.client(), &event).await?;
        Ok(event.id)
    }

    async fn publish_all(
        &self,
        tx: &mut tokio_postgres::Transaction<'_>,
        events: Vec<NewEvent>,
    ) -> Result<Vec<EventId>> {
        self.check_all(&events)?;
        insert_all(tx.client(), &events).await?;
        Ok(ids(&events))
    }
}

impl PublishIn<deadpool_postgres::Transaction<'_>> for PostgresOutbox {
    async fn publish(
        &self,
        tx: &mut deadpool_postgres::Transaction<'_>,
        event: NewEvent,
    ) -> Result<EventId> {
        self.check(&event)?;
        match self.prepared {
            true => insert_prepared(tx, &event).await?,
            false => insert_one(tx.client(), &event).await?,
        }
        Ok(event.id)
    }

    async fn publish_all(
        &self,
        tx: &mut deadpool_postgres::Transaction<'_>,
        events: Vec<NewEvent>,
    ) -> Result<Vec<EventId>> {
        self.check_all(&events)?;
        insert_all(tx.client(), &events).await?;
        Ok(ids(&events))
    }
}

#[cfg(feature = "sqlx")]
mod by_sqlx {
    use super::*;
    use crate::postgres::errors::from_sqlx;
    use sqlx::{Postgres, Transaction};

    /// Ids travel as text: the driver's own UUID type is a feature the user may not have.
    const ONE: &str = "INSERT INTO relevo.outbox (in_lane, id, topic, key, headers, payload) VALUES ($6, $1::text::uuid, $2, $3, $4::text::jsonb, $5)";
    const MANY: &str = "INSERT INTO relevo.outbox (in_lane, id, topic, key, headers, payload)
        SELECT e.lane, e.id::uuid, e.topic, e.key, e.headers::jsonb, e.payload
          FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::smallint[])
               WITH ORDINALITY AS e (id, topic, key, headers, payload, lane, place)
         ORDER BY e.place";

    impl PublishIn<Transaction<'_, Postgres>> for PostgresOutbox {
        async fn publish(
            &self,
            tx: &mut Transaction<'_, Postgres>,
            event: NewEvent,
        ) -> Result<EventId> {
            self.check(&event)?;
            sqlx::query(ONE)
                .bind(event.id.to_string())
                .bind(&event.topic)
                .bind(event.key.as_deref())
                .bind(event.headers.to_json())
                .bind(&event.payload[..])
                .bind(lane(&event))
                .execute(&mut **tx)
                .await
                .map_err(from_sqlx)?;
            Ok(event.id)
        }

        async fn publish_all(
            &self,
            tx: &mut Transaction<'_, Postgres>,
            events: Vec<NewEvent>,
        ) -> Result<Vec<EventId>> {
            self.check_all(&events)?;
            for batch in batches(&events) {
                let columns = Columns::of(batch.iter());
                let ids: Vec<String> = columns.ids.iter().map(Uuid::to_string).collect();
                let statement = sqlx::query(MANY).bind(ids).bind(columns.topics).bind(columns.keys);
                statement
                    .bind(columns.headers)
                    .bind(columns.payloads)
                    .bind(columns.lanes)
                    .execute(&mut **tx)
                    .await
                    .map_err(from_sqlx)?;
            }
            Ok(ids(&events))
        }
    }
}

impl super::PostgresStore {
    /// Publishes in a transaction of its own.
    pub(crate) async fn publish_alone(&self, event: NewEvent) -> Result<EventId> {
        let mut object = super::object(self.pool()).await?;
        let mut tx = object.transaction().await.map_err(from_driver)?;
        let id = self.outbox().publish(&mut tx, event).await?;
        tx.commit().await.map_err(from_driver).map_err(super::errors::on_commit)?;
        Ok(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_cut_by_rows_and_by_bytes_and_loses_nothing() {
        let small: Vec<NewEvent> = (0..2500).map(|_| NewEvent::bytes("a", vec![0; 10])).collect();
        assert_eq!(
            batches(&small).iter().map(|batch| batch.len()).collect::<Vec<_>>(),
            [1000, 1000, 500]
        );
        let large: Vec<NewEvent> =
            (0..40).map(|_| NewEvent::bytes("a", vec![0; 1 << 20])).collect();
        assert_eq!(
            batches(&large).iter().map(|batch| batch.len()).collect::<Vec<_>>(),
            [16, 16, 8]
        );
        assert!(batches(&[]).is_empty());
    }
}
