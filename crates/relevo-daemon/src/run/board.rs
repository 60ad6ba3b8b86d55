//! What every part of the daemon knows about each subscription, for `/health/ready` and for people.

use super::readiness::{Readiness, Sample, Verdict};
use relevo_core::clock::Clock;
use relevo_core::relay::run::Running;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// How a subscription's work stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    /// Its store is being opened, or its start is tried again.
    Starting,
    /// At work.
    Running,
    /// An operator removed it.
    Removed,
    /// Told to stop.
    Stopped,
}

struct Entry {
    state: State,
    /// The last trouble, while it lasts.
    trouble: Option<String>,
    counts: Option<watch::Receiver<relevo_core::relay::Counts>>,
    /// The store did not answer when it was last asked.
    unanswered: Option<String>,
    readiness: Readiness,
}

/// One line of `/health/ready`.
#[derive(Debug, Serialize)]
pub(super) struct Line {
    #[serde(flatten)]
    pub(super) verdict: Verdict,
    pub(super) state: State,
    pub(super) lanes: usize,
    pub(super) breaker_open: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) trouble: Option<String>,
}

/// Shared by all parts of the daemon. Nothing slow happens under its lock.
#[derive(Clone)]
pub(super) struct Board {
    clock: Clock,
    entries: Arc<Mutex<BTreeMap<String, Entry>>>,
}

impl Board {
    pub(super) fn of<'a>(names: impl IntoIterator<Item = &'a str>, patience: Duration) -> Self {
        let clock = Clock::start();
        let entry = || Entry {
            state: State::Starting,
            trouble: None,
            counts: None,
            unanswered: None,
            readiness: Readiness::new(patience, clock.now()),
        };
        let entries = names.into_iter().map(|name| (name.to_owned(), entry())).collect();
        Self { clock, entries: Arc::new(Mutex::new(entries)) }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.lock().get_mut(name) {
            change(entry);
        }
    }

    pub(super) fn running(&self, name: &str, running: &Running) {
        self.change(name, |entry| {
            entry.state = State::Running;
            entry.trouble = None;
            entry.unanswered = None;
            entry.counts = Some(running.watch());
        });
    }

    pub(super) fn failed(&self, name: &str, trouble: String) {
        self.change(name, |entry| {
            entry.state = State::Starting;
            entry.trouble = Some(trouble);
            entry.counts = None;
        });
    }

    pub(super) fn ended(&self, name: &str, state: State) {
        self.change(name, |entry| {
            entry.state = state;
            entry.counts = None;
        });
    }

    /// The store answered about this subscription, or did not.
    pub(super) fn answered(&self, name: &str, error: Option<String>) {
        self.change(name, |entry| entry.unanswered = error);
    }

    /// Looks at every subscription now and then, so that a short standstill is told from a long one.
    pub(super) async fn watch(self) {
        let mut every = tokio::time::interval(Duration::from_millis(500));
        loop {
            every.tick().await;
            self.sample();
        }
    }

    fn sample(&self) {
        let now = self.clock.now();
        for entry in self.lock().values_mut() {
            entry.readiness.observe(now, entry.sample());
        }
    }

    /// Every subscription's line, by name.
    pub(super) fn lines(&self) -> BTreeMap<String, Line> {
        let now = self.clock.now();
        self.lock().iter().map(|(name, entry)| (name.clone(), entry.line(now))).collect()
    }
}

impl Entry {
    fn sample(&self) -> Sample {
        let counts = self.counts.as_ref().map(|counts| *counts.borrow()).unwrap_or_default();
        let blind = self.state == State::Starting || self.unanswered.is_some();
        Sample { moves: counts.moves, due: counts.due, blind }
    }

    fn line(&self, now: relevo_core::clock::Instant) -> Line {
        let counts = self.counts.as_ref().map(|counts| *counts.borrow()).unwrap_or_default();
        Line {
            verdict: self.readiness.verdict(now),
            state: self.state,
            lanes: counts.lanes,
            breaker_open: counts.breaker_open,
            trouble: self.trouble.clone().or_else(|| self.unanswered.clone()),
        }
    }
}
