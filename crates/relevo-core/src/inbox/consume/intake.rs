//! What a consumer does next: connect, receive, work, settle. It decides, and does nothing else.
//!
//! Batches of one source follow each other, so its order is kept; sources take turns. A batch is worked again until it
//! is committed, whatever the store's trouble, and only then is its broker told.

use super::{PAUSES, Settled};
use crate::broker::{Incoming, Received, Settle, Source};
use crate::clock::Instant;
use crate::error::{Error, Result};
use crate::mutant;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// How much is received and worked at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bounds {
    /// Most messages that share a transaction.
    pub batch: usize,
    /// Most messages of one source that wait here; more stay at the broker.
    pub queue: usize,
    /// Most sources worked at the same time.
    pub concurrency: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { batch: 50, queue: 200, concurrency: 8 }
    }
}

/// What the shell tells the machine.
#[derive(Debug)]
#[non_exhaustive]
pub enum Input {
    /// There is a receiver now, or there is none for this reason.
    Opened(Result<()>),
    /// What the receiver had to say.
    Received(Received),
    /// The receiver failed: nothing more can be asked of it.
    Lost(Error),
    /// The work on a batch ended: what to tell the broker, or why nothing was committed.
    Worked {
        /// Which one.
        batch: u64,
        /// All of it.
        messages: Vec<Incoming>,
        /// What came of it.
        result: Result<Settled>,
    },
    /// Time has passed.
    Wake,
    /// End in good order.
    Stop,
}

/// What the shell has to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum Action {
    /// Make a receiver.
    Open,
    /// Work on these messages of one source.
    Work {
        /// To know the answer by.
        batch: u64,
        /// In their order.
        messages: Vec<Incoming>,
    },
    /// Tell the receiver what became of messages.
    Settle(Settled),
    /// Ask the receiver for nothing more of this source.
    Pause(Source),
    /// Let the receiver go on with this source.
    Resume(Source),
    /// End the receiver: what is unsettled goes back to its broker.
    Close,
}

/// The connection to the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    Down {
        until: Instant,
    },
    Opening,
    Up,
    /// Not to be opened again.
    Closed,
}

#[derive(Debug, Default)]
enum Work {
    #[default]
    None,
    UnderWay(u64),
    /// To be worked again.
    Again {
        at: Instant,
        messages: Vec<Incoming>,
    },
}

/// What waits here of one source.
#[derive(Debug)]
struct Queue {
    waiting: VecDeque<Incoming>,
    work: Work,
    /// Before its batch is tried again after the store's next trouble.
    pause: Duration,
    paused: bool,
    /// Its last batch: whoever had a turn longest ago is next.
    last: u64,
}

impl Default for Queue {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), work: Work::None, pause: PAUSES.0, paused: false, last: 0 }
    }
}

impl Queue {
    fn may_start(&self, now: Instant) -> bool {
        match &self.work {
            Work::None => !self.waiting.is_empty(),
            Work::Again { at, .. } => *at <= now,
            Work::UnderWay(_) => false,
        }
    }

    fn take(&mut self, batch: u64, most: usize) -> Vec<Incoming> {
        self.last = batch;
        match std::mem::replace(&mut self.work, Work::UnderWay(batch)) {
            Work::Again { messages, .. } => messages,
            _ => self.waiting.drain(..self.waiting.len().min(most)).collect(),
        }
    }
}

/// A consumer's intake.
#[derive(Debug)]
pub struct Intake {
    bounds: Bounds,
    line: Line,
    /// Before the next attempt to connect.
    pause: Duration,
    queues: BTreeMap<Source, Queue>,
    /// Batches under way, those of sources and connections that are gone too.
    under_way: usize,
    batches: u64,
    stopping: bool,
    keeps_place: bool,
    actions: Vec<Action>,
}

impl Intake {
    /// An intake that has not begun.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            line: Line::Down { until: Instant::ZERO },
            pause: PAUSES.0,
            queues: BTreeMap::new(),
            under_way: 0,
            batches: 0,
            stopping: false,
            keeps_place: false,
            actions: Vec::new(),
        }
    }

    /// What is to be tried again keeps its place: it waits here, unsettled, and so does all that follows it in its
    /// source. Otherwise its broker keeps it until it is due.
    pub fn keeping_place(mut self, keeps: bool) -> Self {
        self.keeps_place = keeps;
        self
    }

    /// Takes what happened.
    pub fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::Opened(Ok(())) => {
                self.line = Line::Up;
                self.pause = PAUSES.0;
            }
            Input::Opened(Err(_)) => self.down(now),
            Input::Received(received) => self.received(received),
            Input::Lost(_) => self.lost(now),
            Input::Worked { batch, messages, result } => {
                self.under_way -= 1;
                self.worked(now, batch, messages, result);
            }
            Input::Stop => self.stopping = true,
            Input::Wake => {}
        }
    }

    /// What is to be done now, in this order.
    pub fn poll(&mut self, now: Instant) -> Vec<Action> {
        match self.line {
            _ if self.stopping => self.end(),
            Line::Down { until } if until <= now => {
                self.line = Line::Opening;
                self.actions.push(Action::Open);
            }
            Line::Up => self.start_work(now),
            _ => {}
        }
        std::mem::take(&mut self.actions)
    }

    /// How many messages to ask the receiver for; `None` while there is no room, or no receiver.
    pub fn wants(&self) -> Option<usize> {
        let room = self.waiting() < self.bounds.queue * self.bounds.concurrency;
        let room = room || mutant!(UnboundedIntake);
        (self.line == Line::Up && !self.stopping && room).then_some(self.bounds.batch)
    }

    /// When to wake the machine, if nothing else happens before.
    pub fn wake_at(&self) -> Option<Instant> {
        let again = self.queues.values().filter_map(|queue| match &queue.work {
            Work::Again { at, .. } => Some(*at),
            _ => None,
        });
        match self.line {
            _ if self.stopping => None,
            Line::Down { until } => Some(until),
            Line::Up if self.under_way < self.bounds.concurrency => again.min(),
            _ => None,
        }
    }

    /// True once it was stopped and nothing is under way any more.
    pub fn is_finished(&self) -> bool {
        self.stopping && self.line == Line::Closed
    }

    /// How many messages wait here.
    pub fn waiting(&self) -> usize {
        self.queues.values().map(|queue| queue.waiting.len()).sum()
    }

    /// What is under way is settled still; what would be tried again goes back to the broker.
    fn end(&mut self) {
        let idle = self.under_way == 0;
        match self.line {
            Line::Down { .. } if idle => self.line = Line::Closed,
            Line::Up if idle => {
                self.line = Line::Closed;
                self.actions.push(Action::Close);
            }
            _ => {}
        }
    }

    fn down(&mut self, now: Instant) {
        self.line = Line::Down { until: now + self.pause };
        self.pause = (self.pause * 2).min(PAUSES.1);
    }

    /// All that was not settled comes again, over another connection. What is said of it over this one means nothing.
    fn lost(&mut self, now: Instant) {
        if self.line != Line::Up {
            return;
        }
        self.queues.clear();
        self.actions.clear();
        self.actions.push(Action::Close);
        self.down(now);
    }

    fn received(&mut self, received: Received) {
        match received {
            _ if self.line != Line::Up => {}
            Received::Messages { source, messages } => {
                let queue = self.queues.entry(source.clone()).or_default();
                queue.waiting.extend(messages);
                let full = queue.waiting.len() >= self.bounds.queue && !mutant!(UnboundedIntake);
                if full && !queue.paused {
                    queue.paused = true;
                    self.actions.push(Action::Pause(source));
                }
            }
            Received::Revoked(source) => {
                self.queues.remove(&source);
            }
        }
    }

    fn start_work(&mut self, now: Instant) {
        while self.under_way < self.bounds.concurrency {
            let ready = self.queues.values_mut().filter(|queue| queue.may_start(now));
            let Some(queue) = ready.min_by_key(|queue| queue.last) else { return };
            self.batches += 1;
            self.under_way += 1;
            let (batch, messages) = (self.batches, queue.take(self.batches, self.bounds.batch));
            if mutant!(AcknowledgeFirst) {
                let done = messages.iter().map(|message| (message.tag, Settle::Done));
                self.actions.push(Action::Settle(done.collect()));
            }
            self.actions.push(Action::Work { batch, messages });
        }
    }

    /// The answer to a batch. One whose source was taken away meanwhile is nobody's: what it held comes again.
    fn worked(
        &mut self,
        now: Instant,
        batch: u64,
        mut messages: Vec<Incoming>,
        result: Result<Settled>,
    ) {
        let mine = |queue: &Queue| matches!(queue.work, Work::UnderWay(under) if under == batch);
        let Some((source, queue)) = self.queues.iter_mut().find(|(_, queue)| mine(queue)) else {
            return;
        };
        match result {
            Ok(mut settled) => {
                let wait = match self.keeps_place {
                    true => keep(&mut settled, &mut messages),
                    false => Duration::ZERO,
                };
                messages.retain(|message| settled.iter().all(|(tag, _)| *tag != message.tag));
                if mutant!(AcknowledgesTheRest) {
                    settled.extend(queue.waiting.iter().map(|next| (next.tag, Settle::Done)));
                }
                queue.pause = PAUSES.0;
                queue.work = match messages.is_empty() {
                    true => Work::None,
                    false => Work::Again { at: now + wait, messages },
                };
                if !mutant!(AcknowledgeFirst) {
                    self.actions.push(Action::Settle(settled));
                }
            }
            Err(_) => {
                queue.work = Work::Again { at: now + queue.pause, messages };
                queue.pause = (queue.pause * 2).min(PAUSES.1);
            }
        }
        if queue.paused && queue.waiting.len() <= self.bounds.queue / 2 && !mutant!(NeverResumes) {
            queue.paused = false;
            self.actions.push(Action::Resume(source.clone()));
        }
    }
}

/// Takes out what is to be tried again, as another delivery; how long it has to wait.
fn keep(settled: &mut Settled, messages: &mut [Incoming]) -> Duration {
    let mut wait = Duration::ZERO;
    settled.retain(|(tag, settle)| {
        let Settle::RetryAfter(after) = settle else { return true };
        wait = wait.max(*after);
        let retried = messages.iter_mut().filter(|message| message.tag == *tag);
        retried.for_each(|message| message.deliveries = message.deliveries.saturating_add(1));
        false
    });
    wait
}

#[cfg(test)]
#[path = "intake_tests.rs"]
mod tests;
