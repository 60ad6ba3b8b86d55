//! One subscription at work: started, watched, and started again when it ends by itself.

use super::board::{Board, State};
use super::stores::Stores;
use crate::config::SubscriptionConfig;
use crate::store::Opened;
use relevo_core::clock::{Clock, Rng};
use relevo_core::flow::Pace;
use relevo_core::outbox::adopt::Mapping;
use relevo_core::outbox::{MemberId, Store};
use relevo_core::relay::run::{Destination, Running, start};
use relevo_core::{Error, Kind, Result};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Pauses between tries to start double from the first to the second.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// How long taking leave of a destination may take.
const FAREWELL: Duration = Duration::from_secs(2);

/// A relay that worked for this long and then ended starts again with the shortest pause.
const SETTLED_AFTER: Duration = Duration::from_secs(60);

pub(super) struct Worker {
    pub(super) name: String,
    pub(super) config: SubscriptionConfig,
    /// The table it relays instead of the log, under the name it was adopted by.
    pub(super) adopted: Option<(String, Mapping)>,
    pub(super) destination: Arc<dyn Destination>,
    pub(super) member: MemberId,
    pub(super) stores: Arc<Stores>,
    pub(super) board: Board,
    pub(super) drain: Duration,
}

impl Worker {
    /// Works until told to stop, or until an operator removes the subscription. Its failures are its own.
    pub(super) async fn work(self, mut stop: watch::Receiver<bool>) -> Result<()> {
        let result = self.until_told(&mut stop).await;
        if result.is_ok() {
            // Nothing is under way: it is a matter of politeness, and no reason to wait for long.
            let closed = tokio::time::timeout(FAREWELL, self.destination.close()).await;
            tracing::debug!(subscription = self.name, in_time = closed.is_ok(), "closed");
        }
        result
    }

    async fn until_told(&self, stop: &mut watch::Receiver<bool>) -> Result<()> {
        let clock = Clock::start();
        let mut pace = Pace::new(PAUSES.0, PAUSES.1);
        loop {
            let begun = clock.now();
            let ended = match self.until_stopped(stop).await {
                Ok(()) => return self.end(State::Stopped, Ok(())),
                Err(Ended::Stopping(result)) => return self.end(State::Stopped, result),
                Err(Ended::Alone(error)) => error,
            };
            if ended.kind() == Kind::UnknownSubscription {
                eprintln!("subscription {}: {ended}; it is no longer worked here", self.name);
                return self.end(State::Removed, Ok(()));
            }
            if clock.now().since(begun) > SETTLED_AFTER {
                pace.busy();
            }
            pace.quiet(clock.now());
            let pause = spread(pace.until().since(clock.now()));
            eprintln!(
                "subscription {}: {ended}; trying again in {:.1} s",
                self.name,
                pause.as_secs_f64()
            );
            self.board.failed(&self.name, ended.to_string());
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = told(stop) => return self.end(State::Stopped, Ok(())),
            }
        }
    }

    fn end(&self, state: State, result: Result<()>) -> Result<()> {
        self.board.ended(&self.name, state);
        result
    }

    /// Starts and works. `Ok`: told to stop before it was at work.
    async fn until_stopped(&self, stop: &mut watch::Receiver<bool>) -> Result<(), Ended> {
        let running = tokio::select! {
            started = self.start() => started.map_err(Ended::Alone)?,
            () = told(stop) => return Ok(()),
        };
        self.board.running(&self.name, &running);
        let mut figures = running.watch();
        tokio::select! {
            () = async { while figures.changed().await.is_ok() {} } => Err(Ended::Alone(reason(running).await)),
            () = told(stop) => Err(Ended::Stopping(running.stop(self.drain).await)),
        }
    }

    async fn start(&self) -> Result<Running> {
        let opened = self.stores.get(&self.config.store).await?;
        let store = self.store(&opened).await?;
        let SubscriptionConfig { subscription, relay, .. } = self.config.clone();
        start(store, subscription, relay, self.destination.clone(), self.member.clone()).await
    }
}

impl Worker {
    /// What it relays: the log, or a table of somebody else's.
    async fn store(&self, opened: &Opened) -> Result<Arc<dyn Store>> {
        let Some((name, mapping)) = &self.adopted else { return Ok(opened.store.clone()) };
        let table = opened.adopt.adopt_table(name, mapping.clone()).await?;
        for note in table.probe().await?.notes {
            eprintln!("adopt {name}: {note}");
        }
        self.stores.keep_adopted(&self.name, table.clone());
        Ok(table)
    }
}

/// Why a worker's relay is no longer at work.
enum Ended {
    /// It was told to stop, with this result.
    Stopping(Result<()>),
    /// By itself.
    Alone(Error),
}

/// What a relay that ended by itself says.
async fn reason(running: Running) -> Error {
    match running.stop(Duration::from_secs(1)).await {
        Ok(()) => Error::new(Kind::StoreFailed, "the relay ended without being told to"),
        Err(error) => error,
    }
}

/// Returns once everything is told to stop.
pub(super) async fn told(stop: &mut watch::Receiver<bool>) {
    // A closed channel means that the daemon is gone: stop as well.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// 80 to 120 % of a pause, so that many do not come back in step.
pub(super) fn spread(pause: Duration) -> Duration {
    pause.mul_f64(0.8 + 0.4 * Rng::from_os().unit())
}
