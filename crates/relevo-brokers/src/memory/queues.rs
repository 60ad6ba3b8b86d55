use super::config::QueueConfig;
use super::queue::{Message, Queue};
use super::{NAME, refused};
use relevo_core::broker::{Confirm, Incoming, Settle, Tag};
use relevo_core::clock::Instant;
use relevo_core::event::TopicFilter;
use relevo_core::{Error, ErrorClass, Kind, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Whoever receives from a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConsumerId(u64);

/// What the broker stores and who holds it. It decides, and waits for nothing; the clock is the caller's. A
/// [`MemoryBroker`](super::MemoryBroker) is one of these that is shared and rings; the simulator has one of its own.
#[derive(Default)]
pub struct Queues {
    queues: BTreeMap<String, Queue>,
    /// Places are counted through all queues: the lower one was stored earlier.
    last_place: u64,
    last_tag: u64,
    last_consumer: u64,
}

impl Queues {
    /// Makes a queue that gets a copy of what matches one of `filters`. One that is there already stays as it is,
    /// with what it stores, and is bound anew.
    pub fn declare(&mut self, queue: &str, filters: Vec<TopicFilter>, config: QueueConfig) {
        match self.queues.get_mut(queue) {
            Some(there) => there.bind(filters, config),
            None => drop(self.queues.insert(queue.to_owned(), Queue::new(queue, filters, config))),
        }
    }

    /// Deletes a queue with what it stores.
    pub fn delete(&mut self, queue: &str) {
        self.queues.remove(queue);
    }

    /// Is there such a queue?
    pub fn has(&self, queue: &str) -> bool {
        self.queues.contains_key(queue)
    }

    /// How many messages a queue has, those that are unsettled among them.
    pub fn depth(&self, queue: &str) -> usize {
        self.queues.get(queue).map_or(0, Queue::depth)
    }

    /// Stores a message in every queue that wants it, or in none.
    pub fn store(&mut self, message: Message) -> Confirm {
        let wanting = self.queues.values().filter(|queue| queue.wants(&message.topic));
        let names: Vec<String> = wanting.map(|queue| queue.name().to_owned()).collect();
        if names.is_empty() {
            let error = format!("no queue is bound to {}", message.topic);
            return refused(ErrorClass::Permanent, error);
        }
        self.store_in(&names, message)
    }

    /// Stores a message in all of these queues, or in none.
    pub fn store_in(&mut self, queues: &[String], message: Message) -> Confirm {
        for name in queues {
            let Some(queue) = self.queues.get(name) else {
                return refused(ErrorClass::Permanent, format!("there is no queue {name}"));
            };
            let limit = queue.config().max_bytes;
            if message.payload.len() > limit {
                let error = format!("{} bytes, the queue takes {limit}", message.payload.len());
                return refused(ErrorClass::Poison, error);
            }
            if queue.is_full() {
                return refused(ErrorClass::Transient, format!("queue {name} is full"));
            }
        }
        let message = Arc::new(message);
        queues.iter().for_each(|queue| self.push(queue, message.clone()));
        Confirm::Stored
    }

    fn push(&mut self, queue: &str, message: Arc<Message>) {
        self.last_place += 1;
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.push(self.last_place, message);
        }
    }

    /// A consumer comes; none, if there is no such queue.
    pub fn attach(&mut self, queue: &str) -> Option<ConsumerId> {
        self.last_consumer += 1;
        self.queues.get_mut(queue)?.attach(self.last_consumer);
        Some(ConsumerId(self.last_consumer))
    }

    /// A consumer goes: what it held comes again, at its old place.
    pub fn detach(&mut self, queue: &str, consumer: ConsumerId) {
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.detach(consumer.0);
        }
    }

    /// All consumers go.
    pub fn detach_all(&mut self) {
        self.queues.values_mut().for_each(Queue::forget_consumers);
    }

    /// Where the next message of a queue stands that is due: of two, the lower one was stored earlier.
    pub fn next(&self, queue: &str, now: Instant) -> Option<u64> {
        self.queues.get(queue)?.next(now)
    }

    /// The next message that is due, for a consumer that may have it and has room for so many bytes.
    pub fn take(
        &mut self,
        queue: &str,
        consumer: ConsumerId,
        bytes: usize,
        now: Instant,
    ) -> Option<Incoming> {
        self.last_tag += 1;
        self.queues.get_mut(queue)?.take(consumer.0, Tag(self.last_tag), bytes, now)
    }

    /// What became of a message that is held. A tag that is not held is settled already.
    pub fn settle(&mut self, queue: &str, tag: Tag, settle: &Settle, now: Instant) -> Result<()> {
        let Some(from) = self.queues.get_mut(queue) else { return Ok(()) };
        match settle {
            Settle::RetryAfter(after) => from.again(tag, now + *after),
            Settle::Dead { reason } => return self.put_away(queue, tag, reason),
            _ => from.forget(tag),
        }
        Ok(())
    }

    fn put_away(&mut self, queue: &str, tag: Tag, reason: &str) -> Result<()> {
        let Some(from) = self.queues.get(queue) else { return Ok(()) };
        let Some(letter) = from.dead_letter(tag, reason) else { return Ok(()) };
        let Some(to) = from.config().dead_letters.clone() else {
            let why = format!("queue {queue} has no queue for dead letters");
            return Err(Error::new(Kind::InvalidConfig, why).from_adapter(NAME));
        };
        if !self.has(&to) {
            let why = format!("the queue for dead letters, {to}, is not there");
            return Err(Error::new(Kind::DestinationRefused, why).from_adapter(NAME));
        }
        self.push(&to, Arc::new(letter));
        if let Some(from) = self.queues.get_mut(queue) {
            from.forget(tag);
        }
        Ok(())
    }

    /// When something that waits for its time will be due.
    pub fn next_due(&self, queue: &str) -> Option<Instant> {
        self.queues.get(queue).and_then(Queue::next_due)
    }
}
