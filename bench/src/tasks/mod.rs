//! What a contender does. Each runs in a process of its own, a child of the bench, and answers with one line.

mod bare;
mod classic;
mod client;
mod consume;
mod copy;
mod counting;
mod direct;
mod drains;
mod effects;
mod filling;
mod fleet;
mod held;
mod idle;
mod latency;
mod limit;
mod member;
mod message;
mod peer;
mod pipe;
mod relay;
mod rows;
mod sink;
mod write;

pub(crate) use bare::Bare;
pub(crate) use classic::FILL as FILL_CLASSIC;
pub(crate) use effects::{Driver, open_sqlite};
pub(crate) use latency::Carrier;
pub(crate) use message::Message;
pub(crate) use peer::{Peer, TABLE as PEER_TABLE};
pub(crate) use relay::With;
pub(crate) use rows::connect;
pub(crate) use sink::{Sink, connect_nats, kafka_client};
pub(crate) use write::{Beside, Extra};

use crate::cost;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// A contender's process ends within this time, whatever it waits for.
const LIMIT: Duration = Duration::from_secs(30 * 60);

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
    Relay { url: String, plan: Plan, sink: Sink, subscription: String, with: With },
    /// The same rows by binary COPY: what the database can hand out.
    Copy { url: String, plan: Plan },
    /// The relay most teams write: `SKIP LOCKED`, and a mark on each row. A transaction may be held open
    /// meanwhile, for so many seconds at least.
    Classic { url: String, plan: Plan, batch: i64, held_s: Option<u64> },
    /// One cursor, the same client, the same window where none is named, nothing else.
    Pipe { url: String, plan: Plan, sink: Sink, window: Option<usize> },
    /// The client alone, no database at work.
    Client { plan: Plan, sink: Sink },
    /// Business transactions, with something extra in each, and perhaps a relay (and its subscription) at work.
    Write {
        url: String,
        connections: usize,
        transactions: u64,
        bytes: usize,
        extra: Extra,
        beside: Option<(Beside, String)>,
    },
    /// Relevo's handlers, each effect a row.
    Direct { url: String, plan: Plan, driver: Driver, subscription: String },
    /// The same transactions in a bare loop, or in several side by side (on PostgreSQL).
    Loop { url: String, plan: Plan, driver: Driver, loops: usize },
    /// From COMMIT to arrival, at a rate or as fast as it goes; without a sink, by handlers.
    Latency {
        url: String,
        plan: Plan,
        sink: Sink,
        carrier: Carrier,
        rate: Option<f64>,
        subscription: String,
    },
    /// Everything a broker has, with effects.
    Consume { url: String, plan: Plan, sink: Sink, carrier: Carrier, name: String },
    /// A relay with nothing to do.
    Idle { url: String, subscription: String, seconds: u64, doorbell: bool },
    /// Several processes drain one log.
    Fleet { url: String, plan: Plan, sink: Sink, subscription: String, members: usize },
    /// One of two processes is killed.
    TakeOver { url: String, plan: Plan, sink: Sink, subscription: String, lease_ms: u64, rate: f64 },
    /// A table of Debezium's layout is relayed: what is there, or what comes at a rate.
    Peer { url: String, plan: Plan, sink: Sink, peer: Peer, rate: Option<f64> },
    /// A relay that goes on until its input ends; for tasks that need one beside them.
    Member { url: String, sink: Sink, subscription: String, lease_ms: Option<u64>, doorbell: bool },
}

/// What a turn brought.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) events: u64,
    pub(crate) seconds: f64,
    pub(crate) cpu_s: f64,
    pub(crate) peak_mb: f64,
    /// What was measured beside the rate, by name.
    #[serde(default)]
    pub(crate) values: BTreeMap<String, f64>,
    /// What is to be drawn, by name.
    #[serde(default)]
    pub(crate) curves: BTreeMap<String, Vec<(f64, f64)>>,
}

impl Outcome {
    pub(crate) fn of(events: u64, took: Duration) -> Outcome {
        Outcome { events, seconds: took.as_secs_f64(), ..Outcome::default() }
    }

    /// What another process cost for it: its CPU time on top, and the larger memory of the two.
    pub(crate) fn add_costs(&mut self, other: &Outcome) {
        self.cpu_s += other.cpu_s;
        self.peak_mb = self.peak_mb.max(other.peak_mb);
    }
}

impl Task {
    /// Runs it as a child of this process.
    pub(crate) async fn in_a_process(&self) -> Result<Outcome> {
        let mut process = tokio::process::Command::new(std::env::current_exe()?);
        process.args(["--task", &serde_json::to_string(self)?]).kill_on_drop(true);
        let output = tokio::time::timeout(LIMIT, process.output())
            .await
            .with_context(|| format!("its process did not end within {LIMIT:?}"))??;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "its process ended with {}: {said}", output.status);
        eprint!("{said}");
        let text = String::from_utf8(output.stdout)?;
        let line = text.lines().last().context("the contender said nothing")?;
        serde_json::from_str(line).with_context(|| format!("not an outcome: {line}"))
    }

    /// Where its events go or come from, and which.
    pub(crate) fn sink(&self) -> Option<(&Sink, Plan)> {
        match self {
            Task::Relay { sink, plan, .. }
            | Task::Pipe { sink, plan, .. }
            | Task::Client { sink, plan }
            | Task::Latency { sink, plan, .. }
            | Task::Consume { sink, plan, .. }
            | Task::Fleet { sink, plan, .. }
            | Task::Peer { sink, plan, .. }
            | Task::TakeOver { sink, plan, .. } => Some((sink, *plan)),
            _ => None,
        }
    }

    /// The database it works on.
    pub(crate) fn url(&self) -> Option<&str> {
        match self {
            Task::Client { .. } => None,
            Task::Relay { url, .. }
            | Task::Copy { url, .. }
            | Task::Classic { url, .. }
            | Task::Pipe { url, .. }
            | Task::Write { url, .. }
            | Task::Direct { url, .. }
            | Task::Loop { url, .. }
            | Task::Latency { url, .. }
            | Task::Consume { url, .. }
            | Task::Idle { url, .. }
            | Task::Fleet { url, .. }
            | Task::TakeOver { url, .. }
            | Task::Peer { url, .. }
            | Task::Member { url, .. } => Some(url),
        }
    }
}

/// Does a task, in the process that is there for it.
pub(crate) async fn perform(task: Task) -> Result<Outcome> {
    let mut outcome = done(task).await?;
    let own =
        Outcome { cpu_s: cost::own_cpu(), peak_mb: cost::own_peak_mb()?, ..Outcome::default() };
    outcome.add_costs(&own);
    Ok(outcome)
}

async fn done(task: Task) -> Result<Outcome> {
    let millis = Duration::from_millis;
    match task {
        Task::Relay { url, plan, sink, subscription, with } => {
            relay::run(&url, plan, &sink, &subscription, with).await
        }
        Task::Copy { url, plan } => copy::run(&url, plan).await,
        Task::Classic { url, plan, batch, held_s } => classic::run(&url, plan, batch, held_s).await,
        Task::Pipe { url, plan, sink, window } => pipe::run(&url, plan, &sink, window).await,
        Task::Client { plan, sink } => client::run(plan, &sink).await,
        Task::Write { url, connections, transactions, bytes, extra, beside } => {
            write::run(&url, connections, transactions, bytes, extra, beside).await
        }
        Task::Direct { url, plan, driver, subscription } => {
            direct::relay(&url, plan, driver, &subscription).await
        }
        Task::Loop { url, plan, driver, loops } => direct::bare(&url, plan, driver, loops).await,
        Task::Latency { url, plan, sink, carrier, rate, subscription } => {
            latency::run(&url, plan, &sink, carrier, rate, &subscription).await
        }
        Task::Consume { url, plan, sink, carrier, name } => {
            consume::run(&url, plan, &sink, carrier, &name).await
        }
        Task::Idle { url, subscription, seconds, doorbell } => {
            idle::run(&url, &subscription, Duration::from_secs(seconds), doorbell).await
        }
        Task::Fleet { url, plan, sink, subscription, members } => {
            fleet::drain(&url, plan, &sink, &subscription, members).await
        }
        Task::TakeOver { url, plan, sink, subscription, lease_ms, rate } => {
            fleet::take_over(&url, plan, &sink, &subscription, millis(lease_ms), rate).await
        }
        Task::Peer { url, plan, sink, peer, rate } => {
            peer::run(&url, plan, &sink, &peer, rate).await
        }
        Task::Member { url, sink, subscription, lease_ms, doorbell } => {
            member::run(&url, &sink, &subscription, lease_ms.map(millis), doorbell).await
        }
    }
}
