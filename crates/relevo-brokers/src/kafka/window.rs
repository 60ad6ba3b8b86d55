use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What the bytes of the window are counted in.
const BLOCK: usize = 1 << 10;

/// Bounds what is under way, over all batches together. A message has its room until its delivery report comes, also
/// if nobody waits for that any more.
pub(super) struct Window {
    messages: Arc<Semaphore>,
    blocks: Arc<Semaphore>,
    most: (u32, u32),
}

/// A message's room.
pub(super) struct Room {
    _message: Option<OwnedSemaphorePermit>,
    _blocks: Option<OwnedSemaphorePermit>,
}

impl Window {
    pub(super) fn new(messages: usize, bytes: usize) -> Self {
        let bounded =
            |count: usize| u32::try_from(count).unwrap_or(u32::MAX >> 4).min(u32::MAX >> 4);
        let most = (bounded(messages), bounded(bytes.div_ceil(BLOCK)));
        Self {
            messages: Arc::new(Semaphore::new(most.0 as usize)),
            blocks: Arc::new(Semaphore::new(most.1 as usize)),
            most,
        }
    }

    /// Waits for room. A message larger than the whole window travels alone.
    pub(super) async fn enter(&self, bytes: usize) -> Room {
        let blocks = u32::try_from(bytes.div_ceil(BLOCK)).unwrap_or(u32::MAX);
        // The semaphores are never closed; without a permit it would still be right to send.
        let message = self.messages.clone().acquire_owned().await.ok();
        let blocks = blocks.clamp(1, self.most.1);
        let blocks = self.blocks.clone().acquire_many_owned(blocks).await.ok();
        Room { _message: message, _blocks: blocks }
    }

    /// Waits until nothing is under way.
    pub(super) async fn drained(&self) {
        drop(self.messages.acquire_many(self.most.0).await);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_oversize_message_has_the_whole_window() {
        let window = Window::new(3, 4 * BLOCK);
        let room = window.enter(100 * BLOCK).await;
        assert!(window.blocks.try_acquire().is_err());
        drop(room);
        window.drained().await;
    }
}
