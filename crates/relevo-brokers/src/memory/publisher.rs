use super::config::Fault;
use super::queue::Message;
use super::{MemoryBroker, NAME, capabilities};
use async_trait::async_trait;
use relevo_core::broker::{Capabilities, Confirm, Publisher};
use relevo_core::event::Event;
use std::sync::atomic::{AtomicBool, Ordering};

/// Publishes to a [`MemoryBroker`].
pub struct MemoryPublisher {
    broker: MemoryBroker,
    closed: AtomicBool,
    source: String,
}

impl MemoryPublisher {
    pub(super) fn new(broker: MemoryBroker) -> Self {
        Self { broker, closed: AtomicBool::new(false), source: "relevo".into() }
    }

    /// The CloudEvents source of events that name none.
    pub fn source(mut self, source: impl Into<String>) -> Self {
        self.source = source.into();
        self
    }

    /// Waits while the broker hangs; what it is like afterwards.
    async fn reach(&self) -> Result<Fault, &'static str> {
        loop {
            let changed = self.broker.shared.changed.notified();
            tokio::pin!(changed);
            // From here on no change is missed.
            changed.as_mut().enable();
            if self.closed.load(Ordering::SeqCst) {
                return Err("the publisher is closed");
            }
            let fault = self.broker.state().fault;
            match fault {
                Fault::Down => return Err("the broker is down"),
                Fault::Hangs => changed.await,
                Fault::None | Fault::LosesConfirms => return Ok(fault),
            }
        }
    }
}

#[async_trait]
impl Publisher for MemoryPublisher {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        capabilities()
    }

    async fn publish(&self, events: &[&Event]) -> Vec<Confirm> {
        let mut confirms = Vec::with_capacity(events.len());
        for event in events {
            confirms.push(match self.reach().await {
                Err(why) => Confirm::Down { error: why.to_owned() },
                Ok(Fault::LosesConfirms) => {
                    self.broker.put(Message::of(event, &self.source));
                    Confirm::Unknown { error: "the answer was lost".to_owned() }
                }
                Ok(_) => self.broker.put(Message::of(event, &self.source)),
            });
        }
        confirms
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.broker.shared.changed.notify_waiters();
    }
}
