//! All of it in one process on PostgreSQL and NATS JetStream or Kafka, which the environment names as it does for the
//! binary; with traffic, faults and a verdict as the embedded way has them. The other way to run it so is several processes,
//! `smartedify serve` and `smartedify consume`.

use crate::broker::{At, Broker};
use crate::config::{BrokerArgs, DownstreamDb, OutboxArgs, ServiceDb, admin_token};
use crate::db::Db;
use crate::downstream::{consumer, direct::Trouble, retention};
use crate::embedded::journal::{Acknowledged, Tally};
use crate::embedded::traffic::Traffic;
use crate::embedded::verify::{self, Order, Verdict};
use crate::embedded::{Addresses, Break, Figures};
use crate::http::{Api, follow_broker};
use crate::outbox::{Outbox, Settings, choice, cleanup, dead_letters};
use crate::tenants::Tenants;
use crate::{db::Sql, member, migrate, wall_clock};
use anyhow::{Result, anyhow};
use async_trait::async_trait;
use clap::Parser;
use metrics_exporter_prometheus::PrometheusHandle;
use proof::NotThere;
use relevo::broker::{Capabilities, Confirm, Publisher};
use relevo::{Consuming, Event, RunningRelay};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A part that does not answer within this is not there.
const LIMIT: Duration = Duration::from_secs(10);

const DATABASES: [(&str, &str); 2] = [
    ("DATABASE_URL", "the service's PostgreSQL"),
    ("DOWNSTREAM_DATABASE_URL", "the downstream service's PostgreSQL"),
];

const REMEDY: &[&str] = &[
    "start them:  docker compose -f systems/smartedify/compose.yaml up --wait",
    "and then:    export DATABASE_URL, DOWNSTREAM_DATABASE_URL and SMARTEDIFY_BROKER_URL as the top of that file shows",
];

/// What the environment says, as the binary reads it.
#[derive(Debug, Clone, Parser)]
#[command(name = "smartedify")]
struct Environment {
    #[command(flatten)]
    service: ServiceDb,
    #[command(flatten)]
    downstream: DownstreamDb,
    #[command(flatten)]
    broker: BrokerArgs,
    #[command(flatten)]
    outbox: OutboxArgs,
    #[arg(long, env = "SMARTEDIFY_ADMIN_TOKEN", hide_env_values = true)]
    admin_token: Option<String>,
}

impl Environment {
    fn read() -> Result<Self> {
        let missing = proof::unset(&DATABASES);
        if !missing.is_empty() {
            return Err(NotThere { missing, remedy: REMEDY }.into());
        }
        Self::try_parse_from(["smartedify"]).map_err(|error| anyhow!("{error}"))
    }

    /// Asks each part whether it is there.
    async fn check(&self) -> Result<()> {
        let broker = self.broker.broker();
        let (service, downstream) = (&self.service.url, &self.downstream.url);
        let answers =
            tokio::join!(answer(ask(service)), answer(ask(downstream)), answer(broker.prepare()));
        let [(service, _), (downstream, _)] = DATABASES;
        let parts = [service, downstream, "SMARTEDIFY_BROKER_URL"];
        let answers = parts.iter().zip([answers.0, answers.1, answers.2]);
        let missing = answers.filter_map(|(variable, answer)| {
            Some(format!("what {variable} names: {:#}", answer.err()?))
        });
        let missing: Vec<String> = missing.collect();
        if missing.is_empty() { Ok(()) } else { Err(NotThere { missing, remedy: REMEDY }.into()) }
    }
}

async fn ask(url: &str) -> Result<()> {
    Ok(Db::open(url).await?.number(&Sql::both("SELECT count(*)"), &[]).await.map(drop)?)
}

async fn answer(asked: impl Future<Output = Result<()>>) -> Result<()> {
    let answer = tokio::time::timeout(LIMIT, asked).await;
    answer.unwrap_or_else(|_| Err(anyhow!("no answer in {LIMIT:?}")))
}

/// The system at work on its real parts.
pub struct Real {
    addresses: Addresses,
    parts: Parts,
    relay: RunningRelay,
    consuming: Consuming,
    traffic: Traffic,
    _server: JoinSet<()>,
}

struct Parts {
    service: Db,
    downstream: Db,
    outbox: Outbox,
    tenants: Tenants,
    broker: Broker,
    settings: Settings,
    trouble: Arc<Trouble>,
    failed: Arc<AtomicU64>,
    acknowledged: Acknowledged,
    /// Effects that were there already.
    before: u64,
}

const EFFECTS: Sql = Sql::both("SELECT count(*) FROM audit_log");

impl Parts {
    async fn open(environment: &Environment, folder: &Path) -> Result<Self> {
        let (service, downstream) = (&environment.service.url, &environment.downstream.url);
        let (service_db, downstream_db) = (Db::open(service).await?, Db::open(downstream).await?);
        migrate::tenants(&service_db).await?;
        migrate::downstream(&downstream_db).await?;
        let (outbox, broker) = (Outbox::adopt(service).await?, environment.broker.broker());
        choice::choose(&service_db, &outbox, &broker).await?;
        Ok(Self {
            outbox,
            tenants: Tenants::on(service_db.clone()),
            before: downstream_db.number(&EFFECTS, &[]).await?.unsigned_abs(),
            service: service_db,
            downstream: downstream_db,
            broker,
            settings: environment.outbox.settings(),
            trouble: Arc::default(),
            failed: Arc::default(),
            acknowledged: Acknowledged::open(&folder.join("acknowledged.log"))?,
        })
    }

    async fn relay(&self) -> Result<RunningRelay> {
        let publisher = Troubled {
            publisher: self.broker.publisher()?,
            trouble: self.trouble.clone(),
            failed: self.failed.clone(),
        };
        Ok(self.outbox.relay(&member("relay"), &self.settings, Box::new(publisher)).await?)
    }

    /// What a broker held for a consumer that it lost comes behind later messages; Kafka keeps the order.
    fn order(&self) -> Order {
        match self.broker.at {
            At::Nats(_) => Order::Free,
            At::Kafka(_) => Order::Kept,
        }
    }

    async fn judge(&self) -> Result<Verdict> {
        let told = self.acknowledged.read()?;
        let tally = Tally { failed: self.failed.load(Ordering::SeqCst), ..Tally::default() };
        verify::judge(&self.service, &self.downstream, tally, &told, self.order()).await
    }
}

/// Starts it with its traffic, as the environment says. What clients were told is noted in `folder`.
pub async fn start(folder: &Path, rate: u32, metrics: Option<PrometheusHandle>) -> Result<Real> {
    let environment = Environment::read()?;
    let keep = environment.outbox.retention.keep()?;
    environment.check().await?;
    let parts = Parts::open(&environment, folder).await?;
    let (down, broker_down) = watch::channel(false);
    let relay = parts.relay().await?;
    follow_broker(&relay, down);
    let url = &environment.downstream.url;
    let consuming = consumer::start(url, &parts.broker, &member("consumer")).await?;
    let api = Api {
        tenants: parts.tenants.clone(),
        db: parts.service.clone(),
        outbox: parts.outbox.clone(),
        metrics: metrics.clone(),
        admin_token: admin_token(environment.admin_token.as_deref()),
        broker_down,
    };
    let mut server = JoinSet::new();
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await?;
    let addresses = Addresses { api: listener.local_addr()? };
    if let Some(metrics) = metrics {
        let every = crate::metrics::EVERY;
        server.spawn(crate::metrics::run(parts.service.clone(), metrics, every));
    }
    let (service, downstream) = (parts.service.clone(), parts.downstream.clone());
    server.spawn(cleanup::run(service, wall_clock(), keep, cleanup::EVERY));
    server.spawn(retention::run(downstream, wall_clock(), keep.processed, cleanup::EVERY));
    server.spawn(async move {
        if let Err(error) = axum::serve(listener, api.router()).await {
            tracing::error!(%error, "the API is no longer served");
        }
    });
    let traffic = Traffic::start(addresses.api, rate, parts.acknowledged.clone());
    Ok(Real { addresses, parts, relay, consuming, traffic, _server: server })
}

impl Real {
    /// Where it can be reached.
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// The figures of this moment, for the eye.
    pub async fn figures(&self) -> Result<Figures> {
        let parts = &self.parts;
        let effects = parts.downstream.number(&EFFECTS, &[]).await?.unsigned_abs();
        let effects = effects.saturating_sub(parts.before);
        let (committed, dead) =
            (parts.acknowledged.count(), dead_letters::count(&parts.service).await?.unsigned_abs());
        Ok(Figures {
            committed,
            effects,
            pending: committed.saturating_sub(effects),
            dead,
            retried: parts.failed.load(Ordering::SeqCst),
            duplicates: 0,
        })
    }

    /// Breaks something.
    pub async fn break_it(&mut self, what: Break) -> Result<()> {
        match what {
            Break::Poison => self.parts.tenants.poison().await?,
            Break::Relay => self.relay = self.parts.relay().await?,
            Break::Fail | Break::Down | Break::Twice => self.parts.trouble.set(what, true),
        }
        Ok(())
    }

    /// Mends it.
    pub fn mend_one(&self, what: Break) {
        self.parts.trouble.set(what, false);
    }

    /// Ends the traffic, mends what is broken, waits until all is well or patience ends, and judges.
    pub async fn finish(self, patience: Duration) -> Result<Verdict> {
        self.parts.trouble.end();
        self.traffic.stop().await;
        let began = Instant::now();
        let mut verdict = self.parts.judge().await?;
        while !verdict.holds() && began.elapsed() < patience {
            tokio::time::sleep(Duration::from_millis(200)).await;
            verdict = self.parts.judge().await?;
        }
        self.relay.stop().await?;
        self.consuming.stop(Duration::from_secs(30)).await?;
        Ok(verdict)
    }
}

/// A broker that goes wrong on request.
struct Troubled {
    publisher: Box<dyn Publisher>,
    trouble: Arc<Trouble>,
    failed: Arc<AtomicU64>,
}

#[async_trait]
impl Publisher for Troubled {
    fn name(&self) -> &'static str {
        self.publisher.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.publisher.capabilities()
    }

    async fn publish(&self, events: &[&Event]) -> Vec<Confirm> {
        if let Some(down) = self.trouble.down(events) {
            return down;
        }
        let confirms = match self.trouble.failure(events) {
            Some(failed) => failed,
            None => self.trouble.answers(self.publisher.publish(events).await),
        };
        let failed = |confirm: &&Confirm| matches!(confirm, Confirm::Refused { .. });
        self.failed.fetch_add(confirms.iter().filter(failed).count() as u64, Ordering::SeqCst);
        confirms
    }

    fn publish_limit(&self) -> Option<Duration> {
        self.publisher.publish_limit()
    }

    fn largest_wave(&self) -> usize {
        self.publisher.largest_wave()
    }

    fn window(&self) -> Option<usize> {
        self.publisher.window()
    }

    async fn close(&self) {
        self.publisher.close().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_environment_is_read_by_options_that_do_not_clash() {
        Environment::command().debug_assert();
    }
}
