//! Time as the decisions see it.
//!
//! The machines never ask what time it is: every input carries an [`Instant`] of the process's own
//! monotonic clock. Calendar times are computed by the database; what is written are delays.

use std::ops::{Add, Sub};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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

/// The monotonic clock of a shell: the real one, or one that shows what it is told.
#[derive(Debug, Clone)]
pub struct Clock(Time);

#[derive(Debug, Clone)]
enum Time {
    Real(std::time::Instant),
    /// In microseconds.
    Told(Arc<AtomicU64>),
}

impl Clock {
    /// A real clock that starts now.
    pub fn start() -> Self {
        Self(Time::Real(std::time::Instant::now()))
    }

    /// A clock that shows so many microseconds, whoever counts them: simulated time.
    pub fn told(micros: Arc<AtomicU64>) -> Self {
        Self(Time::Told(micros))
    }

    /// Now, on this clock.
    pub fn now(&self) -> Instant {
        Instant::at(match &self.0 {
            Time::Real(start) => start.elapsed(),
            Time::Told(micros) => Duration::from_micros(micros.load(Ordering::Relaxed)),
        })
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

    #[test]
    fn what_is_whole_is_said_without_a_smaller_unit_and_minutes_only_from_the_first_on() {
        for (seconds, text) in [
            (1.0, "1.0s"),
            (9.96, "10.0s"),
            (10.0, "10s"),
            (42.4, "42s"),
            (59.0, "59s"),
            (60.0, "1m 0s"),
        ] {
            assert_eq!(age(seconds), text);
        }
    }

    #[test]
    fn an_instant_goes_back_by_what_it_went_forward_and_never_before_the_origin() {
        let ms = Duration::from_millis;
        let at = Instant::ZERO + ms(7);
        assert_eq!((at - ms(3), at - ms(8)), (Instant::at(ms(4)), Instant::ZERO));
        assert_eq!((at.since(Instant::ZERO), Instant::ZERO.since(at)), (ms(7), Duration::ZERO));
    }

    #[test]
    fn a_clock_that_is_told_shows_that_and_goes_on_when_it_is_told_more() {
        let micros = Arc::new(AtomicU64::new(7));
        let (clock, copy) = (Clock::told(micros.clone()), Clock::told(micros.clone()).clone());
        assert_eq!(clock.now(), Instant::at(Duration::from_micros(7)));
        micros.store(2_000_000, Ordering::Relaxed);
        assert_eq!([clock.now(), copy.now()], [Instant::at(Duration::from_secs(2)); 2]);
    }

    #[test]
    fn a_seed_repeats_the_stream_that_splitmix64_is_known_for() {
        let mut rng = Rng::seeded(0);
        let known = [0xE220_A839_7B1D_CDAF, 0x6E78_9E6A_A1B9_65F4, 0x06C4_5D18_8009_454F];
        assert_eq!([(); 3].map(|()| rng.next_u64()), known);
    }

    #[test]
    fn a_number_below_a_bound_is_any_of_those_and_below_none_it_is_zero() {
        let mut rng = Rng::seeded(1);
        let drawn: std::collections::BTreeSet<u64> = (0..100).map(|_| rng.below(3)).collect();
        assert_eq!(drawn.into_iter().collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(rng.below(0), 0);
    }

    #[test]
    fn a_seed_of_the_operating_system_has_its_bits_set_as_often_as_not() {
        let ones: u32 = (0..1000).map(|_| Rng::from_os().0.count_ones()).sum();
        assert!((30_000..34_000).contains(&ones), "{ones} of 64000");
    }
}
