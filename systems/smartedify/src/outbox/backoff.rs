//! When a failed event is tried again: both of the document's formulas.

use relevo::RetryPolicy;
use std::time::Duration;

/// How delays grow with `retry_count`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Growth {
    /// `base * retry_count`, without jitter.
    Linear,
    /// `min(base * 2^(retry_count - 1), max)`, and 0 to 20 % on top.
    Exponential,
}

/// The policy of transient errors. Permanent ones and poison are dead letters at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// Which formula.
    pub growth: Growth,
    /// The first delay.
    pub base: Duration,
    /// The longest, before jitter.
    pub max: Duration,
    /// After so many attempts a transient error is a dead letter too; without it, never.
    pub max_attempts: Option<u32>,
}

impl Default for Backoff {
    fn default() -> Self {
        let (base, max) = (Duration::from_millis(50), Duration::from_secs(300));
        Self { growth: Growth::Exponential, base, max, max_attempts: None }
    }
}

/// The document bounds no linear delay; Relevo allows none longer than this.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

/// Relevo spreads a delay evenly around its value. The middle of 1.0 to 1.2 is 1.1, and a tenth is an eleventh of that.
const MIDDLE: f64 = 1.1;
const SPREAD: f64 = 0.1 / MIDDLE;

impl Backoff {
    /// As Relevo takes it.
    pub fn policy(&self) -> RetryPolicy {
        let policy = match self.growth {
            Growth::Linear => RetryPolicy::linear(self.base, LONGEST).jitter(0.0),
            Growth::Exponential => {
                let (base, max) = (self.base.mul_f64(MIDDLE), self.max.mul_f64(MIDDLE));
                RetryPolicy::exponential(base, 2.0, max).jitter(SPREAD)
            }
        };
        policy.max_attempts(self.max_attempts.unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use relevo::ErrorClass;
    use relevo_core::clock::Rng;
    use relevo_core::retry::Verdict;

    fn delay(backoff: Backoff, retry_count: u32, rng: &mut Rng) -> Duration {
        match backoff.policy().verdict(retry_count, ErrorClass::Transient, rng) {
            Verdict::RetryIn(delay) => delay,
            Verdict::Dead => panic!("dead after {retry_count}"),
        }
    }

    #[test]
    fn linear_is_base_times_retry_count() {
        let linear = Backoff { growth: Growth::Linear, ..Backoff::default() };
        for retry_count in [1, 2, 3, 40, 10_000] {
            let expected = Duration::from_millis(50) * retry_count;
            assert_eq!(delay(linear, retry_count, &mut Rng::seeded(1)), expected);
        }
    }

    #[test]
    fn exponential_doubles_up_to_five_minutes_and_jitter_comes_on_top_of_the_cap() {
        let mut rng = Rng::seeded(7);
        for retry_count in 1..=40 {
            let grown = 0.05 * 2f64.powi(retry_count as i32 - 1);
            let without = grown.min(300.0);
            let shares = (0..500)
                .map(|_| delay(Backoff::default(), retry_count, &mut rng).as_secs_f64() / without);
            let (least, most) = shares.fold((f64::MAX, 0f64), |(a, b), x| (a.min(x), b.max(x)));
            assert!((0.9999..1.01).contains(&least), "{retry_count}: {least}");
            assert!((1.19..1.2001).contains(&most), "{retry_count}: {most}");
        }
    }

    #[test]
    fn transient_errors_die_only_if_attempts_are_limited_and_the_others_at_once() {
        let verdict = |backoff: Backoff, attempts, class| {
            backoff.policy().verdict(attempts, class, &mut Rng::seeded(1))
        };
        let (endless, three) =
            (Backoff::default(), Backoff { max_attempts: Some(3), ..Backoff::default() });
        for class in [ErrorClass::Transient, ErrorClass::Unknown] {
            assert_ne!(verdict(endless, 1_000_000, class), Verdict::Dead);
            assert_ne!(verdict(three, 2, class), Verdict::Dead);
            assert_eq!(verdict(three, 3, class), Verdict::Dead);
        }
        for class in [ErrorClass::Permanent, ErrorClass::Poison] {
            assert_eq!(verdict(endless, 1, class), Verdict::Dead);
        }
    }
}
