use super::counting::{Counting, Seen, Watched, steady_rate};
use super::held::Held;
use super::sink::Sink;
use super::{Outcome, Plan};
use crate::judge::Judge;
use anyhow::Result;
use relevo::broker::ToBroker;
use relevo::postgres::PostgresStore;
use relevo::{Relay, RelayConfig, Subscription};
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// What is not as usual.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct With {
    /// Drained so often more, by another subscription each time.
    pub(crate) again: u32,
    /// Batches under way at once, where not as Relevo comes.
    pub(crate) concurrency: Option<usize>,
    /// A transaction with so many events is open from before the start, and commits when all else is delivered.
    pub(crate) late: u64,
    /// Events of the first key are refused.
    pub(crate) poisoned: bool,
}

/// Relevo with the settings it comes with.
pub(super) async fn run(
    url: &str,
    plan: Plan,
    sink: &Sink,
    name: &str,
    with: With,
) -> Result<Outcome> {
    let mut outcome = drain(url, plan, sink, name, with).await?;
    let mut steady = vec![steady(&outcome)];
    for again in 0..with.again {
        let next = drain(url, plan, sink, &format!("{name}-{again}"), with).await?;
        outcome.events += next.events;
        outcome.seconds += next.seconds;
        steady.push(self::steady(&next));
    }
    steady.sort_by(f64::total_cmp);
    outcome.values.insert("steady_rate".into(), steady[steady.len() / 2]);
    Ok(outcome)
}

fn steady(outcome: &Outcome) -> f64 {
    outcome.curves.get("progress").map_or(f64::NAN, |progress| steady_rate(progress))
}

async fn drain(url: &str, plan: Plan, sink: &Sink, name: &str, with: With) -> Result<Outcome> {
    let held = match with.late {
        0 => None,
        late => Some(Held::open(url, plan, late).await?),
    };
    let store = PostgresStore::connect(url).await?;
    let poisoned = with.poisoned.then_some(0);
    let judge = Judge::new(plan.events + with.late, plan.keys).sparing(poisoned);
    let wanted = judge.wanted() - with.late;
    let seen = Seen::new(judge, wanted);
    let (counting, mut watched) = Counting::new(sink.publisher()?, poisoned, seen);
    let mut config = RelayConfig::default();
    config.concurrency = with.concurrency.unwrap_or(config.concurrency);
    let start = Instant::now();
    let relay = Relay::on(store)
        .subscribe_with(Subscription::new(name), config, ToBroker::new(counting))
        .start()
        .await?;
    watched.stored.wait_for(|stored| *stored >= wanted).await?;
    let mut outcome = Outcome::of(wanted, start.elapsed());
    outcome.curves.insert("progress".into(), watched.seen().progress.clone());
    if let Some(held) = held {
        let took = late(held, &mut watched, wanted + with.late).await?;
        outcome.values.insert("late_ms".into(), took);
    }
    relay.stop().await?;
    watched.seen().judge.verdict()?;
    Ok(outcome)
}

/// Milliseconds from the commit of what was held until the last of its events is delivered.
async fn late(held: Held, watched: &mut Watched, all: u64) -> Result<f64> {
    let start = Instant::now();
    held.commit().await?;
    watched.stored.wait_for(|stored| *stored >= all).await?;
    Ok(start.elapsed().as_secs_f64() * 1000.0)
}
