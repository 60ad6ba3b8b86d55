//! Consumes from a broker with effects done once.
//!
//! A message's inbox row, its effect and whatever the handler publishes are one transaction; the acknowledgement comes
//! last. What fails *lands*: it goes into the log of the consumer's own database in that same transaction, and so does
//! what follows in its key, until nothing of the key waits there any more. From the log the consumer's own
//! subscription works it like any other event: retries, parked keys, dead letters, replay, `relevo why`. The broker
//! keeps nothing back, and a failing key stops no other. Or, by choice, what fails goes back to the broker
//! ([`Consumer::retry_at_broker`]).
//!
//! - [`intake`]: what to receive, work and settle next, decisions only
//! - `meeting`: one batch, decisions only
//! - `at_broker`: what fails and is left to the broker, decisions only
//! - [`Worker`]: one batch in its transactions
//! - [`Landed`]: events in the consumer's log
//! - [`Consumer`]: all of it; `shell` does what the intake says

mod at_broker;
#[doc(hidden)]
pub mod fuzzing;
pub mod intake;
mod landed;
mod meeting;
mod shell;
mod worker;

pub use landed::{Landed, filter_of};
pub use meeting::{Meet, Met};
pub use worker::Worker;

use crate::broker::{Foreign, Settle, Subscriber, Tag};
use crate::error::{Error, Kind, Result};
use crate::inbox::direct::Direct;
use crate::inbox::{Handler, TxDriver};
use crate::outbox::{MemberId, Start, Store, Subscription};
use crate::relay::RelayConfig;
use crate::relay::run::{self, Running};
use crate::retry::RetryPolicy;
use at_broker::AtBroker;
use intake::Bounds;
use shell::Shell;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// What to tell a broker of its messages.
pub type Settled = Vec<(Tag, Settle)>;

/// Pauses between attempts to reach a broker or a store again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// A consumer: where its messages come from, and the handler that works on them.
pub struct Consumer<S, D, H> {
    name: Arc<str>,
    subscriber: S,
    driver: D,
    handler: Arc<H>,
    foreign: Foreign,
    relay: RelayConfig,
    idle_limit: Option<Duration>,
    bounds: Bounds,
    keys_at_once: usize,
    at_broker: Option<RetryPolicy>,
}

impl<S: Subscriber, D: TxDriver + Clone, H: Handler<D>> Consumer<S, D, H> {
    /// A consumer called `name`: the inbox, the subscription of what landed, and `relevo status` know it by that.
    pub fn new(name: impl Into<Arc<str>>, subscriber: S, driver: D, handler: H) -> Self {
        Self {
            name: name.into(),
            subscriber,
            driver,
            handler: Arc::new(handler),
            foreign: Foreign::default(),
            relay: RelayConfig::default(),
            idle_limit: None,
            bounds: Bounds::default(),
            keys_at_once: 8,
            at_broker: None,
        }
    }

    /// How messages that are no CloudEvents become events.
    pub fn foreign(mut self, foreign: Foreign) -> Self {
        self.foreign = foreign;
        self
    }

    /// Retries, leases and limits of what landed.
    pub fn relay(mut self, config: RelayConfig) -> Self {
        self.relay = config;
        self
    }

    /// Leaves what fails to the broker instead of landing it: nothing of it stays in the database, and the broker
    /// delivers it again as `policy` says, then puts it into its dead letters. Deliveries count as attempts. Unless the
    /// broker declares `order_on_retry`, what followed in the key is worked meanwhile.
    pub fn retry_at_broker(mut self, policy: RetryPolicy) -> Self {
        self.at_broker = Some(policy);
        self
    }

    /// Most messages that share a transaction (default 50).
    pub fn batch(mut self, batch: usize) -> Self {
        self.bounds.batch = batch.max(1);
        self
    }

    /// Most sources (queues, partitions) worked at the same time (default 8).
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.bounds.concurrency = concurrency.max(1);
        self
    }

    /// Most keys of one source that a [slow](Handler::slow) handler works at the same time (default 8). What has the
    /// same key is worked one after another.
    pub fn keys_at_once(mut self, keys: usize) -> Self {
        self.keys_at_once = keys.max(1);
        self
    }

    /// Most messages of one source that wait here; more stay at the broker (default 200).
    pub fn queue(mut self, queue: usize) -> Self {
        self.bounds.queue = queue.max(1);
        self
    }

    /// How long a session may idle inside a transaction (default: four fifths of the lease in [`Self::relay`], 8 s); keep
    /// it below the lease.
    pub fn idle_limit(mut self, limit: Duration) -> Self {
        self.idle_limit = Some(limit);
        self
    }

    fn limit_of_idling(&self) -> Duration {
        self.idle_limit.unwrap_or_else(|| self.relay.idle_limit())
    }

    /// Starts consuming, and working what landed in `store`, the database that `driver` writes to.
    pub async fn start(self, store: Arc<dyn Store>, member: MemberId) -> Result<Consuming> {
        self.check()?;
        let from = format!("what landed from {}", self.subscriber.name());
        let subscription = subscription_of(&self.name)?.destination(from);
        let landed = Landed::of(self.handler.clone());
        let landed = Direct::new(self.driver.clone(), landed).idle_limit(self.limit_of_idling());
        let landed =
            run::start(store, subscription, self.relay.clone(), Arc::new(landed), member).await?;
        let (stop, stopped) = watch::channel(false);
        let mut task = JoinSet::new();
        task.spawn(Shell::new(self, stopped).run());
        Ok(Consuming { landed, stop, task })
    }

    fn check(&self) -> Result<()> {
        let Some(policy) = &self.at_broker else { return Ok(()) };
        policy.check()?;
        if !self.subscriber.capabilities().order_on_retry {
            let (consumer, broker) = (&self.name, self.subscriber.name());
            tracing::warn!(%consumer, broker, "{OUT_OF_ORDER}");
        }
        Ok(())
    }

    fn left_to_broker(&self) -> Option<AtBroker> {
        let in_order = self.subscriber.capabilities().order_on_retry;
        self.at_broker.clone().map(|policy| AtBroker::new(policy, in_order))
    }
}

/// Said at the start of a consumer that leaves its retries to a broker without `order_on_retry`.
const OUT_OF_ORDER: &str =
    "what fails is tried again by the broker: later messages of its key are worked before it";

/// The subscription of what landed from `consumer`. Nothing can have landed before there is a consumer; made anew after
/// its removal, it does not do again what landed in its former life.
pub fn subscription_of(consumer: &str) -> Result<Subscription> {
    Ok(Subscription::new(consumer).start(Start::Now).topics([filter_of(consumer)?]))
}

/// A consumer at work.
#[derive(Debug)]
pub struct Consuming {
    landed: Running,
    stop: watch::Sender<bool>,
    /// One task; a set ends it when it is dropped.
    task: JoinSet<()>,
}

impl Consuming {
    /// The subscription that works what landed.
    pub fn landed(&self) -> &Running {
        &self.landed
    }

    /// True once the work ended, for whatever reason.
    pub fn is_over(&self) -> bool {
        self.task.is_empty() || self.landed.is_over()
    }

    /// Finishes what is under way within `drain`; what is unsettled goes back to the broker.
    pub async fn stop(mut self, drain: Duration) -> Result<()> {
        self.stop.send_replace(true);
        let ended = tokio::time::timeout(drain, self.task.join_next()).await;
        self.task.abort_all();
        self.landed.stop(drain).await?;
        match ended {
            Ok(Some(Err(join))) => {
                Err(Error::new(Kind::HandlerFailed, format!("consuming failed: {join}")))
            }
            Ok(_) => Ok(()),
            Err(_) => {
                let why = format!(
                    "not everything under way ended within {drain:?}; it is delivered again"
                );
                Err(Error::new(Kind::Timeout, why))
            }
        }
    }
}
