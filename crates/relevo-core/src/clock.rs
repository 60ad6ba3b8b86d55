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

/// A length of time in seconds for people to read, in its two largest units.
pub fn age(seconds: f64) -> String {
    if seconds < 0.0005 {
        return "0s".into();
    }
    if seconds < 1.0 {
        return format!("{:.0}ms", seconds * 1000.0);
    }
    if seconds < 10.0 {
        return format!("{seconds:.1}s");
    }
    let whole = seconds.round() as u64;
    let (days, hours, minutes, seconds) =
        (whole / 86_400, whole / 3600 % 24, whole / 60 % 60, whole % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {seconds}s"),
        (0, ..) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_two_units_at_most() {
        for (seconds, text) in [
            (0.0, "0s"),
            (0.25, "250ms"),
            (3.21, "3.2s"),
            (75.0, "1m 15s"),
            (7260.0, "2h 1m"),
            (90_000.0, "1d 1h"),
        ] {
            assert_eq!(age(seconds), text);
        }
    }
}
