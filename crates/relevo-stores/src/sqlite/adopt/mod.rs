//! An outbox table of somebody else's in the same file, relayed in place.
//!
//! - `shape`: the table as the file describes it
//! - `statements`: the SQL for one mapping, put together once
//! - `claim`: pending rows into the log, in short transactions
//! - `marks`: what became of them, in the owner's columns
//! - `why`: why a row is no event of the log

mod claim;
mod marks;
mod shape;
mod statements;
pub(super) mod why;

use super::SqliteStore;
use super::errors::{Sql, own};
use async_trait::async_trait;
use relevo_core::dead_letters::Answer;
use relevo_core::event::{Event, EventId, TopicFilter, header};
use relevo_core::outbox::adopt::{
    Adopt, AdoptedTable, Claims, KeyOrder, Mapping, Pending, TableName, TableShape, Verdict,
    inbox_of, judge,
};
use relevo_core::outbox::{
    Beat, Capabilities, Claim, Fleet, LaneChange, LaneId, LaneState, MemberId, Page, PageRequest,
    ParkedEvent, Probe, Retention, Store, Subscription, Token, Upkeep,
};
use relevo_core::{Kind, Result};
use rusqlite::Transaction;
use statements::Statements;
use std::sync::{Arc, OnceLock};
use tokio::sync::watch;

/// An adopted table. A [`Store`] for one subscription: its pending rows are the events. Cheap to clone.
#[derive(Clone)]
pub struct Adopted {
    store: SqliteStore,
    name: Arc<str>,
    statements: Arc<Statements>,
    order: KeyOrder,
    claim_rows: usize,
    /// Whose events its rows are, once that is known.
    subscription: Arc<OnceLock<Arc<str>>>,
}

impl std::fmt::Debug for Adopted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Adopted")
            .field("name", &self.name)
            .field("order", &self.order)
            .finish_non_exhaustive()
    }
}

impl SqliteStore {
    /// Adopts an existing outbox table of this file under a name. Refuses a mapping that does not fit it.
    pub async fn adopt(&self, name: &str, mapping: Mapping) -> Result<Adopted> {
        mapping.check()?;
        self.probe().await?;
        let wanted = name.to_owned();
        let adopting = move |tx: &Transaction<'_>| {
            let (table, dead) = shapes(tx, &mapping)?;
            let order = judge(&mapping, &table, dead.as_ref()).require(&table)?;
            register(tx, &wanted, &table.name, &mapping)?;
            Ok((Statements::new(&mapping, &table, dead.as_ref()), order))
        };
        let (statements, order) = self.write(adopting).await?;
        let (store, statements) = (self.clone(), Arc::new(statements));
        let (name, claim_rows, subscription) = (name.into(), claim::MOST_ROWS, Arc::default());
        Ok(Adopted { store, name, statements, order, claim_rows, subscription })
    }
}

#[async_trait]
impl Adopt for SqliteStore {
    async fn table_shape(&self, name: &TableName) -> Result<TableShape> {
        let name = name.clone();
        self.read(move |tx| shape::read(tx, &name)).await
    }

    async fn judge_mapping(&self, mapping: &Mapping) -> Result<Verdict> {
        let mapping = mapping.clone();
        self.read(move |tx| {
            let (table, dead) = shapes(tx, &mapping)?;
            Ok(judge(&mapping, &table, dead.as_ref()))
        })
        .await
    }

    async fn why_row(&self, row: &str) -> Result<Option<(EventId, Answer)>> {
        let row = row.to_owned();
        self.read(move |tx| why::why_row(tx, &row)).await
    }

    async fn adopt_table(&self, name: &str, mapping: Mapping) -> Result<Arc<dyn AdoptedTable>> {
        Ok(Arc::new(self.adopt(name, mapping).await?))
    }
}

fn shapes(tx: &Transaction<'_>, mapping: &Mapping) -> Sql<(TableShape, Option<TableShape>)> {
    let table = shape::read(tx, &mapping.table)?;
    let dead =
        mapping.dead_letters.as_ref().map(|dead| shape::read(tx, &dead.table)).transpose()?;
    Ok((table, dead))
}

/// A name stays with its table: claims tell rows by their ids alone. What its columns mean may change.
fn register(tx: &Transaction<'_>, name: &str, table: &TableName, mapping: &Mapping) -> Sql<()> {
    let (table, mapping) = (table.to_string(), serde_json::to_string(mapping).unwrap_or_default());
    let sql = "INSERT INTO relevo_adopted (name, table_name, mapping) VALUES (?1, ?2, ?3)
               ON CONFLICT (name) DO UPDATE SET mapping = excluded.mapping WHERE table_name = excluded.table_name";
    tx.execute(sql, (name, &table, &mapping))?;
    let sql = "SELECT table_name FROM relevo_adopted WHERE name = ?1";
    let known: String = tx.query_row(sql, [name], |row| row.get(0))?;
    if known != table {
        let why = format!(
            "{name} is the name under which {known} was adopted; adopt {table} under another"
        );
        return Err(own(Kind::UnfitTable, why).into());
    }
    Ok(())
}

impl Adopted {
    /// Claims at most so many rows in one transaction (default 1000).
    pub fn claim_rows(mut self, rows: usize) -> Self {
        self.claim_rows = rows.max(1);
        self
    }

    /// In which order rows of one key are claimed.
    pub fn order(&self) -> &KeyOrder {
        &self.order
    }

    /// The subscription that dead letters are shown under.
    fn subscription(&self) -> &str {
        self.subscription.get().unwrap_or(&self.name)
    }

    /// Is it of this table? Then it is handed on as its owner wrote it.
    fn take_own(&self, event: &mut Event) -> bool {
        event.headers.remove(header::INBOX).as_ref() == Some(&inbox_of(&self.name))
    }
}

#[async_trait]
impl AdoptedTable for Adopted {
    async fn pending(&self) -> Result<Pending> {
        self.count_pending().await
    }

    async fn forget_done(&self, retention: &Retention) -> Result<()> {
        self.forget_claims(retention).await
    }
}

#[async_trait]
impl Store for Adopted {
    fn name(&self) -> &'static str {
        self.store.name()
    }

    fn capabilities(&self) -> Capabilities {
        let mut can = self.store.capabilities();
        can.doorbell = false;
        can.publish_by_sql = true;
        can.direct_effects = false;
        can.own_log = false;
        can.key_order = self.order.is_sound();
        can
    }

    async fn probe(&self) -> Result<Probe> {
        let mut probe = self.store.probe().await?;
        probe.waking = "polls the adopted table".into();
        probe.notes.push(format!("order: {}", self.order.describe()));
        Ok(probe)
    }

    async fn subscribe(&self, subscription: &Subscription) -> Result<()> {
        if subscription.topics != [TopicFilter::all()] {
            let why = "an adopted table is relayed whole: what its subscription did not want could never be marked";
            return Err(own(Kind::NotSupported, why));
        }
        let filter =
            TopicFilter::parse(&format!("{}{}", TopicFilter::INBOX, inbox_of(&self.name)))?;
        self.subscription.get_or_init(|| subscription.name.clone());
        self.store.subscribe(&subscription.clone().topics([filter])).await
    }

    async fn beat(&self, beat: &Beat) -> Result<Fleet> {
        self.store.beat(beat).await
    }

    async fn take_lanes(
        &self,
        subscription: &str,
        claims: &[Claim],
        member: &MemberId,
        max_parked: usize,
    ) -> Result<Vec<(u16, LaneState)>> {
        self.store.take_lanes(subscription, claims, member, max_parked).await
    }

    async fn load_lane(
        &self,
        lane: &LaneId,
        token: Token,
        max_parked: usize,
    ) -> Result<Option<LaneState>> {
        self.store.load_lane(lane, token, max_parked).await
    }

    async fn release_lanes(&self, subscription: &str, claims: &[Claim]) -> Result<()> {
        self.store.release_lanes(subscription, claims).await
    }

    /// Pending rows are claimed whenever a new window of the log is opened.
    async fn read_page(&self, request: &PageRequest) -> Result<Page> {
        if request.position.to.is_none() {
            let mut claims = Claims::new(request.max_rows, self.claim_rows);
            while let Some(rows) = claims.next_claim() {
                claims.got(self.claim(rows, request.max_bytes).await?);
            }
        }
        let mut page = self.store.read_page(request).await?;
        page.rows.retain_mut(|row| self.take_own(&mut row.event));
        Ok(page)
    }

    async fn read_parked(
        &self,
        lane: &LaneId,
        key: &str,
        max_rows: usize,
    ) -> Result<Vec<ParkedEvent>> {
        let mut events = self.store.read_parked(lane, key, max_rows).await?;
        for parked in &mut events {
            // What waits behind a key of this subscription is its own, an operator's edited copy too.
            parked.event.headers.remove(header::INBOX);
        }
        Ok(events)
    }

    async fn record(&self, changes: &[LaneChange]) -> Result<()> {
        self.record_with_marks(changes).await
    }

    fn doorbell(&self) -> Option<watch::Receiver<u64>> {
        None
    }

    async fn upkeep(&self, retention: &Retention) -> Result<Upkeep> {
        let done = self.store.upkeep(retention).await?;
        self.forget_claims(retention).await?;
        Ok(done)
    }

    async fn forget_member(&self, subscription: &str, member: &MemberId) -> Result<()> {
        self.store.forget_member(subscription, member).await
    }
}
