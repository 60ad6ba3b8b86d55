//! Clients in Python: what they see is not seen through Relevo's own eyes.

#![allow(dead_code, reason = "every test file uses its own part")]

pub(crate) mod owner;

use relevo_testkit::services::{self, TlsFiles};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Output};

pub(crate) type TestResult<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// A program of the folder `python`, run against one server.
pub(crate) struct Client {
    python: PathBuf,
    program: &'static str,
    environment: Vec<(&'static str, String)>,
}

impl Client {
    /// The client, or `None` if there is no Python and it may be missing.
    pub(crate) fn new(program: &'static str) -> Option<Client> {
        let python = services::require(services::python())?;
        Some(Client { python, program, environment: Vec::new() })
    }

    /// The same client with a variable.
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Client {
        self.environment.push((name, value.into()));
        self
    }

    /// The same client with the authority it trusts.
    pub(crate) fn trusting(self, files: &TlsFiles) -> Client {
        self.with("CA", files.ca.display().to_string())
    }

    /// The same client with a certificate of its own.
    pub(crate) fn certified(self, files: &TlsFiles) -> Client {
        self.with("CERTIFICATE", files.certificate.display().to_string())
            .with("KEY", files.key.display().to_string())
    }

    pub(crate) fn declare(&self, url: &str, name: &str) -> TestResult {
        self.run(&["declare", url, name]).map(drop)
    }

    /// Returns when all numbers from `first` to `last` are confirmed.
    pub(crate) fn publish(&self, url: &str, name: &str, first: u32, last: u32) -> TestResult {
        self.run(&["publish", url, name, &first.to_string(), &last.to_string()]).map(drop)
    }

    /// Asserts that the server lets a client in.
    #[track_caller]
    pub(crate) fn assert_welcome(&self, url: &str, name: &str) {
        self.declare(url, name).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Asserts that a server which does not answer keeps a client waiting.
    #[track_caller]
    pub(crate) fn assert_waits(&self, url: &str, name: &str) {
        let answer = self.run_for("5", &["publish", url, name, "0", "0"]);
        assert!(answer.is_err(), "a paused server answered");
    }

    /// Asserts that exactly the numbers from 1 to `last` are there, in order.
    #[track_caller]
    pub(crate) fn assert_has_all(&self, url: &str, name: &str, last: u32) {
        let read = self.run(&["read", url, name, "1", &last.to_string()]);
        let read = read.unwrap_or_else(|error| panic!("{error}"));
        let expected: Vec<String> = (1..=last).map(|number| number.to_string()).collect();
        // One that was refused and sent again may have been stored all the same, and one whose
        // acknowledgement got lost comes again: what counts is when each came first.
        let mut seen = BTreeSet::new();
        let first: Vec<_> = read.lines().filter(|number| seen.insert(*number)).collect();
        assert_eq!(first, expected);
    }

    pub(crate) fn run(&self, args: &[&str]) -> TestResult<String> {
        // A client that waits for ever says less than one that failed.
        self.run_for("120", args)
    }

    fn run_for(&self, limit_s: &str, args: &[&str]) -> TestResult<String> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python");
        let Output { status, stdout, stderr } = Command::new("timeout")
            .arg(limit_s)
            .arg(&self.python)
            .arg(format!("{folder}/{}", self.program))
            .args(args)
            .envs(self.environment.iter().cloned())
            .output()?;
        if status.success() {
            return Ok(String::from_utf8(stdout)?);
        }
        let why = String::from_utf8_lossy(&stderr);
        Err(format!("{} {args:?}: {status}: {why}", self.program).into())
    }
}
