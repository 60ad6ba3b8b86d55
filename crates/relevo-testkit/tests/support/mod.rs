//! Clients in Python: what they see is not seen through Relevo's own eyes.

#![allow(dead_code, reason = "every test file uses its own part")]

use relevo_testkit::services::{self, TlsFiles};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

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

/// Asserts that a server of the kit ends with the process that started it, even if that is killed:
/// nobody listens any more, and its folder is gone.
#[track_caller]
pub(crate) fn assert_ends_with_its_owner(kind: &str) {
    let mut owner = Command::new(env!("CARGO_BIN_EXE_relevo-services"))
        .arg(kind)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut url = String::new();
    BufReader::new(owner.stdout.take().unwrap()).read_line(&mut url).unwrap();
    let address = url.trim().rsplit(['@', '/']).find_map(|part| part.parse::<SocketAddr>().ok());
    let address = address.unwrap_or_else(|| panic!("no address in {url:?}"));
    let started = processes_of(owner.id());
    assert!(!started.is_empty() && TcpStream::connect(address).is_ok());
    owner.kill().unwrap();
    owner.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while TcpStream::connect(address).is_ok() || started.iter().any(is_alive) {
        assert!(Instant::now() < deadline, "{kind} outlived its owner by a minute");
        std::thread::sleep(Duration::from_millis(20));
    }
    let left = folders_of(owner.id());
    assert!(left.is_empty(), "left behind: {left:?}");
}

/// The servers and janitors that a process started.
fn processes_of(owner: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    processes.filter(|pid| state_and_parent(*pid).is_some_and(|of| of.1 == owner)).collect()
}

/// Whether a process still does anything; one that only waits to be noticed does not.
fn is_alive(pid: &u32) -> bool {
    state_and_parent(*pid).is_some_and(|of| of.0 != "Z")
}

fn state_and_parent(pid: u32) -> Option<(String, u32)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before may contain anything, also spaces and brackets.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

fn folders_of(owner: u32) -> Vec<PathBuf> {
    let prefix = format!("relevo-{owner}-");
    let entries = std::fs::read_dir(std::env::temp_dir()).unwrap().filter_map(Result::ok);
    let own = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix));
    own.map(|entry| entry.path()).collect()
}
