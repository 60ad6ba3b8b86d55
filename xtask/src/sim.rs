//! `cargo xtask sim` and `cargo xtask mutants`: the simulator, and proof that it has teeth.

use crate::shell::{cargo, loudly, target_folder};
use anyhow::{Result, ensure};
use std::path::Path;
use std::process::Command;

/// Seeds of the test command; `cargo xtask sim --seeds N` explores further.
pub(crate) const SEEDS: &str = "50000";
/// Seeds after which a mutant counts as alive.
const MUTANT_SEEDS: &str = "4000";
/// The seeds that killed each mutant before.
const KILLING_SEEDS: &str = "crates/relevo-testkit/src/simulation/killing-seeds.txt";

/// Compiles the simulator as it is shipped, and runs it.
pub(crate) fn run(options: &[String]) -> Result<()> {
    let args = [
        "run",
        "--profile",
        "checked",
        "--locked",
        "-q",
        "-p",
        "relevo-testkit",
        "--bin",
        "relevo-sim",
        "--",
    ];
    loudly(cargo().args(args).args(options))
}

/// Runs the simulator that the tests' build has made.
pub(crate) fn built(programs: &Path, options: &[&str]) -> Result<()> {
    let program = programs.join("relevo-sim");
    ensure!(program.exists(), "the simulator was not built: {}", program.display());
    loudly(Command::new(program).args(options))
}

/// Compiles the engine with its deliberately wrong variants (nothing else ever does) and lets the simulator kill
/// each of them.
pub(crate) fn mutants(options: &[String]) -> Result<()> {
    compile_mutants()?;
    let mut command = Command::new(target_folder().join("checked").join("relevo-mutants"));
    command.arg("--mutants");
    if !options.iter().any(|option| option == "--seeds") {
        command.args(["--seeds", MUTANT_SEEDS]);
    }
    if options.iter().any(|option| option == "--afresh") {
        command.args(["--keep", KILLING_SEEDS]);
    }
    loudly(command.args(options))
}

/// A program of its own: the simulator that other tests run stays as it is shipped. With the features that the whole
/// workspace has together, nothing but the three crates with mutants in them is compiled for it.
fn compile_mutants() -> Result<()> {
    let build = ["build", "--profile", "checked", "--locked", "-q", "--workspace"];
    let mutants = ["--features", "relevo-testkit/mutants", "--bin", "relevo-mutants"];
    loudly(cargo().args(build).args(mutants))
}

/// Torture on real processes, for hours.
pub(crate) fn campaign(options: &[String]) -> Result<()> {
    let build = ["run", "--profile", "checked", "--locked", "-q", "-p", "relevo-torture", "--"];
    loudly(cargo().args(build).arg("campaign").args(options))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_command_explores_what_it_is_known_for() {
        assert!(SEEDS.parse::<u64>().is_ok_and(|seeds| seeds >= 50_000));
    }
}
