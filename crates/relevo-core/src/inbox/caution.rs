use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// So many shared transactions have savepoints after one in which something failed.
const AFTER_A_FAILURE: u32 = 100;

/// Whether the events of a shared transaction need a savepoint each.
///
/// A savepoint costs about as much as the effect behind it, and is of use only if that fails. So there are none as long as
/// nothing fails. What fails then spoils the transaction: it is rolled back, and the same events are done again with
/// savepoints, as are those of the next transactions.
#[derive(Debug, Default)]
pub struct Caution {
    transactions: AtomicU32,
}

impl Caution {
    /// Does the next shared transaction need savepoints?
    pub fn is_due(&self) -> bool {
        let one_less = |left: u32| left.checked_sub(1);
        self.transactions.fetch_update(Relaxed, Relaxed, one_less).is_ok()
    }

    /// Something failed in a shared transaction.
    pub fn learn(&self) {
        self.transactions.store(AFTER_A_FAILURE, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_makes_cautious_for_a_while() {
        let caution = Caution::default();
        assert!(!caution.is_due(), "nothing has failed yet");
        for _ in 0..2 {
            caution.learn();
            assert_eq!((0..150).filter(|_| caution.is_due()).count(), AFTER_A_FAILURE as usize);
        }
    }
}
