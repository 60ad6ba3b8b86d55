//! A simulated process: the relay's machines that production runs, with everything around them simulated.

use super::call::Mailbox;
use super::client::{SimDriver, SimHandler, SimPublisher, SimStore};
use super::intake::Inlet;
use super::options::{Micros, Options, SubscriptionOptions, To};
use super::world::Ids;
use relevo_core::broker::ToBroker;
use relevo_core::clock::{Clock, Instant, Rng};
use relevo_core::inbox::Direct;
use relevo_core::inbox::consume::Landed;
use relevo_core::outbox::{MemberId, Store};
use relevo_core::relay::run::Destination;
use relevo_core::relay::{Action, Delivery, Input, Relay};
use relevo_core::telemetry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// One subscription at work in a process.
pub(super) struct Unit {
    pub(super) relay: Relay,
    pub(super) destination: Arc<dyn Destination>,
    /// The earliest wake-up that is already on its way.
    pub(super) wakes_at: Option<Micros>,
    /// When the last beat that succeeded was sent, by this process's clock.
    pub(super) last_good: Option<Instant>,
    pub(super) delivering: usize,
    /// Pages on their way.
    pub(super) reading: usize,
}

/// A process.
pub(super) struct Process {
    pub(super) number: usize,
    /// Grows with each start: what belongs to an earlier life is gone.
    pub(super) life: u64,
    pub(super) alive: bool,
    /// It was asked to stop.
    pub(super) stopping: bool,
    pub(super) paused_until: Option<Micros>,
    /// This process's monotonic clock is so far ahead.
    pub(super) clock_ahead: Micros,
    /// What that clock shows to the tasks of this process.
    shown: Arc<AtomicU64>,
    pub(super) store: Arc<dyn Store>,
    pub(super) units: Vec<Unit>,
    /// Its consumers.
    pub(super) inlets: Vec<Inlet>,
}

impl Process {
    pub(super) fn new(number: usize, mailbox: &Mailbox, options: &Options) -> Self {
        let store =
            SimStore { mailbox: mailbox.clone(), process: number, doorbell: options.doorbell };
        Self {
            number,
            life: 0,
            alive: false,
            stopping: false,
            paused_until: None,
            clock_ahead: 0,
            shown: Arc::default(),
            store: Arc::new(store),
            units: Vec::new(),
            inlets: Vec::new(),
        }
    }

    /// This process's clock.
    pub(super) fn clock(&self, now: Micros) -> Instant {
        Instant::at(Duration::from_micros(now + self.clock_ahead))
    }

    /// Time goes on.
    pub(super) fn show(&self, now: Micros) {
        self.shown.store(now + self.clock_ahead, Ordering::Relaxed);
    }

    /// The clock that its tasks look at.
    pub(super) fn shown(&self) -> Clock {
        Clock::told(self.shown.clone())
    }

    pub(super) fn is_paused(&self, now: Micros) -> bool {
        self.paused_until.is_some_and(|until| until > now)
    }

    /// It is gone, with all it had in memory.
    pub(super) fn end(&mut self) {
        self.alive = false;
        self.units.clear();
        self.inlets.clear();
    }

    /// Begins a new life, with a name of its own.
    pub(super) fn start(&mut self, mailbox: &Mailbox, ids: &Ids, options: &Options, rng: &mut Rng) {
        self.life += 1;
        self.alive = true;
        self.stopping = false;
        self.paused_until = None;
        let member = MemberId(format!("p{}.{}", self.number, self.life).into());
        let unit = |(index, subscription): (usize, &SubscriptionOptions)| {
            let seed = Rng::seeded(rng.next_u64());
            let relay = Relay::new(
                subscription.name,
                member.clone(),
                subscription.config.clone(),
                options.doorbell,
                seed,
            );
            let destination = destination(subscription, index, self.number, mailbox, options);
            Unit { relay, destination, wakes_at: None, last_good: None, delivering: 0, reading: 0 }
        };
        self.units = options.subscriptions.iter().enumerate().map(unit).collect();
        let inlet = |nth| Inlet::new(self.number, nth, mailbox, ids, options);
        self.inlets = (0..options.consumers.len()).map(inlet).collect();
    }
}

fn destination(
    subscription: &SubscriptionOptions,
    subscriber: usize,
    process: usize,
    mailbox: &Mailbox,
    options: &Options,
) -> Arc<dyn Destination> {
    let (mailbox, to) = (mailbox.clone(), subscription.to);
    match to {
        To::Broker => Arc::new(ToBroker::new(SimPublisher { mailbox, subscriber, process })),
        To::Handler | To::SlowHandler => {
            let driver = SimDriver { mailbox: mailbox.clone(), process };
            let handler = SimHandler { mailbox, subscriber, slow: to == To::SlowHandler };
            Arc::new(Direct::new(driver, handler).idle_limit(options.lease * 4 / 5))
        }
        To::Consumer => {
            let driver = SimDriver { mailbox: mailbox.clone(), process };
            let landed =
                Landed::of(Arc::new(SimHandler::of_consumer(&mailbox, options, subscription.name)));
            Arc::new(Direct::new(driver, landed).idle_limit(options.lease * 4 / 5))
        }
    }
}

/// The shell of one subscription in a process, as far as actions go.
pub(super) struct Shell {
    pub(super) store: Arc<dyn Store>,
    pub(super) destination: Arc<dyn Destination>,
    pub(super) subscription: Arc<str>,
    pub(super) member: MemberId,
    pub(super) max_parked: usize,
    pub(super) clock: Clock,
}

impl Shell {
    /// What the shell does with an action: ask the store, or hand a batch over, and say what came of it.
    pub(super) async fn perform(self, action: Action) -> Input {
        let Self { store, destination, subscription, member, max_parked, clock } = self;
        match action {
            Action::Beat(beat) => {
                let sent = clock.now();
                Input::Beat { sent, result: store.beat(&beat).await }
            }
            Action::Take(claims) => {
                let result = store.take_lanes(&subscription, &claims, &member, max_parked).await;
                Input::Taken { claims, result }
            }
            Action::Load(lane, token) => {
                let result = store.load_lane(&lane, token, max_parked).await;
                Input::Loaded { lane: lane.lane, token, result }
            }
            Action::Release(claims) => {
                let result = store.release_lanes(&subscription, &claims).await;
                Input::Released { claims, result }
            }
            Action::ReadPage { reader, request } => {
                Input::Page { reader, result: store.read_page(&request).await }
            }
            Action::ReadParked { lane, token, key, max_rows } => {
                let result = store.read_parked(&lane, &key, max_rows).await;
                Input::Parked { lane: lane.lane, token, key, max_rows, result }
            }
            Action::Deliver(batch) => {
                let (lane, token) = (batch.lane().lane, batch.token());
                let delivering = destination.deliver(&store, (*batch).timed_by(clock));
                let delivery: Box<Delivery> = Box::new(delivering.await);
                telemetry::delivered(&subscription, &delivery);
                Input::Delivered { lane, token, delivery }
            }
            Action::Record(changes) => {
                let result = store.record(&changes).await;
                for change in changes.iter().filter(|_| result.is_ok()) {
                    telemetry::recorded(&subscription, change);
                }
                Input::Recorded { changes, result }
            }
        }
    }
}
