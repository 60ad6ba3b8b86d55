//! Works batches through a handler, inside transactions of the user's driver.

use super::caution::Caution;
use super::effect::{Effect, TxDriver};
use super::outcome::Outcome;
use super::{Answer, Failure, Handler, Settled};
use crate::error::{Error, Kind, Result};
use crate::event::Event;
use crate::outbox::{LaneChange, Store};
use crate::relay::run::Destination;
use crate::relay::{Batch, Delivery};
use crate::{mutant, telemetry};
use async_trait::async_trait;
use futures::FutureExt;
use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// A handler with the driver its transactions come from.
pub struct Direct<D, H> {
    driver: D,
    handler: H,
    /// Set by hand; otherwise the lease of a batch tells.
    idle_limit: Option<Duration>,
    pub(super) caution: Caution,
}

/// Why a transaction did not come to its commit.
pub(super) enum Broken {
    /// The handler's attempt failed as a whole: timeout, panic, conflict. Rolled back.
    Attempt(Kind, String),
    /// The store failed, or another owner has the lane.
    Store(Error),
}

impl Broken {
    /// Has somebody waited in vain, so that the connection's state is not known?
    fn in_doubt(&self) -> bool {
        match self {
            Self::Attempt(kind, _) => *kind == Kind::HandlerTimeout,
            Self::Store(error) => matches!(error.kind(), Kind::Timeout | Kind::CommitUnknown),
        }
    }
}

/// The end of a transaction's connection: one that nobody heard from again must not be the next one's.
pub(super) fn give_back<D: TxDriver, T>(
    driver: &D,
    conn: Option<D::Conn>,
    result: Result<T, Broken>,
    is_committed: impl Fn(&T) -> bool,
) -> Result<T, Broken> {
    match (&result, conn) {
        (Err(broken), conn) if broken.in_doubt() => driver.distrust(conn),
        (Ok(done), Some(conn)) if is_committed(done) => driver.committed(conn),
        (_, conn) => drop(conn),
    }
    result
}

/// The same, after the connection itself has gone back.
pub(super) fn distrust<D: TxDriver>(driver: &D, broken: &Broken) {
    if broken.in_doubt() {
        driver.distrust(None);
    }
}

impl From<Error> for Broken {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl<D: TxDriver, H: Handler<D>> Direct<D, H> {
    /// Hands events to `handler`, with transactions from `driver`.
    pub fn new(driver: D, handler: H) -> Self {
        Self { driver, handler, idle_limit: None, caution: Caution::default() }
    }

    /// How long a session may idle inside the transaction before the server ends it (default: four fifths of the
    /// subscription's lease, 8 s). Keep it below the lease: a stopped process must not hold row locks for longer.
    pub fn idle_limit(mut self, limit: Duration) -> Self {
        self.idle_limit = Some(limit);
        self
    }

    fn idle_limit_of(&self, batch: &Batch) -> Duration {
        self.idle_limit.unwrap_or_else(|| batch.idle_limit())
    }

    /// One transaction for the batch; the fence is its last statement. Without savepoints (`careful`) nothing comes of it if
    /// anything but a done effect does. What is `known` was tried already.
    async fn shared(
        &self,
        batch: Batch,
        careful: bool,
        known: Option<Tried>,
    ) -> Result<Shared<Delivery>, Broken> {
        let mut slot = None;
        let shared = self.shared_on(&mut slot, batch, careful, known).await;
        let is_recorded = |done: &_| matches!(done, Shared::Done(Delivery::Recorded { .. }));
        give_back(&self.driver, slot, shared, is_recorded)
    }

    async fn shared_on(
        &self,
        slot: &mut Option<D::Conn>,
        mut batch: Batch,
        careful: bool,
        mut known: Option<Tried>,
    ) -> Result<Shared<Delivery>, Broken> {
        let mut effect = Effect::new(&self.driver, slot, self.idle_limit_of(&batch));
        in_time(effect.tx()).await?;
        if mutant!(FenceFirst) {
            in_time(D::record(effect.tx().await?, &batch.staying())).await?;
        }
        let begun = Instant::now();
        while let Some(index) = batch.next() {
            let before = self.answered_before(&batch, index);
            let outcome = match before.or_else(|| outcome_of(&mut known, index)) {
                Some(outcome) => outcome,
                None => {
                    let tried = self.attempt(batch.event(index), &mut effect, careful).await?;
                    let outcome: Outcome = tried.into();
                    // What is tried again is expected to fail: that says nothing about other transactions.
                    if outcome != Outcome::Done && !batch.is_drain() {
                        self.caution.learn();
                    }
                    if is_spoilt(&outcome, careful) {
                        return Ok(Shared::Spoilt((index, outcome)));
                    }
                    outcome
                }
            };
            batch.settle(index, outcome);
            if begun.elapsed() > D::HOLD / 4 {
                break;
            }
        }
        let (change, rest) = batch.finish();
        let Some(change) = change else {
            let reason = "empty batch".into();
            return Ok(Shared::Done(Delivery::Down { items: rest, reason }));
        };
        self.record_and_commit(effect, &change).await?;
        Ok(Shared::Done(Delivery::Recorded { change, rest, down: None }))
    }

    /// One attempt at one event. A failure the handler answers is undone to the savepoint; anything else breaks
    /// the transaction.
    pub(super) async fn attempt(
        &self,
        event: &Event,
        effect: &mut Effect<'_, D>,
        share: bool,
    ) -> Result<Answer, Broken> {
        let broken = |kind: Kind, text: String| Broken::Attempt(kind, text);
        if share {
            in_time(D::savepoint(effect.tx().await?)).await?;
        }
        let opened = effect.opened();
        // Inside the future, so that a handler that panics before its first await is caught too.
        let work = async { self.handler.handle(event, effect).await };
        let work = AssertUnwindSafe(work).catch_unwind();
        let answer = tokio::select! {
            answer = work => answer.map_err(|panic| broken(Kind::HandlerPanicked, panic_text(panic.as_ref())))?,
            late = past_limit::<D>(self.handler.limit(), opened) => return Err(broken(Kind::HandlerTimeout, late)),
        };
        if let (Err(_), Some(trouble)) = (&answer, effect.trouble()) {
            return Err(Broken::Store(trouble));
        }
        if let Err(Failure::Error(_, error)) = &answer
            && in_chain(error.as_ref(), D::is_conflict)
        {
            return Err(broken(Kind::TransactionConflict, error.to_string()));
        }
        if share && !matches!(answer, Ok(Settled::Done)) && !mutant!(NoUndo) {
            let undone = in_time(D::undo(effect.tx().await?)).await;
            undone.map_err(|error| broken(error.kind(), error.to_string()))?;
        }
        Ok(answer)
    }

    /// An attempt made before the event came into the log. One put back by an operator is tried anew.
    fn answered_before(&self, batch: &Batch, index: usize) -> Option<Outcome> {
        if batch.is_drain() { None } else { self.handler.answered_before(batch.event(index)) }
    }

    /// One event with a transaction of its own, begun by the handler's first use of it.
    async fn single(&self, store: &Arc<dyn Store>, mut batch: Batch) -> Delivery {
        let Some(index) = batch.next() else { return record_apart(store, batch).await };
        let outcome = match self.alone(&batch, index).await {
            Ok(Ok(delivery)) => return delivery,
            Ok(Err(outcome)) => outcome,
            Err(Broken::Attempt(kind, error)) => Outcome::Failed {
                class: kind.class(),
                error: format!("{}: {error}", kind.code()),
                after: None,
            },
            Err(Broken::Store(error)) => return Delivery::Void(error),
        };
        batch.settle(index, outcome);
        record_apart(store, batch).await
    }

    /// One attempt; if it is done, its record and its commit too. Any other answer was rolled back.
    async fn alone(
        &self,
        batch: &Batch,
        index: usize,
    ) -> Result<Result<Delivery, Outcome>, Broken> {
        let mut slot = None;
        let alone = self.alone_on(&mut slot, batch, index).await;
        give_back(&self.driver, slot, alone, |done| matches!(done, Ok(Delivery::Recorded { .. })))
    }

    async fn alone_on(
        &self,
        slot: &mut Option<D::Conn>,
        batch: &Batch,
        index: usize,
    ) -> Result<Result<Delivery, Outcome>, Broken> {
        let mut effect = Effect::new(&self.driver, slot, self.idle_limit_of(batch));
        if mutant!(FenceFirst) {
            in_time(D::record(effect.tx().await?, &batch.staying())).await?;
        }
        let outcome = match self.answered_before(batch, index) {
            Some(outcome) => outcome,
            None => self.attempt(batch.event(index), &mut effect, false).await?.into(),
        };
        if outcome != Outcome::Done {
            return Ok(Err(outcome));
        }
        let mut batch = batch.clone();
        batch.settle(index, outcome);
        let (Some(change), rest) = batch.finish() else {
            return Err(Broken::Store(Error::new(
                Kind::StoreFailed,
                "a settled batch has no change",
            )));
        };
        self.record_and_commit(effect, &change).await?;
        Ok(Ok(Delivery::Recorded { change, rest, down: None }))
    }

    /// The end of every effect: the change, whose last statement is the fence, then the commit. What the server
    /// refuses because of what the handler wrote (a deferred constraint, an error it swallowed, a session it let
    /// idle for too long) is the attempt's failure; everything else is the store's.
    async fn record_and_commit(
        &self,
        mut effect: Effect<'_, D>,
        change: &LaneChange,
    ) -> Result<(), Broken> {
        // A slow handler that used no transaction still needs one to record in.
        in_time(effect.tx()).await?;
        let limit = effect.idle_limit();
        let idled = effect.open_for() >= limit;
        let gone = || Error::new(Kind::StoreFailed, "the transaction is gone");
        let mut tx = effect.into_open().ok_or_else(gone)?;
        let written = match in_time(D::record(&mut tx, change)).await {
            Ok(()) => commit::<D>(tx).await,
            Err(error) => Err(error),
        };
        written.map_err(|error| match error.kind() {
            Kind::StoreFailed | Kind::TransactionConflict => {
                Broken::Attempt(error.kind(), error.to_string())
            }
            Kind::Unreachable if idled => Broken::Attempt(
                Kind::HandlerTimeout,
                format!("the transaction stood idle for longer than {limit:?}"),
            ),
            _ => Broken::Store(error),
        })
    }
}

/// An event by its place in the batch, and what came of its attempt.
pub(super) type Tried = (usize, Outcome);

/// What became of a shared transaction.
pub(super) enum Shared<T> {
    Done(T),
    /// It was rolled back because of this one, and had no savepoints. It is done again with them; of this one the outcome
    /// is known, so that each attempt is one call.
    Spoilt(Tried),
}

/// The outcome of the event at `index`, if it was tried in the transaction that it spoilt.
pub(super) fn outcome_of(known: &mut Option<Tried>, index: usize) -> Option<Outcome> {
    known.take_if(|(tried, _)| *tried == index).map(|(_, outcome)| outcome)
}

/// Are there effects in the shared transaction now that must be undone, and no savepoint before them?
pub(super) fn is_spoilt(outcome: &Outcome, careful: bool) -> bool {
    *outcome != Outcome::Done && !careful && !mutant!(KeepsSpoilt)
}

pub(super) async fn commit<D: TxDriver>(tx: D::Tx<'_>) -> Result<()> {
    let late =
        || Error::new(Kind::CommitUnknown, format!("no answer to COMMIT within {PATIENCE:?}"));
    tokio::time::timeout(PATIENCE, D::commit(tx)).await.unwrap_or_else(|_| Err(late()))
}

/// Returns when an attempt has taken too long: all in all, or with its transaction open.
async fn past_limit<D: TxDriver>(
    limit: Duration,
    mut opened: watch::Receiver<Option<Instant>>,
) -> String {
    let begun = Instant::now();
    let held = async {
        match opened.wait_for(Option::is_some).await.map(|opened| *opened) {
            Ok(Some(opened)) => tokio::time::sleep_until(opened.max(begun) + D::HOLD).await,
            // The effect is gone: the attempt ends on its own.
            _ => std::future::pending().await,
        }
    };
    tokio::select! {
        () = tokio::time::sleep(limit) => format!("the handler ran past its limit of {limit:?}"),
        () = held => format!("the handler held its transaction open for longer than {:?}", D::HOLD),
    }
}

/// How long the store may take for one statement; a half-open connection must not hold a lane for ever.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) async fn in_time<T>(answer: impl Future<Output = Result<T>>) -> Result<T> {
    let late = || Error::new(Kind::Timeout, format!("no answer within {PATIENCE:?}"));
    tokio::time::timeout(PATIENCE, answer).await.unwrap_or_else(|_| Err(late()))
}

fn in_chain(
    error: &(dyn std::error::Error + 'static),
    test: fn(&(dyn std::error::Error + 'static)) -> bool,
) -> bool {
    test(error) || error.source().is_some_and(|source| in_chain(source, test))
}

/// Records a batch whose effects were rolled back (or never were) in a transaction of the store's own.
pub async fn record_apart(store: &Arc<dyn Store>, batch: Batch) -> Delivery {
    match batch.finish() {
        (Some(change), rest) => match store.record(std::slice::from_ref(&change)).await {
            Ok(()) => Delivery::Recorded { change, rest, down: None },
            Err(error) => Delivery::Void(error),
        },
        (None, items) => Delivery::Down { items, reason: "nothing was decided".into() },
    }
}

/// What a panic said.
pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(ToString::to_string)
        .or_else(|| panic.downcast_ref::<String>().cloned());
    format!("panicked: {}", text.unwrap_or_else(|| "no text".into()))
}

#[async_trait]
impl<D: TxDriver, H: Handler<D>> Destination for Direct<D, H> {
    async fn deliver(&self, store: &Arc<dyn Store>, batch: Batch) -> Delivery {
        if batch.is_single() || batch.len() == 1 {
            return self.single(store, batch).await;
        }
        let careful = D::SAVEPOINTS_TELL || batch.is_drain() || self.caution.is_due();
        let mut shared = self.shared(batch.clone(), careful, None).await;
        if let Ok(Shared::Spoilt(known)) = shared {
            telemetry::spoilt(&batch.lane().subscription);
            shared = self.shared(batch.clone(), true, Some(known)).await;
        }
        match shared {
            Ok(Shared::Done(delivery)) => delivery,
            Ok(Shared::Spoilt(_)) => {
                let reason = "it was spoilt in spite of its savepoints".into();
                Delivery::Aborted { items: batch.into_items(), reason }
            }
            Err(Broken::Attempt(kind, error)) => Delivery::Aborted {
                items: batch.into_items(),
                reason: format!("{}: {error}", kind.code()),
            },
            Err(Broken::Store(error)) if error.kind() == Kind::TransactionConflict => {
                Delivery::Aborted { items: batch.into_items(), reason: error.to_string() }
            }
            Err(Broken::Store(error)) => Delivery::Void(error),
        }
    }

    fn one_transaction(&self) -> bool {
        true
    }

    fn shares_transactions(&self) -> bool {
        !self.handler.slow()
    }

    fn describe(&self) -> String {
        format!("handler {}", std::any::type_name::<H>())
    }
}

#[cfg(test)]
#[path = "direct_tests.rs"]
mod tests;
