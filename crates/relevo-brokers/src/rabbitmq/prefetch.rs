use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

/// Bounds what is unsettled, in messages and in bytes. The broker counts messages only: when those turn out to be too
/// large, the receiver that found out is the last with this prefetch, and the next one begins with one that fits.
#[derive(Clone)]
pub(super) struct Prefetch {
    messages: u16,
    max_bytes: usize,
    /// For the next receiver; those after it begin again with what was configured.
    narrowed: Arc<AtomicU16>,
}

impl Prefetch {
    pub(super) fn new(messages: u16, max_bytes: usize) -> Self {
        let messages = messages.max(1);
        let narrowed = Arc::new(AtomicU16::new(messages));
        Self { messages, max_bytes: max_bytes.max(1), narrowed }
    }

    pub(super) fn messages(&self) -> u16 {
        self.messages
    }

    pub(super) fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// What the next receiver asks for.
    pub(super) fn next(&self) -> u16 {
        self.narrowed.swap(self.messages, Ordering::SeqCst)
    }

    /// How many messages of the size of those that are held would fit, if these do not. One always does.
    pub(super) fn narrow(&self, held: usize, bytes: usize) -> Option<u16> {
        if held <= 1 || bytes <= self.max_bytes {
            return None;
        }
        let fitting = (held as u128 * self.max_bytes as u128 / bytes as u128).max(1);
        let fitting = u16::try_from(fitting).unwrap_or(u16::MAX).min(self.messages);
        self.narrowed.store(fitting, Ordering::SeqCst);
        Some(fitting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_much_narrows_the_next_receiver_and_no_later_one() {
        let prefetch = Prefetch::new(100, 1000);
        assert_eq!((prefetch.narrow(100, 1000), prefetch.narrow(1, 5000)), (None, None));
        assert_eq!(prefetch.next(), 100);
        assert_eq!(prefetch.narrow(11, 1100), Some(10));
        assert_eq!((prefetch.next(), prefetch.next()), (10, 100));
        assert_eq!(prefetch.narrow(2, 50_000), Some(1), "one always fits");
    }
}
