//! Several drains that make one turn.

use super::Outcome;
use std::time::{Duration, Instant};

/// What each brought, in their order.
pub(super) struct Drains {
    start: Instant,
    each: Vec<Outcome>,
    /// Seconds from the start to the end of each, and its rate.
    rates: Vec<(f64, f64)>,
}

impl Drains {
    /// They begin now.
    pub(super) fn begin() -> Drains {
        Drains { start: Instant::now(), each: Vec::new(), rates: Vec::new() }
    }

    pub(super) fn took(&self) -> Duration {
        self.start.elapsed()
    }

    pub(super) fn add(&mut self, outcome: Outcome) {
        let rate = outcome.events as f64 / outcome.seconds.max(f64::MIN_POSITIVE);
        self.rates.push((self.start.elapsed().as_secs_f64(), rate));
        self.each.push(outcome);
    }

    /// Events and seconds of all together, the steady rate in the middle, everything else of the first that has it.
    pub(super) fn together(self) -> Outcome {
        let steady = |outcome: &Outcome| outcome.values.get("steady_rate").copied();
        let mut steady: Vec<f64> = self.each.iter().filter_map(steady).collect();
        steady.sort_by(f64::total_cmp);
        let mut each = self.each.into_iter();
        let mut all = each.next().unwrap_or_default();
        for next in each {
            all.events += next.events;
            all.seconds += next.seconds;
            for (name, value) in next.values {
                all.values.entry(name).or_insert(value);
            }
        }
        all.values
            .extend(steady.get(steady.len() / 2).map(|rate| ("steady_rate".to_owned(), *rate)));
        all
    }

    /// The same, with how fast the first and the last were, and all between.
    pub(super) fn one_by_one(mut self) -> Outcome {
        let rates = std::mem::take(&mut self.rates);
        let mut all = self.together();
        for (name, of) in [("first_rate", rates.first()), ("last_rate", rates.last())] {
            all.values.extend(of.map(|(_, rate)| (name.to_owned(), *rate)));
        }
        all.curves.insert("drains".into(), rates);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drains_add_up_and_the_first_and_the_last_are_told() {
        let mut drains = Drains::begin();
        for (seconds, name) in [(1, "start_s"), (3, "late_ms"), (2, "start_s")] {
            let mut outcome = Outcome::of(60, Duration::from_secs(seconds));
            outcome.values.insert("steady_rate".into(), seconds as f64);
            outcome.values.insert(name.into(), seconds as f64);
            drains.add(outcome);
        }
        let all = drains.one_by_one();
        assert_eq!((all.events, all.seconds), (180, 6.0));
        let values = ["steady_rate", "start_s", "late_ms", "first_rate", "last_rate"];
        assert_eq!(values.map(|name| all.values[name]), [2.0, 1.0, 3.0, 60.0, 30.0]);
        assert_eq!(all.curves["drains"].len(), 3);
    }
}
