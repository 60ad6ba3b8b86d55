//! What a run brought, in figures.

use crate::check::Verdict;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Figures that grow during a run.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    /// Injected faults by name.
    pub faults: BTreeMap<String, u64>,
    /// For each kill of one of our processes that had work in flight: how many events.
    pub in_flight: Vec<usize>,
    /// Kills that found nothing in flight; they do not count.
    pub idle_kills: u64,
    /// For each kill of the database server with all its children: how many events were in flight.
    pub server_kills: Vec<usize>,
    /// From a process's death or pause until every lane had delivered something published after it.
    pub takeovers: Vec<Duration>,
    /// From the end of another fault until every lane had delivered something published after it.
    pub recoveries: Vec<Duration>,
    /// How many transactions of each shape came to their end.
    pub shapes: BTreeMap<String, u64>,
    /// Worth knowing.
    pub notes: Vec<String>,
}

impl Figures {
    /// Counts a fault.
    pub fn fault(&mut self, name: &str) {
        *self.faults.entry(name.to_owned()).or_default() += 1;
    }

    /// Counts a kill of one of our processes.
    pub fn kill(&mut self, in_flight: usize) {
        if in_flight == 0 {
            self.idle_kills += 1;
        } else {
            self.in_flight.push(in_flight);
        }
    }

    /// Counts a kill of the database server.
    pub fn server_kill(&mut self, in_flight: usize) {
        self.fault("kill -9 of PostgreSQL");
        if in_flight > 0 {
            self.server_kills.push(in_flight);
        }
    }

    /// How many events were in flight at each kill that counts, of processes and of servers.
    pub fn in_flight_per_kill(&self) -> impl Iterator<Item = usize> {
        self.in_flight.iter().chain(&self.server_kills).copied()
    }

    /// Kills that count.
    pub fn kills(&self) -> usize {
        self.in_flight.len()
    }
}

/// The end of one scenario.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Which.
    pub scenario: String,
    /// What it was decided by.
    pub seed: u64,
    /// How long it took.
    pub took: Duration,
    /// What was done to it.
    pub figures: Figures,
    /// What came of it.
    pub verdict: Verdict,
    /// What went wrong beside the verdict: no recovery in time, a process that did not end well.
    pub problems: Vec<String>,
}

impl Outcome {
    /// Did everything hold?
    pub fn is_clean(&self) -> bool {
        self.verdict.is_clean() && self.problems.is_empty()
    }

    /// For tests.
    ///
    /// # Panics
    /// If anything did not hold.
    #[track_caller]
    pub fn expect_clean(&self) {
        println!("{self}");
        assert!(self.is_clean(), "{self}");
    }
}

/// The worst of some times.
pub fn worst(times: &[Duration]) -> Duration {
    times.iter().max().copied().unwrap_or_default()
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let figures = &self.figures;
        writeln!(f, "{} (seed {}, {:.1} s)", self.scenario, self.seed, self.took.as_secs_f64())?;
        writeln!(f, "  {}", self.verdict)?;
        let faults: Vec<String> =
            figures.faults.iter().map(|(name, count)| format!("{name} {count}")).collect();
        writeln!(f, "  faults: {}", faults.join(", "))?;
        writeln!(
            f,
            "  kills of processes: {} with work in flight (events: {:?}), {} idle; of servers: {} (events: {:?})",
            figures.kills(),
            figures.in_flight,
            figures.idle_kills,
            figures.server_kills.len(),
            figures.server_kills
        )?;
        write!(
            f,
            "  worst take-over {:?}, worst recovery {:?}",
            worst(&figures.takeovers),
            worst(&figures.recoveries)
        )?;
        let shapes: Vec<String> =
            figures.shapes.iter().map(|(name, count)| format!("{name} {count}")).collect();
        write!(f, "\n  transactions: {}", shapes.join(", "))?;
        for note in &figures.notes {
            write!(f, "\n  note: {note}")?;
        }
        for problem in &self.problems {
            write!(f, "\n  PROBLEM: {problem}")?;
        }
        Ok(())
    }
}
