//! The promises that a run is checked against.

use std::fmt;

/// A promise that was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Invariant {
    /// Every committed event reaches an end.
    NoLoss,
    /// Nothing is delivered without a commit, nor where it is not wanted.
    NoGhost,
    /// First deliveries of a key follow commit order.
    Order,
    /// An effect that shares the cursor's transaction happens once.
    EffectOnce,
    /// Dead letters are exactly what failed, byte for byte.
    DeadLetters,
    /// Queues stay within their limits.
    Bounded,
    /// All goes on after the faults stopped.
    Recovery,
    /// A stale owner changes nothing.
    Fencing,
    /// What is skipped is noted.
    NoSilentSkip,
    /// The same seed gives the same run.
    Deterministic,
    /// Nothing panics that is not meant to.
    NoPanic,
}

impl Invariant {
    /// Its number in the list of invariants.
    pub fn code(self) -> &'static str {
        match self {
            Self::NoLoss => "I1",
            Self::NoGhost => "I2",
            Self::Order => "I3",
            Self::EffectOnce => "I4",
            Self::DeadLetters => "I6",
            Self::Bounded => "I7",
            Self::Recovery => "I8",
            Self::Fencing => "I9",
            Self::NoSilentSkip => "I10",
            Self::Deterministic => "determinism",
            Self::NoPanic => "panic",
        }
    }
}

/// What was broken, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The promise.
    pub invariant: Invariant,
    /// What was seen.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}: {}", self.invariant.code(), self.invariant, self.text)
    }
}
