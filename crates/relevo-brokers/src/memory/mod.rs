//! A broker inside the process: for tests, for the simulator, and for one process that needs nothing more.
//!
//! Queues are bound by topic filters; every queue whose filter matches gets a copy. It keeps the whole contract:
//! what nobody would receive is refused, a full queue refuses, a message is delivered until it is settled. What it
//! stores ends with the process.
//!
//! - `config`: how a queue behaves
//! - `queue`, `queues`: what is stored and who holds it, without any waiting
//! - `publisher`, `subscriber`: the two directions

mod config;
mod publisher;
mod queue;
mod queues;
mod subscriber;

pub use config::{Fault, QueueConfig};
pub use publisher::MemoryPublisher;
pub use queue::Message;
pub use queues::{ConsumerId, Queues};
pub use subscriber::MemorySubscriber;

use relevo_core::ErrorClass;
use relevo_core::broker::cloudevents::Binding;
use relevo_core::broker::{Capabilities, Confirm};
use relevo_core::clock::{Clock, Instant};
use relevo_core::event::TopicFilter;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

const NAME: &str = "memory";

/// How its messages carry CloudEvents attributes: as Kafka's do, any text.
pub const BINDING: Binding = Binding::KAFKA;

/// A broker in this process; clones are the same broker.
#[derive(Clone, Default)]
pub struct MemoryBroker {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// Rings with every change.
    changed: Notify,
    clock: Clock,
}

impl Default for Shared {
    fn default() -> Self {
        Self { state: Mutex::default(), changed: Notify::new(), clock: Clock::start() }
    }
}

#[derive(Default)]
struct State {
    queues: Queues,
    fault: Fault,
    /// Counts the restarts: whoever was connected before one is connected no more.
    restarts: u64,
}

impl MemoryBroker {
    /// A broker without queues.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a queue that gets a copy of what matches one of `filters`. One that is there already stays as it is,
    /// with what it stores, and is bound anew.
    pub fn declare(&self, queue: &str, filters: Vec<TopicFilter>, config: QueueConfig) {
        self.state().queues.declare(queue, filters, config);
        self.shared.changed.notify_waiters();
    }

    /// Deletes a queue with what it stores; its consumers are told.
    pub fn delete(&self, queue: &str) {
        self.state().queues.delete(queue);
        self.shared.changed.notify_waiters();
    }

    /// Ends every connection, as a restart does: what was unsettled comes again.
    pub fn restart(&self) {
        let mut state = self.state();
        state.restarts += 1;
        state.queues.detach_all();
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
        self.state().queues.depth(queue)
    }

    /// Stores a message as any other program would: no headers but its own.
    pub fn put(&self, message: Message) -> Confirm {
        let confirm = self.state().queues.store(message);
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

    fn now(&self) -> Instant {
        self.shared.clock.now()
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
    can.delays_at_broker = true;
    can.exclusive_sources = true;
    can.stable_position = true;
    can.refuses_when_full = true;
    can
}
