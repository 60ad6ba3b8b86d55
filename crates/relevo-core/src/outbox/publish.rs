use crate::error::Result;
use crate::event::{EventId, NewEvent};
use std::future::Future;

/// Publishing inside the caller's own transaction of type `Tx`.
///
/// Implemented by each store's outbox for the transaction types of the drivers it knows, and for nothing
/// else: a pool or an autocommit connection does not compile. The event exists if and only if the caller's
/// transaction commits. Limits are checked before anything is written.
pub trait PublishIn<Tx: ?Sized> {
    /// Publishes one event.
    fn publish(&self, tx: &mut Tx, event: NewEvent)
    -> impl Future<Output = Result<EventId>> + Send;

    /// Publishes many events in their order, in as few statements as the store allows.
    fn publish_all(
        &self,
        tx: &mut Tx,
        events: Vec<NewEvent>,
    ) -> impl Future<Output = Result<Vec<EventId>>> + Send;
}
