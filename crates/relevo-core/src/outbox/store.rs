use super::change::{EventRef, LaneChange};
use super::retention::Retention;
use super::tick::TickRef;
use crate::error::Result;
use crate::event::{Event, TopicFilter};
use crate::relay::AfterDead;
use async_trait::async_trait;
use chrono::{DateTime, Utc};
use serde::Serialize;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// A subscription's lane.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId {
    /// The subscription's name.
    pub subscription: Arc<str>,
    /// The lane, below [`crate::limits::LANES`].
    pub lane: u16,
}

/// A lease's fencing token: random, new with every owner, rewind and pause.
pub type Token = i64;

/// A row of the request table.
pub type RequestId = i64;

/// One process at work on a subscription.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemberId(pub Arc<str>);

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How far a lane is decided: everything visible in `from`, and, while a window is open (`to`), its rows up to `seq`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Position {
    /// The tick all of which is decided.
    pub from: TickRef,
    /// The tick the open window leads to; it stays the same until the window is done.
    pub to: Option<TickRef>,
    /// The last decided place inside the window.
    pub seq: i64,
}

impl Position {
    /// All that is visible in `tick` is decided.
    pub fn at(tick: TickRef) -> Self {
        Self { from: tick, to: None, seq: 0 }
    }
}

/// What a store can do; read by the engine, by the conformance suite and by the documentation's table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Capabilities {
    /// Writers commit out of the order of their sequence numbers (and the log copes).
    pub concurrent_writers: bool,
    /// Other processes may work the same log.
    pub shared_by_processes: bool,
    /// It can tell that something came without being asked.
    pub doorbell: bool,
    /// Handlers of different lanes commit at the same time.
    pub parallel_effects: bool,
    /// Other languages publish by plain SQL.
    pub publish_by_sql: bool,
    /// It survives the end of the process.
    pub durable: bool,
    /// A handler's own transaction may record its progress; otherwise only [`Store::record`] does.
    pub direct_effects: bool,
    /// The outbox is the log itself: events are in it when their transactions commit, for every subscription, from any
    /// place on.
    pub own_log: bool,
    /// If one transaction had committed when another published, its events of that key come first. (Otherwise two
    /// writers of one key that commit between two looks may be delivered in the wrong order.)
    pub key_order: bool,
}

/// Where a new subscription starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// With the first event of the log.
    Beginning,
    /// With what commits from now on.
    Now,
    /// With what committed after this time (as near as the kept ticks allow, never later).
    Time(DateTime<Utc>),
}

/// What a store keeps of a subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Subscription {
    /// Its name.
    pub name: Arc<str>,
    /// Which topics it wants; any of them.
    pub topics: Vec<TopicFilter>,
    /// Where it starts if it is new.
    pub start: Start,
    /// What a dead letter does to its key.
    pub after_dead: AfterDead,
    /// Where its events go, for people to read.
    pub destination: String,
    /// They leave this database, for a broker or an endpoint: what comes twice there is for an inbox to notice.
    pub outside: bool,
}

impl Subscription {
    /// A subscription to every topic, from the beginning.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self {
            name: name.into(),
            topics: vec![TopicFilter::all()],
            start: Start::Beginning,
            after_dead: AfterDead::Continue,
            destination: "handler".into(),
            outside: false,
        }
    }
    /// Wants these topics only.
    pub fn topics(mut self, topics: impl IntoIterator<Item = TopicFilter>) -> Self {
        self.topics = topics.into_iter().collect();
        self
    }
    /// Starts elsewhere, if it is new.
    pub fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }
    /// What a dead letter does to its key.
    pub fn after_dead(mut self, after_dead: AfterDead) -> Self {
        self.after_dead = after_dead;
        self
    }
    /// Where its events go, for people to read.
    pub fn destination(mut self, destination: impl Into<String>) -> Self {
        self.destination = destination.into();
        self
    }
    /// Whether its events leave this database. A relay at work says so by itself.
    pub fn outside(mut self, outside: bool) -> Self {
        self.outside = outside;
        self
    }
}

/// A sign of life, sent by each process at work on a subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beat {
    /// The subscription.
    pub subscription: Arc<str>,
    /// Who is alive.
    pub member: MemberId,
    /// State worth showing to operators (breaker, stopped lanes), as JSON.
    pub note: String,
}

/// A lane's lease as the store has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The lane.
    pub lane: u16,
    /// Whose it is; nobody's if `None`.
    pub owner: Option<MemberId>,
    /// The token in force.
    pub token: Token,
    /// Where its cursor stands.
    pub position: Position,
}

/// A compare-and-swap of one lane's token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// The lane.
    pub lane: u16,
    /// The token that must be in force.
    pub seen: Token,
    /// The token that replaces it.
    pub fresh: Token,
}

/// An operator's wish that only a lane's owner may carry out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Its row.
    pub id: RequestId,
    /// The lane it concerns.
    pub lane: u16,
    /// The key it concerns.
    pub key: String,
}

/// The answer to a beat: who is there and who owns what.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fleet {
    /// Every member with its beat count.
    pub members: Vec<(MemberId, i64)>,
    /// Every lane's lease, by lane.
    pub leases: Vec<Lease>,
    /// An operator paused the subscription.
    pub paused: bool,
    /// An operator removed it: stop.
    pub removed: bool,
    /// Requests that are due (a bounded number, oldest first).
    pub requests: Vec<Request>,
}

/// A key that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParkedKey {
    /// The order key.
    pub key: String,
    /// Attempts its first event has had.
    pub attempts: u32,
    /// Dead letters of this key in a row, just before.
    pub deaths: u32,
    /// How long until it is due, by the store's clock; `None` while it is held for an operator.
    pub due_in: Option<Duration>,
}

/// A lane as its owner finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneState {
    /// The cursor.
    pub position: Position,
    /// Every parked key of the lane (up to the asked limit plus one).
    pub parked: Vec<ParkedKey>,
}

/// A page to read: the rows of some lanes that all stand at the same position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageRequest {
    /// Where they stand. Without an open window the store picks the newest tick, making one if due.
    pub position: Position,
    /// The lanes.
    pub lanes: Vec<u16>,
    /// At most this many rows.
    pub max_rows: usize,
    /// Stop after this many payload bytes (at least one row comes).
    pub max_bytes: usize,
}

/// A row of the log.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Its lane.
    pub lane: u16,
    /// Its place in the log.
    pub seq: i64,
    /// The event.
    pub event: Event,
}

/// What a page brought.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    /// Rows of the asked lanes in the order of `seq`.
    pub rows: Vec<Row>,
    /// The tick the rows' window leads to; `None`: nothing new.
    pub to: Option<TickRef>,
    /// Where the asked lanes stand after these rows.
    pub end: Position,
}

impl Page {
    /// Nothing beyond `position`.
    pub fn nothing(position: Position) -> Self {
        Self { rows: Vec::new(), to: None, end: position }
    }
}

/// A parked event: its ref and what it carries.
#[derive(Debug, Clone, PartialEq)]
pub struct ParkedEvent {
    /// Where it stands.
    pub at: EventRef,
    /// The event.
    pub event: Event,
}

/// What the store found out about itself at start-up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Probe {
    /// Server or library and version.
    pub server: String,
    /// Version of Relevo's schema.
    pub schema: i64,
    /// How the relay learns that something came, and why not better.
    pub waking: String,
    /// Things worth saying aloud (a rebase, a missing privilege that only costs comfort).
    pub notes: Vec<String>,
}

impl Probe {
    /// A probe without notes.
    pub fn new(server: impl Into<String>, schema: i64, waking: impl Into<String>) -> Self {
        Self { server: server.into(), schema, waking: waking.into(), notes: Vec::new() }
    }
}

/// What upkeep did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Upkeep {
    /// Segments (or batches of rows) dropped because every cursor is past them and they are old enough.
    pub segments_dropped: u64,
    /// Rows that went with them, where the store can tell.
    pub rows_dropped: u64,
    /// Segments made ahead.
    pub segments_made: u64,
    /// Ticks thinned out below the oldest cursor.
    pub ticks_pruned: u64,
    /// Dead letters past their retention (archived ones first).
    pub dead_letters_dropped: u64,
    /// What needs a person: rows in the default segment, a subscription that holds the log.
    pub warnings: Vec<String>,
}

/// The port through which the relay works a store. Every method is one round trip or one short
/// transaction; none of them waits for a destination.
///
/// An error of kind `Stale` means another owner has the lane. Any other error on a write leaves the outcome
/// unknown: the caller reads the lane again.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The adapter's name, as errors and metrics carry it.
    fn name(&self) -> &'static str;

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// Looks whether this store can be worked: reachable, primary, right schema, same cluster. Rebases a log
    /// that was restored into another cluster and says so; refuses with a code what cannot work.
    async fn probe(&self) -> Result<Probe>;

    /// Makes the subscription known, with a cursor per lane at its start. Known already: updates its topics
    /// and destination and leaves its cursors alone.
    async fn subscribe(&self, subscription: &Subscription) -> Result<()>;

    /// Signs life and reads who is there. The member's beat count grows by one.
    async fn beat(&self, beat: &Beat) -> Result<Fleet>;

    /// Takes lanes, each only if its lease still carries the token seen, and gives it the fresh one.
    /// Durable when it returns. Answers with those it got.
    async fn take_lanes(
        &self,
        subscription: &str,
        claims: &[Claim],
        member: &MemberId,
        max_parked: usize,
    ) -> Result<Vec<(u16, LaneState)>>;

    /// Reads a lane again under its token; `None` if the token is no longer in force.
    async fn load_lane(
        &self,
        lane: &LaneId,
        token: Token,
        max_parked: usize,
    ) -> Result<Option<LaneState>>;

    /// Gives lanes back (each gets a fresh token and no owner), so that another member need not wait for the
    /// lease to end. A claim that no longer matches is passed over.
    async fn release_lanes(&self, subscription: &str, claims: &[Claim]) -> Result<()>;

    /// Reads on. Lanes stand at `request.position`, rows come in the order of `seq`.
    async fn read_page(&self, request: &PageRequest) -> Result<Page>;

    /// The first events that wait behind a parked key, in delivery order.
    async fn read_parked(
        &self,
        lane: &LaneId,
        key: &str,
        max_rows: usize,
    ) -> Result<Vec<ParkedEvent>>;

    /// Applies changes of different lanes in one transaction; all or nothing.
    async fn record(&self, changes: &[LaneChange]) -> Result<()>;

    /// A counter that grows when something may have come: a hint, never the truth. `None` without a doorbell.
    /// Each caller has a receiver of its own, so that no ring is lost between two waits.
    fn doorbell(&self) -> Option<watch::Receiver<u64>>;

    /// Makes segments ahead, drops what is past retention, prunes ticks. Inbox rows go when they are older than
    /// [`Retention::inbox_kept`], and it is noted up to when: [`crate::dead_letters::proof`] says why, and which of them
    /// stay.
    async fn upkeep(&self, retention: &Retention) -> Result<Upkeep>;

    /// Forgets members that have been silent for long.
    async fn forget_member(&self, subscription: &str, member: &MemberId) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_told_by_its_name() {
        assert_eq!(MemberId("host-1/42".into()).to_string(), "host-1/42");
    }
}
