//! From COMMIT to arrival. Writers, relay and receiver are in one process and read one clock.
//!
//! - [`stopwatch`]: when each was sent and received; percentiles
//! - [`writer`]: commits at a pace

mod stopwatch;
mod writer;

pub(crate) use stopwatch::Stopwatch;
pub(crate) use writer::{After, Pace, Writer};

use super::bare::Bare;
use super::effects::Effects;
use super::rows::connect;
use super::sink::{Adapter, Sink};
use super::{Outcome, Plan};
use crate::arena::receive;
use anyhow::{Result, bail};
use async_trait::async_trait;
use futures::StreamExt;
use futures::future::try_join_all;
use relevo::broker::ToBroker;
use relevo::postgres::{Deadpool, PostgresStore};
use relevo::{Direct, Relay, RunningRelay, Start, Store, Subscription};
use relevo_core::relay::run::Destination;
use relevo_core::relay::{Batch, Delivery};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use stopwatch::{distribution, percentile};
use tokio::task::JoinSet;

/// After the last commit everything must have arrived within this time.
const PATIENCE: Duration = Duration::from_secs(120);

/// Who carries events from the commit to where they are received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Carrier {
    Relevo,
    /// The writer itself, after its commit.
    Bare,
}

/// Where events are received: from a broker, or, without one, by a handler.
pub(super) async fn run(
    url: &str,
    plan: Plan,
    sink: &Sink,
    carrier: Carrier,
    rate: Option<f64>,
    name: &str,
) -> Result<Outcome> {
    let watch = Arc::new(Stopwatch::new(plan));
    let mut receiving = JoinSet::new();
    let relay = match carrier {
        Carrier::Bare => None,
        Carrier::Relevo => {
            if *sink != Sink::Null {
                receiving.spawn(listen(sink.clone(), watch.clone()));
            }
            Some(start(url, sink, name, &watch).await?)
        }
    };
    let pace = Pace::of(rate);
    let mut writers = Vec::new();
    for number in 0..pace.writers {
        let after = after(url, sink, carrier).await?;
        writers.push(Writer::new(url, after, &watch, plan, pace, number).await?);
    }
    let writing = writers.into_iter().map(|writer| tokio::spawn(writer.write()));
    try_join_all(writing).await?.into_iter().collect::<Result<()>>()?;
    tokio::select! {
        all = watch.all(PATIENCE) => all?,
        Some(ended) = receiving.join_next() => ended??,
    }
    if let Some(relay) = relay {
        relay.stop().await?;
    }
    Ok(summary(plan, &watch))
}

async fn after(url: &str, sink: &Sink, carrier: Carrier) -> Result<After> {
    Ok(match (carrier, sink) {
        (Carrier::Relevo, _) => After::Relevo,
        (Carrier::Bare, Sink::Null) => After::Effect(connect(url).await?),
        (Carrier::Bare, sink) => After::Publish(Box::new(Bare::connect(sink).await?)),
    })
}

pub(crate) fn summary(plan: Plan, watch: &Stopwatch) -> Outcome {
    let latencies = watch.latencies();
    let mut outcome = Outcome::of(plan.events, Duration::from_secs_f64(watch.took()));
    for (name, part) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)] {
        outcome.values.insert(name.into(), percentile(&latencies, part));
    }
    outcome.curves.insert("latency".into(), distribution(&latencies));
    outcome
}

/// Receives until it is dropped.
pub(crate) async fn listen(sink: Sink, watch: Arc<Stopwatch>) -> Result<()> {
    let mut messages = receive(&sink).await?;
    while let Some(payload) = messages.next().await {
        watch.receive(&payload?);
    }
    bail!("the broker has ended")
}

/// A relay that wants what commits from now on.
async fn start(url: &str, sink: &Sink, name: &str, watch: &Arc<Stopwatch>) -> Result<RunningRelay> {
    let store = PostgresStore::connect(url).await?;
    let subscription = Subscription::new(name).start(Start::Now);
    let relay = match sink.publisher()? {
        Some(publisher) => {
            Relay::on(store).subscribe(subscription, ToBroker::new(Adapter(publisher)))
        }
        None => {
            let direct = Direct::new(Deadpool::new(store.pool().clone()), Effects);
            Relay::on(store).subscribe(subscription, Timed { direct, watch: watch.clone() })
        }
    };
    Ok(relay.start().await?)
}

/// A handler's events are received when their effects are committed.
struct Timed {
    direct: Direct<Deadpool, Effects>,
    watch: Arc<Stopwatch>,
}

#[async_trait]
impl Destination for Timed {
    async fn deliver(&self, store: &Arc<dyn Store>, batch: Batch) -> Delivery {
        let payload = |index| batch.event(index).payload.clone();
        let payloads: Vec<_> = (0..batch.len()).map(payload).collect();
        let delivery = self.direct.deliver(store, batch).await;
        if let Delivery::Recorded { rest, .. } = &delivery {
            let done = payloads.len() - rest.len();
            payloads[..done].iter().for_each(|payload| self.watch.receive(payload));
        }
        delivery
    }

    fn one_transaction(&self) -> bool {
        self.direct.one_transaction()
    }

    fn shares_transactions(&self) -> bool {
        self.direct.shares_transactions()
    }

    fn describe(&self) -> String {
        self.direct.describe()
    }
}
