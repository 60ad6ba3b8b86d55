//! A relay in a process of its own that goes on until it is told to stop, or killed.

use super::sink::{Adapter, Sink};
use super::{Outcome, Task};
use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use relevo::broker::{Confirm, Publisher, ToBroker};
use relevo::postgres::PostgresStore;
use relevo::{Event, Relay, RelayConfig, RunningRelay, Subscription};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

const READY: &str = "ready";

/// Works until its input ends.
pub(super) async fn run(
    url: &str,
    sink: &Sink,
    name: &str,
    lease: Option<Duration>,
    doorbell: bool,
) -> Result<Outcome> {
    let relay = start(url, sink, name, lease, doorbell).await?;
    println!("{READY}");
    tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()))
        .await??;
    relay.stop().await?;
    Ok(Outcome::default())
}

/// Without the bell, the store gets a pool and does not know where it could listen: it polls.
pub(super) async fn start(
    url: &str,
    sink: &Sink,
    name: &str,
    lease: Option<Duration>,
    doorbell: bool,
) -> Result<RunningRelay> {
    let mut store = PostgresStore::connect(url).await?;
    if !doorbell {
        store = PostgresStore::from_pool(store.pool().clone());
    }
    let mut config = RelayConfig::default();
    config.lease = lease.unwrap_or(config.lease);
    let publisher = sink.publisher()?.unwrap_or_else(|| Box::new(Nobody));
    let to = ToBroker::new(Adapter(publisher));
    Ok(Relay::on(store).subscribe_with(Subscription::new(name), config, to).start().await?)
}

/// Confirms everything at once.
struct Nobody;

#[async_trait]
impl Publisher for Nobody {
    fn name(&self) -> &'static str {
        "null"
    }

    async fn publish(&self, events: &[&Event]) -> Vec<Confirm> {
        vec![Confirm::Stored; events.len()]
    }
}

/// Such a process, from its parent's side. It ends with its parent, because its input does.
pub(super) struct Member {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Member {
    /// Returns when its relay is at work.
    pub(super) async fn spawn(task: &Task) -> Result<Member> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--task", &serde_json::to_string(task)?])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stdout = child.stdout.take().context("its output is a pipe")?;
        let mut lines = BufReader::new(stdout).lines();
        let line = lines.next_line().await?;
        ensure!(line.as_deref() == Some(READY), "the relay did not start: {line:?}");
        Ok(Member { child, lines })
    }

    /// Like a power cut.
    pub(super) async fn kill(mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }

    /// Ends it in good order; what it cost.
    pub(super) async fn stop(mut self) -> Result<Outcome> {
        drop(self.child.stdin.take());
        let line = self.lines.next_line().await?.context("the relay said nothing in the end")?;
        ensure!(self.child.wait().await?.success(), "the relay ended badly");
        Ok(serde_json::from_str(&line)?)
    }
}
