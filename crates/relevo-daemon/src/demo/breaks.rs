//! What can be broken, by a key or by a schedule.

use std::time::Duration;

/// Something to break.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Break {
    /// An order whose bytes no handler can read
    Poison,
    /// The handler fails for two seconds
    Fail,
    /// The worker is stopped (SIGSTOP) for two seconds
    Stop,
    /// The worker is killed (kill -9) and another one started
    Kill,
}

/// How long a failure or a stop lasts when nobody ends it by a key.
const LASTS: Duration = Duration::from_secs(2);

/// What is to happen, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Begin(Break),
    End(Break),
}

/// Spreads `breaks` evenly over `length`; what lasts ends before the time is over.
pub(super) fn schedule(breaks: &[Break], length: Duration) -> Vec<(Duration, Step)> {
    let part = length / (breaks.len() as u32 + 1);
    let mut steps = Vec::new();
    for (index, what) in breaks.iter().enumerate() {
        let at = part * (index as u32 + 1);
        steps.push((at, Step::Begin(*what)));
        if matches!(what, Break::Fail | Break::Stop) {
            steps.push((at + LASTS.min(part / 2), Step::End(*what)));
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn breaks_are_spread_and_end_before_the_next_begins() {
        let second = Duration::from_secs;
        let steps = schedule(&[Break::Fail, Break::Kill], second(9));
        let expected = [
            (second(3), Step::Begin(Break::Fail)),
            (second(3) + Duration::from_millis(1500), Step::End(Break::Fail)),
            (second(6), Step::Begin(Break::Kill)),
        ];
        assert_eq!(steps, expected);
        assert!(schedule(&[], second(5)).is_empty());
    }
}
