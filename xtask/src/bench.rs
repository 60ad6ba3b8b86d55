//! `cargo xtask bench`: figures with a release build, and the short run of the test command.

use crate::instructions;
use crate::servers::{self, Cache};
use crate::shell::{cargo, loudly, target_folder};
use anyhow::{Result, ensure};
use std::path::Path;
use std::process::Command;

const PROGRAM: &str = "relevo-bench";
/// Where the pictures of docs/performance.md are.
const PICTURES: &str = "docs/performance";

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
    let named = |name: &str| options.iter().any(|option| option == name);
    let everything = options.iter().all(|option| option.starts_with('-'));
    if named("peers") || (everything && named("--long")) {
        servers::peers(&cache)?.into_iter().for_each(|(name, place)| {
            command.env(name, place);
        });
    }
    loudly(command.args(options))
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
