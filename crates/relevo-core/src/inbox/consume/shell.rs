use super::at_broker::AtBroker;
use super::intake::{Action, Input, Intake};
use super::{Consumer, Settled, Worker};
use crate::broker::{Incoming, Received, Receiver, Subscriber};
use crate::clock::{Clock, Instant};
use crate::error::{Error, Kind, Result};
use crate::inbox::direct::panic_text;
use crate::inbox::{Handler, TxDriver};
use crate::telemetry;
use futures::FutureExt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A batch's number, the batch, and what came of it.
type Ended = (u64, Vec<Incoming>, Result<Settled>);

/// Does what a consumer's intake says, and tells it what happened. It decides nothing.
pub(super) struct Shell<S, D: TxDriver, H> {
    name: Arc<str>,
    subscriber: S,
    receiver: Option<Box<dyn Receiver>>,
    worker: Arc<Worker<D, H>>,
    at_work: JoinSet<Ended>,
    intake: Intake,
    clock: Clock,
    stopped: watch::Receiver<bool>,
    told_to_stop: bool,
}

impl<S: Subscriber, D: TxDriver + Clone, H: Handler<D>> Shell<S, D, H> {
    pub(super) fn new(consumer: Consumer<S, D, H>, stopped: watch::Receiver<bool>) -> Self {
        let at_broker = consumer.left_to_broker();
        let keeps_place = at_broker.as_ref().is_some_and(AtBroker::in_order);
        let idle_limit = consumer.limit_of_idling();
        let Consumer { name, subscriber, driver, handler, foreign, keys_at_once, .. } = consumer;
        let worker = Worker::new(name.clone(), driver, handler, subscriber.binding());
        let worker = worker.foreign(foreign).idle_limit(idle_limit).at_broker(at_broker);
        let worker = worker.keys_at_once(keys_at_once);
        Self {
            name,
            subscriber,
            receiver: None,
            worker: Arc::new(worker),
            at_work: JoinSet::new(),
            intake: Intake::new(consumer.bounds).keeping_place(keeps_place),
            clock: Clock::start(),
            stopped,
            told_to_stop: false,
        }
    }

    pub(super) async fn run(mut self) {
        loop {
            for action in self.intake.poll(self.clock.now()) {
                if let Some(input) = self.act(action).await {
                    self.tell(input);
                }
            }
            if self.intake.is_finished() {
                return;
            }
            let input = self.wait().await;
            self.tell(input);
        }
    }

    fn tell(&mut self, input: Input) {
        let trouble = match &input {
            Input::Opened(Err(error)) => Some((error, "the broker cannot be reached")),
            Input::Lost(error) => Some((error, "the broker's connection ended")),
            Input::Worked { result: Err(error), .. } => Some((error, "the store failed")),
            _ => None,
        };
        if let Some((error, what)) = trouble {
            telemetry::store_error(&self.name, error.code());
            tracing::warn!(consumer = %self.name, %error, "{what}; trying again");
        }
        self.intake.handle(self.clock.now(), input);
    }

    /// Does it; an input if there is something to say of it at once.
    async fn act(&mut self, action: Action) -> Option<Input> {
        match action {
            Action::Open => Some(Input::Opened(self.open().await)),
            Action::Close => self.close().await,
            Action::Work { batch, messages } => {
                let worker = self.worker.clone();
                self.at_work.spawn(async move {
                    let work = AssertUnwindSafe(worker.work(&messages)).catch_unwind();
                    let result = work.await.unwrap_or_else(|panic| {
                        Err(Error::new(Kind::HandlerPanicked, panic_text(panic.as_ref())))
                    });
                    (batch, messages, result)
                });
                None
            }
            told => self.tell_receiver(told).await.err().map(Input::Lost),
        }
    }

    async fn open(&mut self) -> Result<()> {
        self.receiver = Some(self.subscriber.open().await?);
        Ok(())
    }

    /// What cannot be closed is gone anyhow.
    async fn close(&mut self) -> Option<Input> {
        let closed = self.receiver.take()?.close().await;
        if let Err(error) = closed {
            tracing::debug!(consumer = %self.name, %error, "a receiver did not close in good order");
        }
        None
    }

    /// Nothing is to be told to a receiver that has failed meanwhile.
    async fn tell_receiver(&mut self, action: Action) -> Result<()> {
        let Some(receiver) = &mut self.receiver else { return Ok(()) };
        match action {
            Action::Settle(settled) => receiver.settle(&settled).await,
            Action::Pause(source) => receiver.pause(&source).await,
            Action::Resume(source) => receiver.resume(&source).await,
            Action::Open | Action::Close | Action::Work { .. } => Ok(()),
        }
    }

    async fn wait(&mut self) -> Input {
        let (wants, wakes) = (self.intake.wants(), self.intake.wake_at());
        let now = self.clock.now();
        tokio::select! {
            () = told_to_stop(&mut self.stopped), if !self.told_to_stop => {
                self.told_to_stop = true;
                Input::Stop
            }
            Some(ended) = self.at_work.join_next(), if !self.at_work.is_empty() => worked(ended),
            received = next(&mut self.receiver, wants) => match received {
                Ok(received) => Input::Received(received),
                Err(error) => Input::Lost(error),
            },
            () = sleep_until(wakes, now) => Input::Wake,
        }
    }
}

/// A task catches what panics in it, so it is only ever cancelled, and that by the end of all.
fn worked(ended: Result<Ended, tokio::task::JoinError>) -> Input {
    match ended {
        Ok((batch, messages, result)) => Input::Worked { batch, messages, result },
        Err(_) => Input::Wake,
    }
}

async fn next(receiver: &mut Option<Box<dyn Receiver>>, wants: Option<usize>) -> Result<Received> {
    match (receiver, wants) {
        (Some(receiver), Some(max)) => receiver.next(max).await,
        _ => std::future::pending().await,
    }
}

async fn sleep_until(wakes: Option<Instant>, now: Instant) {
    match wakes {
        // A little more, so that the moment has come by the machine's clock too.
        Some(at) => tokio::time::sleep(at.since(now) + Duration::from_millis(1)).await,
        None => std::future::pending().await,
    }
}

/// Returns when the consumer is to stop; whoever could say so going away means the same.
async fn told_to_stop(stopped: &mut watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stopped| *stopped).await;
}
