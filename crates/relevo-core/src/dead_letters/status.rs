//! The log, its subscriptions and who works them, as an operator sees them.

#[cfg(doc)]
use crate::outbox::MemberNote;
use crate::outbox::Probe;
use chrono::{DateTime, Utc};
use serde::Serialize;

/// A subscription as an operator sees it.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct SubscriptionStatus {
    /// Its name.
    pub name: String,
    /// Topic filters.
    pub topics: Vec<String>,
    /// Where its events go.
    pub destination: String,
    /// Who paused it and why.
    pub paused: Option<String>,
    /// Processes that signed life lately.
    pub members: Vec<MemberStatus>,
    /// Lanes that somebody owns.
    pub lanes_owned: u32,
    /// An upper bound of the events not decided yet, from sequence numbers: nothing is counted.
    pub backlog: i64,
    /// Age in seconds of the oldest undecided event (0 if none).
    pub oldest_pending_s: f64,
    /// Parked keys.
    pub parked_keys: i64,
    /// Events that wait behind them.
    pub parked_events: i64,
    /// Dead letters in state dead.
    pub dead_letters: i64,
    /// When its cursors last moved.
    pub moved_at: Option<DateTime<Utc>>,
    /// Seconds since anybody worked on it while something was due; a forgotten subscription shows here.
    pub forgotten_for_s: Option<f64>,
}

/// A process at work on a subscription.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct MemberStatus {
    /// Its name.
    pub member: String,
    /// Lanes it owns.
    pub lanes: u32,
    /// Seconds since its last sign of life.
    pub silent_s: f64,
    /// What it said of itself then, as JSON; [`MemberNote`] reads it.
    pub note: serde_json::Value,
}

/// A process that has been silent for several leases is not at work.
const SILENT_S: f64 = 30.0;

/// The log as an operator sees it.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct LogStatus {
    /// Server, schema, waking.
    pub probe: Probe,
    /// The highest sequence number given out.
    pub last_seq: i64,
    /// Segments there are.
    pub segments: i64,
    /// Bytes on disk, where the store can tell cheaply.
    pub bytes: Option<i64>,
    /// The newest tick's number.
    pub newest_tick: i64,
    /// Subscriptions.
    pub subscriptions: Vec<SubscriptionStatus>,
}

impl SubscriptionStatus {
    /// A subscription nothing is known of yet but its name.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            topics: Vec::new(),
            destination: String::new(),
            paused: None,
            members: Vec::new(),
            lanes_owned: 0,
            backlog: 0,
            oldest_pending_s: 0.0,
            parked_keys: 0,
            parked_events: 0,
            dead_letters: 0,
            moved_at: None,
            forgotten_for_s: None,
        }
    }
}

impl MemberStatus {
    /// A member as the store has it.
    pub fn new(
        member: impl Into<String>,
        lanes: u32,
        silent_s: f64,
        note: serde_json::Value,
    ) -> Self {
        Self { member: member.into(), lanes, silent_s, note }
    }

    /// Is it at work? The row of one that ended without a word is kept for a while.
    pub fn is_alive(&self) -> bool {
        self.silent_s < SILENT_S
    }
}

impl LogStatus {
    /// A log as the store has it.
    pub fn new(
        probe: Probe,
        last_seq: i64,
        segments: i64,
        bytes: Option<i64>,
        newest_tick: i64,
    ) -> Self {
        Self { probe, last_seq, segments, bytes, newest_tick, subscriptions: Vec::new() }
    }
}
