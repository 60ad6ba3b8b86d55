//! Relays of a table of Debezium's layout: Debezium itself, and Relevo in its place.
//!
//! - [`debezium`]: the server as a child process

mod debezium;

use super::filling::filled;
use super::latency::{After, Pace, Stopwatch, Writer, listen, summary};
use super::rows::connect;
use super::sink::{Adapter, Sink};
use super::{Outcome, Plan};
use crate::cost;
use anyhow::{Result, bail};
use debezium::Debezium;
use relevo::broker::ToBroker;
use relevo::postgres::PostgresStore;
use relevo::{Relay, RunningRelay, Subscription};
use relevo_core::outbox::adopt::{Preset, Role, TableName};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// After the last commit everything must have arrived within this time.
const PATIENCE: Duration = Duration::from_secs(300);

/// The table's name, as Debezium calls it.
pub(crate) const TABLE: &str = "outboxevent";

/// Who relays the table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Peer {
    /// Debezium Server of this folder, run by this Java, reading this slot.
    Debezium { folder: PathBuf, java: PathBuf, slot: String },
    /// Relevo's adopted-table relay.
    Adopted { name: String },
}

enum Running {
    Debezium(Debezium),
    Adopted(RunningRelay),
}

/// Without a rate, the rows that are there already; with one, rows that come at it.
pub(super) async fn run(
    url: &str,
    plan: Plan,
    sink: &Sink,
    peer: &Peer,
    rate: Option<f64>,
) -> Result<Outcome> {
    let (start, mut relay) = (Instant::now(), Running::start(url, sink, peer).await?);
    let work = async {
        match rate {
            None => filled(plan, sink, start).await,
            Some(rate) => paced(url, plan, sink, rate).await,
        }
    };
    let mut outcome = tokio::select! {
        outcome = work => outcome?,
        why = relay.death() => return Err(why),
    };
    relay.stop(&mut outcome).await?;
    Ok(outcome)
}

impl Running {
    async fn start(url: &str, sink: &Sink, peer: &Peer) -> Result<Running> {
        match peer {
            Peer::Debezium { folder, java, slot } => {
                Debezium::start(folder, java, slot, url, sink).await.map(Running::Debezium)
            }
            Peer::Adopted { name } => adopted(url, sink, name).await.map(Running::Adopted),
        }
    }

    /// Comes only if it ends by itself: why.
    async fn death(&mut self) -> anyhow::Error {
        match self {
            Running::Debezium(server) => server.death().await,
            Running::Adopted(_) => std::future::pending().await,
        }
    }

    async fn stop(self, outcome: &mut Outcome) -> Result<()> {
        match self {
            Running::Adopted(relay) => {
                relay.stop().await?;
                outcome.values.insert("memory_mb".into(), cost::own_peak_mb()?);
            }
            Running::Debezium(server) => {
                outcome.values.insert("memory_mb".into(), server.peak_mb()?);
                outcome.cpu_s += server.cpu_s();
                server.stop().await?;
            }
        }
        Ok(())
    }
}

async fn adopted(url: &str, sink: &Sink, name: &str) -> Result<RunningRelay> {
    let Some(publisher) = sink.publisher()? else { bail!("nowhere to relay to") };
    let mut mapping = Preset::Debezium.mapping(TableName::parse(TABLE)?);
    // Who replaces Debezium may delete what is delivered, and the order comes from a sequence.
    mapping = mapping.with(Role::Sequence, "seq");
    mapping.delete = true;
    let table = PostgresStore::connect(url).await?.adopt(name, mapping).await?;
    let to = ToBroker::new(Adapter(publisher));
    Ok(Relay::on(table).subscribe(Subscription::new(name), to).start().await?)
}

/// One clock for writers and receiver.
async fn paced(url: &str, plan: Plan, sink: &Sink, rate: f64) -> Result<Outcome> {
    let watch = Arc::new(Stopwatch::new(plan));
    let mut receiving = JoinSet::new();
    receiving.spawn(listen(sink.clone(), watch.clone()));
    let pace = Pace::of(Some(rate));
    let mut writers = JoinSet::new();
    for number in 0..pace.writers {
        let client = connect(url).await?;
        let insert = client
            .prepare(&format!("INSERT INTO {TABLE} (aggregatetype, aggregateid, type, payload) VALUES ('bench', $1, 'made', $2)"))
            .await?;
        let mut writer = Writer::new(url, After::Relevo, &watch, plan, pace, number).await?;
        (writer.client, writer.after) = (client, After::Adopted(insert));
        writers.spawn(writer.write());
    }
    while let Some(written) = writers.join_next().await {
        written??;
    }
    tokio::select! {
        all = watch.all(PATIENCE) => all?,
        Some(ended) = receiving.join_next() => ended??,
    }
    Ok(summary(plan, &watch))
}
