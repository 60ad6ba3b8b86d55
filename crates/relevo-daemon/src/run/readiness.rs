//! Ready means *progressing*: a pure judgement over samples, without a clock of its own.

use relevo_core::clock::Instant;
use serde::Serialize;
use std::time::Duration;

/// What was seen of a subscription at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sample {
    /// Grows with every cursor, park or probe that moved.
    pub moves: u64,
    /// Something waits to be handed over: events, parked keys past their time.
    pub due: bool,
    /// The work itself is due: it could not be started, or its store does not answer.
    pub blind: bool,
}

/// Judges one subscription: not ready if and only if something is due and nothing moved for its
/// patience (30 s unless told otherwise).
#[derive(Debug, Clone)]
pub struct Readiness {
    patience: Duration,
    moves: u64,
    waiting: bool,
    /// When last nothing was due, or something moved.
    fine_at: Instant,
}

/// The judgement, as `/health/ready` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Verdict {
    /// Progressing, or nothing to do.
    pub ready: bool,
    /// Something is due.
    pub due: bool,
    /// For so long something was due and nothing moved.
    pub still_for_s: f64,
}

impl Readiness {
    /// Starts fine at `now`.
    pub fn new(patience: Duration, now: Instant) -> Self {
        Self { patience, moves: 0, waiting: false, fine_at: now }
    }

    /// Takes in a sample. A restarted relay counts from zero again: any change is a move.
    pub fn observe(&mut self, now: Instant, sample: Sample) {
        let moved = sample.moves != self.moves;
        self.waiting = sample.due || sample.blind;
        self.moves = sample.moves;
        if moved || !self.waiting {
            self.fine_at = now;
        }
    }

    /// How it stands at `now`.
    pub fn verdict(&self, now: Instant) -> Verdict {
        let still = if self.waiting { now.since(self.fine_at) } else { Duration::ZERO };
        Verdict {
            ready: still < self.patience,
            due: self.waiting,
            still_for_s: still.as_secs_f64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn at(seconds: u64) -> Instant {
        Instant::at(Duration::from_secs(seconds))
    }

    fn due(moves: u64) -> Sample {
        Sample { moves, due: true, blind: false }
    }

    fn after(samples: &[(u64, Sample)]) -> Readiness {
        let mut readiness = Readiness::new(PATIENCE, at(0));
        samples.iter().for_each(|(second, sample)| readiness.observe(at(*second), *sample));
        readiness
    }

    #[test]
    fn an_idle_relay_is_ready_however_long_nothing_moves() {
        assert!(
            after(&[(0, Sample::default()), (9999, Sample::default())]).verdict(at(20_000)).ready
        );
    }

    #[test]
    fn something_due_that_stands_still_for_thirty_seconds_is_not_ready() {
        let readiness = after(&[(5, Sample::default()), (6, due(0))]);
        assert!(readiness.verdict(at(34)).ready);
        assert!(!readiness.verdict(at(35)).ready);
    }

    #[test]
    fn a_probe_of_a_dead_destination_counts_as_a_move() {
        let readiness = after(&[(0, due(1)), (25, due(2)), (50, due(3))]);
        assert!(readiness.verdict(at(79)).ready);
        assert!(!readiness.verdict(at(80)).ready);
    }

    #[test]
    fn it_is_ready_again_with_the_first_move_and_when_nothing_is_due_any_more() {
        assert!(after(&[(0, due(1)), (100, due(1)), (101, due(2))]).verdict(at(102)).ready);
        assert!(
            after(&[(0, due(1)), (100, Sample { moves: 1, due: false, blind: false })])
                .verdict(at(200))
                .ready
        );
    }

    #[test]
    fn a_restart_that_counts_from_zero_is_a_move_and_a_blind_relay_is_not() {
        assert!(after(&[(0, due(7)), (40, due(0))]).verdict(at(41)).ready);
        let blind = Sample { moves: 7, due: false, blind: true };
        assert!(!after(&[(0, due(7)), (1, blind)]).verdict(at(31)).ready);
    }
}
