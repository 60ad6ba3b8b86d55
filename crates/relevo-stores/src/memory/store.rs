use super::db::{Db, Refusal, Statement};
use super::effects::MemoryTransaction;
use super::log::PageStep;
use super::publish::MemoryOutbox;
use async_trait::async_trait;
use chrono::{DateTime, Utc};
use relevo_core::Result;
use relevo_core::clock::Rng;
use relevo_core::limits::Limits;
use relevo_core::outbox::{
    Beat, Capabilities, Claim, Fleet, LaneChange, LaneId, LaneState, MemberId, Page, PageRequest,
    ParkedEvent, Probe, Retention, Store, Subscription, Token, Upkeep,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Chance, where the store needs it: tokens and nonces.
pub(super) struct Random(Rng);

impl Random {
    pub(super) fn token(&mut self) -> Token {
        // Never negative and never 0, which is the token of a lane nobody ever had.
        (self.0.next_u64() >> 1).max(1) as Token
    }
}

type Now = Box<dyn Fn() -> DateTime<Utc> + Send + Sync>;

struct Shared {
    db: Mutex<Db>,
    random: Mutex<Random>,
    now: Now,
    limits: Limits,
    /// Counts commits that may have brought something: the doorbell.
    rings: watch::Sender<u64>,
    /// Counts ends of transactions: whoever waits for a lock looks again.
    ends: watch::Sender<u64>,
}

/// The store in memory; clones share one database.
#[derive(Clone)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStore {
    /// An empty store on the system's clock.
    pub fn new() -> Self {
        Self::with_clock(Utc::now)
    }

    /// An empty store on a clock of its own, for tests that do not wait.
    pub fn with_clock(now: impl Fn() -> DateTime<Utc> + Send + Sync + 'static) -> Self {
        let db = Db::new(now());
        let shared = Shared {
            db: Mutex::new(db),
            random: Mutex::new(Random(Rng::from_os())),
            now: Box::new(now),
            limits: Limits::default(),
            rings: watch::Sender::new(0),
            ends: watch::Sender::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Begins a transaction to publish in and to write application rows in.
    pub fn begin(&self) -> MemoryTransaction {
        MemoryTransaction::begin(self.clone())
    }

    /// The outbox to publish with.
    pub fn outbox(&self) -> MemoryOutbox {
        MemoryOutbox::new(self.limits().clone())
    }

    /// Looks at the database, or changes it by whole statements.
    pub fn with<T>(&self, statement: impl FnOnce(&mut Db) -> T) -> T {
        statement(&mut self.db())
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.shared.limits
    }

    fn db(&self) -> MutexGuard<'_, Db> {
        // A statement that panicked left the database as it was before it, or is a bug that the next one shows.
        let mut db = self.shared.db.lock().unwrap_or_else(PoisonError::into_inner);
        db.set_now((self.shared.now)());
        db
    }

    /// Runs a statement, waiting as long as a transaction holds a row it needs.
    pub(super) async fn statement<T>(
        &self,
        mut run: impl FnMut(&mut Db, &mut Random) -> Statement<T>,
    ) -> Result<T> {
        let mut ends = self.shared.ends.subscribe();
        loop {
            ends.mark_unchanged();
            let result = {
                let mut random = self.shared.random.lock().unwrap_or_else(PoisonError::into_inner);
                run(&mut self.db(), &mut random)
            };
            match result {
                Ok(value) => return Ok(value),
                Err(Refusal::Failed(error)) => return Err(error),
                Err(Refusal::Locked { .. }) => drop(ends.changed().await),
            }
        }
    }

    /// A transaction ended: those who wait for its rows look again.
    pub(super) fn ended(&self) {
        self.shared.ends.send_modify(|ends| *ends += 1);
    }

    pub(super) fn ring(&self) {
        self.shared.rings.send_modify(|rings| *rings += 1);
    }

    fn token(&self) -> Token {
        self.shared.random.lock().unwrap_or_else(PoisonError::into_inner).token()
    }
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MemoryStore")
    }
}

/// What the store in memory can do.
pub(super) fn capabilities() -> Capabilities {
    let mut capabilities = Capabilities::default();
    capabilities.concurrent_writers = true;
    capabilities.doorbell = true;
    capabilities.parallel_effects = true;
    capabilities.direct_effects = true;
    capabilities.own_log = true;
    capabilities.key_order = true;
    capabilities
}

#[async_trait]
impl Store for MemoryStore {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn capabilities(&self) -> Capabilities {
        capabilities()
    }

    async fn probe(&self) -> Result<Probe> {
        Ok(Probe::new("memory", 1, "doorbell: every commit in this process rings"))
    }

    async fn subscribe(&self, subscription: &Subscription) -> Result<()> {
        let nonce = self.token();
        self.with(|db| db.subscribe(subscription, nonce))
    }

    async fn beat(&self, beat: &Beat) -> Result<Fleet> {
        Ok(self.with(|db| db.beat(beat)))
    }

    async fn take_lanes(
        &self,
        subscription: &str,
        claims: &[Claim],
        member: &MemberId,
        max_parked: usize,
    ) -> Result<Vec<(u16, LaneState)>> {
        let name: Arc<str> = subscription.into();
        let taken = self.statement(|db, _| db.take_lanes(&name, claims, member)).await?;
        let state = |db: &Db, lane, token| {
            let id = LaneId { subscription: name.clone(), lane };
            db.load_lane(&id, token, max_parked).map(|state| (lane, state))
        };
        Ok(self
            .with(|db| taken.iter().filter_map(|(lane, token)| state(db, *lane, *token)).collect()))
    }

    async fn load_lane(
        &self,
        lane: &LaneId,
        token: Token,
        max_parked: usize,
    ) -> Result<Option<LaneState>> {
        Ok(self.with(|db| db.load_lane(lane, token, max_parked)))
    }

    async fn release_lanes(&self, subscription: &str, claims: &[Claim]) -> Result<()> {
        let name: Arc<str> = subscription.into();
        self.statement(|db, _| db.release_lanes(&name, claims)).await
    }

    async fn read_page(&self, request: &PageRequest) -> Result<Page> {
        let (mut page, nonce) = (PageStep::new(request.clone()), self.token());
        loop {
            if let Some(page) = self.with(|db| page.run(db, nonce))? {
                return Ok(page);
            }
        }
    }

    async fn read_parked(
        &self,
        lane: &LaneId,
        key: &str,
        max_rows: usize,
    ) -> Result<Vec<ParkedEvent>> {
        self.with(|db| db.read_parked(lane, key, max_rows))
    }

    async fn record(&self, changes: &[LaneChange]) -> Result<()> {
        let result = self.statement(|db, _| db.record(changes)).await;
        self.ended();
        result
    }

    fn doorbell(&self) -> Option<tokio::sync::watch::Receiver<u64>> {
        Some(self.shared.rings.subscribe())
    }

    async fn upkeep(&self, retention: &Retention) -> Result<Upkeep> {
        let mut retention = retention.clone();
        retention.inbox = retention.inbox_kept();
        self.statement(|db, _| db.upkeep(&retention)).await
    }

    async fn forget_member(&self, subscription: &str, member: &MemberId) -> Result<()> {
        self.with(|db| db.forget_member(subscription, member));
        Ok(())
    }
}
