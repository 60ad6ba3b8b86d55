//! The shell: does what the machine says, and tells it what happened. It decides nothing.

use super::action::{Action, Delivery, Input};
use super::batch::{Batch, Item};
use super::config::{CONCURRENCY, RelayConfig};
use super::machine::{Counts, Relay};
use crate::clock::{Clock, Instant, Rng};
use crate::error::{Error, Kind, Result};
use crate::event::EventId;
use crate::inbox::direct::panic_text;
use crate::outbox::{Claim, LaneChange, MemberId, Store, Subscription, Token};
use crate::telemetry;
use async_trait::async_trait;
use futures::FutureExt;
use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

/// Where a subscription's batches go. Implemented by direct handlers ([`crate::inbox::Direct`]) and by
/// everything outside the database ([`crate::broker::ToBroker`]).
#[async_trait]
pub trait Destination: Send + Sync + 'static {
    /// Hands the batch over in its own order and records it before it returns.
    async fn deliver(&self, store: &Arc<dyn Store>, batch: Batch) -> Delivery;

    /// What a follower may assume: true if effects and their record are one transaction.
    fn one_transaction(&self) -> bool;

    /// False if every event needs a transaction (and so a batch) of its own.
    fn shares_transactions(&self) -> bool {
        true
    }

    /// True if what fails makes all later events of its key fail, so that several may be under way at once.
    fn failure_fails_later(&self) -> bool {
        false
    }

    /// How many batches, of so many events, it wants at once where the configuration does not say.
    fn batches_at_once(&self, _batch: usize) -> usize {
        CONCURRENCY
    }

    /// For people to read.
    fn describe(&self) -> String;

    /// Ends connections, once nothing is handed over any more.
    async fn close(&self) {}
}

/// Said when a relay ends whose store does not hear it any more.
const UNHEARD: &str = "ended without a goodbye, for the store does not answer: everything handed over is recorded, and \
                       lanes that were not given back go to others when their leases have run out";

/// A subscription at work in this process.
#[derive(Debug)]
pub struct Running {
    stop: watch::Sender<bool>,
    counts: watch::Receiver<Counts>,
    owes_nothing: Arc<AtomicBool>,
    task: JoinHandle<Result<()>>,
}

impl Running {
    /// The figures of this moment.
    pub fn counts(&self) -> Counts {
        *self.counts.borrow()
    }

    /// Told whenever the figures change.
    pub fn watch(&self) -> watch::Receiver<Counts> {
        self.counts.clone()
    }

    /// True once the work ended, for whatever reason.
    pub fn is_over(&self) -> bool {
        self.task.is_finished()
    }

    /// Finishes what is under way within `drain`, gives the lanes back and ends.
    ///
    /// It is an error if something handed over has no outcome by then, or none that is recorded. A store that does not
    /// answer when nothing but the lanes is to be given back is none: their leases run out by themselves, and the log says
    /// so.
    pub async fn stop(self, drain: Duration) -> Result<()> {
        self.stop.send_replace(true);
        let abort = self.task.abort_handle();
        match tokio::time::timeout(drain, self.task).await {
            Ok(Ok(result)) => result,
            Ok(Err(join)) if join.is_cancelled() => Ok(()),
            Ok(Err(join)) => {
                Err(Error::new(Kind::StoreFailed, format!("the relay's task failed: {join}")))
            }
            Err(_) => {
                abort.abort();
                if self.owes_nothing.load(Ordering::Relaxed) {
                    tracing::warn!(?drain, "{UNHEARD}");
                    return Ok(());
                }
                Err(Error::new(
                    Kind::Timeout,
                    format!(
                        "not everything under way ended within {drain:?}; its leases run out by themselves and nothing is lost"
                    ),
                ))
            }
        }
    }
}

/// Starts working a subscription until it is stopped or removed.
pub async fn start(
    store: Arc<dyn Store>,
    mut subscription: Subscription,
    mut config: RelayConfig,
    destination: Arc<dyn Destination>,
    member: MemberId,
) -> Result<Running> {
    config.topics = subscription.topics.clone();
    config.after_dead = subscription.after_dead;
    config.one_transaction = destination.one_transaction();
    config.failure_fails_later = destination.failure_fails_later();
    subscription.outside = !config.one_transaction;
    if !store.capabilities().parallel_effects && config.one_transaction {
        config.concurrency = Some(1);
    }
    if !destination.shares_transactions() {
        config.batch = 1;
    }
    config.concurrency.get_or_insert(destination.batches_at_once(config.batch));
    if !store.capabilities().direct_effects && config.one_transaction {
        let why = "an adopted table is relayed to a broker: a handler that records in a transaction of its own would \
                   leave its rows unmarked";
        return Err(Error::new(Kind::NotSupported, why));
    }
    config.check()?;
    tracing::debug!(subscription = %subscription.name, batches_at_once = config.batches_at_once(), batch = config.batch, "starts");
    let max_parked = config.max_parked_keys + 1;
    store.subscribe(&subscription).await?;
    let relay = Relay::new(
        subscription.name.clone(),
        member.clone(),
        config,
        // What the store has now, rather than what it could have: without a bell the relay must poll.
        store.doorbell().is_some(),
        Rng::from_os(),
    );
    let (stop, stopped) = watch::channel(false);
    let (counts_in, counts) = watch::channel(Counts::default());
    let owes_nothing = Arc::new(AtomicBool::new(false));
    let shell = Shell {
        store,
        destination,
        name: subscription.name,
        member,
        clock: Clock::start(),
        max_parked,
        counts: counts_in,
        owes_nothing: owes_nothing.clone(),
    };
    let task = tokio::spawn(shell.run(relay, stopped));
    Ok(Running { stop, counts, owes_nothing, task })
}

/// Returns at the next ring; never, without a doorbell or once it is gone.
async fn rung(bell: &mut Option<watch::Receiver<u64>>) {
    if let Some(receiver) = bell
        && receiver.changed().await.is_ok()
    {
        return;
    }
    *bell = None;
    std::future::pending().await
}

/// What the machine waits for, so that it gets an answer even if the adapter panics.
enum Receipt {
    Beat(Instant),
    Take(Vec<Claim>),
    Load(u16, Token),
    Release(Vec<Claim>),
    Page(usize),
    Parked(u16, Token, String, usize),
    Deliver(u16, Token),
    Record(Vec<LaneChange>),
}

impl Receipt {
    fn of(action: &Action, clock: &Clock) -> Self {
        match action {
            Action::Beat(_) => Self::Beat(clock.now()),
            Action::Take(claims) => Self::Take(claims.clone()),
            Action::Load(lane, token) => Self::Load(lane.lane, *token),
            Action::Release(claims) => Self::Release(claims.clone()),
            Action::ReadPage { reader, .. } => Self::Page(*reader),
            Action::ReadParked { lane, token, key, max_rows } => {
                Self::Parked(lane.lane, *token, key.clone(), *max_rows)
            }
            Action::Deliver(batch) => Self::Deliver(batch.lane().lane, batch.token()),
            Action::Record(changes) => Self::Record(changes.clone()),
        }
    }

    fn failed(self, error: Error) -> Input {
        match self {
            Self::Beat(sent) => Input::Beat { sent, result: Err(error) },
            Self::Take(claims) => Input::Taken { claims, result: Err(error) },
            Self::Load(lane, token) => Input::Loaded { lane, token, result: Err(error) },
            Self::Release(claims) => Input::Released { claims, result: Err(error) },
            Self::Page(reader) => Input::Page { reader, result: Err(error) },
            Self::Parked(lane, token, key, max_rows) => {
                Input::Parked { lane, token, key, max_rows, result: Err(error) }
            }
            Self::Deliver(lane, token) => {
                Input::Delivered { lane, token, delivery: Box::new(Delivery::Void(error)) }
            }
            Self::Record(changes) => Input::Recorded { changes, result: Err(error) },
        }
    }
}

/// When each event of a batch was published.
type Created = Vec<(EventId, chrono::DateTime<chrono::Utc>)>;

struct Shell {
    store: Arc<dyn Store>,
    destination: Arc<dyn Destination>,
    name: Arc<str>,
    member: MemberId,
    clock: Clock,
    max_parked: usize,
    counts: watch::Sender<Counts>,
    owes_nothing: Arc<AtomicBool>,
}

impl Shell {
    async fn run(self, mut relay: Relay, mut stop: watch::Receiver<bool>) -> Result<()> {
        let (answers, mut inbox) = mpsc::unbounded_channel::<Input>();
        let shell = Arc::new(self);
        let mut stopping = false;
        let mut bell = shell.store.doorbell();
        loop {
            let actions = relay.poll(shell.clock.now());
            shell.show(&relay);
            for action in actions {
                tokio::spawn(shell.clone().perform(action, answers.clone()));
            }
            if relay.is_finished() {
                return shell.farewell(&relay).await;
            }
            let now = shell.clock.now();
            let nap = relay.wake_at(now).map_or(Duration::from_secs(1), |moment| moment.since(now));
            let input = tokio::select! {
                answer = inbox.recv() => answer.unwrap_or(Input::Wake),
                () = rung(&mut bell) => Input::Rung,
                changed = stop.changed(), if !stopping => {
                    // The handle was dropped or said stop: both end the work in an orderly way.
                    stopping = changed.is_err() || *stop.borrow();
                    if stopping { Input::Stop } else { Input::Wake }
                }
                () = tokio::time::sleep(nap) => Input::Wake,
            };
            relay.handle(shell.clock.now(), input);
            while let Ok(input) = inbox.try_recv() {
                relay.handle(shell.clock.now(), input);
            }
        }
    }

    async fn farewell(&self, relay: &Relay) -> Result<()> {
        if relay.is_removed() {
            let gone = format!("subscription {:?} was removed by an operator", self.name);
            return Err(Error::new(Kind::UnknownSubscription, gone));
        }
        match self.store.forget_member(&self.name, &self.member).await {
            Err(error) if relay.owes_nothing() => {
                tracing::warn!(subscription = %self.name, %error, "{UNHEARD}");
                Ok(())
            }
            said => said,
        }
    }

    async fn perform(self: Arc<Self>, action: Action, answers: mpsc::UnboundedSender<Input>) {
        let receipt = Receipt::of(&action, &self.clock);
        let answer = AssertUnwindSafe(self.act(action)).catch_unwind().await;
        let input = answer.unwrap_or_else(|panic| {
            let error = Error::new(Kind::StoreFailed, panic_text(panic.as_ref()));
            self.note(&error);
            receipt.failed(error)
        });
        if answers.send(input).is_err() {
            tracing::debug!(subscription = %self.name, "an answer came after the relay had ended");
        }
    }

    async fn act(&self, action: Action) -> Input {
        const PATIENCE: Duration = Duration::from_secs(30);
        let (store, name) = (&self.store, &*self.name);
        match action {
            Action::Beat(beat) => {
                let sent = self.clock.now();
                Input::Beat { sent, result: self.in_time(PATIENCE, store.beat(&beat)).await }
            }
            Action::Take(claims) => {
                let result = self
                    .in_time(
                        PATIENCE,
                        store.take_lanes(name, &claims, &self.member, self.max_parked),
                    )
                    .await;
                Input::Taken { claims, result }
            }
            Action::Load(lane, token) => {
                let result =
                    self.in_time(PATIENCE, store.load_lane(&lane, token, self.max_parked)).await;
                Input::Loaded { lane: lane.lane, token, result }
            }
            Action::Release(claims) => {
                let result = self.in_time(PATIENCE, store.release_lanes(name, &claims)).await;
                Input::Released { claims, result }
            }
            Action::ReadPage { reader, request } => {
                telemetry::count("relevo_pages_total", name, 1);
                Input::Page {
                    reader,
                    result: self.in_time(PATIENCE, store.read_page(&request)).await,
                }
            }
            Action::ReadParked { lane, token, key, max_rows } => {
                let result = self.in_time(PATIENCE, store.read_parked(&lane, &key, max_rows)).await;
                Input::Parked { lane: lane.lane, token, key, max_rows, result }
            }
            Action::Deliver(batch) => self.deliver(*batch).await,
            Action::Record(changes) => {
                let result = self.in_time(PATIENCE, store.record(&changes)).await;
                for change in changes.iter().filter(|_| result.is_ok()) {
                    telemetry::recorded(name, change);
                    self.tell(change);
                }
                Input::Recorded { changes, result }
            }
        }
    }

    /// Every answer of the store comes within a bound, and every error is counted and shown.
    async fn in_time<T>(
        &self,
        limit: Duration,
        answer: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let late = || Error::new(Kind::Timeout, format!("no answer within {limit:?}"));
        let result = tokio::time::timeout(limit, answer).await.unwrap_or_else(|_| Err(late()));
        if let Err(error) = &result {
            self.note(error);
        }
        result
    }

    fn note(&self, error: &Error) {
        if error.kind() == Kind::Stale {
            telemetry::count("relevo_stale_total", &self.name, 1);
            tracing::info!(subscription = %self.name, %error, "a lane went to another owner");
        } else {
            telemetry::store_error(&self.name, error.code());
            tracing::warn!(subscription = %self.name, %error, "the store reported an error; trying again");
        }
    }

    async fn deliver(&self, batch: Batch) -> Input {
        let (lane, token) = (batch.lane().lane, batch.token());
        telemetry::count("outbox_publish_attempts_total", &self.name, batch.to_hand_over() as u64);
        let created: Created =
            (0..batch.len()).map(|i| (batch.event(i).id, batch.event(i).created_at)).collect();
        let batch = batch.timed_by(self.clock.clone());
        let delivery = self.destination.deliver(&self.store, batch).await;
        telemetry::delivered(&self.name, &delivery);
        match &delivery {
            Delivery::Recorded { change, rest, .. } => {
                self.note_latencies(change, rest, created);
                self.tell(change);
            }
            Delivery::Decided { change, rest, .. } => self.note_latencies(change, rest, created),
            Delivery::Void(error) => {
                telemetry::count("relevo_void_total", &self.name, 1);
                self.note(error);
            }
            Delivery::Aborted { reason, .. } => {
                telemetry::count("relevo_aborted_total", &self.name, 1);
                tracing::warn!(subscription = %self.name, lane, reason, "a shared transaction was rolled back; redoing its events one by one");
            }
            Delivery::Down { reason, .. } => {
                tracing::warn!(subscription = %self.name, reason, "the destination is down; nothing is parked, the cursor waits");
            }
        }
        Input::Delivered { lane, token, delivery: Box::new(delivery) }
    }

    fn note_latencies(&self, change: &LaneChange, rest: &[Item], created: Created) {
        let refs = change
            .deaths
            .iter()
            .map(|death| &death.event)
            .chain(change.skips.iter().map(|skip| &skip.event))
            .chain(&change.waiting)
            .chain(rest.iter().map(|item| &item.at));
        let not_delivered: BTreeSet<EventId> = refs.map(|event| event.id).collect();
        let delivered = created.iter().filter(|(id, _)| !not_delivered.contains(id));
        let now = chrono::Utc::now();
        let took = delivered.map(|(_, created)| (now - *created).to_std().unwrap_or_default());
        telemetry::latencies(&self.name, took.take(change.delivered as usize));
    }

    /// What a recorded change says of what was not delivered.
    fn tell(&self, change: &LaneChange) {
        for death in &change.deaths {
            tracing::error!(subscription = %self.name, event = %death.event.id, class = %death.class, error = death.error, "dead letter");
        }
        for key in change.parked.iter().filter(|key| key.attempts > 0) {
            tracing::warn!(subscription = %self.name, key = key.key, attempts = key.attempts, error = key.error, "parked");
        }
    }

    fn show(&self, relay: &Relay) {
        self.owes_nothing.store(relay.owes_nothing(), Ordering::Relaxed);
        let counts = relay.counts(self.clock.now());
        let before = self.counts.send_replace(counts);
        // Nearly every turn changes how much is queued, which is no metric.
        let shown = |it: &Counts| {
            (it.lanes, it.stopped, it.parked_keys, it.breaker_open, it.takeovers, it.filtered)
        };
        if shown(&before) == shown(&counts) {
            return;
        }
        let set = |name, value: usize| telemetry::set(name, &self.name, value as f64);
        set("relevo_lanes_owned", counts.lanes);
        set("relevo_lanes_stopped", counts.stopped);
        set("relevo_parked_keys", counts.parked_keys);
        set("relevo_breaker_open", usize::from(counts.breaker_open));
        telemetry::count(
            "relevo_lane_takeovers_total",
            &self.name,
            counts.takeovers.saturating_sub(before.takeovers),
        );
        telemetry::count(
            "relevo_filtered_total",
            &self.name,
            counts.filtered.saturating_sub(before.filtered),
        );
    }
}

#[cfg(test)]
#[path = "run_tests/mod.rs"]
mod tests;
