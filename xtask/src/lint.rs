//! `cargo xtask lint`: every check runs, so that one round shows everything there is to mend.

use crate::shell::{cargo, loudly, minutes};
use crate::tidy;
use anyhow::{Result, bail};
use std::time::Instant;

type Check = (&'static str, fn() -> Result<Outcome>);

enum Outcome {
    Passed,
    /// Why it was not looked at.
    NotRun(&'static str),
}

use Outcome::{NotRun, Passed};

const CHECKS: [Check; 5] =
    [("tidy", tidy), ("fmt", fmt), ("clippy", clippy), ("doc", doc), ("deny", deny)];

pub(crate) fn run() -> Result<()> {
    crate::servers::compiling::prepare(false)?;
    let failed: Vec<&str> =
        CHECKS.iter().filter(|check| !passes(check)).map(|(name, _)| *name).collect();
    if failed.is_empty() {
        return Ok(());
    }
    bail!("lint failed: {}", failed.join(", "))
}

fn passes((name, check): &Check) -> bool {
    let start = Instant::now();
    let result = check();
    let took = minutes(start.elapsed());
    match &result {
        Ok(Passed) => eprintln!("lint: {name} ok ({took})"),
        Ok(NotRun(why)) => eprintln!("lint: {name} NOT RUN: {why}"),
        Err(error) => eprintln!("lint: {name} FAILED ({took}): {error:#}"),
    }
    result.is_ok()
}

fn tidy() -> Result<Outcome> {
    tidy::run().map(|()| Passed)
}

fn fmt() -> Result<Outcome> {
    loudly(cargo().args(["fmt", "--all", "--check"])).map(|()| Passed)
}

/// With the tests' profile: build scripts and macros are then compiled once for both.
fn clippy() -> Result<Outcome> {
    let args = ["clippy", "--workspace", "--all-targets", "--profile", "checked", "--locked"];
    let everything = ["--features", "relevo-daemon/full", "--", "-D", "warnings"];
    loudly(cargo().args(args).args(everything)).map(|()| Passed)
}

fn doc() -> Result<Outcome> {
    let args = ["doc", "--workspace", "--no-deps", "--profile", "checked", "--locked"];
    loudly(cargo().args(args).env("RUSTDOCFLAGS", "-D warnings")).map(|()| Passed)
}

fn deny() -> Result<Outcome> {
    let installed = cargo().args(["deny", "--version"]).output().is_ok_and(|o| o.status.success());
    if !installed {
        return Ok(NotRun("cargo-deny is not installed (`cargo install --locked cargo-deny`)"));
    }
    // Advisories change without a change of ours: they would turn an unchanged tree red.
    loudly(cargo().args(["deny", "--all-features", "check", "bans", "licenses", "sources"]))
        .map(|()| Passed)
}
