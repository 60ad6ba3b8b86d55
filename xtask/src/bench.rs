//! `cargo xtask bench`: figures with a release build, and the short run of the test command.

use crate::instructions;
use crate::servers::{self, Cache};
use crate::shell::{cargo, loudly, quietly, target_folder};
use anyhow::{Result, ensure};
use std::path::Path;
use std::process::Command;

const PROGRAM: &str = "relevo-bench";
/// Where the pictures and the tables of docs/performance.md are.
const PICTURES: &str = "docs/performance";
/// Options of the bench that have a value behind them.
const WITH_VALUE: [&str; 5] = ["--rounds", "--json", "--draw", "--into", "--task"];
/// The variable that tells the bench which commit it measures.
const COMMIT: &str = "RELEVO_COMMIT";

pub(crate) fn run(options: &[String]) -> Result<()> {
    match options.split_first() {
        Some((first, rest)) if first == "instructions" => instructions::command(rest),
        Some((first, [file])) if first == "pictures" => {
            loudly(release()?.args(["--draw", file, "--into", PICTURES]))
        }
        _ => measure(options),
    }
}

/// Servers first: nothing else may run while something is measured.
fn measure(options: &[String]) -> Result<()> {
    let cache = Cache::open()?;
    let prepared = servers::prepare(&cache, false)?;
    let mut command = release()?;
    prepared.give_to(&mut command);
    command.env("RELEVO_CACHE", cache.folder());
    command.env(COMMIT, commit());
    if wants_peers(options) {
        servers::peers(&cache)?.into_iter().for_each(|(name, place)| {
            command.env(name, place);
        });
    }
    loudly(command.args(options))
}

/// Peers take part if they are named, or in a long run of everything.
fn wants_peers(options: &[String]) -> bool {
    let named = named(options);
    let long = options.iter().any(|option| option == "--long");
    named.contains(&"peers") || (named.is_empty() && long)
}

/// What is to be measured: neither an option nor an option's value.
fn named(options: &[String]) -> Vec<&str> {
    let mut rest = options.iter().map(String::as_str);
    let mut named = Vec::new();
    while let Some(word) = rest.next() {
        if WITH_VALUE.contains(&word) {
            rest.next();
        } else if !word.starts_with('-') {
            named.push(word);
        }
    }
    named
}

/// What is checked out, and whether something in it was changed since.
fn commit() -> String {
    let mut git = Command::new("git");
    git.args(["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]);
    quietly(&mut git).map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

/// Nothing is measured in a build without optimisations.
fn release() -> Result<Command> {
    let build = ["build", "--release", "--locked", "-q", "-p", PROGRAM, "--bin", PROGRAM];
    loudly(cargo().args(build))?;
    Ok(Command::new(target_folder().join("release").join(PROGRAM)))
}

/// What the tests' build has made, for its short run.
pub(crate) fn built(programs: &Path) -> Result<Command> {
    let program = programs.join(PROGRAM);
    ensure!(program.exists(), "the bench was not built: {}", program.display());
    let mut command = Command::new(program);
    command.arg("--json").arg(target_folder().join("bench/short.json"));
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn peers_take_part_when_named_or_when_everything_is_measured_long() {
        for line in ["--long", "--long --rounds 3", "--json x.json --long", "peers", "nats peers"] {
            assert!(wants_peers(&options(line)), "{line}");
        }
        for line in ["", "--rounds 3", "nats --long", "--long --rounds 3 flat", "--json peers"] {
            assert!(!wants_peers(&options(line)), "{line}");
        }
    }
}
