use super::WriterOptions;
use crate::story::Fate;
use relevo_core::clock::Rng;

/// How many keys there are.
pub const KEYS: u64 = 48;

/// In which order a transaction locks, publishes and ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Locks its keys, then publishes.
    LockFirst,
    /// Publishes, waits, then locks.
    PublishFirst,
    /// Publishes something and takes it back to a savepoint.
    Savepoint,
    /// Rolls everything back.
    Rollback,
    /// Publishes first, prepares, and commits (or rolls back) a while later.
    TwoPhase,
}

impl Shape {
    /// Every one of them, in words; one that is held open comes on top.
    pub const NAMES: [&str; 6] =
        ["lock first", "publish first", "savepoint", "rolled back", "two-phase", HELD];

    /// In words.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// What a transaction is called that stays open for long.
pub const HELD: &str = "held open";

/// One transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Its shape.
    pub shape: Shape,
    /// The keys it changes, in the order in which everybody locks them.
    pub keys: Vec<String>,
    /// What it publishes: which of its keys, with which fate.
    pub events: Vec<(usize, Fate)>,
}

impl Plan {
    /// The next transaction, as the options allow.
    pub fn next(rng: &mut Rng, options: &WriterOptions) -> Self {
        let shape = match rng.below(100) {
            0..60 => Shape::LockFirst,
            60..75 => Shape::PublishFirst,
            75..85 => Shape::Savepoint,
            85..95 => Shape::Rollback,
            _ if options.two_phase => Shape::TwoPhase,
            _ => Shape::LockFirst,
        };
        let mut keys: Vec<String> = (0..1 + rng.below(12) / 11).map(|_| key(rng)).collect();
        keys.sort();
        keys.dedup();
        let count = 1 + rng.below(8) / 5 + rng.below(20) / 19 * 9;
        let mut event = || (rng.below(keys.len() as u64) as usize, fate(rng, options));
        let events = (0..count).map(|_| event()).collect();
        Self { shape, keys, events }
    }

    /// A transaction that is held open: it must not keep others from their keys, so it publishes first.
    pub fn held(rng: &mut Rng) -> Self {
        Self {
            shape: Shape::PublishFirst,
            keys: vec![key(rng)],
            events: vec![(0, Fate::Plain), (0, Fate::Plain)],
        }
    }
}

/// Some keys are much busier than others.
fn key(rng: &mut Rng) -> String {
    let number = if rng.below(4) == 0 { rng.below(3) } else { rng.below(KEYS) };
    format!("key-{number}")
}

fn fate(rng: &mut Rng, options: &WriterOptions) -> Fate {
    match rng.below(100) {
        _ if options.plain => Fate::Plain,
        0..40 if options.trouble => Fate::Flaky,
        40..50 if options.trouble => Fate::Poison,
        0..80 => Fate::Plain,
        80..90 => Fate::Chain,
        90..98 => Fate::Flaky,
        _ => Fate::Poison,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::collections::HashSet;

    #[derive(clap::Parser)]
    struct Options {
        #[command(flatten)]
        options: WriterOptions,
    }

    #[test]
    fn every_shape_and_fate_occurs_and_keys_are_locked_in_one_order() {
        let mut rng = Rng::seeded(1);
        let args = ["writer", "--store", "sqlite:none", "--two-phase"];
        let options = Options::try_parse_from(args).unwrap().options;
        let plans: Vec<Plan> = (0..1000).map(|_| Plan::next(&mut rng, &options)).collect();
        let shapes: Vec<Shape> = plans.iter().map(|plan| plan.shape).collect();
        for shape in [
            Shape::LockFirst,
            Shape::PublishFirst,
            Shape::Savepoint,
            Shape::Rollback,
            Shape::TwoPhase,
        ] {
            assert!(shapes.contains(&shape), "{shape:?}");
        }
        let fates: HashSet<Fate> =
            plans.iter().flat_map(|plan| plan.events.iter().map(|event| event.1)).collect();
        assert_eq!(fates.len(), 4);
        assert_eq!((Shape::LockFirst.name(), Shape::TwoPhase.name()), ("lock first", "two-phase"));
        assert!(plans.iter().all(|plan| plan.keys.is_sorted() && !plan.events.is_empty()));
        assert!(plans.iter().any(|plan| plan.keys.len() > 1));
    }
}
