//! A folder per test, and short words for what every test does.
#![allow(dead_code, unreachable_pub)]

use relevo_core::dead_letters::Operate;
use relevo_core::event::lane_of;
use relevo_core::outbox::{
    Beat, Claim, EventRef, LaneChange, LaneId, LaneState, MemberId, Page, PageRequest, ParkKey,
    Position, Row, Store, Subscription, Token,
};
use relevo_core::{ErrorClass, EventId, NewEvent};
use relevo_stores::sqlite::SqliteStore;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A folder that goes with the test.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("relevo-sqlite-{}", EventId::fresh()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn folder(&self) -> &Path {
        &self.0
    }

    pub fn url(&self) -> String {
        format!("sqlite:{}", self.path("log.db").display())
    }

    /// A store with its tables.
    pub async fn store(&self) -> SqliteStore {
        let store = SqliteStore::open(&self.url()).unwrap();
        store.migrate().await.unwrap();
        store
    }

    /// A connection of somebody else.
    pub fn connect(&self) -> rusqlite::Connection {
        let conn = rusqlite::Connection::open(self.path("log.db")).unwrap();
        conn.busy_timeout(Duration::from_secs(5)).unwrap();
        conn
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("{} stays behind: {error}", self.0.display());
        }
    }
}

pub fn event(topic: &str, key: &str) -> NewEvent {
    NewEvent::bytes(topic, "payload").key(key)
}

/// Publishes `n` events of key `key`, in transactions of their own.
pub async fn publish(store: &SqliteStore, key: &str, n: usize) -> Vec<EventId> {
    let mut ids = Vec::new();
    for _ in 0..n {
        ids.push(store.publish_now(event("a.b", key)).await.unwrap());
    }
    ids
}

/// A lane in hand: what a relay knows of it.
pub struct Hand {
    pub id: LaneId,
    pub token: Token,
    pub state: LaneState,
}

/// Subscribes (from the beginning) and takes the lane of `key`.
pub async fn take(store: &SqliteStore, subscription: &str, key: &str, token: Token) -> Hand {
    let member = MemberId("m".into());
    store.subscribe(&Subscription::new(subscription)).await.unwrap();
    let beat =
        Beat { subscription: subscription.into(), member: member.clone(), note: "{}".into() };
    let fleet = store.beat(&beat).await.unwrap();
    let lane = lane_of(key);
    let claim = Claim { lane, seen: fleet.leases[usize::from(lane)].token, fresh: token };
    let mut taken = store.take_lanes(subscription, &[claim], &member, 100).await.unwrap();
    let (_, state) = taken.pop().expect("the lane is to be had");
    Hand { id: LaneId { subscription: subscription.into(), lane }, token, state }
}

impl Hand {
    pub fn request(&self) -> PageRequest {
        PageRequest {
            position: self.state.position,
            lanes: vec![self.id.lane],
            max_rows: 100,
            max_bytes: 1 << 20,
        }
    }

    pub async fn page(&self, store: &SqliteStore) -> Page {
        store.read_page(&self.request()).await.unwrap()
    }

    pub fn change(&self, after: Position) -> LaneChange {
        LaneChange::moving(self.id.clone(), self.token, self.state.position, after)
    }

    /// Records the change and moves on with it.
    pub async fn record(&mut self, store: &SqliteStore, change: LaneChange) {
        store.record(std::slice::from_ref(&change)).await.unwrap();
        self.state.position = change.after;
    }
}

pub fn at(page: &Page, row: &Row) -> EventRef {
    EventRef { key: row.event.order_key(), to: page.to.unwrap(), seq: row.seq, id: row.event.id }
}

pub fn park(key: &str, retry_in: Option<Duration>) -> ParkKey {
    ParkKey {
        key: key.into(),
        attempts: 1,
        deaths: 0,
        retry_in,
        class: ErrorClass::Transient,
        error: "no".into(),
    }
}

/// How many rows a table has.
pub fn count(scratch: &Scratch, table: &str) -> i64 {
    scratch
        .connect()
        .query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0))
        .unwrap()
}
