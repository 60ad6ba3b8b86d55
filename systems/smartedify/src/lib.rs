//! SmartEdify on Relevo: a tenant service whose changes and events commit together, the relay of its own outbox table, and
//! a downstream service that does each effect once.
//!
//! # Layout, along the way of an event
//!
//! - [`tenants`]: the changes, each in one transaction with its row in `outbox_events`; [`events`]: what the rows say
//! - [`outbox`]: the table as Relevo relays it: poller, backoff, checks, dead letters, clean-up
//! - [`broker`]: NATS JetStream or Kafka, chosen before the start
//! - [`downstream`]: a directory of tenants that keeps `processed_event_ids`, behind a broker or called directly
//! - [`http`], [`metrics`]: what people and Prometheus see
//! - [`embedded`]: all of it in one process on SQLite, with traffic, faults and a verdict; [`real`]: the same on its
//!   documented parts; [`demo`]: both as parts of `relevo demo`
//! - [`db`], [`migrate`], [`config`]: both databases by one code
//! - [`load`]: how much it holds

pub mod broker;
pub mod client;
pub mod config;
pub mod db;
pub mod demo;
pub mod downstream;
pub mod embedded;
pub mod events;
pub mod http;
pub mod load;
pub mod metrics;
pub mod migrate;
pub mod outbox;
pub mod real;
pub mod tenants;

use chrono::{DateTime, Utc};
use std::sync::Arc;

/// Tells the time; tests hand in one of their own.
pub type Clock = Arc<dyn Fn() -> DateTime<Utc> + Send + Sync>;

/// The real one.
pub fn wall_clock() -> Clock {
    Arc::new(Utc::now)
}

/// A name that no other process has.
pub fn member(role: &str) -> String {
    format!("{role}-{}-{}", std::process::id(), relevo::EventId::fresh())
}
