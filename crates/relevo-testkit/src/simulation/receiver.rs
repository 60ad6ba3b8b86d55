//! How a simulated consumer reaches the broker: each request is a step of its own, as those to the database are.

use super::broker::{BINDING, LineId};
use super::call::Mailbox;
use super::options::MS;
use super::world::World;
use async_trait::async_trait;
use relevo_core::Result;
use relevo_core::broker::cloudevents::Binding;
use relevo_core::broker::{Capabilities, Received, Receiver, Settle, Source, Subscriber, Tag};
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

/// Consumes from the simulated broker.
pub(super) struct SimSubscriber {
    pub(super) mailbox: Mailbox,
    pub(super) process: usize,
    /// Which of the seed's consumers it is.
    pub(super) consumer: usize,
    /// At most so many messages are unsettled.
    pub(super) unsettled: usize,
}

#[async_trait]
impl Subscriber for SimSubscriber {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::default();
        capabilities.consumes = true;
        capabilities.durable = true;
        capabilities.ordered = true;
        capabilities.exclusive_sources = true;
        capabilities
    }

    fn binding(&self) -> Binding {
        BINDING
    }

    async fn open(&self) -> Result<Box<dyn Receiver>> {
        let (process, consumer) = (self.process, self.consumer);
        let connect = move |world: &mut World| Ok(world.connect(process, consumer)?);
        let line = self.mailbox.call("connect", connect).await?;
        Ok(Box::new(SimReceiver {
            mailbox: self.mailbox.clone(),
            line,
            unsettled: self.unsettled,
            paused: BTreeSet::new(),
            arrived: Arc::default(),
        }))
    }
}

/// A connection to the simulated broker.
struct SimReceiver {
    mailbox: Mailbox,
    line: LineId,
    unsettled: usize,
    paused: BTreeSet<Source>,
    /// What has arrived and was not asked for any more: a dropped `next` loses nothing.
    arrived: Arc<Mutex<VecDeque<Received>>>,
}

impl SimReceiver {
    fn arrived(&mut self) -> Option<Received> {
        let received = self.arrived.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        if let Some(Received::Revoked(source)) = &received {
            self.paused.remove(source);
        }
        received
    }
}

#[async_trait]
impl Receiver for SimReceiver {
    async fn next(&mut self, max: usize) -> Result<Received> {
        loop {
            let (line, unsettled, paused) = (self.line, self.unsettled, self.paused.clone());
            if let Some(received) = self.arrived() {
                return Ok(received);
            }
            let arrived = self.arrived.clone();
            let receive = move |world: &mut World| {
                let received = world.receive(line, max, unsettled, &paused)?;
                arrived.lock().unwrap_or_else(PoisonError::into_inner).extend(received);
                Ok(())
            };
            self.mailbox.call("receive", receive).await?;
            if let Some(received) = self.arrived() {
                return Ok(received);
            }
            self.mailbox.sleep(20 * MS).await;
        }
    }

    async fn settle(&mut self, settled: &[(Tag, Settle)]) -> Result<()> {
        let (line, settled) = (self.line, settled.to_vec());
        let settle = move |world: &mut World| Ok(world.settle(line, &settled)?);
        self.mailbox.call("acknowledge", settle).await
    }

    async fn pause(&mut self, source: &Source) -> Result<()> {
        self.paused.insert(source.clone());
        Ok(())
    }

    async fn resume(&mut self, source: &Source) -> Result<()> {
        self.paused.remove(source);
        Ok(())
    }

    async fn close(self: Box<Self>) -> Result<()> {
        // Dropping it hangs up.
        Ok(())
    }
}

impl Drop for SimReceiver {
    fn drop(&mut self) {
        self.mailbox.hang_up(self.line);
    }
}
