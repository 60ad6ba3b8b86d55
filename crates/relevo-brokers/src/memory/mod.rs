//! A broker inside the process: for tests, for the simulator, and for one process that needs nothing more.
//!
//! Queues are bound by topic filters; every queue whose filter matches gets a copy. It keeps the whole contract:
//! what nobody would receive is refused, a full queue refuses, a message is delivered until it is settled. What it
//! stores ends with the process.
//!
//! - `config`: how a queue behaves
//! - `queue`: what is stored and who holds it, without any waiting
//! - `publisher`, `subscriber`: the two directions

mod config;
mod publisher;
mod queue;
mod subscriber;

pub use config::{Fault, QueueConfig};
pub use publisher::MemoryPublisher;
pub use queue::Message;
pub use subscriber::MemorySubscriber;

use queue::{Queue, Settled};
use relevo_core::broker::cloudevents::Binding;
use relevo_core::broker::{Capabilities, Confirm, Tag};
use relevo_core::event::TopicFilter;
use relevo_core::{Error, ErrorClass, Kind, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tokio::time::Instant;

const NAME: &str = "memory";

/// How its messages carry CloudEvents attributes: as Kafka's do, any text.
pub const BINDING: Binding = Binding::KAFKA;

/// A broker in this process; clones are the same broker.
#[derive(Clone, Default)]
pub struct MemoryBroker {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Rings with every change.
    changed: Notify,
}

#[derive(Default)]
struct State {
    queues: BTreeMap<String, Queue>,
    fault: Fault,
    /// Counts the restarts: whoever was connected before one is connected no more.
    restarts: u64,
    last_tag: u64,
    last_consumer: u64,
}

impl MemoryBroker {
    /// A broker without queues.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a queue that gets a copy of what matches one of `filters`. One that is there already stays as it is,
    /// with what it stores, and is bound anew.
    pub fn declare(&self, queue: &str, filters: Vec<TopicFilter>, config: QueueConfig) {
        let mut state = self.state();
        let queues = &mut state.queues;
        match queues.get_mut(queue) {
            Some(there) => there.bind(filters, config),
            None => drop(queues.insert(queue.to_owned(), Queue::new(queue, filters, config))),
        }
        drop(state);
        self.shared.changed.notify_waiters();
    }

    /// Deletes a queue with what it stores; its consumers are told.
    pub fn delete(&self, queue: &str) {
        self.state().queues.remove(queue);
        self.shared.changed.notify_waiters();
    }

    /// Ends every connection, as a restart does: what was unsettled comes again.
    pub fn restart(&self) {
        let mut state = self.state();
        state.restarts += 1;
        state.queues.values_mut().for_each(Queue::forget_consumers);
        drop(state);
        self.shared.changed.notify_waiters();
    }

    /// From now on it fails like this.
    pub fn fail(&self, fault: Fault) {
        self.state().fault = fault;
        self.shared.changed.notify_waiters();
    }

    /// How many messages a queue has, those that are unsettled among them.
    pub fn depth(&self, queue: &str) -> usize {
        self.state().queues.get(queue).map_or(0, Queue::depth)
    }

    /// Stores a message as any other program would: no headers but its own.
    pub fn put(&self, message: Message) -> Confirm {
        let confirm = self.state().store(message);
        self.shared.changed.notify_waiters();
        confirm
    }

    /// Publishes to it.
    pub fn publisher(&self) -> MemoryPublisher {
        MemoryPublisher::new(self.clone())
    }

    /// Consumes one of its queues.
    pub fn subscriber(&self, queue: &str) -> MemorySubscriber {
        MemorySubscriber::new(self.clone(), queue)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settle(&self, queue: &str, tag: Tag, settled: Settled) -> Result<()> {
        let put_away = self.state().settle(queue, tag, settled);
        self.shared.changed.notify_waiters();
        put_away
    }
}

impl State {
    /// Every queue that wants it gets it, or none does.
    fn store(&mut self, message: Message) -> Confirm {
        let wants = |queue: &&mut Queue| queue.wants(&message.topic);
        if let Some(limit) = self.too_large_for(&message) {
            let error = format!("{} bytes, the queue takes {limit}", message.payload.len());
            return refused(ErrorClass::Poison, error);
        }
        let mut queues: Vec<&mut Queue> = self.queues.values_mut().filter(wants).collect();
        if queues.is_empty() {
            let error = format!("no queue is bound to {}", message.topic);
            return refused(ErrorClass::Permanent, error);
        }
        if let Some(full) = queues.iter().find(|queue| queue.is_full()) {
            return refused(ErrorClass::Transient, format!("queue {} is full", full.name()));
        }
        let message = Arc::new(message);
        queues.iter_mut().for_each(|queue| queue.push(message.clone()));
        Confirm::Stored
    }

    fn too_large_for(&self, message: &Message) -> Option<usize> {
        let wanting = self.queues.values().filter(|queue| queue.wants(&message.topic));
        wanting.map(|queue| queue.config().max_bytes).find(|limit| message.payload.len() > *limit)
    }

    fn settle(&mut self, queue: &str, tag: Tag, settled: Settled) -> Result<()> {
        let Some(from) = self.queues.get_mut(queue) else { return Ok(()) };
        let Settled::Dead { reason } = settled else {
            from.settle(tag, settled);
            return Ok(());
        };
        let Some(letter) = from.dead_letter(tag, &reason) else { return Ok(()) };
        let Some(to) = from.config().dead_letters.clone() else {
            let why = format!("queue {queue} has no queue for dead letters");
            return Err(Error::new(Kind::InvalidConfig, why).from_adapter(NAME));
        };
        let Some(dead) = self.queues.get_mut(&to) else {
            let why = format!("the queue for dead letters, {to}, is not there");
            return Err(Error::new(Kind::DestinationRefused, why).from_adapter(NAME));
        };
        dead.push(Arc::new(letter));
        if let Some(from) = self.queues.get_mut(queue) {
            from.settle(tag, Settled::Done);
        }
        Ok(())
    }

    /// When something that waits for its time will be due.
    fn next_due(&self, queue: &str) -> Option<Instant> {
        self.queues.get(queue).and_then(Queue::next_due)
    }
}

fn refused(class: ErrorClass, error: String) -> Confirm {
    Confirm::Refused { class, error, after: None }
}

fn capabilities() -> Capabilities {
    let mut can = Capabilities::default();
    can.publishes = true;
    can.consumes = true;
    can.refuses_unroutable = true;
    can.ordered = true;
    can.exclusive_sources = true;
    can.stable_position = true;
    can.refuses_when_full = true;
    can
}
