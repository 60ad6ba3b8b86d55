//! SQLite: one file, nothing to install, one writer at a time.
//!
//! Because only one transaction writes at a time, the order of `seq` is the order of commits: a tick is
//! simply a number of the log, and the window from tick `a` to tick `b` is `a < seq <= b`. Everything else is
//! the same contract as on the other stores.
//!
//! Several processes may work one file on one machine (not over a network file system).

mod adopt;
mod bell;
mod doctor;
#[cfg(feature = "sqlx")]
mod effects;
mod errors;
#[doc(hidden)]
pub mod fuzzing;
mod horizon;
mod inbox;
mod lanes;
mod location;
mod log;
mod migrate;
mod operate;
mod publish;
mod record;
mod requests;
mod retention;
mod rows;
mod status;
mod subscriptions;
mod sync_effects;
mod threads;
mod why;

use async_trait::async_trait;
use errors::Sql;
use location::{FileIdentity, Location, Mode};
use relevo_core::outbox::{
    Beat, Capabilities, Claim, Fleet, LaneChange, LaneId, LaneState, MemberId, Page, PageRequest,
    ParkedEvent, Probe, Retention, Store, Subscription, Token, Upkeep,
};
use relevo_core::{Kind, Result};
use rusqlite::Transaction;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use threads::Threads;
use tokio::sync::watch;

pub use adopt::Adopted;
#[cfg(feature = "sqlx")]
pub use effects::SqlxSqlite;
pub use inbox::first_time;
#[cfg(feature = "sqlx")]
pub use inbox::first_time_in;
pub use migrate::migrations_sql;
pub use publish::SqliteOutbox;
pub use sync_effects::{SyncDirect, SyncHandler};

/// The adapter's name.
pub(crate) const ADAPTER: &str = "sqlite";

/// A log in an SQLite file. Cheap to clone; all clones share one writing thread and two reading ones, which
/// end with the last clone.
#[derive(Clone)]
pub struct SqliteStore {
    inner: Arc<Inner>,
}

struct Inner {
    location: Location,
    file: Arc<FileIdentity>,
    threads: Threads,
    bell: OnceLock<Option<watch::Receiver<u64>>>,
    /// A change that no released version knows.
    next: Option<migrate::Migration>,
}

impl SqliteStore {
    /// Opens `sqlite:file`, `sqlite://file` or a path, and makes the file if there is none (unless told
    /// `?mode=rw`). Sets the file's journal mode to WAL. Does not touch Relevo's tables: see
    /// [`Operate::migrate`](relevo_core::dead_letters::Operate::migrate).
    ///
    /// Refused: a database in memory, a folder, a file that is no database, a URL of another kind.
    pub fn open(url_or_path: &str) -> Result<Self> {
        Self::open_at(Location::parse(url_or_path)?, None)
    }

    /// For tests of rolling upgrades only: a store as the next version would have it, with one more schema change
    /// which today's version may go on beside.
    #[doc(hidden)]
    pub fn open_as_next_version(url_or_path: &str, change: &'static str) -> Result<Self> {
        Self::open_at(Location::parse(url_or_path)?, Some(migrate::Migration::next(change)))
    }

    /// Like [`Self::open`], but a file that is not there is an error: for everything that only looks.
    pub fn open_existing(url_or_path: &str) -> Result<Self> {
        let mut location = Location::parse(url_or_path)?;
        if location.mode == Mode::Create {
            location.mode = Mode::ReadWrite;
        }
        Self::open_at(location, None)
    }

    fn open_at(location: Location, next: Option<migrate::Migration>) -> Result<Self> {
        let threads = Threads::start(&location)?;
        let file = Arc::new(FileIdentity::of(&location.path));
        // Later connections must reach the same file whatever the working folder is then.
        let location = Location { path: file.path().to_owned(), ..location };
        let bell = OnceLock::new();
        Ok(Self { inner: Arc::new(Inner { location, file, threads, bell, next }) })
    }

    /// Publishes into this log, inside transactions of the caller.
    pub fn outbox(&self) -> SqliteOutbox {
        SqliteOutbox::default()
    }

    /// The file.
    pub fn path(&self) -> &Path {
        self.inner.file.path()
    }

    async fn write<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Transaction<'_>) -> Sql<T> + Send + 'static,
    {
        self.inner.threads.write(self.inner.file.clone(), true, work).await
    }

    async fn read<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Transaction<'_>) -> Sql<T> + Send + 'static,
    {
        self.inner.threads.read(self.inner.file.clone(), work).await
    }

    /// A connection of its own to the same file, for work that brings its own thread.
    fn connection(&self) -> Result<rusqlite::Connection> {
        self.inner.file.check()?;
        threads::connect(&self.inner.location)
    }

    fn check_file(&self) -> Result<()> {
        self.inner.file.check()
    }
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.path()).finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn name(&self) -> &'static str {
        ADAPTER
    }

    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::default();
        can.shared_by_processes = true;
        can.doorbell = true;
        can.publish_by_sql = true;
        can.durable = true;
        can.direct_effects = true;
        can.own_log = true;
        can.key_order = true;
        can
    }

    async fn probe(&self) -> Result<Probe> {
        let next = self.inner.next;
        self.read(move |tx| log::probe(tx, next.as_ref())).await
    }

    async fn subscribe(&self, subscription: &Subscription) -> Result<()> {
        let subscription = subscription.clone();
        self.write(move |tx| subscriptions::subscribe(tx, &subscription)).await
    }

    async fn beat(&self, beat: &Beat) -> Result<Fleet> {
        let beat = beat.clone();
        self.write(move |tx| lanes::beat(tx, &beat)).await
    }

    async fn take_lanes(
        &self,
        subscription: &str,
        claims: &[Claim],
        member: &MemberId,
        max_parked: usize,
    ) -> Result<Vec<(u16, LaneState)>> {
        let (subscription, claims, member) =
            (subscription.to_owned(), claims.to_vec(), member.clone());
        self.write(move |tx| lanes::take(tx, &subscription, &claims, &member, max_parked)).await
    }

    async fn load_lane(
        &self,
        lane: &LaneId,
        token: Token,
        max_parked: usize,
    ) -> Result<Option<LaneState>> {
        let lane = lane.clone();
        self.read(move |tx| lanes::load(tx, &lane.subscription, lane.lane, token, max_parked)).await
    }

    async fn release_lanes(&self, subscription: &str, claims: &[Claim]) -> Result<()> {
        let (subscription, claims) = (subscription.to_owned(), claims.to_vec());
        self.write(move |tx| lanes::release(tx, &subscription, &claims)).await
    }

    async fn read_page(&self, request: &PageRequest) -> Result<Page> {
        let request = request.clone();
        self.read(move |tx| log::read_page(tx, &request)).await
    }

    async fn read_parked(
        &self,
        lane: &LaneId,
        key: &str,
        max_rows: usize,
    ) -> Result<Vec<ParkedEvent>> {
        let (lane, key) = (lane.clone(), key.to_owned());
        self.read(move |tx| lanes::read_parked(tx, &lane, &key, max_rows)).await
    }

    async fn record(&self, changes: &[LaneChange]) -> Result<()> {
        let changes = changes.to_vec();
        let durable = !changes.iter().all(LaneChange::only_moves);
        let work = move |tx: &Transaction<'_>| record::record_all(tx, &changes);
        self.inner.threads.write(self.inner.file.clone(), durable, work).await
    }

    fn doorbell(&self) -> Option<watch::Receiver<u64>> {
        let start = || {
            let bell = bell::start(&self.inner.location, Arc::downgrade(&self.inner));
            bell.inspect_err(
                |error| tracing::warn!(adapter = ADAPTER, %error, "no doorbell; the relay polls"),
            )
            .ok()
        };
        self.inner.bell.get_or_init(start).clone()
    }

    async fn upkeep(&self, retention: &Retention) -> Result<Upkeep> {
        retention::upkeep(self, retention).await
    }

    async fn forget_member(&self, subscription: &str, member: &MemberId) -> Result<()> {
        let (subscription, member) = (subscription.to_owned(), member.clone());
        self.write(move |tx| lanes::forget(tx, &subscription, &member)).await
    }
}

/// Refuses a name nobody subscribed under.
fn unknown_subscription(name: &str) -> relevo_core::Error {
    errors::own(
        Kind::UnknownSubscription,
        format!("there is no subscription {name:?}; `relevo subscriptions list` names them"),
    )
}
