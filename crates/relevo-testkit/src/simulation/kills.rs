//! Every deliberately wrong variant until it is dead.
//!
//! A variant that died once has a seed that kills it. That one is tried first, and is enough while schedules stay as they
//! are; where it no longer kills, all seeds of the budget are tried. The seeds are a hint, kept in a file that
//! `cargo xtask mutants --afresh` writes anew: what decides is that something broke.

use super::Campaign;
use super::campaign::{Timers, run_caught};
use super::invariant::Violation;
use relevo_core::mutants::{Mutant, activate};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

const KNOWN: &str = include_str!("killing-seeds.txt");

/// What became of one variant.
enum Fate {
    /// This seed broke it, after so many were tried.
    Dead { seed: u64, tried: u64, violation: Violation },
    /// No seed of the budget did.
    Survived,
    /// The seed breaks the right engine too: it shows nothing.
    EngineBroken { seed: u64, violation: Violation },
}

/// The seeds that killed before.
fn known() -> BTreeMap<&'static str, u64> {
    let lines = KNOWN.lines().filter_map(|line| line.split_once(' '));
    lines.filter_map(|(name, seed)| Some((name, seed.trim().parse().ok()?))).collect()
}

/// Tries them all, one per thread at a time; prints a table. False if one survives.
pub(super) fn all(budget: &Campaign, afresh: bool, write_to: Option<&Path>) -> bool {
    let known = if afresh { BTreeMap::new() } else { known() };
    let fates = fates(budget, &known);
    let (seed, tried) = ("killed by seed", "tried");
    println!("{:<24} {seed:>14} {tried:>6}  {:<13} what it does wrong", "mutant", "broken");
    for (mutant, fate) in Mutant::ALL.iter().zip(&fates) {
        println!("{}", line(budget, *mutant, fate));
    }
    let dead = fates.iter().filter(|fate| matches!(fate, Fate::Dead { .. })).count();
    println!("{} mutants, {} survived", fates.len(), fates.len() - dead);
    if stale(&known, &fates) > 0 {
        println!("some known seeds kill no longer: `cargo xtask mutants --afresh` finds others");
    }
    write_to.is_none_or(|path| keep(path, &fates)) && dead == fates.len()
}

fn fates(budget: &Campaign, known: &BTreeMap<&str, u64>) -> Vec<Fate> {
    let next = AtomicUsize::new(0);
    let found = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..budget.threads.max(1) {
            scope.spawn(|| {
                let timers = Timers::new();
                let _entered = timers.enter();
                while let Some(mutant) = Mutant::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let fate = fate(budget, *mutant, known.get(mutant.name()).copied());
                    found.lock().unwrap_or_else(PoisonError::into_inner).insert(*mutant, fate);
                }
            });
        }
    });
    found.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect()
}

fn fate(budget: &Campaign, mutant: Mutant, known: Option<u64>) -> Fate {
    let seeds = budget.first..budget.first + budget.seeds;
    let known = known.filter(|seed| seeds.contains(seed));
    activate(Some(mutant));
    let broken = |(tried, seed)| Some((tried, seed, run_caught(seed).violation?));
    let mut tries = (1..).zip(known.into_iter().chain(seeds));
    let Some((tried, seed, violation)) = tries.find_map(broken) else {
        return Fate::Survived;
    };
    activate(None);
    match run_caught(seed).violation {
        None => Fate::Dead { seed, tried, violation },
        Some(violation) => Fate::EngineBroken { seed, violation },
    }
}

fn line(budget: &Campaign, mutant: Mutant, fate: &Fate) -> String {
    let (seed, tried, broken) = match fate {
        Fate::Dead { seed, tried, violation } => {
            (seed.to_string(), *tried, violation.invariant.code())
        }
        Fate::Survived => ("none".into(), budget.seeds, "SURVIVED"),
        Fate::EngineBroken { seed, violation } => {
            return format!("{:<24} {seed:>14} THE ENGINE ITSELF: {violation}", mutant.name());
        }
    };
    format!("{:<24} {seed:>14} {tried:>6}  {broken:<13} {}", mutant.name(), mutant.what())
}

/// How many known seeds were not what killed.
fn stale(known: &BTreeMap<&str, u64>, fates: &[Fate]) -> usize {
    let told = Mutant::ALL.iter().zip(fates).filter(|(mutant, fate)| {
        let by = known.get(mutant.name());
        !known.is_empty() && !matches!(fate, Fate::Dead { seed, .. } if Some(seed) == by)
    });
    told.count()
}

fn keep(path: &Path, fates: &[Fate]) -> bool {
    let mut text = String::new();
    for (mutant, fate) in Mutant::ALL.iter().zip(fates) {
        if let Fate::Dead { seed, .. } = fate {
            let _ = writeln!(text, "{} {seed}", mutant.name());
        }
    }
    let written = std::fs::write(path, text);
    if let Err(error) = &written {
        eprintln!("{}: {error}", path.display());
    }
    written.is_ok()
}
