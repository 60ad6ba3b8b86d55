//! An adopted table before the conformance suite of stores: what the application publishes is an INSERT into its own
//! table, and what the store reads are its rows.

use super::{Database, Kind};
use crate::writer::failed;
use async_trait::async_trait;
use relevo_core::Result;
use relevo_core::dead_letters::Operate;
use relevo_core::event::{EventId, NewEvent};
use relevo_core::limits::Limits;
use relevo_core::outbox::adopt::{AdoptedTable, Mapping, Role, TableName};
use relevo_core::outbox::{
    Beat, Capabilities, Claim, Fleet, LaneChange, LaneId, LaneState, MemberId, Page, PageRequest,
    ParkedEvent, Probe, Retention, Store, Subscription, Token, Upkeep,
};
use relevo_testkit::conformance::{StoreHarness, StoreUnderTest, Writer};
use std::sync::Arc;
use tokio::sync::{OnceCell, watch};

/// A table in a database of this kind.
pub struct AdoptedHarness(pub Kind);

#[async_trait]
impl StoreHarness for AdoptedHarness {
    async fn fresh(&self) -> Option<Box<dyn StoreUnderTest>> {
        let db = Database::bare(self.0).await?;
        let (id, json, bytes, time, now, number) = match db.is_postgres() {
            true => ("uuid", "jsonb", "bytea", "timestamptz", "clock_timestamp()", "bigserial"),
            false => {
                ("text", "text", "blob", "text", "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')", "int")
            }
        };
        db.run(&format!(
            "CREATE TABLE app_outbox (id {id} PRIMARY KEY, topic text NOT NULL, key text, headers {json} NOT NULL,
                 payload {bytes} NOT NULL, created_at {time} NOT NULL DEFAULT ({now}), published_at {time}, number {number})"
        ))
        .await;
        let operate = db.operate().await;
        Some(Box::new(UnderTest { store: Arc::new(Late::of(&db)), operate, db }))
    }
}

fn mapping() -> Mapping {
    let table = TableName { schema: None, table: "app_outbox".into() };
    let mapping = [Role::Key, Role::Headers, Role::CreatedAt, Role::PublishedAt]
        .into_iter()
        .fold(Mapping::new(table), |mapping, role| mapping.with(role, role.as_str()));
    mapping.with(Role::Sequence, "number")
}

struct UnderTest {
    db: Database,
    store: Arc<Late>,
    operate: Arc<dyn Operate>,
}

#[async_trait]
impl StoreUnderTest for UnderTest {
    fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    fn operate(&self) -> Arc<dyn Operate> {
        self.operate.clone()
    }

    async fn another(&self) -> Result<(Arc<dyn Store>, Arc<dyn Operate>)> {
        Ok((Arc::new(Late::of(&self.db)), self.db.operate().await))
    }

    async fn first_time(&self, consumer: &str, source: &str, id: &str) -> Result<bool> {
        if self.db.is_postgres() {
            let sql = "SELECT relevo.first_time($1, $2, $3)";
            let client = self.db.client().await;
            let row = client.query_one(sql, &[&consumer, &source, &id]).await.map_err(failed)?;
            return Ok(row.get(0));
        }
        let mut conn = self.db.connection();
        let tx = conn.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate);
        let tx = tx.map_err(failed)?;
        let first = relevo_stores::sqlite::first_time(&tx, consumer, source, id)?;
        tx.commit().map_err(failed).map(|()| first)
    }

    /// The shared server does without fsync, which is right for a test and wrong for anything else.
    fn expected_problems(&self) -> &'static [&'static str] {
        if self.db.is_postgres() { &["settings"] } else { &[] }
    }

    async fn begin(&self) -> Result<Box<dyn Writer>> {
        match self.db.is_postgres() {
            true => {
                let client = self.db.client().await;
                client.batch_execute("BEGIN").await.map_err(failed)?;
                Ok(Box::new(PostgresWriter(client)))
            }
            false => {
                let conn = self.db.connection();
                // On a thread of its own: it waits for whoever writes.
                let begin = move || conn.execute_batch("BEGIN IMMEDIATE").map(|()| conn);
                let begun = tokio::task::spawn_blocking(begin).await.map_err(failed)?;
                let conn = begun.map_err(failed)?;
                Ok(Box::new(SqliteWriter(std::sync::Mutex::new(conn))))
            }
        }
    }
}

const INSERT: &str = "INSERT INTO app_outbox (id, topic, key, headers, payload) VALUES";

fn check(events: &[NewEvent]) -> Result<Vec<EventId>> {
    events.iter().try_for_each(|event| Limits::default().check(event))?;
    Ok(events.iter().map(|event| event.id).collect())
}

struct PostgresWriter(tokio_postgres::Client);

#[async_trait]
impl Writer for PostgresWriter {
    async fn publish(&mut self, events: Vec<NewEvent>) -> Result<Vec<EventId>> {
        let ids = check(&events)?;
        let sql = format!("{INSERT} ($1, $2, $3, $4::text::jsonb, $5)");
        for event in events {
            let NewEvent { id, topic, key, headers, payload, .. } = event;
            let (headers, payload) = (headers.to_json(), &payload[..]);
            self.0
                .execute(&sql, &[&id.0, &topic, &key, &headers, &payload])
                .await
                .map_err(failed)?;
        }
        Ok(ids)
    }

    async fn commit(self: Box<Self>) -> Result<()> {
        self.0.batch_execute("COMMIT").await.map_err(failed)
    }

    async fn roll_back(self: Box<Self>) -> Result<()> {
        self.0.batch_execute("ROLLBACK").await.map_err(failed)
    }
}

struct SqliteWriter(std::sync::Mutex<rusqlite::Connection>);

impl SqliteWriter {
    fn execute(&self, sql: &str, params: impl rusqlite::Params) -> Result<()> {
        let conn = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        conn.execute(sql, params).map(drop).map_err(failed)
    }
}

#[async_trait]
impl Writer for SqliteWriter {
    async fn publish(&mut self, events: Vec<NewEvent>) -> Result<Vec<EventId>> {
        let ids = check(&events)?;
        let sql = format!("{INSERT} (?1, ?2, ?3, ?4, ?5)");
        for event in events {
            let NewEvent { id, topic, key, headers, payload, .. } = event;
            let params = (id.to_string(), topic, key, headers.to_json(), &payload[..]);
            self.execute(&sql, params)?;
        }
        Ok(ids)
    }

    async fn commit(self: Box<Self>) -> Result<()> {
        self.execute("COMMIT", ())
    }

    async fn roll_back(self: Box<Self>) -> Result<()> {
        self.execute("ROLLBACK", ())
    }
}

/// Adopts the table when it is first asked for something: the cases make Relevo's tables themselves.
struct Late {
    db: Database,
    table: OnceCell<Arc<dyn AdoptedTable>>,
}

impl Late {
    fn of(db: &Database) -> Self {
        Self { db: db.clone(), table: OnceCell::new() }
    }

    async fn get(&self) -> Result<&Arc<dyn AdoptedTable>> {
        let adopting = async || Ok(self.db.adopt("app", mapping()).await?.0);
        self.table.get_or_try_init(adopting).await
    }
}

#[async_trait]
impl Store for Late {
    fn name(&self) -> &'static str {
        if self.db.is_postgres() { "postgres (adopted)" } else { "sqlite (adopted)" }
    }

    /// As the table declares them once it is adopted; a case makes sure of that.
    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::default();
        can.concurrent_writers = self.db.is_postgres();
        can.parallel_effects = self.db.is_postgres();
        can.shared_by_processes = true;
        can.publish_by_sql = true;
        can.durable = true;
        can.key_order = true;
        can
    }

    async fn probe(&self) -> Result<Probe> {
        let table = self.get().await?;
        assert_eq!(table.capabilities(), self.capabilities());
        table.probe().await
    }

    async fn subscribe(&self, subscription: &Subscription) -> Result<()> {
        self.get().await?.subscribe(subscription).await
    }

    async fn beat(&self, beat: &Beat) -> Result<Fleet> {
        self.get().await?.beat(beat).await
    }

    async fn take_lanes(
        &self,
        subscription: &str,
        claims: &[Claim],
        member: &MemberId,
        max_parked: usize,
    ) -> Result<Vec<(u16, LaneState)>> {
        self.get().await?.take_lanes(subscription, claims, member, max_parked).await
    }

    async fn load_lane(
        &self,
        lane: &LaneId,
        token: Token,
        max_parked: usize,
    ) -> Result<Option<LaneState>> {
        self.get().await?.load_lane(lane, token, max_parked).await
    }

    async fn release_lanes(&self, subscription: &str, claims: &[Claim]) -> Result<()> {
        self.get().await?.release_lanes(subscription, claims).await
    }

    async fn read_page(&self, request: &PageRequest) -> Result<Page> {
        self.get().await?.read_page(request).await
    }

    async fn read_parked(
        &self,
        lane: &LaneId,
        key: &str,
        max_rows: usize,
    ) -> Result<Vec<ParkedEvent>> {
        self.get().await?.read_parked(lane, key, max_rows).await
    }

    async fn record(&self, changes: &[LaneChange]) -> Result<()> {
        self.get().await?.record(changes).await
    }

    fn doorbell(&self) -> Option<watch::Receiver<u64>> {
        None
    }

    async fn upkeep(&self, retention: &Retention) -> Result<Upkeep> {
        self.get().await?.upkeep(retention).await
    }

    async fn forget_member(&self, subscription: &str, member: &MemberId) -> Result<()> {
        self.get().await?.forget_member(subscription, member).await
    }
}
