use super::queue::Settled;
use super::{BINDING, Fault, MemoryBroker, NAME, State, capabilities};
use async_trait::async_trait;
use relevo_core::broker::cloudevents::Binding;
use relevo_core::broker::{
    Capabilities, Incoming, Received, Receiver, Settle, Source, Subscriber, Tag,
};
use relevo_core::{Error, Kind, Result};
use std::collections::BTreeMap;
use tokio::time::sleep_until;

/// Consumes one queue of a [`MemoryBroker`].
pub struct MemorySubscriber {
    broker: MemoryBroker,
    queue: String,
    max_unsettled: usize,
    max_unsettled_bytes: usize,
}

impl MemorySubscriber {
    pub(super) fn new(broker: MemoryBroker, queue: &str) -> Self {
        Self { broker, queue: queue.to_owned(), max_unsettled: 100, max_unsettled_bytes: 16 << 20 }
    }

    /// At most so many messages are unsettled.
    pub fn max_unsettled(mut self, messages: usize) -> Self {
        self.max_unsettled = messages.max(1);
        self
    }

    /// At most so many bytes of messages are unsettled; a larger message comes alone.
    pub fn max_unsettled_bytes(mut self, bytes: usize) -> Self {
        self.max_unsettled_bytes = bytes;
        self
    }
}

#[async_trait]
impl Subscriber for MemorySubscriber {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        capabilities()
    }

    fn binding(&self) -> Binding {
        BINDING
    }

    async fn open(&self) -> Result<Box<dyn Receiver>> {
        let mut state = self.broker.state();
        if state.fault == Fault::Down {
            return Err(failed(Kind::DestinationDown, "the broker is down"));
        }
        state.last_consumer += 1;
        let (consumer, restarts) = (state.last_consumer, state.restarts);
        let Some(queue) = state.queues.get_mut(&self.queue) else {
            let why = format!("there is no queue {}", self.queue);
            return Err(failed(Kind::DestinationRefused, why));
        };
        queue.attach(consumer);
        drop(state);
        Ok(Box::new(MemoryReceiver {
            broker: self.broker.clone(),
            queue: self.queue.clone(),
            max_unsettled: self.max_unsettled,
            max_unsettled_bytes: self.max_unsettled_bytes,
            consumer,
            restarts,
            unsettled: BTreeMap::new(),
            paused: false,
            gone: false,
        }))
    }
}

struct MemoryReceiver {
    broker: MemoryBroker,
    queue: String,
    max_unsettled: usize,
    max_unsettled_bytes: usize,
    consumer: u64,
    restarts: u64,
    /// The size of each.
    unsettled: BTreeMap<Tag, usize>,
    paused: bool,
    gone: bool,
}

impl MemoryReceiver {
    fn source(&self) -> Source {
        Source::named(self.queue.as_str())
    }

    fn is_mine(&self, source: &Source) -> bool {
        source.0.as_ref() == self.queue
    }

    fn connected(&self, state: &State) -> Result<()> {
        match state.restarts == self.restarts && state.fault != Fault::Down {
            true => Ok(()),
            false => Err(failed(Kind::DestinationDown, "the connection was lost")),
        }
    }

    /// What is there at this moment; `None` means wait.
    fn poll(&mut self, max: usize) -> Result<Option<Received>> {
        let mut state = self.broker.state();
        self.connected(&state)?;
        if !state.queues.contains_key(&self.queue) {
            let again = std::mem::replace(&mut self.gone, true);
            let why = format!("queue {} was deleted", self.queue);
            return if again {
                Err(failed(Kind::DestinationRefused, why))
            } else {
                Ok(Some(Received::Revoked(self.source())))
            };
        }
        let room = self.max_unsettled.saturating_sub(self.unsettled.len()).min(max);
        let room = if self.paused || state.fault == Fault::Hangs { 0 } else { room };
        let mut messages = Vec::new();
        while messages.len() < room {
            let bytes = self.room_in_bytes();
            let Some(message) = take(&mut state, &self.queue, self.consumer, bytes) else { break };
            self.unsettled.insert(message.tag, message.payload.len());
            messages.push(message);
        }
        drop(state);
        let source = self.source();
        Ok((!messages.is_empty()).then_some(Received::Messages { source, messages }))
    }

    /// What is too large for all of it comes alone.
    fn room_in_bytes(&self) -> usize {
        match self.unsettled.is_empty() {
            true => usize::MAX,
            false => self.max_unsettled_bytes.saturating_sub(self.unsettled.values().sum()),
        }
    }

    fn detach(&self) {
        let mut state = self.broker.state();
        // After a restart the number means nobody: what was held went back then.
        if let Some(queue) = state.queues.get_mut(&self.queue) {
            queue.detach(self.consumer);
        }
        drop(state);
        self.broker.shared.changed.notify_waiters();
    }
}

fn take(state: &mut State, queue: &str, consumer: u64, bytes: usize) -> Option<Incoming> {
    state.last_tag += 1;
    let tag = Tag(state.last_tag);
    state.queues.get_mut(queue)?.take(consumer, tag, bytes)
}

#[async_trait]
impl Receiver for MemoryReceiver {
    async fn next(&mut self, max: usize) -> Result<Received> {
        let broker = self.broker.clone();
        loop {
            let changed = broker.shared.changed.notified();
            tokio::pin!(changed);
            // From here on no change is missed.
            changed.as_mut().enable();
            if let Some(received) = self.poll(max.max(1))? {
                return Ok(received);
            }
            let due = broker.state().next_due(&self.queue).filter(|_| !self.paused);
            match due {
                Some(due) => tokio::select! {
                    () = changed => {}
                    () = sleep_until(due) => {}
                },
                None => changed.await,
            }
        }
    }

    async fn settle(&mut self, settled: &[(Tag, Settle)]) -> Result<()> {
        self.connected(&self.broker.state())?;
        for (tag, settle) in settled {
            if self.unsettled.remove(tag).is_none() {
                continue;
            }
            let settled = match settle {
                Settle::RetryAfter(after) => Settled::Again(*after),
                Settle::Dead { reason } => Settled::Dead { reason: reason.clone() },
                _ => Settled::Done,
            };
            self.broker.settle(&self.queue, *tag, settled)?;
        }
        Ok(())
    }

    async fn pause(&mut self, source: &Source) -> Result<()> {
        self.paused |= self.is_mine(source);
        Ok(())
    }

    async fn resume(&mut self, source: &Source) -> Result<()> {
        self.paused &= !self.is_mine(source);
        Ok(())
    }

    async fn close(self: Box<Self>) -> Result<()> {
        // Dropping it gives everything back.
        Ok(())
    }
}

impl Drop for MemoryReceiver {
    fn drop(&mut self) {
        self.detach();
    }
}

fn failed(kind: Kind, why: impl Into<String>) -> Error {
    Error::new(kind, why).from_adapter(NAME)
}
