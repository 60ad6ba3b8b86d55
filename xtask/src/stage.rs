//! One stage of a test run: how it went, how long it took, and the line it gets in the final table.

use crate::group::end_with_xtask;
use crate::shell::{cargo, minutes};
use anyhow::{Context, Result};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Tests counted from the result lines of the harness.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
}

impl Tally {
    fn add_line(&mut self, line: &str) {
        let Some(counts) = line.strip_prefix("test result: ") else { return };
        for part in counts.split([';', '.']) {
            let mut words = part.split_whitespace();
            let number = words.next().and_then(|n| n.parse::<u64>().ok());
            match (number, words.next()) {
                (Some(n), Some("passed")) => self.passed += n,
                (Some(n), Some("failed")) => self.failed += n,
                (Some(n), Some("ignored")) => self.ignored += n,
                _ => {}
            }
        }
    }

    pub(crate) fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }

    pub(crate) fn describe(self) -> String {
        let mut text = format!("{} passed", self.passed);
        for (count, what) in [(self.failed, "FAILED"), (self.ignored, "ignored")] {
            if count > 0 {
                text += &format!(", {count} {what}");
            }
        }
        text
    }
}

/// A finished stage.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) name: &'static str,
    pub(crate) time: Duration,
    pub(crate) result: Result<String>,
}

impl Stage {
    /// Runs a stage and says how long it took.
    pub(crate) fn run(name: &'static str, work: impl FnOnce() -> Result<String>) -> Stage {
        let start = Instant::now();
        let result = work();
        let stage = Stage { name, time: start.elapsed(), result };
        eprintln!("{}", stage.line());
        stage
    }

    pub(crate) fn failed(&self) -> bool {
        self.result.is_err()
    }

    pub(crate) fn line(&self) -> String {
        let result = match &self.result {
            Ok(text) => text.clone(),
            Err(error) => format!("FAILED: {error:#}"),
        };
        format!("{:<12} {:>9}  {result}", self.name, minutes(self.time))
    }
}

/// Whether a stage's output appears as it comes, or at once when it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    Live,
    /// For tests that run beside others: their lines must not mix.
    WhenDone,
}

/// `cargo test` in the one profile of the tests, the daemon with every broker there is; `prepare` may add variables.
pub(crate) fn cargo_test(targets: &[String], passed_on: &[String]) -> Command {
    let mut command = cargo();
    command.args(["test", "--workspace", "--profile", "checked", "--locked", "--no-fail-fast"]);
    command.args(["--features", "relevo-daemon/full"]);
    command.args(targets);
    if !passed_on.is_empty() {
        command.arg("--").args(passed_on);
    }
    command
}

/// Runs a test command, keeps its lines visible and says what its result lines add up to.
pub(crate) fn run_and_tally(command: Command, output: Output) -> Result<String> {
    let (tally, status) = run_and_count(command, output)?;
    anyhow::ensure!(status.success(), "{} ({status})", tally.describe());
    Ok(tally.describe())
}

/// The same in numbers, and how the command ended.
pub(crate) fn run_and_count(mut command: Command, output: Output) -> Result<(Tally, ExitStatus)> {
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    if output == Output::WhenDone {
        command.stderr(Stdio::piped());
    }
    let program = command.get_program().display().to_string();
    let child = end_with_xtask(&mut command)?.spawn();
    let mut child = child.with_context(|| format!("cannot start {program}"))?;
    let errors = child.stderr.take().map(|pipe| std::thread::spawn(move || read_all(pipe)));
    let stdout = child.stdout.take().context("stdout is a pipe")?;
    let mut tally = Tally::default();
    let mut kept = String::new();
    for line in BufReader::new(stdout).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        tally.add_line(&line);
        match output {
            Output::Live => println!("{line}"),
            Output::WhenDone => {
                // Whoever hangs never is done: then this line names it.
                if line.contains("has been running for over") {
                    eprintln!("{line}");
                }
                kept += &(line + "\n");
            }
        }
    }
    let status = child.wait()?;
    if let Some(errors) = errors {
        // In one piece, so that the lines of whoever runs beside it come before or after.
        print!("     Ran {program}\n{}{kept}", errors.join().unwrap_or_default());
    }
    Ok((tally, status))
}

fn read_all(mut pipe: impl Read) -> String {
    let mut bytes = Vec::new();
    let _ = pipe.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_of_several_binaries_add_up() {
        let mut tally = Tally::default();
        tally.add_line("running 3 tests");
        tally.add_line("test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.10s");
        tally.add_line("test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s");
        assert_eq!(tally, Tally { passed: 4, failed: 2, ignored: 1 });
        assert_eq!(tally.describe(), "4 passed, 2 FAILED, 1 ignored");
    }

    #[test]
    fn a_failing_command_is_a_failed_stage_that_names_its_counts() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo 'test result: FAILED. 1 passed; 1 failed; 0 ignored'; exit 101"]);
        let stage = Stage::run("unit", || run_and_tally(command, Output::WhenDone));
        assert!(stage.failed());
        let line = stage.line();
        assert!(line.contains("1 passed, 1 FAILED (exit status: 101)"), "{line}");
    }
}
