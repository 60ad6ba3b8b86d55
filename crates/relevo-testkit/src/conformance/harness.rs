use async_trait::async_trait;
use relevo_core::Result;
use relevo_core::dead_letters::Operate;
use relevo_core::event::{EventId, NewEvent};
use relevo_core::outbox::Store;
use std::sync::Arc;

/// Makes stores for the suite.
#[async_trait]
pub trait StoreHarness: Send + Sync + 'static {
    /// A fresh store that nobody else has, without Relevo's schema. `None` if the server it needs is missing and
    /// may be: the harness has said so aloud.
    async fn fresh(&self) -> Option<Box<dyn StoreUnderTest>>;
}

/// One fresh store.
#[async_trait]
pub trait StoreUnderTest: Send + Sync {
    /// The port the relay works through.
    fn store(&self) -> Arc<dyn Store>;

    /// The port operators work through.
    fn operate(&self) -> Arc<dyn Operate>;

    /// The same data as a second process would open it. A store that only one process may work gives its own
    /// handles again.
    async fn another(&self) -> Result<(Arc<dyn Store>, Arc<dyn Operate>)>;

    /// Begins a transaction of an application. Several may be open at once if the store declares
    /// `concurrent_writers`.
    async fn begin(&self) -> Result<Box<dyn Writer>>;

    /// Notes in the inbox, in a transaction of its own, that `consumer` meets a message; false if it met it before.
    async fn first_time(&self, consumer: &str, source: &str, id: &str) -> Result<bool>;

    /// Checks of `doctor` that find a problem with the server this test runs on, by its nature.
    fn expected_problems(&self) -> &'static [&'static str] {
        &[]
    }

    /// How many events it takes until retention has a whole segment that it can drop.
    fn rows_of_a_segment(&self) -> usize {
        1
    }
}

/// An application's own transaction.
#[async_trait]
pub trait Writer: Send {
    /// Publishes events inside it, in their order.
    async fn publish(&mut self, events: Vec<NewEvent>) -> Result<Vec<EventId>>;

    /// Commits it.
    async fn commit(self: Box<Self>) -> Result<()>;

    /// Rolls it back.
    async fn roll_back(self: Box<Self>) -> Result<()>;
}
