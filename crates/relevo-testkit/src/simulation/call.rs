//! How simulated programs talk to the world: one statement at a time, carried out when the scheduler says so.

use super::broker::LineId;
use super::options::Micros;
use super::told::Told;
use super::world::World;
use relevo_core::event::EventId;
use relevo_core::{Error, Kind, Result};
use relevo_stores::memory::{Refusal, Statement, TxId};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

/// The name of a call that only tells the journal something: no fault strikes it.
pub(super) const NOTE: &str = "note";
/// The name of the call that sends a wave on its way.
pub(super) const WAVE: &str = "begin publishing";

/// Does a call of this name go to the broker, rather than to the database?
pub(super) fn goes_to_broker(name: &str) -> bool {
    matches!(name, "publish" | WAVE | "connect" | "receive" | "acknowledge")
}

/// What a task waits for.
pub(super) enum Wait {
    /// A statement to be carried out and answered.
    Call(Call),
    /// Time.
    Sleep(Micros),
}

/// A statement on its way.
pub(super) struct Call {
    /// What it is: the boundary's name in the trace and in the counts.
    pub(super) name: &'static str,
    /// The transaction it belongs to.
    pub(super) tx: Option<TxId>,
    /// The subscriber and event it hands over.
    pub(super) about: Option<(usize, EventId)>,
    run: Box<dyn FnMut(&mut World) -> Ran + Send>,
    verdict: Arc<AtomicU8>,
}

const ANSWERED: u8 = 0;
const LOST: u8 = 1;
const CONFLICT: u8 = 2;

/// Whether a statement could be carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ran {
    Done,
    /// The answer is an error.
    Failed,
    /// Somebody has locked a row it needs.
    Locked,
}

impl Call {
    pub(super) fn run(&mut self, world: &mut World) -> Ran {
        (self.run)(world)
    }

    /// The answer will not arrive.
    pub(super) fn lose_reply(&self) {
        self.verdict.store(LOST, Ordering::Relaxed);
    }

    /// Nobody hears the answer.
    pub(super) fn is_lost(&self) -> bool {
        self.verdict.load(Ordering::Relaxed) == LOST
    }

    /// The server answers that it ended the transaction.
    pub(super) fn answer_conflict(&self) {
        self.verdict.store(CONFLICT, Ordering::Relaxed);
    }
}

/// Where tasks leave what they wait for, one task at a time.
#[derive(Clone, Default)]
pub(super) struct Mailbox {
    letters: Arc<Mutex<Letters>>,
    /// What publishers heard.
    pub(super) told: Told,
}

#[derive(Default)]
struct Letters {
    wait: Option<Wait>,
    /// Transactions whose program let go of them without an end.
    dropped: Vec<TxId>,
    /// Connections to the broker that were let go of.
    hung_up: Vec<LineId>,
}

impl Mailbox {
    /// What the task that was just polled waits for.
    pub(super) fn take(&self) -> Option<Wait> {
        self.letters().wait.take()
    }

    /// Transactions that were let go of.
    pub(super) fn take_dropped(&self) -> Vec<TxId> {
        std::mem::take(&mut self.letters().dropped)
    }

    pub(super) fn drop_transaction(&self, tx: TxId) {
        self.letters().dropped.push(tx);
    }

    /// Connections to the broker that were let go of.
    pub(super) fn take_hung_up(&self) -> Vec<LineId> {
        std::mem::take(&mut self.letters().hung_up)
    }

    pub(super) fn hang_up(&self, line: LineId) {
        self.letters().hung_up.push(line);
    }

    fn letters(&self) -> MutexGuard<'_, Letters> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, wait: Wait) {
        self.letters().wait = Some(wait);
    }

    /// A statement. Its answer is an error of kind `Unreachable` if request or reply get lost.
    pub(super) fn call<T: Send + 'static>(
        &self,
        name: &'static str,
        mut statement: impl FnMut(&mut World) -> Statement<T> + Send + 'static,
    ) -> Calling<T> {
        let (slot, verdict) = (Arc::new(Mutex::new(None)), Arc::new(AtomicU8::new(ANSWERED)));
        let answer = slot.clone();
        let run = Box::new(move |world: &mut World| {
            let (ran, result) = match statement(world) {
                Err(Refusal::Locked { .. }) => return Ran::Locked,
                Err(Refusal::Failed(error)) => (Ran::Failed, Err(error)),
                Ok(value) => (Ran::Done, Ok(value)),
            };
            *answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            ran
        });
        let call = Call { name, tx: None, about: None, run, verdict: verdict.clone() };
        Calling { mailbox: self.clone(), wait: Some(Wait::Call(call)), name, slot, verdict }
    }

    /// Waits.
    pub(super) fn sleep(&self, time: Micros) -> Sleeping {
        Sleeping { mailbox: self.clone(), wait: Some(Wait::Sleep(time)) }
    }
}

/// A statement whose answer is awaited.
pub(super) struct Calling<T> {
    mailbox: Mailbox,
    wait: Option<Wait>,
    name: &'static str,
    slot: Arc<Mutex<Option<Result<T>>>>,
    verdict: Arc<AtomicU8>,
}

impl<T> Calling<T> {
    /// It runs inside this transaction.
    pub(super) fn within(mut self, tx: TxId) -> Self {
        if let Some(Wait::Call(call)) = &mut self.wait {
            call.tx = Some(tx);
        }
        self
    }

    /// It hands this event over.
    pub(super) fn about(mut self, subscriber: usize, event: EventId) -> Self {
        if let Some(Wait::Call(call)) = &mut self.wait {
            call.about = Some((subscriber, event));
        }
        self
    }
}

impl<T> Future for Calling<T> {
    type Output = Result<T>;

    /// The scheduler polls a second time only when there is an answer, or none will come.
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(wait) = self.wait.take() {
            self.mailbox.put(wait);
            return Poll::Pending;
        }
        let answer = self.slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        Poll::Ready(match (self.verdict.load(Ordering::Relaxed), answer) {
            (ANSWERED, Some(answer)) => answer,
            (CONFLICT, _) => {
                Err(Error::new(Kind::TransactionConflict, "the server ended the transaction"))
            }
            _ => Err(Error::new(Kind::Unreachable, format!("no answer to {:?}", self.name))),
        })
    }
}

/// Time that passes.
pub(super) struct Sleeping {
    mailbox: Mailbox,
    wait: Option<Wait>,
}

impl Future for Sleeping {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        match self.wait.take() {
            Some(wait) => {
                self.mailbox.put(wait);
                Poll::Pending
            }
            None => Poll::Ready(()),
        }
    }
}
