//! Several relay processes on one log: how fast they are together, and who goes on when one is killed.

use super::filling::filled;
use super::latency::{After, Pace, Stopwatch, Writer, listen};
use super::limit::Limit;
use super::member::Member;
use super::sink::Sink;
use super::{Outcome, Plan, Task};
use anyhow::Result;
use relevo::Operate;
use relevo::postgres::PostgresStore;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// How often it is asked who has lanes.
const LOOK: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(120);

fn member(url: &str, sink: &Sink, subscription: &str, lease: Option<Duration>) -> Task {
    Task::Member {
        url: url.to_owned(),
        sink: sink.clone(),
        subscription: subscription.to_owned(),
        lease_ms: lease.map(|lease| lease.as_millis() as u64),
        doorbell: true,
    }
}

/// So many processes drain the log to a stream, from its first message to its last.
pub(super) async fn drain(
    url: &str,
    plan: Plan,
    sink: &Sink,
    name: &str,
    members: usize,
) -> Result<Outcome> {
    let (start, mut fleet) = (Instant::now(), Vec::new());
    for _ in 0..members {
        fleet.push(Member::spawn(&member(url, sink, name, None)).await?);
    }
    let mut outcome = filled(plan, sink, start).await?;
    for member in fleet {
        outcome.add_costs(&member.stop().await?);
    }
    Ok(outcome)
}

/// Until so many processes have lanes.
async fn shared(url: &str, name: &str, members: u64) -> Result<()> {
    let store = PostgresStore::connect(url).await?;
    let at_work = async || {
        let status = store.status().await?;
        let ours = status.subscriptions.iter().filter(|subscription| subscription.name == name);
        let members = ours.flat_map(|subscription| &subscription.members);
        Ok(members.filter(|member| member.lanes > 0).count() as u64)
    };
    Limit::of(members).look(LOOK, at_work).await
}

/// Two processes; one is killed while events come. How long until whatever it should have sent has arrived.
pub(super) async fn take_over(
    url: &str,
    plan: Plan,
    sink: &Sink,
    name: &str,
    lease: Duration,
    rate: f64,
) -> Result<Outcome> {
    let watch = Arc::new(Stopwatch::new(plan));
    let mut receiving = JoinSet::new();
    receiving.spawn(listen(sink.clone(), watch.clone()));
    let task = member(url, sink, name, Some(lease));
    let survivor = Member::spawn(&task).await?;
    let victim = Member::spawn(&task).await?;
    let pace = Pace::of(Some(rate));
    let mut writers = JoinSet::new();
    for number in 0..pace.writers {
        let writer = Writer::new(url, After::Relevo, &watch, plan, pace, number).await?;
        writers.spawn(writer.write());
    }
    shared(url, name, 2).await?;
    let killed = watch.now();
    victim.kill().await?;
    while let Some(written) = writers.join_next().await {
        written??;
    }
    tokio::select! {
        all = watch.all(PATIENCE) => all?,
        Some(ended) = receiving.join_next() => ended??,
    }
    let mut outcome = Outcome::of(plan.events, Duration::from_secs_f64(watch.took()));
    outcome.values.insert("take_over_s".into(), watch.longest_after(killed) / 1e3);
    survivor.stop().await?;
    Ok(outcome)
}
