use super::{Database, NAME, config};
use async_trait::async_trait;
use relevo_core::Event;
use relevo_core::broker::{Confirm, Publisher, ToBroker};
use relevo_core::outbox::adopt::Mapping;
use relevo_core::outbox::{MemberId, Subscription};
use relevo_core::relay::run::{Running, start};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// A broker that answers what a case tells it to, and when.
struct ByHand(mpsc::UnboundedSender<oneshot::Sender<Confirm>>);

#[async_trait]
impl Publisher for ByHand {
    fn name(&self) -> &'static str {
        "by hand"
    }

    async fn publish(&self, events: &[&Event]) -> Vec<Confirm> {
        let mut confirms = Vec::new();
        for _ in events {
            let (answer, answered) = oneshot::channel();
            let over = || Confirm::Down { error: "the case is over".into() };
            confirms.push(match self.0.send(answer) {
                Ok(()) => answered.await.unwrap_or_else(|_| over()),
                Err(_) => over(),
            });
        }
        confirms
    }
}

/// A table that is relayed to such a broker.
pub(super) struct WorkByHand {
    relay: Running,
    messages: mpsc::UnboundedReceiver<oneshot::Sender<Confirm>>,
}

impl WorkByHand {
    /// Adopts the table and relays it.
    pub(super) async fn begin(db: &Database, mapping: Mapping) -> Self {
        let (table, _) = db.adopt(NAME, mapping).await.unwrap();
        let (asks, messages) = mpsc::unbounded_channel();
        let (destination, member) = (ToBroker::new(ByHand(asks)), MemberId("by hand".into()));
        let subscription = Subscription::new(NAME);
        let relay =
            start(table, subscription, config(), Arc::new(destination), member).await.unwrap();
        Self { relay, messages }
    }

    /// Waits for the next message; whoever published it waits for what is sent here.
    pub(super) async fn next(&mut self) -> oneshot::Sender<Confirm> {
        let next = tokio::time::timeout(relevo_testkit::PATIENCE, self.messages.recv()).await;
        next.expect("a message in time").unwrap()
    }

    /// Ends the relay.
    pub(super) async fn end(self) {
        self.relay.stop(Duration::from_secs(60)).await.unwrap();
    }
}
