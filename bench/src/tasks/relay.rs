use super::counting::{Counting, Seen, Watched};
use super::drains::Drains;
use super::held::Held;
use super::limit::Limit;
use super::sink::Sink;
use super::{Outcome, Plan};
use crate::judge::Judge;
use anyhow::Result;
use relevo::broker::ToBroker;
use relevo::postgres::PostgresStore;
use relevo::{Relay, RelayConfig, RunningRelay, Subscription};
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
    /// It is open for so many seconds at least: the log is drained again and again meanwhile, by another subscription
    /// each time.
    pub(crate) held_s: u64,
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
    if with.late > 0 {
        return held(url, plan, sink, name, with).await;
    }
    let mut drains = Drains::begin();
    drains.add(Drained::by(url, plan, sink, name, with, 0).await?.stop().await?);
    for again in 0..with.again {
        let name = format!("{name}-{again}");
        drains.add(Drained::by(url, plan, sink, &name, with, 0).await?.stop().await?);
    }
    Ok(drains.together())
}

/// Drained until a transaction has been open for long enough, and once more; then it commits.
async fn held(url: &str, plan: Plan, sink: &Sink, name: &str, with: With) -> Result<Outcome> {
    let held = Held::open(url, plan, with.late).await?;
    let mut drains = Drains::begin();
    let mut number = 0;
    while drains.took().as_secs() < with.held_s {
        let name = format!("{name}-{number}");
        drains.add(Drained::by(url, plan, sink, &name, with, 0).await?.stop().await?);
        number += 1;
    }
    let mut last = Drained::by(url, plan, sink, name, with, with.late).await?;
    last.receive(held, with.late).await?;
    drains.add(last.stop().await?);
    Ok(drains.one_by_one())
}

/// A log of which all is delivered, and the relay that did it, still at work.
struct Drained {
    relay: RunningRelay,
    watched: Watched,
    outcome: Outcome,
}

impl Drained {
    /// By this subscription. `late` events are to come after all others.
    async fn by(
        url: &str,
        plan: Plan,
        sink: &Sink,
        name: &str,
        with: With,
        late: u64,
    ) -> Result<Drained> {
        let (began, limit) = (Instant::now(), Limit::of(plan.events));
        let mut store = PostgresStore::connect(url).await?;
        if with.held_s > 0 && late == 0 {
            // A doorbell's slot waits for transactions that are open when it is made, even when nobody listens any
            // more: of all drains only the last has a bell, so that slots do not run out.
            store = PostgresStore::from_pool(store.pool().clone());
        }
        let poisoned = with.poisoned.then_some(0);
        let judge = Judge::new(plan.events + late, plan.keys).sparing(poisoned);
        let wanted = judge.wanted() - late;
        let seen = Seen::new(judge, wanted);
        let (counting, mut watched) = Counting::new(sink.publisher()?, poisoned, seen);
        let mut config = RelayConfig::default();
        config.concurrency = with.concurrency;
        let start = Instant::now();
        let relay = Relay::on(store)
            .subscribe_with(Subscription::new(name), config, ToBroker::new(counting))
            .start()
            .await?;
        limit.wait(&mut watched.stored, wanted).await?;
        let mut outcome = Outcome::of(wanted, start.elapsed());
        watched.seen().tell(&mut outcome, began);
        Ok(Drained { relay, watched, outcome })
    }

    /// What was held commits: how long until the last of its events is delivered.
    async fn receive(&mut self, held: Held, late: u64) -> Result<()> {
        let (start, all) = (Instant::now(), self.outcome.events + late);
        held.commit().await?;
        Limit::of(late).wait(&mut self.watched.stored, all).await?;
        let took = start.elapsed().as_secs_f64() * 1000.0;
        self.outcome.values.insert("late_ms".into(), took);
        Ok(())
    }

    async fn stop(self) -> Result<Outcome> {
        self.relay.stop().await?;
        self.watched.seen().judge.verdict()?;
        Ok(self.outcome)
    }
}
