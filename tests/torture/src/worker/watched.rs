use crate::story::{Line, tell};
use async_trait::async_trait;
use relevo::Store;
use relevo_core::relay::run::Destination;
use relevo_core::relay::{Batch, Delivery};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Tells when a batch is handed over and when it comes back: between the two its events are in flight.
pub(super) struct Watched {
    destination: Box<dyn Destination>,
    batches: AtomicU64,
}

impl Watched {
    pub(super) fn new(destination: Box<dyn Destination>) -> Self {
        Self { destination, batches: AtomicU64::new(0) }
    }
}

#[async_trait]
impl Destination for Watched {
    async fn deliver(&self, store: &Arc<dyn Store>, batch: Batch) -> Delivery {
        let number = self.batches.fetch_add(1, Ordering::Relaxed);
        tell(&Line::Began(number, batch.len()));
        let delivery = self.destination.deliver(store, batch).await;
        let how = match &delivery {
            Delivery::Recorded { .. } => "recorded".to_owned(),
            Delivery::Decided { .. } => "decided".to_owned(),
            Delivery::Down { .. } => "down".to_owned(),
            Delivery::Aborted { .. } => "aborted".to_owned(),
            Delivery::Void(error) => format!("void {}", error.code()),
        };
        tell(&Line::Ended(number, how));
        delivery
    }

    fn one_transaction(&self) -> bool {
        self.destination.one_transaction()
    }

    fn shares_transactions(&self) -> bool {
        self.destination.shares_transactions()
    }

    fn describe(&self) -> String {
        self.destination.describe()
    }
}
