//! A service downstream: a directory of tenants, and an audit of every event that took effect.
//!
//! It meets events more than once and does each of them once: `processed_event_ids` has a row for each, written in the
//! transaction of its effect.
//!
//! - [`directory`]: the effect
//! - [`consumer`]: behind a broker
//! - [`direct`]: without a broker, called by the relay itself
//! - [`retention`]: how long ids are remembered

pub mod consumer;
pub mod direct;
pub mod directory;
pub mod retention;
