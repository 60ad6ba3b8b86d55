//! Consumes from a broker with effects done once.
//!
//! A message's inbox row, its effect and whatever the handler publishes are one transaction; the acknowledgement comes
//! last. What fails *lands*: it goes into the log of the consumer's own database in that same transaction, and so does
//! what follows in its key, until nothing of the key waits there any more. From the log the consumer's own
//! subscription works it like any other event: retries, parked keys, dead letters, replay, `relevo why`. The broker
//! keeps nothing back, and a failing key stops no other.
//!
//! - `meeting`: one batch, decisions only
//! - `worker`: one batch in its transactions
//! - `landed`: events in the consumer's log
//! - [`Consumer`]: the loop around a receiver

mod landed;
mod meeting;
mod worker;

pub use landed::filter_of;
pub use meeting::{Meet, Met};

use crate::broker::{Foreign, Incoming, Received, Receiver, Settle, Source, Subscriber, Tag};
use crate::error::{Error, Kind, Result};
use crate::inbox::direct::Direct;
use crate::inbox::{Handler, TxDriver};
use crate::outbox::{MemberId, Start, Store, Subscription};
use crate::relay::RelayConfig;
use crate::relay::run::{self, Running};
use crate::telemetry;
use landed::Landed;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use worker::Worker;

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
    idle_limit: Duration,
    batch: usize,
    queue: usize,
    concurrency: usize,
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
            idle_limit: Duration::from_secs(8),
            batch: 50,
            queue: 200,
            concurrency: 8,
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

    /// Most messages that share a transaction (default 50).
    pub fn batch(mut self, batch: usize) -> Self {
        self.batch = batch.max(1);
        self
    }

    /// Most sources (queues, partitions) worked at the same time (default 8).
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency.max(1);
        self
    }

    /// Most messages of one source that wait here; more stay at the broker (default 200).
    pub fn queue(mut self, queue: usize) -> Self {
        self.queue = queue.max(1);
        self
    }

    /// How long a session may idle inside a transaction (default 8 s); keep it below the lease.
    pub fn idle_limit(mut self, limit: Duration) -> Self {
        self.idle_limit = limit;
        self
    }

    /// Starts consuming, and working what landed in `store`, the database that `driver` writes to.
    pub async fn start(self, store: Arc<dyn Store>, member: MemberId) -> Result<Consuming> {
        let topics = [filter_of(&self.name)?];
        let from = format!("what landed from {}", self.subscriber.name());
        // Nothing can have landed before there is a consumer. Made anew after its removal, it does not do again what
        // landed in its former life.
        let subscription = Subscription::new(self.name.clone()).start(Start::Now);
        let subscription = subscription.topics(topics).destination(from);
        let landed = Landed(self.handler.clone());
        let landed = Direct::new(self.driver.clone(), landed).idle_limit(self.idle_limit);
        let landed =
            run::start(store, subscription, self.relay.clone(), Arc::new(landed), member).await?;
        let (stop, stopped) = watch::channel(false);
        let mut task = JoinSet::new();
        task.spawn(Loop::new(self, stopped).run());
        Ok(Consuming { landed, stop, task })
    }
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

/// Returns when the consumer is to stop; whoever could say so going away means the same.
async fn told_to_stop(stopped: &mut watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

/// What waits here of one source.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<Incoming>,
    at_work: bool,
    paused: bool,
}

/// One batch's end: its source, the turn it began in, and what to tell the broker.
type Ended = (Source, u64, Option<Vec<(Tag, Settle)>>);

/// The loop around a receiver. It decides nothing about events.
struct Loop<S, D: TxDriver, H> {
    name: Arc<str>,
    subscriber: S,
    worker: Arc<Worker<D, H>>,
    queues: BTreeMap<Source, Queue>,
    at_work: JoinSet<Ended>,
    /// Counts receivers: tags of an earlier one mean nothing to the next.
    turn: u64,
    batch: usize,
    queue: usize,
    concurrency: usize,
    stopped: watch::Receiver<bool>,
}

impl<S: Subscriber, D: TxDriver + Clone, H: Handler<D>> Loop<S, D, H> {
    fn new(consumer: Consumer<S, D, H>, stopped: watch::Receiver<bool>) -> Self {
        let Consumer { name, subscriber, driver, handler, foreign, .. } = consumer;
        let binding = subscriber.binding();
        let worker =
            Worker::new(name.clone(), driver, handler, binding, foreign, consumer.idle_limit);
        Self {
            name,
            subscriber,
            worker: Arc::new(worker),
            queues: BTreeMap::new(),
            at_work: JoinSet::new(),
            turn: 0,
            batch: consumer.batch,
            queue: consumer.queue,
            concurrency: consumer.concurrency,
            stopped,
        }
    }

    async fn run(mut self) {
        let mut pause = PAUSES.0;
        while !*self.stopped.borrow() {
            let ended = match self.subscriber.open().await {
                Ok(mut receiver) => {
                    pause = PAUSES.0;
                    let ended = self.receive(receiver.as_mut()).await;
                    self.queues.clear();
                    self.turn += 1;
                    ended.and(receiver.close().await)
                }
                Err(error) => Err(error),
            };
            if let Err(error) = ended {
                telemetry::store_error(&self.name, error.code());
                tracing::warn!(consumer = %self.name, %error, "the broker's connection ended; connecting again");
                self.rest(pause).await;
                pause = (pause * 2).min(PAUSES.1);
            }
        }
    }

    async fn rest(&mut self, pause: Duration) {
        let mut stopped = self.stopped.clone();
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = told_to_stop(&mut stopped) => {}
        }
    }

    /// Until the connection fails or the consumer is stopped; then what is under way is settled still.
    async fn receive(&mut self, receiver: &mut dyn Receiver) -> Result<()> {
        let mut stopped = self.stopped.clone();
        loop {
            self.start_work();
            let full = self.queues.values().map(|queue| queue.waiting.len()).sum::<usize>()
                >= self.queue * self.concurrency;
            tokio::select! {
                () = told_to_stop(&mut stopped) => return self.drain(receiver).await,
                Some(ended) = self.at_work.join_next(), if !self.at_work.is_empty() => {
                    self.ended(receiver, ended).await?;
                }
                received = receiver.next(self.batch), if !full => self.take(receiver, received?).await?,
            }
        }
    }

    async fn take(&mut self, receiver: &mut dyn Receiver, received: Received) -> Result<()> {
        match received {
            Received::Messages { source, messages } => {
                let queue = self.queues.entry(source.clone()).or_default();
                queue.waiting.extend(messages);
                if queue.waiting.len() >= self.queue && !queue.paused {
                    queue.paused = true;
                    receiver.pause(&source).await?;
                }
            }
            Received::Revoked(source) => {
                self.queues.remove(&source);
            }
        }
        Ok(())
    }

    /// One batch of a source at a time: its order is kept.
    fn start_work(&mut self) {
        for (source, queue) in &mut self.queues {
            if self.at_work.len() >= self.concurrency {
                return;
            }
            if queue.at_work || queue.waiting.is_empty() {
                continue;
            }
            queue.at_work = true;
            let messages: Vec<_> =
                queue.waiting.drain(..queue.waiting.len().min(self.batch)).collect();
            let (worker, stopped) = (self.worker.clone(), self.stopped.clone());
            let (source, turn) = (source.clone(), self.turn);
            self.at_work.spawn(async move {
                let settled = worker.work(&messages, stopped).await;
                (source, turn, settled)
            });
        }
    }

    async fn ended(
        &mut self,
        receiver: &mut dyn Receiver,
        ended: Result<Ended, tokio::task::JoinError>,
    ) -> Result<()> {
        let failed =
            |join| Error::new(Kind::HandlerFailed, format!("a batch's task failed: {join}"));
        let (source, turn, settled) = ended.map_err(failed)?;
        if turn != self.turn {
            return Ok(());
        }
        if let Some(queue) = self.queues.get_mut(&source) {
            queue.at_work = false;
            if queue.paused && queue.waiting.len() <= self.queue / 2 {
                queue.paused = false;
                receiver.resume(&source).await?;
            }
        }
        match settled {
            Some(settled) => receiver.settle(&settled).await,
            None => Ok(()),
        }
    }

    async fn drain(&mut self, receiver: &mut dyn Receiver) -> Result<()> {
        while let Some(ended) = self.at_work.join_next().await {
            self.ended(receiver, ended).await?;
        }
        Ok(())
    }
}
