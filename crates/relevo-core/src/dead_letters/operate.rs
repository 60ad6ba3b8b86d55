use super::{DeadFilter, DeadLetter, DeadLetterId, Unproven};
use crate::error::Result;
use crate::event::{Event, EventId, Headers};
#[cfg(doc)]
use crate::outbox::MemberNote;
use crate::outbox::{Probe, Retention, Start};
use async_trait::async_trait;
use bytes::Bytes;
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

/// Why an event is where it is, for one subscription.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Why {
    /// Its effect happened, or its destination confirmed it.
    Delivered,
    /// The handler skipped it.
    Skipped {
        /// Why.
        reason: String,
    },
    /// The subscription does not want its topic.
    FilteredOut {
        /// What it wants.
        topics: Vec<String>,
    },
    /// The subscription starts after it.
    BeforeStart,
    /// Its key is parked and it is the first: it is tried again.
    Parked {
        /// Attempts so far.
        attempts: u32,
        /// When it is due; `None` while it is held for a person.
        due: Option<DateTime<Utc>>,
        /// Class of the last error.
        class: String,
        /// Text of the last error.
        error: String,
    },
    /// It waits behind another event of its key.
    ParkedBehind {
        /// The event it waits for.
        event: EventId,
        /// Events of its key before it.
        before: i64,
        /// When the first one is due.
        due: Option<DateTime<Utc>>,
        /// Text of its last error.
        error: String,
    },
    /// A dead letter holds its key (`after_dead = hold`, or too many in a row): it goes on once that one is replayed
    /// or archived.
    Held {
        /// The dead letter that holds the key.
        dead_letter: DeadLetterId,
        /// Its event.
        event: EventId,
        /// Events of its key that wait before it.
        before: i64,
        /// Class of the dead letter's last error.
        class: String,
        /// Text of the dead letter's last error.
        error: String,
    },
    /// It is a dead letter.
    Dead {
        /// Its number.
        dead_letter: DeadLetterId,
        /// What became of it: dead, requested, archived.
        dead_state: String,
        /// Class of the last error.
        class: String,
        /// Text of the last error.
        error: String,
    },
    /// An operator paused the subscription.
    Paused {
        /// Who, when and why.
        by: String,
        /// What it waits for once the subscription goes on, if it waited for something before.
        #[serde(skip_serializing_if = "Option::is_none")]
        then: Option<Box<Why>>,
    },
    /// The destination is down; the breaker probes.
    BreakerOpen {
        /// What the destination last answered, or did not.
        reason: String,
        /// For how long, in seconds.
        open_s: f64,
    },
    /// Another process has its lane and will get to it.
    LaneLeased {
        /// The lane.
        lane: u16,
        /// Who.
        owner: String,
        /// Seconds since the owner's last sign of life.
        silent_s: f64,
    },
    /// Nobody has its lane.
    NobodyWorks {
        /// The lane.
        lane: u16,
    },
    /// It is newer than the newest tick: the next one takes it.
    WaitsForTick,
}

impl Why {
    /// The same in a subscription that may be paused: what waits there for anything waits for the pause first.
    pub fn while_paused(self, by: Option<&str>) -> Self {
        let waits = match &self {
            Self::Parked { .. } | Self::ParkedBehind { .. } | Self::Held { .. } => true,
            Self::Dead { dead_state, .. } => dead_state == "requested",
            _ => false,
        };
        match by.filter(|_| waits) {
            Some(by) => Self::Paused { by: by.to_owned(), then: Some(Box::new(self)) },
            None => self,
        }
    }
}

/// Why an event is where it is.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "found", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Answer {
    /// No such event: never published, rolled back, or still inside an open transaction. `suspects` are the
    /// transactions that might hold it: those with an id that began before now and wrote.
    Unknown {
        /// Sessions with an open writing transaction, longest first.
        suspects: Vec<OpenTransaction>,
        /// The id lies before what retention has dropped.
        past_retention: bool,
    },
    /// It is in the log, or in parked keys or dead letters.
    Known {
        /// Its topic.
        topic: String,
        /// Its key.
        key: Option<String>,
        /// Its lane.
        lane: u16,
        /// Its place in the log.
        seq: Option<i64>,
        /// When it was published.
        created_at: DateTime<Utc>,
        /// For each subscription, why.
        subscriptions: Vec<(String, Why)>,
    },
}

/// A session that holds a transaction open.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct OpenTransaction {
    /// The server's process id.
    pub pid: i32,
    /// The application's name.
    pub application: String,
    /// How long it has been open, in seconds.
    pub open_s: f64,
    /// Its state (active, idle in transaction).
    pub state: String,
    /// Its last query, shortened.
    pub query: String,
}

impl OpenTransaction {
    /// A session as the server shows it.
    pub fn new(pid: i32, application: String, open_s: f64, state: String, query: String) -> Self {
        Self { pid, application, open_s, state, query }
    }
}

/// A finding of `doctor`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// How bad.
    pub level: Level,
    /// What was looked at.
    pub check: String,
    /// What was found, and what to do.
    pub text: String,
}

impl Finding {
    /// A finding.
    pub fn new(level: Level, check: impl Into<String>, text: impl Into<String>) -> Self {
        Self { level, check: check.into(), text: text.into() }
    }
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Worth knowing.
    Warning,
    /// Must be mended.
    Problem,
}

/// A replay of many: a frozen set, at a rate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ReplayProgress {
    /// The operation's number.
    pub operation: i64,
    /// Dead letters in the frozen set.
    pub total: i64,
    /// Still to be put back.
    pub waiting: i64,
    /// Put back.
    pub replayed: i64,
    /// Taken out by a cancel.
    pub cancelled: i64,
}

impl ReplayProgress {
    /// Progress as the store counts it.
    pub fn new(operation: i64, total: i64, waiting: i64, replayed: i64, cancelled: i64) -> Self {
        Self { operation, total, waiting, replayed, cancelled }
    }
}

/// What retention would drop now, and what holds the rest of the log.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct RetentionPlan {
    /// Events that would go now, at most: nothing is counted one by one.
    pub droppable_events: i64,
    /// Their bytes on disk, where the store can tell.
    pub droppable_bytes: Option<i64>,
    /// Events that every subscription is past, but that are not old enough, at most.
    pub young_events: i64,
    /// Their bytes on disk, where the store can tell.
    pub young_bytes: Option<i64>,
    /// Parked events whose bytes are kept apart when their part of the log goes.
    pub parked_events: i64,
    /// Dead letters that would go now.
    pub dead_letters: i64,
    /// Nobody subscribes: all of the log is kept.
    pub unread: bool,
    /// Each subscription with what it holds, the one that holds most first.
    pub holders: Vec<Holder>,
}

/// What a subscription keeps from being dropped.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Holder {
    /// Its name.
    pub subscription: String,
    /// Why it is not further: `at work`, `paused (by whom)`, `nobody works it`.
    pub state: String,
    /// Everything up to this place is decided for it.
    pub decided_seq: i64,
    /// Events it holds, at most.
    pub events: i64,
    /// Bytes of the log it holds, where the store can tell.
    pub bytes: Option<i64>,
}

impl Holder {
    /// What `status` holds, being decided up to `decided_seq`.
    pub fn of(
        status: &SubscriptionStatus,
        decided_seq: i64,
        events: i64,
        bytes: Option<i64>,
    ) -> Self {
        let at_work = status.members.iter().any(|member| member.silent_s < 60.0);
        let state = match &status.paused {
            Some(by) => format!("paused ({by})"),
            None if at_work => "at work".to_owned(),
            None => "nobody works it".to_owned(),
        };
        Self { subscription: status.name.clone(), state, decided_seq, events, bytes }
    }
}

impl RetentionPlan {
    /// Whoever holds most comes first.
    pub fn sorted(mut self) -> Self {
        self.holders.sort_by_key(|holder| (holder.decided_seq, holder.subscription.clone()));
        self
    }
}

/// The port through which people look and act: the command line, later the console.
#[async_trait]
pub trait Operate: Send + Sync + 'static {
    /// Brings the schema up to this version; safe when two processes do it at once. Returns what it applied.
    async fn migrate(&self) -> Result<Vec<String>>;

    /// The whole state, without counting the log.
    async fn status(&self) -> Result<LogStatus>;

    /// Why is this event where it is?
    async fn why(&self, event: EventId) -> Result<Answer>;

    /// Publishes in a transaction of its own, for the command line.
    async fn publish_now(&self, event: crate::event::NewEvent) -> Result<EventId>;

    /// Events above `after` in the order of their sequence numbers, for `tail`: a look, not a delivery.
    async fn peek(&self, after: i64, max_rows: usize) -> Result<Vec<(i64, Event)>>;

    /// Pauses a subscription; its owners are fenced off at once.
    async fn pause(&self, subscription: &str, by: &str) -> Result<()>;

    /// Lets a paused subscription go on.
    async fn resume(&self, subscription: &str) -> Result<()>;

    /// Moves every cursor of a subscription; effects happen again (backwards) or are left out (forwards). What goes
    /// outside and lies behind the inbox's horizon is treated as `unproven` says ([`super::proof`]).
    async fn rewind_with(&self, subscription: &str, to: Start, unproven: Unproven) -> Result<()>;

    /// [`Self::rewind_with`], refused where the proof is gone.
    async fn rewind(&self, subscription: &str, to: Start) -> Result<()> {
        self.rewind_with(subscription, to, Unproven::Refuse).await
    }

    /// Ends a subscription: cursors, parked keys and requests go; dead letters stay.
    async fn remove(&self, subscription: &str) -> Result<()>;

    /// Dead letters that match, newest first, below `before` if given.
    async fn dead_letters(
        &self,
        filter: &DeadFilter,
        before: Option<DeadLetterId>,
        max: usize,
    ) -> Result<Vec<DeadLetter>>;

    /// Freezes what matches (state dead) and asks for its replay, `rate` a second at most. All of it or nothing: one
    /// letter behind the inbox's horizon is treated as `unproven` says ([`super::proof`]).
    async fn replay_with(
        &self,
        filter: &DeadFilter,
        rate: Option<f64>,
        unproven: Unproven,
    ) -> Result<ReplayProgress>;

    /// [`Self::replay_with`], refused where the proof is gone.
    async fn replay(&self, filter: &DeadFilter, rate: Option<f64>) -> Result<ReplayProgress> {
        self.replay_with(filter, rate, Unproven::Refuse).await
    }

    /// How far a replay is.
    async fn replay_progress(&self, operation: i64) -> Result<ReplayProgress>;

    /// Takes out of a replay what was not put back yet.
    async fn cancel_replay(&self, operation: i64) -> Result<ReplayProgress>;

    /// Makes an edited copy with an id of its own, archives the original, and asks for the copy's replay.
    async fn replay_edited(
        &self,
        id: DeadLetterId,
        payload: Bytes,
        headers: Headers,
    ) -> Result<EventId>;

    /// Sets dead letters aside; a held key goes on.
    async fn archive(&self, filter: &DeadFilter) -> Result<u64>;

    /// What retention would drop now, and what holds the rest; changes nothing.
    async fn retention(&self, retention: &Retention) -> Result<RetentionPlan>;

    /// Looks at everything that commonly goes wrong.
    async fn doctor(&self) -> Result<Vec<Finding>>;
}
