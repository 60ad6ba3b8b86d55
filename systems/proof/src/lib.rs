//! What a system shows while it runs, and what it proves at the end: the same for every part of `relevo demo`.
//!
//! - [`Report`], [`Verdict`]: the end of a run
//! - [`System`]: a documented system at work, with its [`Figures`] and what can be broken in it ([`Break`])
//! - [`NotThere`]: servers that a system needs and that do not answer

pub use anyhow::{Error, Result};

use async_trait::async_trait;
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// What a run ends with, counted where it happened and not by whoever did it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Changes that committed, each with its event: orders, changes of tickets or of tenants.
    pub committed: u64,
    /// Those of them that have all their effects.
    pub delivered: u64,
    /// Effects in all: parcels, e-mails, numbers, lines of a directory.
    pub effects: u64,
    /// Copies and second attempts that had no effect of their own.
    pub duplicates_seen: u64,
    /// Attempts that failed and were made again.
    pub retried: u64,
    /// What was given up, and is kept with its reason.
    pub dead: u64,
    /// What has neither its effect nor a dead letter, and never will.
    pub lost: u64,
}

/// The report, and every promise that did not hold, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The figures.
    pub report: Report,
    /// What is broken.
    pub broken: Vec<String>,
}

impl Verdict {
    /// Did every promise hold?
    pub fn holds(&self) -> bool {
        self.broken.is_empty()
    }
}

/// The figures of a moment, for the eye; the proof is a [`Verdict`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Changes that were acknowledged.
    pub committed: u64,
    /// Effects that took place.
    pub effects: u64,
    /// Effects that are to come.
    pub pending: u64,
    /// Dead letters.
    pub dead: u64,
    /// Attempts that failed.
    pub retried: u64,
    /// Copies that were absorbed.
    pub duplicates: u64,
}

/// Something that can be broken in a system while it runs.
#[derive(Debug, PartialEq, Eq)]
pub struct Break {
    /// Its name on the command line: that of the system, and its own.
    pub name: &'static str,
    /// What it does, for a command line's help.
    pub help: &'static str,
    /// The key that breaks it, and mends it again.
    pub key: char,
    /// What it is called beside that key; begins with it.
    pub label: &'static str,
    /// What is to be seen when it begins.
    pub begins: &'static str,
    /// What is to be seen when it is mended; `None` for what is over at once.
    pub ends: Option<&'static str>,
}

/// A documented system at work, with people who use it.
#[async_trait]
pub trait System: Send + Sync {
    /// Where its API is: open, and only to this machine.
    fn url(&self) -> String;

    /// The figures of this moment.
    async fn figures(&self) -> Result<Figures>;

    /// Breaks what has this name among the system's [`Break`]s.
    async fn begin(&mut self, name: &str) -> Result<()>;

    /// Mends it; what is not broken stays as it is.
    async fn mend(&mut self, name: &str) -> Result<()>;

    /// Sends everybody home, mends everything, waits until nothing is on its way, but no longer than `patience`; judges
    /// and ends.
    async fn finish(self: Box<Self>, patience: Duration) -> Result<Verdict>;
}

/// Servers that a system runs on, and that are not there. It says how to start them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotThere {
    /// Which, and why; a line each.
    pub missing: Vec<String>,
    /// How they are started, and how the system is told of them; a line each.
    pub remedy: &'static [&'static str],
}

impl fmt::Display for NotThere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self.missing.iter().map(String::as_str).chain(self.remedy.iter().copied());
        f.write_str(&lines.collect::<Vec<_>>().join("\n"))
    }
}

impl std::error::Error for NotThere {}

/// Which of these variables of the environment are missing or empty, in words.
pub fn unset(variables: &[(&str, &str)]) -> Vec<String> {
    let is_set = |name: &str| std::env::var(name).is_ok_and(|value| !value.is_empty());
    let unset = variables.iter().filter(|(name, _)| !is_set(name));
    unset.map(|(name, what)| format!("{name} does not say where {what} is")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_told_with_the_way_to_get_it() {
        let missing = unset(&[("PROOF_TEST_OF_A_VARIABLE_THAT_NOBODY_SETS", "the server")]);
        assert_eq!(missing.len(), 1);
        let error = NotThere { missing, remedy: &["start it", "and say where it is"] }.to_string();
        assert_eq!(error.lines().count(), 3);
        assert!(error.contains("where the server is\nstart it\n"), "{error}");
    }
}
