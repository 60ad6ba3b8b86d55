//! The dispatcher: relays the adopted `Outbox`, in batches, every so often, and measures how long events waited.
//!
//! The document's own one publishes, then marks, row by row, by one process. Here claims are short transactions, lanes
//! with leases keep the order of every ticket while several dispatchers share the work, and `DispatchedAt` is set in the
//! transaction that records RabbitMQ's confirm.

use crate::clock::Clock;
use crate::database::{Adopted, Database};
use crate::telemetry;
use anyhow::Result;
use async_trait::async_trait;
use relevo::broker::{Capabilities, Confirm, Publisher, ToBroker};
use relevo::{Event, RelayConfig, RetryPolicy, RunningRelay, Subscription};
use relevo_core::outbox::adopt::AdoptedTable;
use std::sync::Arc;
use std::time::Duration;

/// Most events of one batch.
pub const BATCH: usize = 100;
/// `OUTBOX_DISPATCH_INTERVAL_MS`, unless it says otherwise.
pub const INTERVAL: Duration = Duration::from_millis(500);

/// A dispatcher at work.
pub struct Dispatcher {
    relay: RunningRelay,
    /// The adopted table: what waits in it.
    pub outbox: Arc<dyn AdoptedTable>,
}

impl Dispatcher {
    /// Relays `Outbox` to `publisher`, looking every `interval`.
    pub async fn start(
        database: &Database,
        publisher: impl Publisher,
        interval: Duration,
        clock: Clock,
    ) -> Result<Self> {
        let Adopted { relay, table } = database.adopt().await?;
        let publisher = ToBroker::new(Measured { publisher, clock });
        let subscription = Subscription::new("outbox").destination("tickets");
        let relay = relay.subscribe_with(subscription, config(interval), publisher).start().await?;
        Ok(Self { relay, outbox: table })
    }

    /// Finishes what is under way, and ends.
    pub async fn stop(self) -> Result<()> {
        Ok(self.relay.stop().await?)
    }
}

/// RabbitMQ being down is no attempt; what it refuses is tried again for about half an hour.
fn config(interval: Duration) -> RelayConfig {
    let mut config = RelayConfig::default();
    config.batch = BATCH;
    config.page_rows = BATCH;
    config.poll = (interval, interval);
    config.retry = RetryPolicy::default();
    config
}

/// Tells how long each event waited between its commit and its confirm.
struct Measured<P> {
    publisher: P,
    clock: Clock,
}

#[async_trait]
impl<P: Publisher> Publisher for Measured<P> {
    fn name(&self) -> &'static str {
        self.publisher.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.publisher.capabilities()
    }

    async fn publish(&self, events: &[&Event]) -> Vec<Confirm> {
        let confirms = self.publisher.publish(events).await;
        let now = self.clock.now();
        for (event, confirm) in events.iter().zip(&confirms) {
            if matches!(confirm, Confirm::Stored) {
                telemetry::dispatched(now - event.created_at);
            }
        }
        confirms
    }

    async fn close(&self) {
        self.publisher.close().await;
    }
}
