//! `cargo xtask sim` and `cargo xtask mutants`: the simulator, and proof that it has teeth.

use crate::shell::{cargo, loudly};
use anyhow::{Result, ensure};
use std::path::Path;
use std::process::Command;

/// Seeds of the test command; `cargo xtask sim --seeds N` explores further.
pub(crate) const SEEDS: &str = "50000";
/// Seeds after which a mutant counts as alive.
const MUTANT_SEEDS: &str = "4000";

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
    let build = [
        "run",
        "--profile",
        "checked",
        "--locked",
        "-q",
        "-p",
        "relevo-testkit",
        "--features",
        "mutants",
    ];
    let mut command = cargo();
    // A program of its own: the simulator that other tests run stays as it is shipped.
    command.args(build).args(["--bin", "relevo-mutants", "--", "--mutants"]);
    if !options.iter().any(|option| option == "--seeds") {
        command.args(["--seeds", MUTANT_SEEDS]);
    }
    loudly(command.args(options))
}

/// Torture on real processes, for hours.
pub(crate) fn campaign(options: &[String]) -> Result<()> {
    let build = ["run", "--profile", "checked", "--locked", "-q", "-p", "relevo-torture", "--"];
    loudly(cargo().args(build).arg("campaign").args(options))
}
