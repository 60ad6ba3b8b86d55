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
use relevo::adopt::AdoptedTable;
use relevo::broker::{Capabilities, Confirm, Publisher, ToBroker};
use relevo::{Event, RelayConfig, RetryPolicy, RunningRelay, Subscription};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Most rows of one claim, and most events of one batch.
pub const BATCH: usize = 100;
/// `OUTBOX_DISPATCH_INTERVAL_MS`, unless it says otherwise.
pub const INTERVAL: Duration = Duration::from_millis(500);

/// Under this name Relevo keeps what RabbitMQ refused for good. No queue has it.
pub const NAME: &str = "outbox";

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
        let subscription = Subscription::new(NAME).destination("tickets");
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

/// Publishes nothing before exchange, queues and bindings are there: what is published while half of the bindings are
/// made reaches half of the queues, and RabbitMQ confirms it.
pub struct Gated<P> {
    publisher: P,
    is_open: watch::Receiver<bool>,
}

impl<P> Gated<P> {
    /// Waits for `is_open`, and says that the broker is down until then.
    pub fn new(publisher: P, is_open: watch::Receiver<bool>) -> Self {
        Self { publisher, is_open }
    }
}

#[async_trait]
impl<P: Publisher> Publisher for Gated<P> {
    fn name(&self) -> &'static str {
        self.publisher.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.publisher.capabilities()
    }

    async fn publish(&self, events: &[&Event]) -> Vec<Confirm> {
        if *self.is_open.borrow() {
            return self.publisher.publish(events).await;
        }
        let error = "its exchange, queues and bindings are not made yet".to_owned();
        vec![Confirm::Down { error }; events.len()]
    }

    fn publish_limit(&self) -> Option<Duration> {
        self.publisher.publish_limit()
    }

    fn largest_wave(&self) -> usize {
        self.publisher.largest_wave()
    }

    fn window(&self) -> Option<usize> {
        self.publisher.window()
    }

    async fn close(&self) {
        self.publisher.close().await;
    }
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

    fn publish_limit(&self) -> Option<Duration> {
        self.publisher.publish_limit()
    }

    fn largest_wave(&self) -> usize {
        self.publisher.largest_wave()
    }

    fn window(&self) -> Option<usize> {
        self.publisher.window()
    }

    async fn close(&self) {
        self.publisher.close().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use relevo::NewEvent;

    #[test]
    fn a_look_takes_a_hundred_at_most_and_comes_every_interval() {
        let config = config(INTERVAL);
        assert_eq!((config.batch, config.page_rows), (100, 100));
        assert_eq!(config.poll, (Duration::from_millis(500), Duration::from_millis(500)));
    }

    struct Stores;

    #[async_trait]
    impl Publisher for Stores {
        fn name(&self) -> &'static str {
            "stores"
        }

        async fn publish(&self, events: &[&Event]) -> Vec<Confirm> {
            vec![Confirm::Stored; events.len()]
        }

        fn publish_limit(&self) -> Option<Duration> {
            None
        }

        fn window(&self) -> Option<usize> {
            Some(7)
        }

        fn largest_wave(&self) -> usize {
            3
        }
    }

    #[test]
    fn what_stands_before_a_publisher_wants_what_that_wants() {
        let measured = Measured { publisher: Stores, clock: Clock::default() };
        let gated = Gated::new(measured, watch::channel(true).1);
        assert_eq!((gated.publish_limit(), gated.largest_wave()), (None, 3));
        assert_eq!(gated.window(), Some(7));
    }

    #[tokio::test]
    async fn nothing_is_published_before_every_binding_is_made() {
        let (made, is_open) = watch::channel(false);
        let gated = Gated::new(Stores, is_open);
        let event = Event::stored(NewEvent::bytes("ticket.created", vec![]), chrono::Utc::now());
        assert!(matches!(gated.publish(&[&event]).await[..], [Confirm::Down { .. }]));
        made.send_replace(true);
        assert_eq!(gated.publish(&[&event]).await, [Confirm::Stored]);
    }
}
