//! A database per test on a real server, and short words for what every test does.
#![allow(dead_code, unreachable_pub)]

use relevo_core::dead_letters::Operate;
use relevo_core::event::lane_of;
use relevo_core::limits::LANES;
use relevo_core::outbox::{
    Beat, Claim, EventRef, LaneChange, LaneId, LaneState, MemberId, Page, PageRequest, ParkKey,
    Position, PublishIn, Row, Store, Subscription, TickRef, Token,
};
use relevo_core::{ErrorClass, EventId, NewEvent};
use relevo_stores::postgres::{Options, PostgresOutbox, PostgresStore};
use relevo_testkit::services::{Postgres, require};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::{Client, NoTls};

/// The major version that tests use which do not care; `RELEVO_TEST_PG` names another.
pub fn major() -> u16 {
    std::env::var("RELEVO_TEST_PG").ok().and_then(|text| text.parse().ok()).unwrap_or(15)
}

/// A fresh database with its store.
pub struct Rig {
    pub server: Arc<Postgres>,
    pub url: String,
    pub store: PostgresStore,
}

/// A database without Relevo's schema; `None` if there is no server (said aloud).
pub fn empty() -> Option<(Arc<Postgres>, String)> {
    let server = require(Postgres::shared(major()))?;
    let url = server.create_database().unwrap();
    Some((server, url))
}

/// A store with its tables, in segments of 100 rows.
pub async fn rig() -> Option<Rig> {
    let (server, url) = empty()?;
    let store = open(&url);
    store.migrate().await.unwrap();
    Some(Rig { server, url, store })
}

/// The same on a server of its own: what others leave open holds back what is known to be decided.
pub async fn rig_alone() -> Option<Rig> {
    let server = Arc::new(require(Postgres::start(major()))?);
    let url = server.create_database().unwrap();
    let store = open(&url);
    store.migrate().await.unwrap();
    Some(Rig { server, url, store })
}

/// A store of segments of 100 rows.
pub fn open(url: &str) -> PostgresStore {
    let mut options = Options::default();
    options.segment_rows = Some(100);
    options.segments_ahead = 3;
    PostgresStore::open(url, options).unwrap()
}

pub async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

pub fn event(topic: &str, key: &str) -> NewEvent {
    NewEvent::bytes(topic, format!("{topic} of {key}")).key(key)
}

/// Publishes and commits.
pub async fn publish(client: &mut Client, event: NewEvent) -> EventId {
    let mut tx = client.transaction().await.unwrap();
    let id = PostgresOutbox::new().publish(&mut tx, event).await.unwrap();
    tx.commit().await.unwrap();
    id
}

pub fn all_lanes() -> Vec<u16> {
    (0..LANES).collect()
}

pub async fn page(store: &dyn Store, position: Position) -> Page {
    page_of(store, position, 1000).await
}

pub async fn page_of(store: &dyn Store, position: Position, max_rows: usize) -> Page {
    let request = PageRequest { position, lanes: all_lanes(), max_rows, max_bytes: 1 << 30 };
    store.read_page(&request).await.unwrap()
}

/// Reads everything there is beyond `position`.
pub async fn drain(store: &dyn Store, mut position: Position) -> (Vec<Row>, Position) {
    let mut rows = Vec::new();
    loop {
        let page = page(store, position).await;
        rows.extend(page.rows);
        if page.end == position {
            return (rows, position);
        }
        position = page.end;
    }
}

pub fn ids(rows: &[Row]) -> Vec<EventId> {
    rows.iter().map(|row| row.event.id).collect()
}

/// A member that owns every lane of a subscription.
pub struct Owner {
    pub name: Arc<str>,
    pub member: MemberId,
    pub tokens: BTreeMap<u16, Token>,
    pub lanes: BTreeMap<u16, LaneState>,
}

impl Owner {
    pub async fn of(store: &dyn Store, subscription: &str, member: &str) -> Self {
        store.subscribe(&Subscription::new(subscription)).await.unwrap();
        Self::take(store, subscription, member).await
    }

    pub async fn take(store: &dyn Store, subscription: &str, member: &str) -> Self {
        let (name, member): (Arc<str>, _) = (subscription.into(), MemberId(member.into()));
        let beat =
            Beat { subscription: name.clone(), member: member.clone(), note: "{}".to_owned() };
        let fleet = store.beat(&beat).await.unwrap();
        let claims: Vec<Claim> = fleet
            .leases
            .iter()
            .map(|lease| Claim {
                lane: lease.lane,
                seen: lease.token,
                fresh: lease.token.wrapping_add(1),
            })
            .collect();
        let got = store.take_lanes(subscription, &claims, &member, 100).await.unwrap();
        let tokens = claims.iter().map(|claim| (claim.lane, claim.fresh)).collect();
        Self { name, member, tokens, lanes: got.into_iter().collect() }
    }

    pub fn lane(&self, key: &str) -> LaneId {
        LaneId { subscription: self.name.clone(), lane: lane_of(key) }
    }

    pub fn token(&self, lane: &LaneId) -> Token {
        self.tokens[&lane.lane]
    }

    pub async fn state(&self, store: &dyn Store, lane: &LaneId) -> LaneState {
        store.load_lane(lane, self.token(lane), 100).await.unwrap().unwrap()
    }

    /// A change of `key`'s lane that moves from where the store has it to `after`.
    pub async fn change(&self, store: &dyn Store, key: &str, after: Position) -> LaneChange {
        let lane = self.lane(key);
        let before = self.state(store, &lane).await.position;
        LaneChange::moving(lane.clone(), self.token(&lane), before, after)
    }

    /// A change that leaves the cursor where it is.
    pub async fn resting(&self, store: &dyn Store, key: &str) -> LaneChange {
        let before = self.state(store, &self.lane(key)).await.position;
        self.change(store, key, before).await
    }
}

pub fn at(row: &Row, to: TickRef) -> EventRef {
    EventRef { key: row.event.order_key(), to, seq: row.seq, id: row.event.id }
}

pub fn parked(key: &str, retry_in: Option<Duration>) -> ParkKey {
    ParkKey {
        key: key.to_owned(),
        attempts: 1,
        deaths: 0,
        retry_in,
        class: ErrorClass::Transient,
        error: "it was not to be".to_owned(),
    }
}
