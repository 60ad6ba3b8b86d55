use super::effects::MemoryTransaction;
use relevo_core::Result;
use relevo_core::event::{EventId, NewEvent};
use relevo_core::limits::Limits;
use relevo_core::outbox::PublishIn;

/// Publishes into transactions of [`super::MemoryStore`].
#[derive(Debug, Clone, Default)]
pub struct MemoryOutbox {
    limits: Limits,
}

impl MemoryOutbox {
    /// An outbox with these limits.
    pub fn new(limits: Limits) -> Self {
        Self { limits }
    }
}

impl PublishIn<MemoryTransaction> for MemoryOutbox {
    async fn publish(&self, tx: &mut MemoryTransaction, event: NewEvent) -> Result<EventId> {
        self.limits.check(&event)?;
        tx.publish(event)
    }

    async fn publish_all(
        &self,
        tx: &mut MemoryTransaction,
        events: Vec<NewEvent>,
    ) -> Result<Vec<EventId>> {
        events.iter().try_for_each(|event| self.limits.check(event))?;
        events.into_iter().map(|event| tx.publish(event)).collect()
    }
}
