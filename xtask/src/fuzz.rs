//! `cargo xtask fuzz`: every decoder under libFuzzer, guided by coverage, for as long as one likes.

use crate::shell::{cargo, loudly, quietly};
use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What makes a stable compiler write down which code an input reaches. No sanitizer: there is no unsafe code to
/// look for, and overflow checks and assertions are on.
const COVERAGE: [&str; 6] = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

const PROGRAM: &str = "relevo-fuzz-guided";

/// The options of `cargo xtask fuzz`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FuzzOptions {
    /// The targets; empty means all of them.
    pub(crate) targets: Vec<String>,
    /// Minutes for each target.
    pub(crate) minutes: u64,
}

pub(crate) fn run(options: &FuzzOptions) -> Result<()> {
    let known = targets()?;
    if let Some(unknown) = options.targets.iter().find(|target| !known.contains(target)) {
        bail!("there is no target {unknown:?}; there are {}", known.join(", "));
    }
    let chosen = if options.targets.is_empty() { &known } else { &options.targets };
    let program = build()?;
    let broken: Vec<&String> =
        chosen.iter().filter(|target| !holds(&program, target, options.minutes)).collect();
    ensure!(broken.is_empty(), "FAILED: {broken:?}");
    println!("{} targets held", chosen.len());
    Ok(())
}

/// Every folder of the corpus is a target; a test keeps it so.
fn targets() -> Result<Vec<String>> {
    let folders = std::fs::read_dir("fuzz/corpus").context("fuzz/corpus cannot be read")?;
    let mut names = Vec::new();
    for folder in folders {
        names.push(folder?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// In a folder of its own: everything is compiled otherwise than for the tests.
fn build() -> Result<PathBuf> {
    let version = quietly(Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.context("rustc does not name its host")?;
    let folder = std::path::absolute("target/fuzz")?;
    let mut command = cargo();
    // With --target the flags are for the program alone, not for build scripts and macros.
    command.args(["build", "--profile", "checked", "--locked", "--target", host]);
    command.args(["-p", "relevo-fuzz", "--features", "guided", "--bin", PROGRAM]);
    command.env("CARGO_TARGET_DIR", &folder).env("RUSTFLAGS", COVERAGE.join(" "));
    loudly(&mut command).context("libFuzzer needs a C++ compiler")?;
    Ok(folder.join(host).join("checked").join(PROGRAM))
}

fn holds(program: &Path, target: &str, minutes: u64) -> bool {
    println!("\n{target}: {minutes} min");
    let result = fuzz(program, target, minutes);
    if let Err(error) = &result {
        eprintln!("{target}: {error:#}; the input is under target/fuzz/found/{target}/");
    }
    result.is_ok()
}

fn fuzz(program: &Path, target: &str, minutes: u64) -> Result<()> {
    let (grown, found) =
        (format!("target/fuzz/corpus/{target}"), format!("target/fuzz/found/{target}/"));
    std::fs::create_dir_all(&grown)?;
    std::fs::create_dir_all(&found)?;
    let mut command = Command::new(program);
    command.env("RELEVO_FUZZ_TARGET", target);
    command
        .arg(format!("-max_total_time={}", minutes * 60))
        .arg(format!("-artifact_prefix={found}"));
    command.args(["-timeout=20", "-rss_limit_mb=1024", "-max_len=16384", "-print_final_stats=1"]);
    // What reaches new code is kept in the first folder; the second is only read.
    command.arg(grown).arg(format!("fuzz/corpus/{target}"));
    loudly(&mut command)
}
