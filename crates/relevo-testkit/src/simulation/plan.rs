//! What a handler or broker does with an event: fixed by the seed, whoever asks and however often.

use relevo_core::clock::Rng;
use relevo_core::event::EventId;

/// What becomes of an event at a subscriber.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plan {
    /// It works.
    Fine,
    /// It works, and publishes a follow-up in the same transaction.
    Publishes,
    /// It fails so many times, then works.
    Fails(u32),
    /// It panics so many times, then works.
    Panics(u32),
    /// It asks to be tried again later, once.
    AsksForLater,
    /// It fails for good; a replay may find the cause mended.
    Fatal {
        /// It works after a replay.
        mended_by_replay: bool,
    },
    /// The handler skips it.
    Skips,
}

impl Plan {
    /// The plan for an event at a subscriber.
    pub(super) fn of(seed: u64, event: EventId, subscriber: usize) -> Self {
        let (number, _) = event.0.as_u64_pair();
        let mut rng =
            Rng::seeded(seed ^ number.rotate_left(24) ^ (subscriber as u64).rotate_left(56));
        // The generator's first value still resembles its seed.
        rng.next_u64();
        match rng.below(100) {
            0..=4 => Self::Fails(1 + rng.below(3) as u32),
            5..=6 => Self::Panics(1 + rng.below(2) as u32),
            7 => Self::AsksForLater,
            8..=11 => Self::Fatal { mended_by_replay: rng.below(2) == 0 },
            12..=14 => Self::Skips,
            15..=24 => Self::Publishes,
            _ => Self::Fine,
        }
    }
}
