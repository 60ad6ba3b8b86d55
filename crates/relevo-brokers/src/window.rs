//! A window over all batches of a publisher, for adapters that hand over a part of a batch at once.

use crate::patience::{NO_TURN, by};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

type Permits<'w> = (Option<SemaphorePermit<'w>>, Option<SemaphorePermit<'w>>);

/// Bounds what waits for its confirm, in messages and in bytes.
pub(crate) struct Window {
    messages: Semaphore,
    bytes: Semaphore,
    max_messages: usize,
    max_bytes: usize,
}

impl Window {
    pub(crate) fn new(max_messages: usize, max_bytes: usize) -> Self {
        let most = |count: usize| count.min(Semaphore::MAX_PERMITS);
        let (max_messages, max_bytes) = (most(max_messages), most(max_bytes));
        let (messages, bytes) = (Semaphore::new(max_messages), Semaphore::new(max_bytes));
        Self { messages, bytes, max_messages, max_bytes }
    }

    /// How many of these sizes fit into the whole window; at least one, which then has it for itself.
    pub(crate) fn fit(&self, sizes: impl Iterator<Item = usize>) -> usize {
        let mut total = 0_usize;
        let fitting = sizes.take(self.max_messages).take_while(|size| {
            total = total.saturating_add(*size);
            total <= self.max_bytes
        });
        fitting.count().max(1)
    }

    /// Waits until there is room. The order of the two is always the same, so nobody waits in a circle.
    async fn room(&self, messages: usize, bytes: usize) -> Permits<'_> {
        // The semaphores are never closed.
        let messages = self.messages.acquire_many(permits(messages, self.max_messages)).await.ok();
        let bytes = self.bytes.acquire_many(permits(bytes, self.max_bytes)).await.ok();
        (messages, bytes)
    }

    /// The same until `latest`. After it there is none: whoever handed over so long ago may have been replaced meanwhile.
    pub(crate) async fn room_by(
        &self,
        latest: Instant,
        messages: usize,
        bytes: usize,
    ) -> Result<Permits<'_>, String> {
        by(latest, self.room(messages, bytes)).await.ok_or_else(|| NO_TURN.to_owned())
    }

    /// Waits until nothing is on its way.
    pub(crate) async fn empty(&self) {
        drop(self.room(self.max_messages, 0).await);
    }
}

fn permits(wanted: usize, there: usize) -> u32 {
    u32::try_from(wanted.min(there)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patience::over_in;
    use std::time::Duration;

    #[test]
    fn a_chunk_is_bounded_by_messages_and_by_bytes_and_never_empty() {
        let window = Window::new(3, 100);
        assert_eq!(window.fit([10; 5].into_iter()), 3);
        assert_eq!(window.fit([60, 60].into_iter()), 1);
        assert_eq!(window.fit([500, 1].into_iter()), 1);
    }

    #[tokio::test]
    async fn an_oversize_message_gets_the_whole_window() {
        let window = Window::new(3, 100);
        let held = window.room(1, 500).await;
        assert!(window.bytes.try_acquire().is_err());
        drop(held);
        window.empty().await;
    }

    #[tokio::test]
    async fn room_that_comes_too_late_is_none_and_takes_none() {
        let window = Window::new(3, 100);
        let held = window.room(2, 10).await;
        let refused = window.room_by(over_in(Duration::from_millis(20)), 2, 10).await.err();
        assert_eq!(refused.as_deref(), Some(NO_TURN));
        let in_time = over_in(Duration::from_secs(60));
        assert!(window.room_by(in_time, 1, 90).await.is_ok(), "who gave up stands in nobody's way");
        drop(held);
        assert!(window.room_by(Instant::now(), 1, 1).await.is_err(), "room, and no time");
        window.empty().await;
    }
}
