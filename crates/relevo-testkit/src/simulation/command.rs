//! The command line of `relevo-sim` and `relevo-mutants`.

use super::{Campaign, Options, Report, run_alone};
use std::process::ExitCode;

/// What was asked for on the command line.
#[derive(Debug)]
struct Arguments {
    seeds: u64,
    first: u64,
    threads: usize,
    seed: Option<u64>,
    mutants: bool,
    mutant: Option<String>,
}

const USAGE: &str = "relevo-sim [--seeds N] [--first S] [--threads T] | --seed S | --mutants [--seeds N]   (--mutant NAME)";

fn arguments() -> Result<Arguments, String> {
    let mut all =
        Arguments { seeds: 1_000, first: 1, threads: 2, seed: None, mutants: false, mutant: None };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || -> Result<u64, String> {
            let text = words.next().ok_or(format!("{word} needs a number"))?;
            text.parse().map_err(|e| format!("{word} {text}: {e}"))
        };
        match word.as_str() {
            "--seeds" => all.seeds = number()?,
            "--first" => all.first = number()?,
            "--threads" => all.threads = number()? as usize,
            "--seed" => all.seed = Some(number()?),
            "--mutants" => all.mutants = true,
            "--mutant" => all.mutant = Some(words.next().ok_or("--mutant needs a name")?),
            other => return Err(format!("{other:?} is not an option\n{USAGE}")),
        }
    }
    Ok(all)
}

/// Does what the command line says: many seeds, one with its account, or every mutant until it is dead.
pub fn command() -> ExitCode {
    let arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(text) => {
            eprintln!("{text}");
            return ExitCode::from(2);
        }
    };
    let fine = match &arguments {
        Arguments { mutants: true, .. } => mutants(&arguments),
        Arguments { seed: Some(seed), .. } => one(&arguments, *seed),
        _ => many(&arguments),
    };
    if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// One seed, with all its options and its account.
fn one(arguments: &Arguments, seed: u64) -> bool {
    if !activate(arguments) {
        return false;
    }
    let options = Options::from_seed(seed);
    println!("{options}");
    let outcome = run_alone(options, true);
    outcome.trace.iter().for_each(|line| println!("{line}"));
    match &outcome.violation {
        Some(violation) => println!("seed {seed}: BROKEN {violation}"),
        None => println!("seed {seed}: all promises held ({} statements)", outcome.seen.statements),
    }
    outcome.violation.is_none()
}

fn many(arguments: &Arguments) -> bool {
    let Arguments { seeds, first, threads, .. } = *arguments;
    let campaign = Campaign { first, seeds, threads, ..Campaign::default() };
    let report = campaign.run(|| {
        activate(arguments);
    });
    print(&report);
    if let Some(failure) = &report.failure {
        println!("\nseed {}: BROKEN {}", failure.seed, failure.violation);
        println!("repeat it, with all options and a trace: relevo-sim --seed {}", failure.seed);
        return false;
    }
    let missed = missed(&report);
    missed.iter().for_each(|what| println!("{what}"));
    missed.is_empty()
}

/// What so many seeds should have come through and did not.
fn missed(report: &Report) -> Vec<String> {
    let (mut missed, seen) = (Vec::new(), &report.seen);
    if report.seeds >= 1_000 {
        missed.extend(seen.never().iter().map(|what| format!("never reached: {what}")));
    }
    if report.seeds >= 20_000 {
        missed.extend(seen.never_died_at().iter().map(|at| format!("nobody ever died at: {at}")));
    }
    missed
}

fn print(report: &Report) {
    let seconds = report.took.as_secs_f64().max(0.001);
    println!(
        "{} seeds ({} of them twice) in {seconds:.1} s: {:.0} a second; {} statements, {} events committed, {} deliveries, {:.1} simulated hours",
        report.seeds,
        report.twice,
        report.seeds as f64 / seconds,
        report.seen.statements,
        report.seen.committed,
        report.seen.delivered,
        report.seen.micros as f64 / 3.6e9,
    );
    println!(
        "{} faults injected, {} distinct boundary x fault x state, {} boundaries",
        report.seen.fault_count(),
        report.seen.pairs.len(),
        report.seen.boundaries.len()
    );
    for (kind, count) in &report.seen.faults {
        println!("  {count:>9}  {kind}");
    }
    println!("situations reached:");
    for (what, count) in &report.seen.reached {
        println!("  {count:>9}  {what}");
    }
}

#[cfg(not(feature = "mutants"))]
fn activate(arguments: &Arguments) -> bool {
    if arguments.mutant.is_some() {
        eprintln!("this build has no mutants: build it with --features mutants");
    }
    arguments.mutant.is_none()
}

#[cfg(not(feature = "mutants"))]
fn mutants(_: &Arguments) -> bool {
    eprintln!("this build has no mutants: build it with --features mutants");
    false
}

#[cfg(feature = "mutants")]
fn activate(arguments: &Arguments) -> bool {
    use relevo_core::mutants::{Mutant, activate};
    let Some(name) = &arguments.mutant else { return true };
    let found = Mutant::ALL.iter().find(|mutant| mutant.name() == name);
    match found {
        Some(mutant) => activate(Some(*mutant)),
        None => eprintln!("there is no mutant {name}"),
    }
    found.is_some()
}

#[cfg(feature = "mutants")]
fn mutants(arguments: &Arguments) -> bool {
    use relevo_core::mutants::{Mutant, activate};
    println!("{:<24} {:>8}  {:<12} what it does wrong", "mutant", "seeds", "broken");
    let mut survivors = 0;
    for mutant in Mutant::ALL {
        let campaign = Campaign {
            first: arguments.first,
            seeds: arguments.seeds,
            threads: arguments.threads,
            twice_every: 0,
        };
        let report = campaign.run(|| activate(Some(*mutant)));
        let (seeds, broken) = match &report.failure {
            Some(failure) => {
                (failure.seed - arguments.first + 1, failure.violation.invariant.code())
            }
            None => (report.seeds, "SURVIVED"),
        };
        survivors += usize::from(report.failure.is_none());
        println!("{:<24} {seeds:>8}  {broken:<12} {}", mutant.name(), mutant.what());
    }
    println!("{} mutants, {survivors} survived", Mutant::ALL.len());
    survivors == 0
}
