//! Time as the decisions see it.
//!
//! The machines never ask what time it is: every input carries an [`Instant`] of the process's own
//! monotonic clock. Calendar times are computed by the database; what is written are delays.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A point on one process's monotonic clock, counted from an arbitrary start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(Duration);

impl Instant {
    /// The clock's origin.
    pub const ZERO: Self = Self(Duration::ZERO);

    /// The point `since_start` after the clock's origin.
    pub fn at(since_start: Duration) -> Self {
        Self(since_start)
    }

    /// How long ago `earlier` was; zero if it lies ahead.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;
    fn add(self, delay: Duration) -> Self {
        Self(self.0.saturating_add(delay))
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;
    fn sub(self, delay: Duration) -> Self {
        Self(self.0.saturating_sub(delay))
    }
}

/// The real monotonic clock, for the shells.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: std::time::Instant,
}

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Self {
        Self { start: std::time::Instant::now() }
    }

    /// Now, on this clock.
    pub fn now(&self) -> Instant {
        Instant::at(self.start.elapsed())
    }
}

/// A small seeded generator (SplitMix64). The machines get one from outside, so that a seed repeats a run.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// A generator whose whole stream is decided by `seed`.
    pub fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    /// A generator seeded by the operating system.
    pub fn from_os() -> Self {
        let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
        Self(high ^ low.rotate_left(17))
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound` (0 if the bound is 0).
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next_u64() % bound }
    }

    /// A fraction in `0.0..1.0`.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}
