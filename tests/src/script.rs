//! What a handler under test does with each event, and what it was seen to do.

use relevo_core::event::{Event, EventId, NewEvent};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// What to do with an event, after its effect was written into the transaction.
#[derive(Debug, Clone)]
pub enum Act {
    /// Answer done.
    Done,
    /// Answer skip.
    Skip(&'static str),
    /// Answer retry after.
    RetryAfter(Duration, &'static str),
    /// Answer failed for good.
    ForGood(&'static str),
    /// Answer an error.
    Fail(&'static str),
    /// Run a statement that fails, and answer its error.
    FailStatement,
    /// Panic.
    Panic,
    /// Never come back (asynchronous), or far past the limit (synchronous).
    Hang,
    /// Read the payload as a number, and answer the error if it is none.
    Decode,
    /// Publish this too, then answer done.
    Publish(NewEvent),
    /// Publish this too, then answer an error.
    PublishAndFail(NewEvent),
}

type Rule = dyn Fn(&Event, u32) -> Act + Send + Sync;

/// A handler's behaviour.
#[derive(Clone)]
pub struct Script {
    rule: Arc<Rule>,
    /// Gets a transaction of its own, begun at its first use.
    pub slow: bool,
    /// How long one attempt may take.
    pub limit: Duration,
    /// Before the transaction is used: wait for a permit.
    pub gate: Option<Arc<Semaphore>>,
    journal: Arc<Mutex<Journal>>,
}

#[derive(Debug, Default)]
struct Journal {
    attempts: BTreeMap<EventId, Vec<Instant>>,
}

impl Script {
    /// Acts on an event by its attempt, counted from 1.
    pub fn new(rule: impl Fn(&Event, u32) -> Act + Send + Sync + 'static) -> Self {
        let journal = Arc::default();
        Self {
            rule: Arc::new(rule),
            slow: false,
            limit: Duration::from_secs(20),
            gate: None,
            journal,
        }
    }

    /// Everything is done at the first attempt.
    pub fn done() -> Self {
        Self::new(|_, _| Act::Done)
    }

    /// The first event of the key `bad` fails until the switch says that its cause is mended.
    pub fn bad_until_mended() -> (Self, Arc<AtomicBool>) {
        let mended = Arc::new(AtomicBool::new(false));
        let seen = mended.clone();
        let is_bad = |event: &Event| event.key.as_deref() == Some("bad") && event.payload == "0";
        let script =
            Self::new(move |event, _| match is_bad(event) && !seen.load(Ordering::SeqCst) {
                true => Act::Fail("not yet"),
                false => Act::Done,
            });
        (script, mended)
    }

    /// Declares the handler slow.
    pub fn slow(mut self) -> Self {
        self.slow = true;
        self
    }

    /// Limits an attempt.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Waits for a permit before the transaction is used.
    pub fn gate(mut self, gate: &Arc<Semaphore>) -> Self {
        self.gate = Some(gate.clone());
        self
    }

    fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes an attempt and says what to do.
    pub fn act(&self, event: &Event) -> Act {
        let attempt = {
            let mut journal = self.journal();
            let attempts = journal.attempts.entry(event.id).or_default();
            attempts.push(Instant::now());
            attempts.len() as u32
        };
        (self.rule)(event, attempt)
    }

    /// How many attempts an event had.
    pub fn attempts(&self, event: EventId) -> usize {
        self.journal().attempts.get(&event).map_or(0, Vec::len)
    }

    /// When an event was attempted.
    pub fn times(&self, event: EventId) -> Vec<Instant> {
        self.journal().attempts.get(&event).cloned().unwrap_or_default()
    }
}
