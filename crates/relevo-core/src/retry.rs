//! When to try again: a pure function of attempts and error class.
//!
//! # What counts when the class changes
//!
//! Attempts are counted for the event, never for each class. The class of the latest failure picks the policy, and
//! that policy is asked with all attempts so far. So an event whose failures take turns between classes cannot get
//! the attempts of each: it never has more than the most generous of its policies allows. It also needs nothing
//! remembered but one number, which survives a restart.

use crate::clock::Rng;
use crate::error::{Error, ErrorClass, Kind, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// No event waits longer between two attempts, whoever asks for it: databases cannot add every delay to a date.
pub const LONGEST_DELAY: Duration = Duration::from_secs(365 * 24 * 3600);

/// How delays grow from attempt to attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Backoff {
    /// Fixed steps; the last one repeats if more attempts are allowed than steps are given.
    Ladder(Vec<Duration>),
    /// `step`, twice `step`, three times `step` ... at most `max`.
    Linear {
        /// The first delay and the growth.
        step: Duration,
        /// The longest delay.
        max: Duration,
    },
    /// `base`, then each `factor` times the one before, at most `max`.
    Exponential {
        /// The first delay.
        base: Duration,
        /// Growth from one delay to the next.
        factor: f64,
        /// The longest delay.
        max: Duration,
    },
}

/// What happens to an event that failed: a general policy, and others for single classes of errors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RetryPolicy {
    general: Attempts,
    /// The classes that follow the general policy.
    retried: Vec<ErrorClass>,
    /// The classes that follow one of their own.
    by_class: BTreeMap<ErrorClass, Attempts>,
}

/// How often, and after which delays.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Attempts {
    backoff: Backoff,
    max: u32,
    jitter: f64,
}

/// The verdict on a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Try again after this long.
    RetryIn(Duration),
    /// A dead letter.
    Dead,
}

impl Default for RetryPolicy {
    /// Exponential from one second to ten minutes, doubling, 10 % jitter, twelve attempts.
    fn default() -> Self {
        Self::exponential(Duration::from_secs(1), 2.0, Duration::from_secs(600))
    }
}

impl RetryPolicy {
    /// Steps such as 1m, 5m, 15m: one attempt, then one after each step.
    pub fn ladder(steps: impl IntoIterator<Item = Duration>) -> Self {
        let steps: Vec<Duration> = steps.into_iter().collect();
        let max_attempts = u32::try_from(steps.len()).unwrap_or(u32::MAX).saturating_add(1);
        Self::of(Backoff::Ladder(steps)).max_attempts(max_attempts).jitter(0.0)
    }

    /// Delays that grow by the same step, at most `max`.
    pub fn linear(step: Duration, max: Duration) -> Self {
        Self::of(Backoff::Linear { step, max })
    }

    /// Delays that grow by a factor, at most `max`.
    pub fn exponential(base: Duration, factor: f64, max: Duration) -> Self {
        Self::of(Backoff::Exponential { base, factor, max })
    }

    fn of(backoff: Backoff) -> Self {
        let retried = vec![ErrorClass::Transient, ErrorClass::Unknown];
        let general = Attempts { backoff, max: 12, jitter: 0.1 };
        Self { general, retried, by_class: BTreeMap::new() }
    }

    /// How many attempts an event gets, the first included.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.general.max = attempts.max(1);
        self
    }

    /// Spreads each delay by up to this share (0.0 to 0.2), so that failures do not return in step.
    pub fn jitter(mut self, share: f64) -> Self {
        self.general.jitter = share;
        self
    }

    /// Which classes follow this policy (by default transient and unknown). The others are dead letters at once,
    /// unless they have a policy of their own by [`Self::for_class`].
    pub fn retry_classes(mut self, classes: impl IntoIterator<Item = ErrorClass>) -> Self {
        self.retried = classes.into_iter().collect();
        self
    }

    /// Gives one class its own delays, attempts and jitter. Only these are taken from `policy`, not which classes it
    /// retries itself. With `max_attempts(1)` the class is a dead letter at its first failure.
    ///
    /// Attempts are counted for the event, not for each class: see [the module](self).
    ///
    /// ```
    /// use relevo_core::error::ErrorClass;
    /// use relevo_core::retry::RetryPolicy;
    /// use std::time::Duration;
    ///
    /// let day = Duration::from_secs(24 * 3600);
    /// let policy = RetryPolicy::default()
    ///     // Somebody has to mend it: give them two days.
    ///     .for_class(ErrorClass::Permanent, RetryPolicy::ladder([day, day]))
    ///     // It may have happened: once more at most.
    ///     .for_class(ErrorClass::Unknown, RetryPolicy::default().max_attempts(2));
    /// # policy.check().unwrap();
    /// ```
    pub fn for_class(mut self, class: ErrorClass, policy: RetryPolicy) -> Self {
        self.by_class.insert(class, policy.general);
        self
    }

    /// Refuses what cannot be meant.
    pub fn check(&self) -> Result<()> {
        let refused = |of: String, why| {
            Err(Error::new(Kind::InvalidConfig, format!("retry policy{of}: {why}")))
        };
        if let Some(why) = self.general.problem() {
            return refused(String::new(), why);
        }
        for (class, attempts) in &self.by_class {
            if let Some(why) = attempts.problem() {
                return refused(format!(" for {class} errors"), why);
            }
        }
        Ok(())
    }

    /// The verdict after `attempts` failed attempts in all, whatever their classes, the last with an error of
    /// `class`.
    pub fn verdict(&self, attempts: u32, class: ErrorClass, rng: &mut Rng) -> Verdict {
        match self.of_class(class) {
            Some(policy) if attempts < policy.max => Verdict::RetryIn(policy.wait(attempts, rng)),
            _ => Verdict::Dead,
        }
    }

    fn of_class(&self, class: ErrorClass) -> Option<&Attempts> {
        let general = || self.retried.contains(&class).then_some(&self.general);
        self.by_class.get(&class).or_else(general)
    }
}

impl Attempts {
    fn problem(&self) -> Option<&'static str> {
        let too_long = |delay: &Duration| *delay > LONGEST_DELAY;
        match &self.backoff {
            Backoff::Ladder(steps) if steps.is_empty() && self.max > 1 => {
                Some("a ladder needs steps")
            }
            Backoff::Ladder(steps) if steps.iter().any(too_long) => Some(TOO_LONG),
            Backoff::Linear { max, .. } | Backoff::Exponential { max, .. } if too_long(max) => {
                Some(TOO_LONG)
            }
            Backoff::Exponential { factor, .. } if !(1.0..=100.0).contains(factor) => {
                Some("factor must be 1 to 100")
            }
            _ if !(0.0..=0.2).contains(&self.jitter) => Some("jitter must be 0 to 0.2 (20 %)"),
            _ => None,
        }
    }

    /// The delay with its jitter. A policy that was never checked still gives a delay that can be waited for.
    fn wait(&self, attempts: u32, rng: &mut Rng) -> Duration {
        let delay = self.delay(attempts.max(1)).min(LONGEST_DELAY);
        let spread = 1.0 + self.jitter * (2.0 * rng.unit() - 1.0);
        if spread.is_finite() { delay.mul_f64(spread.clamp(0.0, 2.0)) } else { delay }
    }

    fn delay(&self, attempts: u32) -> Duration {
        match &self.backoff {
            Backoff::Ladder(steps) => {
                let step = steps.get(attempts as usize - 1).or(steps.last());
                step.copied().unwrap_or(Duration::ZERO)
            }
            Backoff::Linear { step, max } => step.saturating_mul(attempts).min(*max),
            Backoff::Exponential { base, factor, max } => {
                // Beyond 2^64 seconds every delay is the maximum: the power must not overflow on the way.
                let grown = base.as_secs_f64() * factor.powi(attempts.min(200) as i32 - 1);
                Duration::try_from_secs_f64(grown).map_or(*max, |delay| delay.min(*max))
            }
        }
    }
}

const TOO_LONG: &str = "a delay must not be longer than 365 days";

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn verdicts(policy: &RetryPolicy, n: u32) -> Vec<Verdict> {
        let mut rng = Rng::seeded(1);
        (1..=n).map(|attempts| policy.verdict(attempts, ErrorClass::Transient, &mut rng)).collect()
    }

    #[test]
    fn a_ladder_is_climbed_step_by_step_and_ends_in_a_dead_letter() {
        let ladder = RetryPolicy::ladder([MINUTE, 5 * MINUTE, 15 * MINUTE]);
        assert_eq!(
            verdicts(&ladder, 4),
            [
                Verdict::RetryIn(MINUTE),
                Verdict::RetryIn(5 * MINUTE),
                Verdict::RetryIn(15 * MINUTE),
                Verdict::Dead
            ]
        );
    }

    #[test]
    fn delays_grow_to_their_maximum_and_no_further() {
        let policy = RetryPolicy::exponential(Duration::from_secs(1), 2.0, 5 * MINUTE)
            .jitter(0.0)
            .max_attempts(u32::MAX);
        let mut rng = Rng::seeded(1);
        assert_eq!(
            policy.verdict(3, ErrorClass::Transient, &mut rng),
            Verdict::RetryIn(Duration::from_secs(4))
        );
        assert_eq!(
            policy.verdict(1_000_000, ErrorClass::Transient, &mut rng),
            Verdict::RetryIn(5 * MINUTE)
        );
        let linear = RetryPolicy::linear(MINUTE, 3 * MINUTE).jitter(0.0).max_attempts(9);
        assert_eq!(
            linear.verdict(2, ErrorClass::Transient, &mut rng),
            Verdict::RetryIn(2 * MINUTE)
        );
        assert_eq!(
            linear.verdict(8, ErrorClass::Transient, &mut rng),
            Verdict::RetryIn(3 * MINUTE)
        );
    }

    #[test]
    fn jitter_stays_within_its_share() {
        let policy = RetryPolicy::linear(MINUTE, MINUTE).jitter(0.2).max_attempts(u32::MAX);
        let mut rng = Rng::seeded(7);
        for _ in 0..1000 {
            let Verdict::RetryIn(delay) = policy.verdict(1, ErrorClass::Transient, &mut rng) else {
                panic!("dead")
            };
            assert!((48.0..=72.0).contains(&delay.as_secs_f64()), "{delay:?}");
        }
    }

    #[test]
    fn a_permanent_or_poison_error_is_dead_at_once() {
        let mut rng = Rng::seeded(1);
        for class in [ErrorClass::Permanent, ErrorClass::Poison] {
            assert_eq!(RetryPolicy::default().verdict(1, class, &mut rng), Verdict::Dead);
        }
    }

    #[test]
    fn a_policy_that_cannot_be_meant_is_refused() {
        assert!(RetryPolicy::default().jitter(0.5).check().is_err());
        assert!(RetryPolicy::exponential(MINUTE, 0.5, MINUTE).check().is_err());
        assert!(RetryPolicy::ladder([]).max_attempts(3).check().is_err());
        assert!(RetryPolicy::ladder([MINUTE]).check().is_ok());
        let year = 366 * 24 * 60 * MINUTE;
        assert!(RetryPolicy::ladder([MINUTE, year]).check().is_err());
        assert!(RetryPolicy::linear(MINUTE, year).check().is_err());
        assert!(RetryPolicy::exponential(MINUTE, 2.0, year).check().is_err());
    }

    #[test]
    fn the_longest_delay_is_a_year_and_may_be_had() {
        let year = 365 * 24 * 60 * MINUTE;
        assert_eq!(LONGEST_DELAY, year);
        assert!(RetryPolicy::ladder([year]).check().is_ok());
        assert!(RetryPolicy::linear(MINUTE, year).check().is_ok());
        assert!(RetryPolicy::ladder([]).max_attempts(1).check().is_ok());
    }

    #[test]
    fn only_the_classes_that_are_named_are_tried_again() {
        let policy = RetryPolicy::ladder([MINUTE]).retry_classes([ErrorClass::Permanent]);
        assert_eq!(timetable(&policy, &[ErrorClass::Permanent; 3]), (vec![0, 60], true));
        assert_eq!(timetable(&policy, &[ErrorClass::Transient; 3]), (vec![0], true));
    }

    #[test]
    fn a_wrong_policy_of_one_class_is_refused_by_its_name() {
        let wrong = RetryPolicy::default().jitter(0.5);
        let error = RetryPolicy::default().for_class(ErrorClass::Poison, wrong).check();
        let message = error.unwrap_err().message().to_owned();
        assert_eq!(message, "retry policy for poison errors: jitter must be 0 to 0.2 (20 %)");
    }

    /// What a clock shows at each attempt of an event that fails with these classes, until it is dead.
    fn timetable(policy: &RetryPolicy, classes: &[ErrorClass]) -> (Vec<u64>, bool) {
        let (mut rng, mut clock) = (Rng::seeded(1), crate::clock::Instant::ZERO);
        let mut tried = Vec::new();
        for (attempts, class) in (1..).zip(classes) {
            tried.push(clock.since(crate::clock::Instant::ZERO).as_secs());
            match policy.verdict(attempts, *class, &mut rng) {
                Verdict::RetryIn(delay) => clock = clock + delay,
                Verdict::Dead => return (tried, true),
            }
        }
        (tried, false)
    }

    fn of_two_minds() -> RetryPolicy {
        RetryPolicy::ladder([MINUTE, 2 * MINUTE, 3 * MINUTE, 4 * MINUTE]).for_class(
            ErrorClass::Permanent,
            RetryPolicy::linear(60 * MINUTE, 600 * MINUTE).jitter(0.0).max_attempts(3),
        )
    }

    #[test]
    fn each_class_follows_its_own_policy_and_the_others_the_general_one() {
        let policy = of_two_minds();
        assert_eq!(
            timetable(&policy, &[ErrorClass::Transient; 9]),
            (vec![0, 60, 180, 360, 600], true)
        );
        assert_eq!(timetable(&policy, &[ErrorClass::Unknown; 9]).0.len(), 5);
        assert_eq!(timetable(&policy, &[ErrorClass::Permanent; 9]), (vec![0, 3600, 10_800], true));
        assert_eq!(timetable(&policy, &[ErrorClass::Poison; 9]), (vec![0], true));
    }

    #[test]
    fn a_change_of_class_goes_on_counting() {
        use ErrorClass::{Permanent, Transient};
        let policy = of_two_minds();
        // The second attempt is permanent's second: 2 hours. The third is the last one permanent allows.
        let turns = timetable(&policy, &[Transient, Permanent, Permanent]);
        assert_eq!(turns, (vec![0, 60, 60 + 7200], true));
        // Past permanent's limit it is dead at once; back among the transient ones it climbs on where it stood.
        let late = timetable(&policy, &[Transient, Transient, Transient, Permanent]);
        assert_eq!(late, (vec![0, 60, 180, 360], true));
        let back = timetable(&policy, &[Permanent, Permanent, Transient, Transient, Transient]);
        assert_eq!(back, (vec![0, 3600, 10_800, 10_980, 11_220], true));
    }

    #[test]
    fn taking_turns_between_classes_gives_no_more_attempts_than_the_most_generous_policy() {
        let policy = of_two_minds();
        let mut rng = Rng::seeded(11);
        for _ in 0..1000 {
            let classes: Vec<ErrorClass> =
                (0..20).map(|_| ErrorClass::ALL[rng.below(4) as usize]).collect();
            let (tried, dead) = timetable(&policy, &classes);
            assert!(dead && tried.len() <= 5, "{classes:?}: {tried:?}");
        }
    }

    #[test]
    fn one_attempt_makes_a_class_dead_at_once() {
        let policy = RetryPolicy::default()
            .for_class(ErrorClass::Unknown, RetryPolicy::default().max_attempts(1));
        assert_eq!(timetable(&policy, &[ErrorClass::Unknown; 3]), (vec![0], true));
        assert_eq!(timetable(&policy, &[ErrorClass::Transient; 20]).0.len(), 12);
    }

    #[test]
    fn even_an_unchecked_policy_gives_a_delay_that_can_be_waited_for() {
        let mut rng = Rng::seeded(3);
        for backoff in [
            RetryPolicy::ladder([Duration::MAX]),
            RetryPolicy::linear(Duration::MAX, Duration::MAX),
            RetryPolicy::exponential(Duration::MAX, 1e300, Duration::MAX),
            RetryPolicy::exponential(MINUTE, f64::NAN, MINUTE),
        ] {
            for jitter in [0.2, -7.0, f64::NAN, f64::INFINITY] {
                let policy = backoff.clone().jitter(jitter).max_attempts(9);
                for attempts in [0, 1, 2, 8] {
                    let verdict = policy.verdict(attempts, ErrorClass::Transient, &mut rng);
                    assert!(matches!(verdict, Verdict::RetryIn(d) if d <= 2 * LONGEST_DELAY));
                }
            }
        }
    }
}
