//! Many seeds, on several threads.

use super::invariant::{Invariant, Violation};
use super::options::Options;
use super::seen::Seen;
use super::sim::{Outcome, run};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Which seeds to run, and how.
#[derive(Debug, Clone)]
pub struct Campaign {
    /// The first seed.
    pub first: u64,
    /// How many seeds.
    pub seeds: u64,
    /// On so many threads.
    pub threads: usize,
    /// One seed in so many runs twice and must be the same both times.
    pub twice_every: u64,
}

/// A seed that broke a promise.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The promise.
    pub violation: Violation,
}

/// What a campaign came to.
#[derive(Debug)]
pub struct Report {
    /// Seeds that ran.
    pub seeds: u64,
    /// Seeds that ran twice.
    pub twice: u64,
    /// The failure with the lowest seed.
    pub failure: Option<Failure>,
    /// What all runs together came through.
    pub seen: Seen,
    /// How long it took.
    pub took: Duration,
}

impl Default for Campaign {
    fn default() -> Self {
        Self { first: 1, seeds: 1_000, threads: 2, twice_every: 100 }
    }
}

#[derive(Default)]
struct Shared {
    next: AtomicU64,
    stop: AtomicBool,
    twice: AtomicU64,
    seen: Mutex<Seen>,
    failure: Mutex<Option<Failure>>,
}

impl Campaign {
    /// Runs the seeds; ends early at the first that breaks a promise. `before` runs on each thread first.
    pub fn run(&self, before: impl Fn() + Sync) -> Report {
        let began = Instant::now();
        let shared = Shared::default();
        std::thread::scope(|scope| {
            for _ in 0..self.threads.max(1) {
                scope.spawn(|| {
                    before();
                    self.work(&shared);
                });
            }
        });
        Report {
            seeds: shared.next.load(Ordering::Relaxed).min(self.seeds),
            twice: shared.twice.load(Ordering::Relaxed),
            failure: shared.failure.into_inner().unwrap_or_else(PoisonError::into_inner),
            seen: shared.seen.into_inner().unwrap_or_else(PoisonError::into_inner),
            took: began.elapsed(),
        }
    }

    fn work(&self, shared: &Shared) {
        let timers = Timers::new();
        let _entered = timers.enter();
        let mut seen = Seen::default();
        while !shared.stop.load(Ordering::Relaxed) {
            let nth = shared.next.fetch_add(1, Ordering::Relaxed);
            if nth >= self.seeds {
                break;
            }
            let seed = self.first + nth;
            let outcome = self.one(seed, shared);
            seen.add(&outcome.seen);
            if let Some(violation) = outcome.violation {
                shared.stop.store(true, Ordering::Relaxed);
                keep_lowest(&shared.failure, Failure { seed, violation });
            }
        }
        shared.seen.lock().unwrap_or_else(PoisonError::into_inner).add(&seen);
    }

    fn one(&self, seed: u64, shared: &Shared) -> Outcome {
        let mut outcome = run_caught(seed);
        if outcome.violation.is_none()
            && self.twice_every > 0
            && seed.is_multiple_of(self.twice_every)
        {
            shared.twice.fetch_add(1, Ordering::Relaxed);
            let again = run_caught(seed);
            if again.seen != outcome.seen {
                let text = "two runs of the same seed differ".into();
                outcome.violation = Some(Violation { invariant: Invariant::Deterministic, text });
            }
        }
        outcome
    }
}

/// A panic of a machine is a broken promise like any other, with the seed that repeats it.
pub(super) fn run_caught(seed: u64) -> Outcome {
    let options = Options::from_seed(seed);
    std::panic::catch_unwind(|| run(options, false)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text
            .or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
            .unwrap_or_default();
        let violation = Some(Violation { invariant: Invariant::NoPanic, text });
        Outcome { violation, seen: Seen::default(), trace: Vec::new() }
    })
}

fn keep_lowest(slot: &Mutex<Option<Failure>>, failure: Failure) {
    let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
    if slot.as_ref().is_none_or(|known| failure.seed < known.seed) {
        *slot = Some(failure);
    }
}

/// The shells set limits with tokio's timers, which want a runtime around them; its clock never matters here,
/// because no simulated step takes any real time.
pub(super) struct Timers(tokio::runtime::Runtime);

impl Timers {
    pub(super) fn new() -> Self {
        #[expect(clippy::expect_used, reason = "without a runtime there is no simulation")]
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a timer");
        Self(runtime)
    }

    pub(super) fn enter(&self) -> tokio::runtime::EnterGuard<'_> {
        self.0.enter()
    }
}
