//! Batches through a handler, over a database that is scripted and tells what it was asked.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use super::*;
use crate::clock::Rng;
use crate::event::NewEvent;
use crate::outbox::{
    Beat, Capabilities, Claim, EventRef, Fleet, LaneId, LaneState, MemberId, Page, PageRequest,
    ParkedEvent, Position, Probe, Retention, Subscription, TickRef, Token, Upkeep,
};
use crate::relay::{Item, RelayConfig};
use std::sync::Mutex;

/// What the database was asked, in its order, and which steps fail.
#[derive(Default)]
struct Seen {
    told: Vec<&'static str>,
    fails: Vec<(&'static str, Kind)>,
    /// How long a savepoint takes.
    savepoint_takes: Duration,
    /// How long sessions may idle, as transactions began.
    idle_limits: Vec<Duration>,
}

/// A transaction of it may be held open for so many milliseconds.
#[derive(Clone, Default)]
struct Scripted<const HOLD: u64 = 120_000>(Arc<Mutex<Seen>>);

impl Scripted {
    fn failing(step: &'static str, kind: Kind) -> Self {
        let scripted = Self::default();
        scripted.0.lock().unwrap().fails.push((step, kind));
        scripted
    }
}

impl<const HOLD: u64> Scripted<HOLD> {
    fn step(&self, step: &'static str) -> Result<()> {
        let mut seen = self.0.lock().unwrap();
        seen.told.push(step);
        match seen.fails.iter().find(|(failing, _)| *failing == step) {
            Some((_, kind)) => Err(Error::new(*kind, "scripted")),
            None => Ok(()),
        }
    }

    fn told(&self) -> Vec<&'static str> {
        self.0.lock().unwrap().told.clone()
    }
}

impl<const HOLD: u64> TxDriver for Scripted<HOLD> {
    const SAVEPOINTS_TELL: bool = false;
    const HOLD: Duration = Duration::from_millis(HOLD);
    type Conn = ();
    type Tx<'c> = Self;

    async fn acquire(&self) -> Result<()> {
        self.step("acquire")
    }

    fn committed(&self, (): ()) {
        self.step("committed").unwrap();
    }

    fn distrust(&self, conn: Option<()>) {
        self.step(if conn.is_some() { "distrust it" } else { "distrust all" }).unwrap();
    }

    async fn begin<'c>(&'c self, _: &'c mut (), idle_limit: Duration) -> Result<Self> {
        self.0.lock().unwrap().idle_limits.push(idle_limit);
        self.step("begin").map(|()| self.clone())
    }

    async fn savepoint(tx: &mut Self::Tx<'_>) -> Result<()> {
        let takes = tx.0.lock().unwrap().savepoint_takes;
        tokio::time::sleep(takes).await;
        tx.step("savepoint")
    }

    async fn undo(tx: &mut Self::Tx<'_>) -> Result<()> {
        tx.step("undo")
    }

    async fn record(tx: &mut Self::Tx<'_>, _: &LaneChange) -> Result<()> {
        tx.step("record")
    }

    fn is_conflict(error: &(dyn std::error::Error + 'static)) -> bool {
        error.to_string() == "deadlock"
    }

    async fn commit(tx: Self::Tx<'_>) -> Result<()> {
        tx.step("commit")
    }
}

/// A store that is only asked to record what was rolled back.
struct Apart<const HOLD: u64>(Scripted<HOLD>);

#[async_trait]
impl<const HOLD: u64> Store for Apart<HOLD> {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    async fn probe(&self) -> Result<Probe> {
        unreachable!()
    }

    async fn subscribe(&self, _: &Subscription) -> Result<()> {
        unreachable!()
    }

    async fn beat(&self, _: &Beat) -> Result<Fleet> {
        unreachable!()
    }

    async fn take_lanes(
        &self,
        _: &str,
        _: &[Claim],
        _: &MemberId,
        _: usize,
    ) -> Result<Vec<(u16, LaneState)>> {
        unreachable!()
    }

    async fn load_lane(&self, _: &LaneId, _: Token, _: usize) -> Result<Option<LaneState>> {
        unreachable!()
    }

    async fn release_lanes(&self, _: &str, _: &[Claim]) -> Result<()> {
        unreachable!()
    }

    async fn read_page(&self, _: &PageRequest) -> Result<Page> {
        unreachable!()
    }

    async fn read_parked(&self, _: &LaneId, _: &str, _: usize) -> Result<Vec<ParkedEvent>> {
        unreachable!()
    }

    async fn record(&self, _: &[LaneChange]) -> Result<()> {
        self.0.step("apart")
    }

    fn doorbell(&self) -> Option<watch::Receiver<u64>> {
        None
    }

    async fn upkeep(&self, _: &Retention) -> Result<Upkeep> {
        unreachable!()
    }

    async fn forget_member(&self, _: &str, _: &MemberId) -> Result<()> {
        unreachable!()
    }
}

/// Does what the event's key says.
struct Works {
    slow: bool,
    limit: Duration,
    before: Option<Outcome>,
}

impl Default for Works {
    fn default() -> Self {
        Self { slow: false, limit: Duration::from_secs(20), before: None }
    }
}

impl<const HOLD: u64> Handler<Scripted<HOLD>> for Works {
    async fn handle(&self, event: &Event, effect: &mut Effect<'_, Scripted<HOLD>>) -> Answer {
        effect.tx().await?.step("handle")?;
        match event.order_key().as_str() {
            "bad" => Err(Failure::retry_after(Duration::from_secs(1), "no paper")),
            "skip" => Ok(Settled::Skip("not ours".into())),
            "victim" => Err(std::io::Error::other("deadlock").into()),
            "panic" => panic!("out of paper"),
            "late" => std::future::pending().await,
            _ => Ok(Settled::Done),
        }
    }

    fn slow(&self) -> bool {
        self.slow
    }

    fn limit(&self) -> Duration {
        self.limit
    }

    fn answered_before(&self, _: &Event) -> Option<Outcome> {
        self.before.clone()
    }
}

const TO: TickRef = TickRef { number: 5, nonce: 9 };

fn item((seq, key): (usize, &&str)) -> Item {
    let event = Event::stored(NewEvent::bytes("t", vec![]).key(*key), chrono::Utc::now());
    let at = EventRef { key: (*key).into(), to: TO, seq: seq as i64 + 1, id: event.id };
    Item { from: TickRef::default(), at, event }
}

fn lane() -> (LaneId, Token) {
    (LaneId { subscription: "s".into(), lane: 1 }, 77)
}

fn page(keys: &[&str]) -> Batch {
    page_under(RelayConfig::default(), keys)
}

fn page_under(config: RelayConfig, keys: &[&str]) -> Batch {
    let items = keys.iter().enumerate().map(item).collect();
    let (start, end) = (Position::default(), Position::at(TO));
    Batch::page(lane(), start, end, items, |_| false, Arc::new(config), Rng::seeded(1))
}

fn put_back(key: &str) -> Batch {
    let config = Arc::new(RelayConfig::default());
    let items = vec![item((0, &key))];
    let parked = (key.to_owned(), 0, 0);
    Batch::drain(lane(), Position::default(), parked, items, true, config, Rng::seeded(1))
}

async fn deliver<const HOLD: u64>(
    driver: &Scripted<HOLD>,
    handler: Works,
    batch: Batch,
) -> Delivery {
    let store: Arc<dyn Store> = Arc::new(Apart(driver.clone()));
    Direct::new(driver.clone(), handler).deliver(&store, batch).await
}

/// The same, after something had failed.
async fn deliver_carefully<const HOLD: u64>(
    driver: &Scripted<HOLD>,
    handler: Works,
    batch: Batch,
) -> Delivery {
    let store: Arc<dyn Store> = Arc::new(Apart(driver.clone()));
    let direct = Direct::new(driver.clone(), handler);
    direct.caution.learn();
    direct.deliver(&store, batch).await
}

fn recorded(delivery: Delivery) -> (LaneChange, Vec<Item>) {
    match delivery {
        Delivery::Recorded { change, rest, down: None } => (change, rest),
        other => panic!("it is not recorded: {other:?}"),
    }
}

/// The error that parked the only key of what was recorded.
fn error_of(delivery: Delivery) -> String {
    let (change, _) = recorded(delivery);
    assert_eq!((change.delivered, change.parked.len()), (0, 1), "{change:?}");
    change.parked[0].error.clone()
}

fn void(delivery: Delivery) -> Kind {
    match delivery {
        Delivery::Void(error) => error.kind(),
        other => panic!("the lane is not read again: {other:?}"),
    }
}

fn aborted(delivery: Delivery) -> usize {
    match delivery {
        Delivery::Aborted { items, .. } => items.len(),
        other => panic!("they are not redone one by one: {other:?}"),
    }
}

#[tokio::test]
async fn events_of_a_batch_share_a_transaction_without_savepoints_as_long_as_nothing_fails() {
    let driver = Scripted::<120_000>::default();
    let (change, rest) = recorded(deliver(&driver, Works::default(), page(&["a", "b"])).await);
    assert_eq!((change.delivered, rest.len()), (2, 0));
    let all = ["acquire", "begin", "handle", "handle", "record", "commit", "committed"];
    assert_eq!(driver.told(), all);
}

#[tokio::test]
async fn what_fails_is_done_again_with_savepoints_and_so_is_what_comes_next() {
    let driver = Scripted::<120_000>::default();
    let store: Arc<dyn Store> = Arc::new(Apart(driver.clone()));
    let direct = Direct::new(driver.clone(), Works::default());
    let (change, _) = recorded(direct.deliver(&store, page(&["a", "bad", "b"])).await);
    assert_eq!((change.delivered, change.failed.len()), (2, 1));
    let spoilt = ["acquire", "begin", "handle", "handle"];
    // Each attempt is one call: of the one that failed the answer is known.
    let again = ["acquire", "begin", "savepoint", "handle"];
    let end = ["savepoint", "handle", "record", "commit", "committed"];
    let all = [&spoilt[..], &again, &end].concat();
    assert_eq!(driver.told(), all);
    recorded(direct.deliver(&store, page(&["a", "b"])).await);
    let next = ["acquire", "begin", "savepoint", "handle", "savepoint", "handle"];
    assert_eq!(driver.told()[all.len()..][..next.len()], next);
}

#[tokio::test]
async fn what_is_not_done_in_a_shared_transaction_is_undone_and_nothing_else() {
    let driver = Scripted::<120_000>::default();
    let batch = page(&["bad", "a", "skip"]);
    let (change, _) = recorded(deliver(&driver, Works::default(), batch).await);
    assert_eq!((change.delivered, change.failed.len(), change.skips.len()), (1, 1, 1));
    let told = driver.told();
    let attempts: Vec<_> = told.iter().filter(|step| ["handle", "undo"].contains(step)).collect();
    assert_eq!(attempts, [&"handle", &"handle", &"handle", &"undo"]);
    assert!(told.ends_with(&["record", "commit", "committed"]), "{told:?}");
}

#[tokio::test]
async fn a_shared_transaction_takes_in_no_more_after_a_quarter_of_what_it_may_be_held() {
    let driver = Scripted::<8_000>::default();
    driver.0.lock().unwrap().savepoint_takes = Duration::from_millis(2100);
    let delivery = deliver_carefully(&driver, Works::default(), page(&["a", "b"])).await;
    let (change, rest) = recorded(delivery);
    assert_eq!((change.delivered, rest.len()), (1, 1));
}

#[tokio::test]
async fn an_event_that_must_not_share_has_a_transaction_of_its_own() {
    let own = ["acquire", "begin", "handle", "record", "commit", "committed"];
    for (batch, left) in [(page(&["a"]), 0), (page(&["a", "b"]).alone(), 1)] {
        let driver = Scripted::<120_000>::default();
        let (change, rest) = recorded(deliver(&driver, Works::default(), batch).await);
        assert_eq!((change.delivered, rest.len()), (1, left));
        assert_eq!(driver.told(), own);
    }
}

#[tokio::test]
async fn what_is_not_done_alone_is_rolled_back_and_recorded_apart() {
    for key in ["skip", "bad"] {
        let driver = Scripted::<120_000>::default();
        let (change, _) = recorded(deliver(&driver, Works::default(), page(&[key])).await);
        assert_eq!(change.delivered, 0);
        assert_eq!(driver.told(), ["acquire", "begin", "handle", "apart"], "{key}");
    }
}

#[tokio::test]
async fn what_was_answered_before_it_came_into_the_log_is_not_tried_again() {
    let handler = || Works { before: Some(Outcome::Done), ..Works::default() };
    for keys in [&["bad"][..], &["bad", "skip"]] {
        let driver = Scripted::<120_000>::default();
        let (change, _) = recorded(deliver(&driver, handler(), page(keys)).await);
        assert_eq!(change.delivered, keys.len() as u64);
        assert!(!driver.told().contains(&"handle"), "{:?}", driver.told());
    }
    let driver = Scripted::<120_000>::default();
    let error = error_of(deliver(&driver, handler(), put_back("bad")).await);
    assert_eq!(error, "no paper", "what an operator put back is tried anew");
}

#[tokio::test]
async fn a_connection_that_was_waited_for_in_vain_is_distrusted_and_no_other() {
    for (step, kind, distrusted) in [
        ("commit", Kind::CommitUnknown, true),
        ("begin", Kind::Timeout, true),
        ("commit", Kind::Stale, false),
        ("begin", Kind::Unreachable, false),
    ] {
        for keys in [&["a"][..], &["a", "b"]] {
            let driver = Scripted::failing(step, kind);
            assert_eq!(void(deliver(&driver, Works::default(), page(keys)).await), kind);
            let told = driver.told();
            assert_eq!(told.contains(&"distrust it"), distrusted, "{step} {kind:?}: {told:?}");
            assert!(!told.contains(&"committed"), "{told:?}");
        }
    }
}

#[test]
fn where_the_connection_has_gone_back_already_those_that_idle_are_distrusted() {
    for (kind, told) in
        [(Kind::HandlerTimeout, &["distrust all"][..]), (Kind::HandlerPanicked, &[])]
    {
        let driver = Scripted::<120_000>::default();
        distrust(&driver, &Broken::Attempt(kind, String::new()));
        assert_eq!(driver.told(), told);
    }
}

#[tokio::test]
async fn a_handler_past_its_limit_fails_its_event_and_its_connection_is_distrusted() {
    let driver = Scripted::<120_000>::default();
    let handler = Works { limit: Duration::from_millis(50), ..Works::default() };
    let error = error_of(deliver(&driver, handler, page(&["late"])).await);
    assert!(error.starts_with("R0026: the handler ran past its limit"), "{error}");
    assert_eq!(driver.told(), ["acquire", "begin", "handle", "distrust it", "apart"]);
}

#[tokio::test]
async fn a_handler_that_holds_its_transaction_open_for_too_long_fails_its_event() {
    let driver = Scripted::<50>::default();
    let error = error_of(deliver(&driver, Works::default(), page(&["late"])).await);
    assert!(error.starts_with("R0026: the handler held its transaction open"), "{error}");
}

#[tokio::test]
async fn what_the_server_refuses_at_the_end_is_the_attempts_failure_and_no_trouble_of_the_store() {
    for step in ["record", "commit"] {
        for kind in [Kind::StoreFailed, Kind::TransactionConflict] {
            let driver = Scripted::failing(step, kind);
            let error = error_of(deliver(&driver, Works::default(), page(&["a"])).await);
            assert!(error.starts_with(kind.code()), "{error}");
            let driver = Scripted::failing(step, kind);
            assert_eq!(aborted(deliver(&driver, Works::default(), page(&["a", "b"])).await), 2);
        }
    }
}

#[tokio::test]
async fn a_connection_lost_at_the_end_is_the_handlers_fault_only_if_it_let_it_idle() {
    let driver = Scripted::failing("commit", Kind::Unreachable);
    let store: Arc<dyn Store> = Arc::new(Apart(driver.clone()));
    let at_once = Direct::new(driver.clone(), Works::default());
    assert_eq!(void(at_once.deliver(&store, page(&["a"])).await), Kind::Unreachable);
    let idled = Direct::new(driver, Works::default()).idle_limit(Duration::ZERO);
    let error = error_of(idled.deliver(&store, page(&["a"])).await);
    assert!(error.starts_with("R0026: the transaction stood idle"), "{error}");
    let failed = Scripted::failing("commit", Kind::Stale);
    let idled = Direct::new(failed, Works::default()).idle_limit(Duration::ZERO);
    assert_eq!(void(idled.deliver(&store, page(&["a"])).await), Kind::Stale, "whoever idled");
}

#[tokio::test]
async fn a_victim_of_the_database_is_not_blamed_on_its_event() {
    let driver = Scripted::<120_000>::default();
    let error = error_of(deliver(&driver, Works::default(), page(&["victim"])).await);
    assert_eq!(error, "R0035: deadlock");
    let shared = deliver(&driver, Works::default(), page(&["a", "victim"])).await;
    assert_eq!(aborted(shared), 2, "the others were rolled back with it");
}

#[tokio::test]
async fn a_conflict_that_the_store_met_brings_the_events_one_by_one_and_other_trouble_does_not() {
    let driver = Scripted::failing("savepoint", Kind::TransactionConflict);
    let shared = deliver_carefully(&driver, Works::default(), page(&["a", "b"])).await;
    assert_eq!(aborted(shared), 2);
    let driver = Scripted::failing("savepoint", Kind::Unreachable);
    let shared = deliver_carefully(&driver, Works::default(), page(&["a", "b"])).await;
    assert_eq!(void(shared), Kind::Unreachable);
}

#[test]
fn a_conflict_is_found_wherever_it_stands_in_the_chain() {
    let is_conflict = Scripted::<120_000>::is_conflict;
    let deadlock = || std::io::Error::other("deadlock");
    assert!(in_chain(&deadlock(), is_conflict));
    let behind = Error::new(Kind::HandlerFailed, "no row").because(deadlock());
    assert!(in_chain(&Error::new(Kind::StoreFailed, "failed").because(behind), is_conflict));
    let other = Error::new(Kind::StoreFailed, "failed").because(std::io::Error::other("full"));
    assert!(!in_chain(&other, is_conflict));
}

#[tokio::test]
async fn what_a_panic_said_is_kept() {
    let driver = Scripted::<120_000>::default();
    let error = error_of(deliver(&driver, Works::default(), page(&["panic"])).await);
    assert_eq!(error, "R0027: panicked: out of paper");
    assert_eq!(panic_text(&"formatted".to_owned()), "panicked: formatted");
    assert_eq!(panic_text(&7), "panicked: no text");
}

#[test]
fn a_handler_records_in_its_own_transaction_and_a_slow_one_shares_none() {
    let direct = |slow| {
        let works = Works { slow, ..Works::default() };
        Direct::new(Scripted::<120_000>::default(), works)
    };
    assert!(direct(false).one_transaction());
    assert!(direct(false).shares_transactions());
    assert!(!direct(true).shares_transactions());
    let described = direct(false).describe();
    assert!(described.starts_with("handler ") && described.ends_with("Works"), "{described}");
}

#[tokio::test]
async fn a_session_may_idle_for_less_than_the_lease_unless_it_is_told_otherwise() {
    let driver = Scripted::<120_000>::default();
    let store: Arc<dyn Store> = Arc::new(Apart(driver.clone()));
    let of_lease = |lease, keys: &[&str]| {
        let lease = Duration::from_secs(lease);
        page_under(RelayConfig { lease, ..RelayConfig::default() }, keys)
    };
    let by_lease = Direct::new(driver.clone(), Works::default());
    for (lease, keys) in [(10, &["a", "b"][..]), (5, &["a", "b"]), (5, &["a"])] {
        by_lease.deliver(&store, of_lease(lease, keys)).await;
    }
    let by_hand = Direct::new(driver.clone(), Works::default()).idle_limit(Duration::from_secs(9));
    by_hand.deliver(&store, of_lease(5, &["a"])).await;
    assert_eq!(driver.0.lock().unwrap().idle_limits, [8, 4, 4, 9].map(Duration::from_secs));
}
