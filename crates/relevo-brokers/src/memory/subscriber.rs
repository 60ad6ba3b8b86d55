use super::{BINDING, ConsumerId, Fault, MemoryBroker, NAME, State, capabilities};
use async_trait::async_trait;
use relevo_core::broker::cloudevents::Binding;
use relevo_core::broker::{Capabilities, Received, Receiver, Settle, Source, Subscriber, Tag};
use relevo_core::{Error, Kind, Result};
use std::collections::BTreeMap;
use tokio::time::sleep;

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
        let restarts = state.restarts;
        let Some(consumer) = state.queues.attach(&self.queue) else {
            let why = format!("there is no queue {}", self.queue);
            return Err(failed(Kind::DestinationRefused, why));
        };
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
    consumer: ConsumerId,
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
        if !state.queues.has(&self.queue) {
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
            let (bytes, now) = (self.room_in_bytes(), self.broker.now());
            let taken = state.queues.take(&self.queue, self.consumer, bytes, now);
            let Some(message) = taken else { break };
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

    fn tell(&mut self, tag: Tag, settle: &Settle) -> Result<()> {
        if self.unsettled.remove(&tag).is_none() {
            return Ok(());
        }
        let now = self.broker.now();
        self.broker.state().queues.settle(&self.queue, tag, settle, now)
    }

    fn detach(&self) {
        // After a restart the number means nobody: what was held went back then.
        self.broker.state().queues.detach(&self.queue, self.consumer);
        self.broker.shared.changed.notify_waiters();
    }
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
            let due = broker.state().queues.next_due(&self.queue).filter(|_| !self.paused);
            match due {
                Some(due) => tokio::select! {
                    () = changed => {}
                    () = sleep(due.since(broker.now())) => {}
                },
                None => changed.await,
            }
        }
    }

    async fn settle(&mut self, settled: &[(Tag, Settle)]) -> Result<()> {
        self.connected(&self.broker.state())?;
        let told = settled.iter().try_for_each(|(tag, settle)| self.tell(*tag, settle));
        self.broker.shared.changed.notify_waiters();
        told
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
