//! Several relay processes on one log: how fast they are together, and who goes on when one is killed.

use super::latency::{After, Pace, Stopwatch, Writer, listen};
use super::member::Member;
use super::sink::{Sink, connect_nats};
use super::{Outcome, Plan, Task};
use anyhow::{Result, bail};
use async_nats::jetstream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// How often the stream is looked at.
const LOOK: Duration = Duration::from_millis(5);
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
    let Sink::Nats { url: nats, stream } = sink else { bail!("only for NATS") };
    let mut stream = jetstream::new(connect_nats(nats).await?).get_stream(stream).await?;
    // Counted from when about a tenth is there, by when all have their lanes; from now on, if that is not seen.
    let (mut start, mut before) = (Instant::now(), 0);
    let mut fleet = Vec::new();
    for _ in 0..members {
        fleet.push(Member::spawn(&member(url, sink, name, None)).await?);
    }
    loop {
        let stored = stream.info().await?.state.messages;
        if stored >= plan.events {
            break;
        }
        if before == 0 && stored >= plan.events / 10 {
            (start, before) = (Instant::now(), stored);
        }
        tokio::time::sleep(LOOK).await;
    }
    let mut outcome = Outcome::of(plan.events - before, start.elapsed());
    for member in fleet {
        outcome.add_costs(&member.stop().await?);
    }
    Ok(outcome)
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
    // Long enough for the lanes to be shared.
    tokio::time::sleep(lease).await;
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
