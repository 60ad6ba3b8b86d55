//! Everything a seed decides before its run begins.

use super::bias::Bias;
use super::inbox::{CONSUMER, SECOND_CONSUMER};
use relevo_core::clock::Rng;
use relevo_core::event::{TopicFilter, lane_of};
use relevo_core::inbox::consume::filter_of;
use relevo_core::inbox::consume::intake::Bounds;
use relevo_core::relay::{AfterDead, Order, RelayConfig};
use relevo_core::retry::RetryPolicy;
use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

/// Simulated time, in microseconds.
pub(super) type Micros = u64;

pub(super) const MS: Micros = 1_000;
pub(super) const SECOND: Micros = 1_000_000;

/// Where a subscription's events go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum To {
    /// A handler whose effect commits with the cursor.
    Handler,
    /// A handler that gets a transaction of its own per event.
    SlowHandler,
    /// A broker that may refuse, lose and repeat.
    Broker,
    /// A consumer's handler: what landed from the broker.
    Consumer,
}

/// How a consumer reads its queues of the broker through its inbox.
#[derive(Debug, Clone)]
pub(super) struct ConsumerOptions {
    pub(super) name: &'static str,
    pub(super) slow: bool,
    pub(super) bounds: Bounds,
    /// At most so many messages are unsettled.
    pub(super) unsettled: usize,
    /// Queues by hash of the key.
    pub(super) sources: usize,
}

/// One subscription.
#[derive(Debug, Clone)]
pub(super) struct SubscriptionOptions {
    pub(super) name: &'static str,
    pub(super) to: To,
    /// Wants only topics `a.*` instead of all.
    pub(super) filtered: bool,
    /// Starts with a tick of its own, before anything was published, instead of at the beginning.
    pub(super) starts_now: bool,
    pub(super) max_attempts: u32,
    pub(super) config: RelayConfig,
}

/// Greater trouble.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    /// A process is gone.
    Crash,
    /// A process stops, and goes on later.
    Pause,
    /// A process is asked to stop.
    Stop,
    BrokerDown,
    /// The broker ends a consumer's connection: its queues go to the others at once.
    LineCut,
    /// The server ends a session.
    SessionCut,
    ClockJump,
    /// The database loses what it had not flushed.
    DatabaseCrash,
    /// The database is dumped and restored in another cluster.
    DatabaseMove,
}

/// What an operator does now and then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    Replay,
    Archive,
    Edit,
    Cancel,
    Rewind,
    Upkeep,
    Pause,
}

/// Where a rewind leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RewindTo {
    Beginning,
    Now,
    AWhileAgo,
}

/// How often what goes wrong. Rates are per thousand, per statement or message.
#[derive(Debug, Clone)]
pub(super) struct Rates {
    /// A request never arrives.
    pub(super) request_lost: u64,
    /// It is carried out and the answer is lost.
    pub(super) reply_lost: u64,
    /// The client gives up and it is carried out later all the same.
    pub(super) late: u64,
    /// It is carried out, and its answer comes up to three leases later. Where else nothing goes wrong only those of
    /// handlers and brokers do.
    pub(super) answer_late: u64,
    /// A batch waits for its turn in a process that has much to do.
    pub(super) turn_late: u64,
    /// The server ends the transaction.
    pub(super) conflict: u64,
    /// The process dies at this statement.
    pub(super) crash: u64,
    /// The process stops for longer than its lease at this statement, then goes on.
    pub(super) zombie: u64,
    /// The broker refuses for now.
    pub(super) nack: u64,
    /// The broker's answer is lost, the message may be stored.
    pub(super) confirm_lost: u64,
    /// A message arrives twice.
    pub(super) duplicate: u64,
    /// The database dies right after a statement whose commit it may lose, or that what it loses was read by.
    pub(super) database_crash: u64,
}

/// Everything a seed decides before its run begins. Printed with every failure.
#[derive(Debug, Clone)]
pub struct Options {
    /// The seed itself.
    pub seed: u64,
    pub(super) bias: Bias,
    pub(super) processes: usize,
    pub(super) subscriptions: Vec<SubscriptionOptions>,
    pub(super) keys: Vec<String>,
    pub(super) writers: usize,
    pub(super) transactions_per_writer: u64,
    /// Per thousand transactions: held open for long.
    pub(super) long_transactions: u64,
    pub(super) rollbacks: u64,
    pub(super) doorbell: bool,
    pub(super) lease: Duration,
    pub(super) rates: Rates,
    /// Mean time between greater troubles (crash, pause, jump, broker or database down); 0 for none.
    pub(super) chaos_every: Micros,
    /// When faults stop.
    pub(super) storm: Micros,
    /// Operators replay, archive, edit, pause and resume.
    pub(super) operators: usize,
    pub(super) rewinds: bool,
    /// Where rewinds lead, each as often as it stands here.
    pub(super) rewinds_to: Vec<RewindTo>,
    /// A cluster that the database moves to has given out few transaction ids yet.
    pub(super) fresh_clusters: bool,
    /// How long events are kept after delivery; `None` keeps all.
    pub(super) retention: Option<Duration>,
    /// The greater troubles of this seed, each as often as it stands here.
    pub(super) troubles: Vec<Trouble>,
    /// What operators do, each as often as it stands here.
    pub(super) acts: Vec<Act>,
    /// Each of them reads whatever the broker stores; their subscriptions are among the others.
    pub(super) consumers: Vec<ConsumerOptions>,
    /// How long inbox rows are kept.
    pub(super) inbox_kept: Duration,
    /// Handlers' sessions do not wait for the disk: the server may lose what it confirmed to them.
    pub(super) hasty_handlers: bool,
    /// A call of a handler or broker hangs until everything else is at rest.
    pub(super) hangs: bool,
}

impl Options {
    /// What the seed says.
    pub fn from_seed(seed: u64) -> Self {
        let mut rng = Rng::seeded(seed ^ 0x5EED_0F0D_D15E_A5E5);
        let mut r = Draw(&mut rng);
        let bias = Bias::draw(&mut r);
        let calm = bias == Bias::None && r.one_in(12);
        let lease = Duration::from_millis(r.pick(&[400, 1_000, 1_000, 2_000]));
        let storm = r.between(1_000, 3_500) * MS;
        let mut options = Self {
            seed,
            bias,
            processes: r.pick(&[1, 2, 2, 3]),
            subscriptions: subscriptions(&mut r, lease),
            keys: keys(&mut r),
            writers: r.between(2, 5) as usize,
            transactions_per_writer: r.between(3, 10),
            long_transactions: r.pick(&[0, 50, 200]),
            rollbacks: r.pick(&[0, 100, 300]),
            doorbell: r.one_in(2),
            lease,
            rates: if calm { Rates::none() } else { Rates::draw(&mut r) },
            chaos_every: if calm { 0 } else { r.pick(&[0, 300, 700, 1_500]) * MS },
            storm,
            operators: r.pick(&[0, 1, 1, 2]),
            rewinds: r.one_in(5),
            rewinds_to: vec![RewindTo::Beginning, RewindTo::Now, RewindTo::AWhileAgo],
            fresh_clusters: false,
            retention: r.pick(&[None, Some(Duration::ZERO), Some(Duration::from_millis(500))]),
            troubles: troubles(&mut r),
            acts: acts(),
            consumers: r
                .one_in(2)
                .then(|| ConsumerOptions::draw(CONSUMER, &mut r))
                .into_iter()
                .collect(),
            inbox_kept: Duration::from_secs(3_600),
            hasty_handlers: false,
            hangs: false,
        };
        bias.apply(&mut options, &mut r);
        options.add_consumer(&mut r);
        options.add_haste();
        options.add_second_consumer();
        options.add_limits();
        options.add_slowness();
        options
    }

    /// Drawn apart: what else a seed decides does not depend on it.
    fn add_haste(&mut self) {
        let mut rng = Rng::seeded(self.seed ^ 0x0A57_E0FF_D15C_5EED);
        self.hasty_handlers = self.bias == Bias::None && Draw(&mut rng).one_in(6);
        if self.hasty_handlers && !self.has(Trouble::DatabaseCrash) {
            self.troubles.extend([Trouble::DatabaseCrash; 2]);
        }
    }

    /// There is something to consume only where something goes to a broker.
    fn add_consumer(&mut self, r: &mut Draw<'_>) {
        let stores = self.subscriptions.iter().any(|subscription| subscription.to == To::Broker);
        self.consumers.retain(|_| stores);
        let landed = self.consumers.iter().map(|consumer| landed(r, consumer, self.lease));
        self.subscriptions.extend(landed.collect::<Vec<_>>());
    }

    /// Drawn apart, as haste is.
    fn add_second_consumer(&mut self) {
        let mut rng = Rng::seeded(self.seed ^ 0x5EC0_4DC0_45E5_D15C);
        let mut r = Draw(&mut rng);
        if self.bias == Bias::None && !self.consumers.is_empty() && r.one_in(3) {
            let second = ConsumerOptions::draw(SECOND_CONSUMER, &mut r);
            self.subscriptions.push(landed(&mut r, &second, self.lease));
            self.consumers.push(second);
        }
    }

    /// Drawn apart, too. Half of all subscriptions keep the limits of everyday, which no seed ever reaches.
    fn add_limits(&mut self) {
        let mut rng = Rng::seeded(self.seed ^ 0x11D1_75A4_D0BD_E45E);
        let mut r = Draw(&mut rng);
        for subscription in &mut self.subscriptions {
            let config = &mut subscription.config;
            if subscription.to == To::Broker {
                config.order = r.pick(&[Order::Key, Order::Key, Order::OneByOne, Order::Any]);
            }
            if r.one_in(2) {
                config.max_parked_keys = r.pick(&[1, 1, 3]);
            }
            if r.one_in(2) {
                config.batch_bytes = r.pick(&[1, 40, 100]);
                config.page_bytes = r.pick(&[1, 40, 1_000]);
                config.queue_bytes = r.pick(&[0, 40, 1_000]);
            }
        }
    }
}

impl Options {
    /// Drawn apart, too: answers and turns that come late, and as many batches at once as a broker's window asks for.
    fn add_slowness(&mut self) {
        let mut rng = Rng::seeded(self.seed ^ 0x510_DE1A_7ED5_EED5);
        let mut r = Draw(&mut rng);
        for subscription in self.subscriptions.iter_mut().filter(|it| it.to == To::Broker) {
            if r.one_in(4) {
                subscription.config.concurrency = Some(64);
            }
        }
        if self.bias == Bias::None {
            self.rates.answer_late = r.pick(&[0, 0, 1, 4]);
            self.rates.turn_late = r.pick(&[0, 0, 10, 40]);
            self.hangs = r.one_in(4);
        }
    }
}

impl ConsumerOptions {
    fn draw(name: &'static str, r: &mut Draw<'_>) -> Self {
        let mut bounds = Bounds::default();
        bounds.batch = r.pick(&[1, 3, 10]);
        bounds.queue = r.pick(&[1, 4, 40]);
        bounds.concurrency = r.pick(&[1, 8]);
        Self {
            name,
            slow: r.one_in(3),
            bounds,
            unsettled: r.pick(&[1, 5, 100]),
            sources: r.pick(&[1, 1, 2, 3]),
        }
    }
}

/// The subscription to what landed from the broker.
fn landed(r: &mut Draw<'_>, consumer: &ConsumerOptions, lease: Duration) -> SubscriptionOptions {
    let mut landed = subscription(r, consumer.name, To::Consumer, lease);
    (landed.filtered, landed.starts_now) = (false, true);
    landed.config.topics = filter_of(consumer.name).into_iter().collect();
    if consumer.slow {
        landed.config.batch = 1;
    }
    landed
}

impl Options {
    /// The options of the consumer of this name.
    pub(super) fn consumer(&self, name: &str) -> Option<&ConsumerOptions> {
        self.consumers.iter().find(|consumer| consumer.name == name)
    }

    /// Has this seed such trouble?
    pub(super) fn has(&self, trouble: Trouble) -> bool {
        self.troubles.contains(&trouble)
    }

    /// Nothing goes wrong in this run but for handlers and brokers that are slow: every owner is alive and in time.
    pub(super) fn is_calm(&self) -> bool {
        let Rates { request_lost, reply_lost, late, crash, zombie, .. } = &self.rates;
        self.chaos_every == 0 && request_lost + reply_lost + late + crash + zombie == 0
    }
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:#?}")
    }
}

/// Draws options from a generator.
pub(super) struct Draw<'a>(pub(super) &'a mut Rng);

impl Draw<'_> {
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.0.below(high - low + 1)
    }

    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.0.below(n) == 0
    }

    /// With a chance of so many in a thousand.
    pub(super) fn chance(&mut self, per_thousand: u64) -> bool {
        self.0.below(1_000) < per_thousand
    }

    pub(super) fn pick<T: Clone>(&mut self, among: &[T]) -> T {
        among[self.0.below(among.len() as u64) as usize].clone()
    }
}

impl Rates {
    fn none() -> Self {
        Self {
            request_lost: 0,
            reply_lost: 0,
            late: 0,
            answer_late: 0,
            turn_late: 0,
            conflict: 0,
            crash: 0,
            zombie: 0,
            nack: 0,
            confirm_lost: 0,
            duplicate: 0,
            database_crash: 0,
        }
    }

    fn draw(r: &mut Draw<'_>) -> Self {
        Self {
            request_lost: r.pick(&[0, 2, 10]),
            reply_lost: r.pick(&[0, 5, 20]),
            late: r.pick(&[0, 0, 2, 10]),
            answer_late: 0,
            turn_late: 0,
            conflict: r.pick(&[0, 0, 5, 20]),
            crash: r.pick(&[0, 0, 1, 4]),
            zombie: r.pick(&[0, 0, 1, 2]),
            nack: r.pick(&[0, 20, 100]),
            confirm_lost: r.pick(&[0, 20, 100]),
            duplicate: r.pick(&[0, 20]),
            database_crash: 10,
        }
    }
}

fn troubles(r: &mut Draw<'_>) -> Vec<Trouble> {
    use Trouble::{
        BrokerDown, ClockJump, Crash, DatabaseCrash, DatabaseMove, Pause, SessionCut, Stop,
    };
    let mut all = vec![Crash, Crash, Crash, Pause, Pause, Pause, Stop];
    all.extend([BrokerDown, BrokerDown, SessionCut]);
    for (rare, times) in [(ClockJump, 2), (DatabaseCrash, 4), (DatabaseMove, 2)] {
        if r.one_in(4) {
            all.extend(std::iter::repeat_n(rare, times));
        }
    }
    all
}

fn acts() -> Vec<Act> {
    use Act::{Archive, Cancel, Edit, Pause, Replay, Rewind, Upkeep};
    vec![
        Replay, Replay, Replay, Replay, Replay, Archive, Edit, Cancel, Rewind, Upkeep, Upkeep,
        Pause,
    ]
}

fn subscriptions(r: &mut Draw<'_>, lease: Duration) -> Vec<SubscriptionOptions> {
    let all = [("ledger", To::Handler), ("queue", To::Broker), ("mails", To::SlowHandler)];
    let chosen: &[(&'static str, To)] = match r.between(0, 5) {
        0 => &all[..1],
        1 => &all[1..2],
        2 => &[all[0], all[2]],
        _ => &all[..2],
    };
    chosen.iter().map(|(name, to)| subscription(r, name, *to, lease)).collect()
}

pub(super) fn subscription(
    r: &mut Draw<'_>,
    name: &'static str,
    to: To,
    lease: Duration,
) -> SubscriptionOptions {
    let (filtered, starts_now) = (r.one_in(4), r.one_in(4));
    let mut config = RelayConfig::default();
    if filtered {
        config.topics = vec![TopicFilter::parse("a.*").unwrap_or_else(|_| TopicFilter::all())];
    }
    let step = Duration::from_millis(r.pick(&[5, 50, 300]));
    let max_attempts = r.pick(&[1, 2, 4]);
    config.retry = RetryPolicy::exponential(step, 2.0, Duration::from_secs(1))
        .max_attempts(max_attempts)
        .jitter(r.pick(&[0.0, 0.2]));
    config.after_dead = if r.one_in(5) { AfterDead::Hold } else { AfterDead::Continue };
    config.lease = lease;
    config.batch = r.pick(&[1, 3, 10]);
    config.concurrency = Some(r.pick(&[1, 2, 8]));
    config.lane_queue = r.pick(&[1, 4, 40]);
    config.page_rows = r.pick(&[2, 7, 100]);
    config.poll = (Duration::from_millis(40), Duration::from_millis(500));
    config.poll_with_doorbell = Duration::from_secs(3);
    config.max_deaths_in_a_row = r.pick(&[2, 100]);
    config.one_transaction = to != To::Broker;
    config.record_every = Duration::from_millis(r.pick(&[0, 20, 300]));
    config.lazy_record = Duration::from_millis(r.pick(&[50, 1_000]));
    SubscriptionOptions { name, to, filtered, starts_now, max_attempts, config }
}

/// A few keys in even fewer lanes: what fails in one must not stop the others beside it.
fn keys(r: &mut Draw<'_>) -> Vec<String> {
    let (lanes, per_lane) = (r.between(1, 3), r.between(1, 3) as usize);
    let mut keys = Vec::new();
    for _ in 0..lanes {
        let lane = r.between(0, 7) as usize;
        keys.extend(keys_by_lane()[lane].iter().take(per_lane).cloned());
    }
    keys.sort_unstable();
    keys.dedup();
    keys
}

fn keys_by_lane() -> &'static [Vec<String>; 8] {
    static KEYS: OnceLock<[Vec<String>; 8]> = OnceLock::new();
    KEYS.get_or_init(|| {
        let mut found: [Vec<String>; 8] = Default::default();
        for key in (0..4_000).map(|n| format!("k{n}")) {
            if let Some(keys) =
                found.get_mut(usize::from(lane_of(&key) / 8)).filter(|keys| keys.len() < 3)
                && keys.first().is_none_or(|first| lane_of(first) == lane_of(&key))
            {
                keys.push(key);
            }
        }
        found
    })
}
