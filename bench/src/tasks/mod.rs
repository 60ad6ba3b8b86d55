//! What a contender does. Each runs in a process of its own, a child of the bench, and answers with one line.

mod classic;
mod client;
mod copy;
mod direct;
mod pipe;
mod relay;
mod rows;
mod sink;
mod write;

pub(crate) use direct::Driver;
pub(crate) use sink::{Sink, connect_nats};
pub(crate) use write::Extra;

use crate::cost;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The events of a run: keys take turns, each payload is stamped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) events: u64,
    pub(crate) keys: u32,
    pub(crate) bytes: usize,
}

/// One turn.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Task {
    /// Relevo relays the log to a sink.
    Relay { url: String, plan: Plan, sink: Sink, subscription: String },
    /// The same rows by binary COPY: what the database can hand out.
    Copy { url: String, plan: Plan },
    /// The relay most teams write: `SKIP LOCKED`, and a mark on each row.
    Classic { url: String, plan: Plan, batch: i64 },
    /// One cursor, the same client, the same window, nothing else.
    Pipe { url: String, plan: Plan, sink: Sink },
    /// The client alone, no database at work.
    Client { plan: Plan, sink: Sink },
    /// Business transactions, with something extra in each.
    Write { url: String, connections: usize, transactions: u64, bytes: usize, extra: Extra },
    /// Relevo's handlers, each effect a row.
    Direct { url: String, plan: Plan, driver: Driver, subscription: String },
    /// The same transactions in a bare loop.
    Loop { url: String, plan: Plan, driver: Driver },
}

/// What a turn brought.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) events: u64,
    pub(crate) seconds: f64,
    pub(crate) cpu_s: f64,
    pub(crate) peak_mb: f64,
}

impl Outcome {
    pub(crate) fn of(events: u64, took: Duration) -> Outcome {
        Outcome { events, seconds: took.as_secs_f64(), ..Outcome::default() }
    }
}

impl Task {
    /// Runs it as a child of this process.
    pub(crate) async fn in_a_process(&self) -> Result<Outcome> {
        let output = tokio::process::Command::new(std::env::current_exe()?)
            .args(["--task", &serde_json::to_string(self)?])
            .stderr(std::process::Stdio::inherit())
            .output()
            .await?;
        ensure!(output.status.success(), "the contender's process ended with {}", output.status);
        let text = String::from_utf8(output.stdout)?;
        let line = text.lines().last().context("the contender said nothing")?;
        serde_json::from_str(line).with_context(|| format!("not an outcome: {line}"))
    }

    /// Where its events go, and which.
    pub(crate) fn sent(&self) -> Option<(&Sink, Plan)> {
        match self {
            Task::Relay { sink, plan, .. }
            | Task::Pipe { sink, plan, .. }
            | Task::Client { sink, plan } => Some((sink, *plan)),
            _ => None,
        }
    }
}

/// Does a task, in the process that is there for it.
pub(crate) async fn perform(task: Task) -> Result<Outcome> {
    let mut outcome = match task {
        Task::Relay { url, plan, sink, subscription } => {
            relay::run(&url, plan, sink, &subscription).await?
        }
        Task::Copy { url, plan } => copy::run(&url, plan).await?,
        Task::Classic { url, plan, batch } => classic::run(&url, plan, batch).await?,
        Task::Pipe { url, plan, sink } => pipe::run(&url, plan, sink).await?,
        Task::Client { plan, sink } => client::run(plan, sink).await?,
        Task::Write { url, connections, transactions, bytes, extra } => {
            write::run(&url, connections, transactions, bytes, extra).await?
        }
        Task::Direct { url, plan, driver, subscription } => {
            direct::relay(&url, plan, driver, &subscription).await?
        }
        Task::Loop { url, plan, driver } => direct::bare(&url, plan, driver).await?,
    };
    outcome.cpu_s = cost::own_cpu();
    outcome.peak_mb = cost::own_peak_mb()?;
    Ok(outcome)
}
