//! Outbox tables of somebody else's, relayed in place by real relays: what the owner sees, what the broker gets.
//!
//! - `database`: an owner's database, on a real server or in a file
//! - `harness`: brings an adopted table before the conformance suite of stores
//! - `sink`: a broker that remembers and fails on request
//! - `by_hand`: a broker whose answers a case gives itself
//! - [`cases`]: what must hold on every database; [`chaos`]: what must hold while relays die; [`order`]: what the order of
//!   a key stands on; [`publishing`]: what must hold while a row is on its way; [`why`]: what is said of rows

#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

mod by_hand;
pub mod cases;
pub mod chaos;
mod database;
mod harness;
pub mod order;
pub mod publishing;
mod sink;
pub mod why;

pub use database::{Database, Kind, smartedify};
pub use harness::AdoptedHarness;
pub use sink::{Seen, Sink};

use relevo_core::dead_letters::Operate;
use relevo_core::outbox::adopt::{AdoptedTable, Mapping};
use relevo_core::outbox::{MemberId, Store, Subscription};
use relevo_core::relay::RelayConfig;
use relevo_core::relay::run::{Running, start};
use relevo_core::retry::RetryPolicy;
use std::sync::Arc;
use std::time::Duration;

/// The subscription of every case.
pub const NAME: &str = "events";

/// A relay that retries at once, and takes over soon.
pub fn config() -> RelayConfig {
    let mut config = RelayConfig::default();
    config.retry =
        RetryPolicy::linear(Duration::from_millis(20), Duration::from_millis(50)).max_attempts(3);
    config.lease = Duration::from_secs(2);
    config.poll = (Duration::from_millis(5), Duration::from_millis(50));
    config
}

/// Relays an adopted table to a sink.
pub async fn relay(store: Arc<dyn Store>, sink: &Arc<Sink>, member: &str) -> Running {
    let destination = Arc::new(sink.destination());
    let member = MemberId(member.into());
    start(store, Subscription::new(NAME), config(), destination, member).await.unwrap()
}

/// A table at work.
pub struct Work {
    /// The owner's database.
    pub db: Database,
    /// The table as Relevo has it.
    pub table: Arc<dyn AdoptedTable>,
    /// What operators use.
    pub operate: Arc<dyn Operate>,
    /// Where its events go.
    pub sink: Arc<Sink>,
    /// The relay.
    pub relay: Running,
}

impl Work {
    /// Adopts the table and relays it.
    pub async fn begin(db: Database, mapping: Mapping, sink: Sink) -> Self {
        let (table, operate) = db.adopt(NAME, mapping).await.unwrap();
        let sink = Arc::new(sink);
        let relay = relay(table.clone(), &sink, "one").await;
        Self { db, table, operate, sink, relay }
    }

    /// Ends the relay.
    pub async fn end(self) {
        self.relay.stop(Duration::from_secs(60)).await.unwrap();
    }
}
