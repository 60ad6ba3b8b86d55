//! A signal to itself at a chosen step: death, pause or an orderly end exactly there.

use crate::story::{Line, tell};
use async_trait::async_trait;
use relevo::{Capabilities, Kind, NewEvent, Result, Retention, Store, Subscription, TxDriver};
use relevo_core::inbox::{Meet, Met};
use relevo_core::outbox::{
    Beat, Claim, Fleet, LaneChange, LaneId, LaneState, MemberId, Page, PageRequest, ParkedEvent,
    Probe, Token, Upkeep,
};
use rustix::process::{Signal, getpid, kill_process};
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Every step a wire can be laid at: calls to the store, then those to the handlers' driver.
pub const STEPS: [&str; 18] = [
    "probe",
    "subscribe",
    "beat",
    "take",
    "load",
    "release",
    "page",
    "parked",
    "record",
    "upkeep",
    "forget",
    "acquire",
    "begin",
    "savepoint",
    "handle",
    "undo",
    "fence",
    "commit",
];

/// Those of handlers.
pub const OF_HANDLERS: [&str; 7] =
    ["acquire", "begin", "savepoint", "handle", "undo", "fence", "commit"];

/// Those of transactions that several events share: savepoints are set after a failure only, and slow handlers need none.
pub const OF_SHARED_TRANSACTIONS: [&str; 2] = ["savepoint", "undo"];

/// The steps that only a consumer takes.
pub const OF_CONSUMERS: [&str; 3] = ["meet", "land", "seal"];

/// What a worker tells when upkeep begins and when it has ended.
pub const UPKEEP: [&str; 2] = ["upkeep begins", "upkeep ends"];

/// What a worker meets whose pool has no connection left.
pub const EXHAUSTED: &str = "exhausted pool";

/// What a worker tells when it has got lanes.
pub const LANES_TAKEN: &str = "lanes taken";

/// Where and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tripwire {
    /// Which step.
    pub step: String,
    /// Before it, or after it.
    pub before: bool,
    /// At which time it comes by, counted from 1.
    pub nth: u64,
    /// kill, stop or term.
    pub signal: String,
}

impl fmt::Display for Tripwire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let when = if self.before { "before" } else { "after" };
        write!(f, "{}:{when}:{}:{}", self.step, self.nth, self.signal)
    }
}

impl FromStr for Tripwire {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split(':').collect();
        let [step, when, nth, signal] = parts[..] else {
            return Err("write step:before:3:kill".into());
        };
        let known = STEPS.contains(&step) || OF_CONSUMERS.contains(&step);
        if !known || !["kill", "stop", "term"].contains(&signal) {
            return Err(format!("no such step or signal: {text}"));
        }
        let nth = nth.parse().map_err(|error| format!("{nth}: {error}"))?;
        Ok(Self { step: step.into(), before: when == "before", nth, signal: signal.into() })
    }
}

static WIRE: OnceLock<(Tripwire, AtomicU64)> = OnceLock::new();

/// Lays the wire; the first one counts.
pub(super) fn set(wire: Tripwire) {
    WIRE.get_or_init(|| (wire, AtomicU64::new(0)));
}

/// Called at every step.
pub(super) fn at(step: &str, before: bool) {
    let Some((wire, passed)) = WIRE.get() else { return };
    if wire.step != step
        || wire.before != before
        || passed.fetch_add(1, Ordering::SeqCst) + 1 != wire.nth
    {
        return;
    }
    let signal = match wire.signal.as_str() {
        "kill" => Signal::KILL,
        "stop" => Signal::STOP,
        _ => Signal::TERM,
    };
    // It cannot fail: a process may always signal itself.
    let _ = kill_process(getpid(), signal);
    if signal != Signal::TERM {
        // Until the signal has reached every thread, this one must not go on: the step itself would still be made.
        std::thread::sleep(Duration::from_millis(100));
    }
}

async fn around<T>(step: &str, work: impl Future<Output = T>) -> T {
    at(step, true);
    let result = work.await;
    at(step, false);
    result
}

/// A store, or a driver, with a wire at each of its calls.
#[derive(Clone)]
pub(super) struct Tripped<T>(T);

impl<T> Tripped<T> {
    pub(super) fn new(inner: T) -> Self {
        Self(inner)
    }
}

#[async_trait]
impl<S: Store> Store for Tripped<S> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    async fn probe(&self) -> Result<Probe> {
        around("probe", self.0.probe()).await
    }

    async fn subscribe(&self, subscription: &Subscription) -> Result<()> {
        around("subscribe", self.0.subscribe(subscription)).await
    }

    async fn beat(&self, beat: &Beat) -> Result<Fleet> {
        around("beat", self.0.beat(beat)).await
    }

    async fn take_lanes(
        &self,
        subscription: &str,
        claims: &[Claim],
        member: &MemberId,
        max_parked: usize,
    ) -> Result<Vec<(u16, LaneState)>> {
        let taking = self.0.take_lanes(subscription, claims, member, max_parked);
        let taken = around("take", taking).await;
        if taken.as_ref().is_ok_and(|lanes| !lanes.is_empty()) {
            tell(&Line::Met(LANES_TAKEN.to_owned()));
        }
        taken
    }

    async fn load_lane(
        &self,
        lane: &LaneId,
        token: Token,
        max_parked: usize,
    ) -> Result<Option<LaneState>> {
        around("load", self.0.load_lane(lane, token, max_parked)).await
    }

    async fn release_lanes(&self, subscription: &str, claims: &[Claim]) -> Result<()> {
        around("release", self.0.release_lanes(subscription, claims)).await
    }

    async fn read_page(&self, request: &PageRequest) -> Result<Page> {
        around("page", self.0.read_page(request)).await
    }

    async fn read_parked(
        &self,
        lane: &LaneId,
        key: &str,
        max_rows: usize,
    ) -> Result<Vec<ParkedEvent>> {
        around("parked", self.0.read_parked(lane, key, max_rows)).await
    }

    async fn record(&self, changes: &[LaneChange]) -> Result<()> {
        around("record", self.0.record(changes)).await
    }

    fn doorbell(&self) -> Option<tokio::sync::watch::Receiver<u64>> {
        self.0.doorbell()
    }

    async fn upkeep(&self, retention: &Retention) -> Result<Upkeep> {
        let [begins, ends] = UPKEEP.map(|what| Line::Met(what.to_owned()));
        tell(&begins);
        let kept = around("upkeep", self.0.upkeep(retention)).await;
        tell(&ends);
        kept
    }

    async fn forget_member(&self, subscription: &str, member: &MemberId) -> Result<()> {
        around("forget", self.0.forget_member(subscription, member)).await
    }
}

impl<D: TxDriver> TxDriver for Tripped<D> {
    type Conn = D::Conn;
    type Tx<'c> = D::Tx<'c>;

    const HOLD: Duration = D::HOLD;
    const SAVEPOINTS_TELL: bool = D::SAVEPOINTS_TELL;

    async fn acquire(&self) -> Result<Self::Conn> {
        let acquired = around("acquire", self.0.acquire()).await;
        if matches!(&acquired, Err(error) if error.kind() == Kind::Timeout) {
            tell(&Line::Met(EXHAUSTED.to_owned()));
        }
        acquired
    }

    fn committed(&self, conn: Self::Conn) {
        self.0.committed(conn);
    }

    fn distrust(&self, conn: Option<Self::Conn>) {
        self.0.distrust(conn);
    }

    async fn begin<'c>(
        &'c self,
        conn: &'c mut Self::Conn,
        idle_limit: Duration,
    ) -> Result<Self::Tx<'c>> {
        around("begin", self.0.begin(conn, idle_limit)).await
    }

    async fn savepoint(tx: &mut Self::Tx<'_>) -> Result<()> {
        around("savepoint", D::savepoint(tx)).await
    }

    async fn undo(tx: &mut Self::Tx<'_>) -> Result<()> {
        around("undo", D::undo(tx)).await
    }

    async fn record(tx: &mut Self::Tx<'_>, change: &LaneChange) -> Result<()> {
        around("fence", D::record(tx, change)).await
    }

    async fn meet(tx: &mut Self::Tx<'_>, consumer: &str, messages: &[Meet]) -> Result<Vec<Met>> {
        around("meet", D::meet(tx, consumer, messages)).await
    }

    async fn land(
        tx: &mut Self::Tx<'_>,
        consumer: &str,
        events: Vec<NewEvent>,
        keys: &[String],
    ) -> Result<()> {
        around("land", D::land(tx, consumer, events, keys)).await
    }

    async fn seal(tx: &mut Self::Tx<'_>) -> Result<()> {
        around("seal", D::seal(tx)).await
    }

    fn is_conflict(error: &(dyn std::error::Error + 'static)) -> bool {
        D::is_conflict(error)
    }

    async fn commit(tx: Self::Tx<'_>) -> Result<()> {
        around("commit", D::commit(tx)).await
    }
}
