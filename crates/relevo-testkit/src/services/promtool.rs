//! Prometheus' own judge of rules and metrics.

use super::{Result, ServiceError, locate};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const NAME: &str = "promtool";

/// The program.
#[derive(Debug, Clone)]
pub struct Promtool {
    program: PathBuf,
}

impl Promtool {
    /// Where it is on this machine.
    pub fn find() -> Result<Promtool> {
        Ok(Promtool { program: locate::promtool()? })
    }

    /// Checks a file of rules.
    pub fn check_rules(&self, rules: &Path) -> Result<String> {
        self.run(&["check", "rules"], rules, "")
    }

    /// Runs the tests of rules that a file has.
    pub fn test_rules(&self, tests: &Path) -> Result<String> {
        self.run(&["test", "rules"], tests, "")
    }

    /// Checks what a `/metrics` page says.
    pub fn check_metrics(&self, page: &str) -> Result<String> {
        self.run(&["check", "metrics"], Path::new(""), page)
    }

    fn run(&self, words: &[&str], file: &Path, input: &str) -> Result<String> {
        let failed = |why: &dyn std::fmt::Display| ServiceError::failed(NAME, why);
        let mut command = Command::new(&self.program);
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if !file.as_os_str().is_empty() {
            command.arg(file);
        }
        let mut child = command.spawn().map_err(|error| failed(&error))?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.as_bytes()).map_err(|error| failed(&error))?;
        }
        let Output { status, stdout, stderr } =
            child.wait_with_output().map_err(|error| failed(&error))?;
        let said =
            [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        if status.success() { Ok(said) } else { Err(failed(&said)) }
    }
}
