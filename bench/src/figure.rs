//! From turns to figures: medians, spreads, and whether a goal is reached.

use crate::goal::{Goal, Unit};
use crate::tasks::Outcome;
use serde::{Deserialize, Deserializer, Serialize};

/// One turn of one contender, with what it cost others.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Sample {
    #[serde(flatten)]
    pub(crate) outcome: Outcome,
    pub(crate) cpu_database_s: f64,
    pub(crate) cpu_broker_s: f64,
    pub(crate) wal_bytes: f64,
    pub(crate) dead_tuples: i64,
    /// Statements, or transactions where the server cannot count statements.
    pub(crate) queries: i64,
}

impl Sample {
    pub(crate) fn rate(&self) -> f64 {
        self.outcome.events as f64 / self.outcome.seconds.max(f64::MIN_POSITIVE)
    }

    /// The rate without the start: between a tenth of the events and all of them.
    pub(crate) fn steady_rate(&self) -> f64 {
        self.value("steady_rate")
    }

    pub(crate) fn steady_micros(&self) -> f64 {
        1e6 / self.steady_rate().max(f64::MIN_POSITIVE)
    }

    pub(crate) fn peak_mb(&self) -> f64 {
        self.outcome.peak_mb
    }

    pub(crate) fn per_event(&self, amount: f64) -> f64 {
        amount / self.outcome.events.max(1) as f64
    }

    pub(crate) fn dead_per_event(&self) -> f64 {
        self.per_event(self.dead_tuples as f64)
    }

    /// What a task measured beside its rate; not a number if it did not.
    pub(crate) fn value(&self, name: &str) -> f64 {
        self.outcome.values.get(name).copied().unwrap_or(f64::NAN)
    }
}

/// What is read off the turns of a contest: one figure.
#[derive(Clone)]
pub(crate) struct Reading {
    /// Told after the contest's name; empty for its rate.
    pub(crate) name: &'static str,
    pub(crate) unit: Unit,
    pub(crate) of: fn(&Sample) -> f64,
    /// A goal for each contender: the first one's is about ours alone, the others' about ours against theirs.
    pub(crate) goals: Vec<Option<Goal>>,
}

impl Reading {
    /// The rate, with a goal against each of the others.
    pub(crate) fn rate(goals: impl IntoIterator<Item = Option<Goal>>) -> Reading {
        let goals = std::iter::once(None).chain(goals).collect();
        Reading { name: "", unit: Unit::EventsPerSecond, of: Sample::rate, goals }
    }

    /// A value of ours alone that is to stay below this.
    pub(crate) fn own(
        name: &'static str,
        unit: Unit,
        of: fn(&Sample) -> f64,
        most: Option<f64>,
    ) -> Reading {
        Reading { name, unit, of, goals: vec![most.map(Goal::AtMostValue)] }
    }
}

/// A contest that is over.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) name: String,
    pub(crate) contenders: Vec<Turns>,
    pub(crate) figures: Vec<Figure>,
}

/// A contender's turns.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Turns {
    pub(crate) name: String,
    pub(crate) samples: Vec<Sample>,
}

/// One thing that was read off.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Figure {
    pub(crate) name: String,
    pub(crate) unit: Unit,
    pub(crate) series: Vec<Series>,
}

/// A contender's line in a figure.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Series {
    pub(crate) name: String,
    #[serde(deserialize_with = "number")]
    pub(crate) median: f64,
    /// Half of the distance between the best and the worst, against the median.
    #[serde(deserialize_with = "number")]
    pub(crate) spread: f64,
    pub(crate) goal: Option<Goal>,
    pub(crate) reached: Option<bool>,
}

impl Results {
    pub(crate) fn of(name: String, contenders: Vec<Turns>, readings: &[Reading]) -> Results {
        let figures = readings.iter().map(|reading| Figure::of(reading, &contenders)).collect();
        Results { name, contenders, figures }
    }
}

impl Figure {
    fn of(reading: &Reading, contenders: &[Turns]) -> Figure {
        let mut series: Vec<Series> =
            contenders.iter().map(|turns| Series::of(turns, reading.of)).collect();
        let ours = series.first().map_or(f64::NAN, |ours| ours.median);
        for (line, goal) in series.iter_mut().zip(&reading.goals) {
            line.goal = *goal;
            line.reached = goal.map(|goal| goal.is_reached(ours, line.median));
        }
        Figure { name: reading.name.to_owned(), unit: reading.unit, series }
    }

    /// For people to read.
    pub(crate) fn title(&self) -> &str {
        if self.name.is_empty() { "rate" } else { &self.name }
    }

    /// Ours to that of another line, if both are numbers.
    pub(crate) fn ratio(&self, line: usize) -> Option<f64> {
        let ratio = self.series.first()?.median / self.series.get(line)?.median;
        Some(ratio).filter(|ratio| line > 0 && ratio.is_finite())
    }
}

impl Series {
    fn of(turns: &Turns, of: fn(&Sample) -> f64) -> Series {
        let mut values: Vec<f64> = turns.samples.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        let median = median(&values);
        let reach = values.last().unwrap_or(&0.0) - values.first().unwrap_or(&0.0);
        let spread = if reach == 0.0 { 0.0 } else { reach / 2.0 / median.max(f64::MIN_POSITIVE) };
        Series { name: turns.name.clone(), median, spread, goal: None, reached: None }
    }
}

impl Turns {
    /// The turn in the middle, to tell what it cost.
    pub(crate) fn middle(&self, of: fn(&Sample) -> f64) -> Option<&Sample> {
        let mut samples: Vec<&Sample> = self.samples.iter().collect();
        samples.sort_by(|a, b| of(a).total_cmp(&of(b)));
        samples.get(samples.len().saturating_sub(1) / 2).copied()
    }
}

/// JSON has no word for what is not a number.
fn number<'de, D: Deserializer<'de>>(value: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(value)?.unwrap_or(f64::NAN))
}

fn median(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(rates: &[f64]) -> Turns {
        let outcome =
            |rate: &f64| Outcome { events: *rate as u64, seconds: 1.0, ..Outcome::default() };
        let sample = |rate| Sample { outcome: outcome(rate), ..Sample::default() };
        Turns { name: "x".into(), samples: rates.iter().map(sample).collect() }
    }

    fn series(rates: &[f64]) -> Series {
        Series::of(&turns(rates), Sample::rate)
    }

    #[test]
    fn the_median_does_not_mind_one_bad_round() {
        assert_eq!(series(&[100.0, 10.0, 104.0]).median, 100.0);
        assert_eq!(series(&[1.0, 3.0]).median, 2.0);
        assert_eq!(series(&[90.0, 110.0, 100.0]).spread, 0.1);
        let turns = turns(&[90.0, 110.0, 99.0]);
        assert_eq!(turns.middle(Sample::rate).map(Sample::rate), Some(99.0));
    }

    #[test]
    fn ours_is_the_first_and_each_goal_is_about_it() {
        let reading = Reading::rate([Some(Goal::AtLeast(0.9)), None, Some(Goal::AtLeast(0.5))]);
        let contenders = vec![turns(&[80.0]), turns(&[100.0]), turns(&[10.0]), turns(&[100.0])];
        let results = Results::of("drain".into(), contenders, &[reading]);
        let reached: Vec<_> = results.figures[0].series.iter().map(|line| line.reached).collect();
        assert_eq!(reached, [None, Some(false), None, Some(true)]);
    }

    #[test]
    fn what_was_not_measured_reaches_no_goal() {
        let reading = Reading::own("p99", Unit::Millis, |sample| sample.value("p99"), Some(5.0));
        let results = Results::of("x".into(), vec![turns(&[1.0])], &[reading]);
        assert_eq!(results.figures[0].series[0].reached, Some(false));
    }
}
