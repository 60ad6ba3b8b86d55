//! The command line of `relevo-sim` and `relevo-mutants`.

use super::{Campaign, Failure, Options, Report, run_alone};
use std::path::PathBuf;
use std::process::ExitCode;

/// What was asked for on the command line.
#[derive(Debug, Default)]
struct Arguments {
    seeds: u64,
    first: u64,
    threads: usize,
    seed: Option<u64>,
    mutants: bool,
    mutant: Option<String>,
    afresh: bool,
    keep: Option<PathBuf>,
}

/// So much of a failed seed's account is shown at once.
const LAST_LINES: usize = 120;

const USAGE: &str = "relevo-sim [--seeds N] [--first S] [--threads T] | --seed S | --mutants [--seeds N] [--afresh [--keep FILE]]   (--mutant NAME)";

fn arguments() -> Result<Arguments, String> {
    let mut all = Arguments { seeds: 1_000, first: 1, threads: 2, ..Arguments::default() };
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
            "--afresh" => all.afresh = true,
            "--keep" => all.keep = Some(words.next().ok_or("--keep needs a file")?.into()),
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
        show(arguments, failure);
        return false;
    }
    let missed = report.seen.missed(report.seeds);
    missed.iter().for_each(|what| println!("{what}"));
    missed.is_empty()
}

/// A failure with all its options, the end of its account, and how to repeat it.
fn show(arguments: &Arguments, failure: &Failure) {
    let Failure { seed, violation } = failure;
    activate(arguments);
    let options = Options::from_seed(*seed);
    println!("\n{options}");
    let traced = std::panic::catch_unwind(|| run_alone(options, true).trace).unwrap_or_default();
    let rest = traced.len().saturating_sub(LAST_LINES);
    traced[rest..].iter().for_each(|line| println!("{line}"));
    println!("\nseed {seed}: BROKEN {violation}");
    println!("the same again, with the {rest} lines before: {} --seed {seed}", again(arguments));
}

/// The command that runs one seed of what ran here: a mutant is in this program, and in no other.
fn again(arguments: &Arguments) -> String {
    let Some(mutant) = &arguments.mutant else { return "cargo xtask sim".into() };
    let program = std::env::args().next().unwrap_or_else(|| "relevo-mutants".into());
    format!("{program} --mutant {mutant}")
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

/// What tests look for in programs that must not have it is in this one, which must.
#[cfg(feature = "mutants")]
fn has_marker() -> bool {
    let marker = relevo_core::mutants::MARKER.as_bytes();
    let program = std::env::current_exe().and_then(std::fs::read);
    program.is_ok_and(|bytes| bytes.windows(marker.len()).any(|window| window == marker))
}

#[cfg(feature = "mutants")]
fn mutants(arguments: &Arguments) -> bool {
    let Arguments { seeds, first, threads, .. } = *arguments;
    assert!(has_marker(), "tests could not tell this program from one without mutants");
    let budget = Campaign { first, seeds, threads, twice_every: 0 };
    // Whatever panics here is a mutant that was noticed: the tables say so.
    std::panic::set_hook(Box::new(|_| {}));
    std::thread::scope(|scope| {
        let suite = scope.spawn(crate::conformance::store_suite_has_teeth);
        let dead = super::kills::all(&budget, arguments.afresh, arguments.keep.as_deref());
        suite.join().is_ok_and(|teeth| teeth) && dead
    })
}
