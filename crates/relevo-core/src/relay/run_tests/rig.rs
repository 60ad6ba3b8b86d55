//! A log and a destination of the tests' own.

use super::super::*;
use super::{LANES, LONG, TO};
use crate::event::{Event, NewEvent};
use crate::inbox::Outcome;
use crate::outbox::{
    Beat, Capabilities, Fleet, LaneId, LaneState, Lease, Page, PageRequest, ParkedEvent, Position,
    Probe, Retention, Row, Upkeep,
};
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

/// What was waited for, once it is so; a test that waits in vain fails.
pub(super) async fn heard_of<T: Clone>(
    mut said: watch::Receiver<T>,
    is_so: impl FnMut(&T) -> bool,
) -> T {
    tokio::time::timeout(LONG, said.wait_for(is_so)).await.unwrap().unwrap().clone()
}

/// A log of two lanes that nobody has, with a page of rows, which tells what it was asked.
pub(super) struct Log {
    pub(super) told: watch::Sender<Vec<String>>,
    pub(super) capabilities: Capabilities,
    pub(super) rows: Vec<Row>,
    pub(super) leases: Mutex<Vec<Lease>>,
    pub(super) removed: bool,
    /// What fails, and what is never answered.
    pub(super) fails: &'static str,
    pub(super) hangs: &'static str,
}

impl Log {
    /// Two events in each lane, each of a key of its own.
    pub(super) fn new() -> Self {
        let keys = LANES.into_iter().flat_map(|lane| [(lane, "a"), (lane, "b")]).enumerate();
        let free = |lane| Lease { lane, owner: None, token: 0, position: Position::default() };
        let row = |(seq, (lane, key)): (usize, (u16, &str))| {
            let event = NewEvent::bytes("t", vec![]).key(format!("{key}{lane}"));
            Row { lane, seq: seq as i64 + 1, event: Event::stored(event, chrono::Utc::now()) }
        };
        let (parallel_effects, direct_effects) = (true, true);
        let capabilities =
            Capabilities { parallel_effects, direct_effects, ..Capabilities::default() };
        Self {
            told: watch::channel(Vec::new()).0,
            capabilities,
            rows: keys.map(row).collect(),
            leases: Mutex::new(LANES.map(free).to_vec()),
            removed: false,
            fails: "",
            hangs: "",
        }
    }

    async fn tell(&self, step: &str, what: String) -> Result<()> {
        self.told.send_modify(|told| told.push(format!("{step} {what}")));
        if self.hangs == step {
            std::future::pending::<()>().await;
        }
        if self.fails == step { Err(Error::new(Kind::StoreFailed, "scripted")) } else { Ok(()) }
    }

    pub(super) async fn has_told(&self, what: &str) {
        heard_of(self.told.subscribe(), |told| told.iter().any(|line| line == what)).await;
    }
}

#[async_trait]
impl Store for Log {
    fn name(&self) -> &'static str {
        "test"
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    async fn probe(&self) -> Result<Probe> {
        unreachable!()
    }

    async fn subscribe(&self, subscription: &Subscription) -> Result<()> {
        self.tell("subscribe", format!("outside: {}", subscription.outside)).await
    }

    async fn beat(&self, beat: &Beat) -> Result<Fleet> {
        self.tell("beat", String::new()).await?;
        Ok(Fleet {
            members: vec![(beat.member.clone(), 1)],
            leases: self.leases.lock().unwrap().clone(),
            removed: self.removed,
            ..Fleet::default()
        })
    }

    async fn take_lanes(
        &self,
        _: &str,
        claims: &[Claim],
        member: &MemberId,
        max_parked: usize,
    ) -> Result<Vec<(u16, LaneState)>> {
        self.tell("take", format!("{} with {max_parked}", claims.len())).await?;
        for lease in self.leases.lock().unwrap().iter_mut() {
            if let Some(claim) = claims.iter().find(|claim| claim.lane == lease.lane) {
                lease.owner = Some(member.clone());
                lease.token = claim.fresh;
            }
        }
        let state = LaneState { position: Position::default(), parked: Vec::new() };
        Ok(claims.iter().map(|claim| (claim.lane, state.clone())).collect())
    }

    async fn load_lane(&self, _: &LaneId, _: Token, _: usize) -> Result<Option<LaneState>> {
        unreachable!()
    }

    async fn release_lanes(&self, _: &str, claims: &[Claim]) -> Result<()> {
        self.tell("release", claims.len().to_string()).await
    }

    async fn read_page(&self, request: &PageRequest) -> Result<Page> {
        if request.position != Position::default() {
            return Ok(Page::nothing(request.position));
        }
        let rows = self.rows.iter().filter(|row| request.lanes.contains(&row.lane)).cloned();
        Ok(Page { rows: rows.collect(), to: Some(TO), end: Position::at(TO) })
    }

    async fn read_parked(&self, _: &LaneId, _: &str, _: usize) -> Result<Vec<ParkedEvent>> {
        unreachable!()
    }

    async fn record(&self, changes: &[LaneChange]) -> Result<()> {
        let delivered: u64 = changes.iter().map(|change| change.delivered).sum();
        self.tell("record", delivered.to_string()).await
    }

    fn doorbell(&self) -> Option<watch::Receiver<u64>> {
        None
    }

    async fn upkeep(&self, _: &Retention) -> Result<Upkeep> {
        unreachable!()
    }

    async fn forget_member(&self, _: &str, member: &MemberId) -> Result<()> {
        self.tell("forget", member.to_string()).await
    }
}

/// Takes everything, if it does not hang, and tells how many events were in each batch.
pub(super) struct Sink {
    pub(super) one_transaction: bool,
    pub(super) alone: bool,
    pub(super) hangs: bool,
    pub(super) batches: watch::Sender<Vec<usize>>,
    pub(super) under_way: AtomicUsize,
    pub(super) most: AtomicUsize,
}

pub(super) fn sink(one_transaction: bool) -> Sink {
    Sink {
        one_transaction,
        alone: false,
        hangs: false,
        batches: watch::channel(Vec::new()).0,
        under_way: AtomicUsize::new(0),
        most: AtomicUsize::new(0),
    }
}

impl Sink {
    /// The sizes of the batches that all four events came in.
    pub(super) async fn all(&self) -> Vec<usize> {
        heard_of(self.batches.subscribe(), |batches| batches.iter().sum::<usize>() == 4).await
    }
}

#[async_trait]
impl Destination for Sink {
    async fn deliver(&self, _: &Arc<dyn Store>, mut batch: Batch) -> Delivery {
        let under_way = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(under_way, Ordering::SeqCst);
        let size = batch.len();
        // Whatever else may go now goes meanwhile.
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
        self.batches.send_modify(|batches| batches.push(size));
        if self.hangs {
            std::future::pending::<()>().await;
        }
        while let Some(index) = batch.next() {
            batch.settle(index, Outcome::Done);
        }
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        let (change, rest) = batch.finish();
        let (change, down) = (change.unwrap(), None);
        match self.one_transaction {
            true => Delivery::Recorded { change, rest, down },
            false => Delivery::Decided { change, rest, down },
        }
    }

    fn one_transaction(&self) -> bool {
        self.one_transaction
    }

    fn shares_transactions(&self) -> bool {
        !self.alone
    }

    fn describe(&self) -> String {
        "test".into()
    }
}

pub(super) fn heir() -> MemberId {
    MemberId("heir".into())
}

pub(super) async fn started(log: &Arc<Log>, sink: &Arc<Sink>) -> Result<Running> {
    let config = RelayConfig { max_parked_keys: 5, ..RelayConfig::default() };
    start(log.clone(), Subscription::new("s"), config, sink.clone(), heir()).await
}

pub(super) async fn working(log: Log, sink: Sink) -> (Arc<Log>, Arc<Sink>, Running) {
    let (log, sink) = (Arc::new(log), Arc::new(sink));
    let running = started(&log, &sink).await.unwrap();
    (log, sink, running)
}

pub(super) fn shell(log: Log) -> Shell {
    Shell {
        store: Arc::new(log),
        destination: Arc::new(sink(true)),
        name: "s".into(),
        member: heir(),
        clock: Clock::start(),
        max_parked: 6,
        counts: watch::channel(Counts::default()).0,
        owes_nothing: Arc::new(AtomicBool::new(true)),
    }
}

pub(super) fn idle() -> Relay {
    Relay::new("s", heir(), RelayConfig::default(), false, Rng::seeded(7))
}

/// A machine with both lanes, whose events are handed over.
pub(super) async fn handing_over() -> Relay {
    let (shell, mut relay) = (shell(Log::new()), idle());
    // It beats, takes, reads, and hands over.
    for second in 0..10 {
        let now = Instant::at(Duration::from_secs(second));
        for action in relay.poll(now) {
            if matches!(action, Action::Deliver(_)) {
                return relay;
            }
            let input = match shell.act(action).await {
                Input::Beat { result, .. } => Input::Beat { sent: now, result },
                other => other,
            };
            relay.handle(now, input);
        }
    }
    panic!("it never handed anything over");
}
