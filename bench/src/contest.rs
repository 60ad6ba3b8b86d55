//! Contenders take turns, round after round; the median of each is compared.

use crate::arena::Arena;
use crate::tasks::{Outcome, Task};
use anyhow::{Context, Result};
use serde::Serialize;

/// One turn of one contender.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Sample {
    /// Events a second.
    pub(crate) value: f64,
    pub(crate) cpu_ours_s: f64,
    pub(crate) cpu_database_s: f64,
    pub(crate) cpu_broker_s: f64,
    pub(crate) peak_mb: f64,
    pub(crate) wal_bytes_per_event: f64,
    pub(crate) dead_tuples: i64,
    pub(crate) events: u64,
}

/// Who takes part.
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    /// The turn: what to do for round n.
    pub(crate) turn: Box<dyn Fn(usize) -> Task + Send + Sync>,
}

impl Contender {
    pub(crate) fn new(
        name: &'static str,
        turn: impl Fn(usize) -> Task + Send + Sync + 'static,
    ) -> Contender {
        Contender { name, turn: Box::new(turn) }
    }
}

/// The first contender is ours; it is compared with each of the others.
pub(crate) struct Contest {
    pub(crate) name: String,
    pub(crate) contenders: Vec<Contender>,
    /// The ratio to reach against each of the others, where one is set.
    pub(crate) goals: Vec<Option<f64>>,
}

/// A contender's turns.
#[derive(Debug, Serialize)]
pub(crate) struct Series {
    pub(crate) name: &'static str,
    pub(crate) median: f64,
    /// Half of the distance between the best and the worst, against the median.
    pub(crate) spread: f64,
    pub(crate) samples: Vec<Sample>,
}

/// A contest that is over.
#[derive(Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) name: String,
    pub(crate) series: Vec<Series>,
    pub(crate) goals: Vec<Option<f64>>,
}

impl Contest {
    /// Rounds in turn: whatever else the machine does meanwhile falls on all of them.
    pub(crate) async fn hold(self, arena: &Arena, rounds: usize) -> Result<Figure> {
        let mut samples: Vec<Vec<Sample>> = self.contenders.iter().map(|_| Vec::new()).collect();
        for round in 0..rounds {
            for (contender, samples) in self.contenders.iter().zip(&mut samples) {
                let what = || format!("{}: {}, round {}", self.name, contender.name, round + 1);
                let sample = self.take_turn(arena, contender, round).await.with_context(what)?;
                eprintln!("{:<52} {:>12.0}", what(), sample.value);
                samples.push(sample);
            }
        }
        let names = self.contenders.iter().map(|contender| contender.name);
        let series = names.zip(samples).map(|(name, samples)| Series::of(name, samples)).collect();
        Ok(Figure { name: self.name, series, goals: self.goals })
    }

    async fn take_turn(
        &self,
        arena: &Arena,
        contender: &Contender,
        round: usize,
    ) -> Result<Sample> {
        let task = (contender.turn)(round);
        arena.prepare(&task).await?;
        let before = arena.meter().await?;
        let outcome: Outcome = task.in_a_process().await?;
        let after = arena.meter().await?;
        arena.verify(&task).await?;
        let value = outcome.events as f64 / outcome.seconds;
        Ok(Sample {
            value,
            cpu_ours_s: outcome.cpu_s,
            cpu_database_s: after.cpu_database_s - before.cpu_database_s,
            cpu_broker_s: after.cpu_broker_s - before.cpu_broker_s,
            peak_mb: outcome.peak_mb,
            wal_bytes_per_event: (after.wal_bytes - before.wal_bytes)
                / outcome.events.max(1) as f64,
            dead_tuples: after.dead_tuples - before.dead_tuples,
            events: outcome.events,
        })
    }
}

impl Series {
    fn of(name: &'static str, samples: Vec<Sample>) -> Series {
        let mut values: Vec<f64> = samples.iter().map(|sample| sample.value).collect();
        values.sort_by(f64::total_cmp);
        let median = median(&values);
        let reach = values.last().unwrap_or(&0.0) - values.first().unwrap_or(&0.0);
        Series { name, median, spread: reach / 2.0 / median.max(f64::MIN_POSITIVE), samples }
    }

    /// The sample in the middle, to tell what it cost.
    pub(crate) fn middle(&self) -> Option<&Sample> {
        let distance = |sample: &Sample| (sample.value - self.median).abs();
        self.samples.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)))
    }
}

fn median(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(values: &[f64]) -> Series {
        let sample = |value: &f64| Sample { value: *value, ..Sample::default() };
        Series::of("x", values.iter().map(sample).collect())
    }

    #[test]
    fn the_median_does_not_mind_one_bad_round() {
        assert_eq!(series(&[100.0, 10.0, 104.0]).median, 100.0);
        assert_eq!(series(&[1.0, 3.0]).median, 2.0);
        assert_eq!(series(&[90.0, 110.0, 100.0]).spread, 0.1);
        assert_eq!(series(&[90.0, 110.0, 99.0]).middle().map(|sample| sample.value), Some(99.0));
    }
}
