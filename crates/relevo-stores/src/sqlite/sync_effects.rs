//! Synchronous handlers: rusqlite transactions on a thread and a connection of their own.

use super::SqliteStore;
use super::errors::{Fault, is_snapshot_conflict, of_rusqlite, own};
use super::record::record;
use async_trait::async_trait;
use relevo_core::inbox::direct::{panic_text, record_apart};
use relevo_core::inbox::{Answer, Caution, Failure, Outcome};
use relevo_core::outbox::Store;
use relevo_core::relay::run::Destination;
use relevo_core::relay::{Batch, Delivery};
use relevo_core::{Error, Event, Kind, Result, telemetry};
use rusqlite::{Connection, Transaction, TransactionBehavior};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Between two looks at the clock a statement runs so many steps of SQLite's machine.
const STEPS_BETWEEN_LOOKS: i32 = 1000;

/// Works on events with a transaction of rusqlite, on a thread made for it.
///
/// Called once per attempt; for one key never twice at the same time and never out of order. If it answers
/// done, its writes commit together with the cursor, or the attempt did not happen. If it fails, panics or runs
/// past its limit, its writes are rolled back.
///
/// Past the limit every statement fails, so a handler that works with its transaction ends soon. One that
/// hangs elsewhere cannot be ended by anybody: it holds the file's write lock until it returns. Work that can
/// hang (the network) belongs into an asynchronous handler, which is cancelled.
pub trait SyncHandler: Send + Sync + 'static {
    /// Works on one event. Committing is not its business; trying it fails.
    fn handle(&self, event: &Event, tx: &Transaction<'_>) -> Answer;

    /// A slow handler gets a transaction of its own that takes the lock at its first write, so that slow work
    /// before it holds nothing. If it reads before it writes and somebody wrote between, it is called again.
    fn slow(&self) -> bool {
        false
    }

    /// How long one attempt may take. By default below the usual busy timeout of 5 s, so that publishers who wait
    /// meanwhile do not fail.
    fn limit(&self) -> Duration {
        Duration::from_secs(4)
    }
}

/// The destination that hands batches to a [`SyncHandler`].
pub struct SyncDirect<H> {
    jobs: Sender<Job>,
    handler: Arc<H>,
}

type Job = (Batch, oneshot::Sender<Verdict>);

/// What the thread answers.
enum Verdict {
    /// It is over.
    Delivered(Delivery),
    /// The effect was rolled back; what became of the event is recorded in a transaction of the store's own.
    RecordApart(Batch),
}

impl<H: SyncHandler> SyncDirect<H> {
    /// Hands events of `store` to `handler`, on a thread that ends with this value.
    pub fn new(store: &SqliteStore, handler: H) -> Result<Self> {
        let handler = Arc::new(handler);
        let mut worker = Worker::new(store.clone(), handler.clone())?;
        let (jobs, inbox) = channel::<Job>();
        let body = move || {
            while let Ok((batch, answer)) = inbox.recv() {
                // Nobody waits any more if the relay was aborted: what was committed is in the cursor.
                let _ = answer.send(worker.deliver(batch));
            }
        };
        std::thread::Builder::new().name("relevo-sqlite-handler".into()).spawn(body).map_err(
            |e| own(Kind::StoreFailed, format!("the handler's thread cannot be started: {e}")),
        )?;
        Ok(Self { jobs, handler })
    }

    /// Waits for the thread, and says aloud when a handler does not come back.
    async fn answer(&self, mut wait: oneshot::Receiver<Verdict>, events: usize) -> Verdict {
        let patience = self
            .handler
            .limit()
            .saturating_mul(events.max(1) as u32)
            .saturating_add(Duration::from_secs(10));
        loop {
            match tokio::time::timeout(patience, &mut wait).await {
                Ok(Ok(verdict)) => return verdict,
                Ok(Err(_)) => {
                    return Verdict::Delivered(Delivery::Void(own(
                        Kind::StoreFailed,
                        "the handler's thread has ended",
                    )));
                }
                Err(_) => tracing::error!(
                    adapter = super::ADAPTER,
                    handler = std::any::type_name::<H>(),
                    "a handler has not come back long after its limit; it may hold the file's write lock"
                ),
            }
        }
    }
}

#[async_trait]
impl<H: SyncHandler> Destination for SyncDirect<H> {
    async fn deliver(&self, store: &Arc<dyn Store>, batch: Batch) -> Delivery {
        let (answer, wait) = oneshot::channel();
        let events = batch.len();
        if self.jobs.send((batch, answer)).is_err() {
            return Delivery::Void(own(Kind::StoreFailed, "the handler's thread has ended"));
        }
        match self.answer(wait, events).await {
            Verdict::Delivered(delivery) => delivery,
            Verdict::RecordApart(batch) => record_apart(store, batch).await,
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

/// What became of a shared transaction.
#[expect(clippy::large_enum_variant, reason = "lives for the length of one call")]
enum Shared {
    Done(Delivery),
    /// It was rolled back because of the event at this place, and had no savepoints. It is done again with them; of this
    /// event the outcome is known, so that each attempt is one call.
    Spoilt(usize, Outcome),
}

/// Why a transaction did not come to its commit.
enum Broken {
    /// The attempt as a whole: timeout, panic, conflict. Rolled back.
    Attempt(Kind, String),
    /// The store failed, or another owner has the lane.
    Store(Error),
}

impl From<Error> for Broken {
    fn from(error: Error) -> Self {
        match error.kind() {
            Kind::TransactionConflict => Self::Attempt(error.kind(), error.to_string()),
            _ => Self::Store(error),
        }
    }
}

impl From<rusqlite::Error> for Broken {
    fn from(error: rusqlite::Error) -> Self {
        of_rusqlite(error).into()
    }
}

impl From<Fault> for Broken {
    fn from(fault: Fault) -> Self {
        Error::from(fault).into()
    }
}

struct Worker<H> {
    store: SqliteStore,
    conn: Connection,
    handler: Arc<H>,
    guard: Guard,
    caution: Caution,
}

/// What watches over a handler at work.
#[derive(Clone, Default)]
struct Guard {
    /// Statements fail after this moment.
    deadline: Arc<Mutex<Option<Instant>>>,
    /// Only the worker commits. On some errors SQLite ends a transaction by itself; what the handler
    /// writes afterwards would otherwise commit at once, statement by statement.
    may_commit: Arc<AtomicBool>,
}

impl Guard {
    fn watch(&self, conn: &Connection) -> rusqlite::Result<()> {
        let deadline = self.deadline.clone();
        let past = move || {
            deadline
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .is_some_and(|at| Instant::now() > at)
        };
        conn.progress_handler(STEPS_BETWEEN_LOOKS, Some(past))?;
        let may_commit = self.may_commit.clone();
        conn.commit_hook(Some(move || !may_commit.load(Ordering::Acquire)))
    }

    fn until(&self, deadline: Option<Instant>) {
        *self.deadline.lock().unwrap_or_else(PoisonError::into_inner) = deadline;
    }

    fn commit(&self, tx: Transaction<'_>) -> Result<(), Broken> {
        self.may_commit.store(true, Ordering::Release);
        let committed = tx.commit();
        self.may_commit.store(false, Ordering::Release);
        committed.map_err(|error| events_fault(of_rusqlite(error)))
    }
}

/// What SQLite refuses at the end because of what the handler wrote (a deferred foreign key) is the attempt's failure.
fn events_fault(error: Error) -> Broken {
    match error.kind() {
        Kind::StoreFailed | Kind::TransactionConflict => {
            Broken::Attempt(error.kind(), error.to_string())
        }
        _ => Broken::Store(error),
    }
}

/// A shared transaction takes in no further event after this long.
const SHARED_FOR: Duration = Duration::from_millis(750);

impl<H: SyncHandler> Worker<H> {
    fn new(store: SqliteStore, handler: Arc<H>) -> Result<Self> {
        let (conn, guard) = (store.connection()?, Guard::default());
        guard.watch(&conn).map_err(of_rusqlite)?;
        Ok(Self { store, conn, handler, guard, caution: Caution::default() })
    }

    fn deliver(&mut self, batch: Batch) -> Verdict {
        if let Err(error) = self.store.check_file() {
            return Verdict::Delivered(Delivery::Void(error));
        }
        if batch.is_single() || batch.len() == 1 {
            return self.single(batch);
        }
        let careful = batch.is_drain() || self.caution.is_due();
        let mut shared = self.shared(batch.clone(), careful, None);
        if let Ok(Shared::Spoilt(index, outcome)) = shared {
            telemetry::spoilt(&batch.lane().subscription);
            shared = self.shared(batch.clone(), true, Some((index, outcome)));
        }
        Verdict::Delivered(match shared {
            Ok(Shared::Done(delivery)) => delivery,
            Ok(Shared::Spoilt(..)) => {
                Delivery::Void(own(Kind::StoreFailed, "nothing of the batch was decided"))
            }
            Err(Broken::Attempt(kind, error)) => Delivery::Aborted {
                items: batch.into_items(),
                reason: format!("{}: {error}", kind.code()),
            },
            Err(Broken::Store(error)) => Delivery::Void(error),
        })
    }

    /// One transaction for the batch; the fence is its last statement. Without savepoints (`careful`) nothing comes of it if
    /// anything but a done effect does. What is `known` was tried already.
    fn shared(
        &mut self,
        mut batch: Batch,
        careful: bool,
        mut known: Option<(usize, Outcome)>,
    ) -> Result<Shared, Broken> {
        let tx = self.conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let begun = Instant::now();
        while let Some(index) = batch.next() {
            if let Some((_, outcome)) = known.take_if(|(tried, _)| *tried == index) {
                batch.settle(index, outcome);
                continue;
            }
            if careful {
                tx.execute_batch("SAVEPOINT relevo_event")?;
            }
            let answer = attempt(&*self.handler, &self.guard, &tx, batch.event(index))?;
            let outcome: Outcome = answer.into();
            if outcome != Outcome::Done {
                // What is tried again is expected to fail: that says nothing about other transactions.
                if !batch.is_drain() {
                    self.caution.learn();
                }
                if !careful {
                    return Ok(Shared::Spoilt(index, outcome));
                }
                tx.execute_batch("ROLLBACK TO relevo_event")?;
            }
            if careful {
                tx.execute_batch("RELEASE relevo_event")?;
            }
            batch.settle(index, outcome);
            // Publishers wait for the file meanwhile: what is left goes into the next transaction.
            if begun.elapsed() > SHARED_FOR {
                break;
            }
        }
        let (Some(change), rest) = batch.finish() else {
            return Err(Broken::Store(own(Kind::StoreFailed, "nothing of the batch was decided")));
        };
        record(&tx, &change).map_err(|fault| events_fault(fault.into()))?;
        self.guard.commit(tx)?;
        Ok(Shared::Done(Delivery::Recorded { change, rest, down: None }))
    }

    /// One event in a transaction of its own.
    fn single(&mut self, mut batch: Batch) -> Verdict {
        let Some(index) = batch.next() else { return Verdict::RecordApart(batch) };
        let first = if self.handler.slow() {
            TransactionBehavior::Deferred
        } else {
            TransactionBehavior::Immediate
        };
        let mut tried = self.alone(first, &batch, index);
        if matches!(tried, Err(Broken::Attempt(Kind::TransactionConflict, _)))
            && self.handler.slow()
        {
            // It read before somebody else wrote. With the lock from the beginning nobody can.
            tried = self.alone(TransactionBehavior::Immediate, &batch, index);
        }
        let outcome = match tried {
            Ok(Alone::Recorded(delivery)) => return Verdict::Delivered(*delivery),
            Ok(Alone::Answered(outcome)) => outcome,
            Err(Broken::Attempt(kind, error)) => Outcome::Failed {
                class: kind.class(),
                error: format!("{}: {error}", kind.code()),
                after: None,
            },
            Err(Broken::Store(error)) => return Verdict::Delivered(Delivery::Void(error)),
        };
        batch.settle(index, outcome);
        Verdict::RecordApart(batch)
    }

    /// One attempt; if it is done, its record and its commit too.
    fn alone(
        &mut self,
        behavior: TransactionBehavior,
        batch: &Batch,
        index: usize,
    ) -> Result<Alone, Broken> {
        let tx = self.conn.transaction_with_behavior(behavior)?;
        let outcome: Outcome =
            attempt(&*self.handler, &self.guard, &tx, batch.event(index))?.into();
        if outcome != Outcome::Done {
            return Ok(Alone::Answered(outcome));
        }
        let mut batch = batch.clone();
        batch.settle(index, outcome);
        let (Some(change), rest) = batch.finish() else {
            return Err(Broken::Store(own(Kind::StoreFailed, "a settled batch has no change")));
        };
        record(&tx, &change).map_err(|fault| events_fault(fault.into()))?;
        self.guard.commit(tx)?;
        Ok(Alone::Recorded(Box::new(Delivery::Recorded { change, rest, down: None })))
    }
}

/// What came of an attempt in a transaction of its own.
enum Alone {
    Recorded(Box<Delivery>),
    /// Rolled back: it failed or was skipped.
    Answered(Outcome),
}

/// One attempt at one event, under its limit.
fn attempt<H: SyncHandler>(
    handler: &H,
    guard: &Guard,
    tx: &Transaction<'_>,
    event: &Event,
) -> Result<Answer, Broken> {
    let (start, limit) = (Instant::now(), handler.limit());
    guard.until(start.checked_add(limit));
    let answer = catch_unwind(AssertUnwindSafe(|| handler.handle(event, tx)));
    guard.until(None);
    if start.elapsed() > limit {
        return Err(Broken::Attempt(
            Kind::HandlerTimeout,
            format!("the handler ran past its limit of {limit:?}"),
        ));
    }
    let answer = answer
        .map_err(|panic| Broken::Attempt(Kind::HandlerPanicked, panic_text(panic.as_ref())))?;
    if let Err(Failure::Error(_, error)) = &answer
        && error.downcast_ref::<rusqlite::Error>().is_some_and(is_snapshot_conflict)
    {
        return Err(Broken::Attempt(Kind::TransactionConflict, error.to_string()));
    }
    if tx.is_autocommit() {
        let message = "SQLite ended the transaction under the handler (disk full, an I/O error, or the handler itself)";
        return Err(Broken::Attempt(Kind::TransactionConflict, message.into()));
    }
    Ok(answer)
}
