//! How much it holds: changes at a rate, through the relay and the broker, to their effects downstream.

use crate::config::{BrokerArgs, DownstreamDb, OutboxArgs, ServiceDb};
use crate::db::{Db, Sql};
use crate::embedded::journal::{Tally, Told};
use crate::embedded::verify::{self, Order};
use crate::events::{Governance, Voting};
use crate::outbox::{Outbox, choice};
use crate::tenants::Tenants;
use crate::{downstream, migrate};
use anyhow::{Context, Result, ensure};
use chrono::{DateTime, Utc};
use std::collections::HashMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Options of `smartedify load`. Both databases should be empty ones.
#[derive(Debug, Clone, clap::Args)]
pub struct LoadArgs {
    #[command(flatten)]
    service: ServiceDb,
    #[command(flatten)]
    broker: BrokerArgs,
    #[command(flatten)]
    outbox: OutboxArgs,

    #[command(flatten)]
    downstream: DownstreamDb,

    /// Events a second; 0 means as many as it takes
    #[arg(long, default_value_t = 5000)]
    rate: u64,

    /// For so long
    #[arg(long, default_value_t = 20)]
    seconds: u64,

    /// Tenants, each an order of its own
    #[arg(long, default_value_t = 2000)]
    tenants: usize,

    /// Tenants changed by one request, in one transaction
    #[arg(long, default_value_t = 50)]
    per_request: usize,

    /// Clients at the same time
    #[arg(long, default_value_t = 4)]
    clients: usize,

    /// The consumer begins when all is relayed: what the relay holds whose consumers have machines of their own
    #[arg(long)]
    consume_after: bool,
}

/// What is not done after so long is not done at all.
const PATIENCE: Duration = Duration::from_secs(600);

/// When each event's request began.
type Begun = HashMap<String, DateTime<Utc>>;

impl LoadArgs {
    /// Runs, prints, and fails if anything was lost.
    pub async fn run(self) -> Result<ExitCode> {
        ensure!(
            self.clients > 0
                && self.per_request > 0
                && self.tenants >= self.clients * self.per_request
        );
        let (service, downstream) =
            (Db::open(&self.service.url).await?, Db::open(&self.downstream.url).await?);
        migrate::tenants(&service).await?;
        let broker = self.broker.broker();
        broker.prepare().await?;
        let outbox = Outbox::adopt(&self.service.url).await?;
        choice::choose(&service, &outbox, &broker).await?;
        let consumer =
            || downstream::consumer::start(&self.downstream.url, &broker, "load-consumer");
        let mut consuming = match self.consume_after {
            true => None,
            false => Some(consumer().await?),
        };
        let relay =
            outbox.relay("load-relay", &self.outbox.settings(), broker.publisher()?).await?;

        let tenants = Tenants::on(service.clone());
        let ids = create(&tenants, self.tenants).await?;
        relayed(&service, PATIENCE).await?;
        if consuming.is_some() {
            settled(&service, &downstream, PATIENCE).await?;
        }
        let started = Instant::now();
        let begun = self.change(&tenants, &ids).await?;
        let written = started.elapsed();
        let relayed = relayed(&service, PATIENCE).await?.duration_since(started);
        if consuming.is_none() {
            consuming = Some(consumer().await?);
        }
        let done = settled(&service, &downstream, PATIENCE).await?;
        let times = [written, relayed, done.duration_since(started)];
        self.tell(&begun, times, &downstream).await?;

        relay.stop().await?;
        if let Some(consuming) = consuming {
            consuming.stop(Duration::from_secs(30)).await?;
        }
        let told: Vec<Told> = Vec::new();
        let verdict =
            verify::judge(&service, &downstream, Tally::default(), &told, Order::Kept).await?;
        println!("{}", serde_json::to_string(&verdict.report)?);
        verdict.broken.iter().for_each(|broken| eprintln!("BROKEN: {broken}"));
        Ok(if verdict.broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Clients with tenants of their own each, at the rate together.
    async fn change(&self, tenants: &Tenants, ids: &[String]) -> Result<Begun> {
        let until = Instant::now() + Duration::from_secs(self.seconds);
        let mut clients = JoinSet::new();
        for own in ids.chunks(ids.len().div_ceil(self.clients)) {
            clients.spawn(client(
                tenants.clone(),
                own.to_vec(),
                self.per_request,
                self.pause(),
                until,
            ));
        }
        let mut begun = Begun::new();
        while let Some(client) = clients.join_next().await {
            begun.extend(client??);
        }
        Ok(begun)
    }

    /// Between two requests of one client.
    fn pause(&self) -> Duration {
        let requests = self.rate as f64 / self.per_request as f64 / self.clients as f64;
        if self.rate == 0 { Duration::ZERO } else { Duration::from_secs_f64(1.0 / requests) }
    }

    /// `times`: until all was written, relayed, and had taken effect.
    async fn tell(&self, begun: &Begun, times: [Duration; 3], downstream: &Db) -> Result<()> {
        let effects = Sql::each(
            "SELECT event_id, (extract(epoch FROM at) * 1000)::bigint FROM audit_log",
            "SELECT event_id, CAST((julianday(at) - 2440587.5) * 86400000.0 AS INTEGER) FROM audit_log",
        );
        let rows: Vec<(String, i64)> = downstream.rows(&effects, &[]).await?;
        let took = |(id, at): &(String, i64)| Some(at - begun.get(id)?.timestamp_millis());
        let mut took: Vec<i64> = rows.iter().filter_map(took).collect();
        took.sort_unstable();
        let at = |share: f64| took.get((took.len() as f64 * share) as usize).copied().unwrap_or(0);
        let [written, relayed, done] = times.map(|time| begun.len() as f64 / time.as_secs_f64());
        println!(
            "{} events; a second: written {written:.0}, relayed {relayed:.0}, taken effect {done:.0}; \
             request to effect in ms: p50 {}, p99 {}, most {}",
            begun.len(),
            at(0.5),
            at(0.99),
            took.last().copied().unwrap_or(0),
        );
        Ok(())
    }
}

async fn create(tenants: &Tenants, count: usize) -> Result<Vec<String>> {
    let mut ids = Vec::with_capacity(count);
    for n in 0..count {
        ids.push(tenants.create(&format!("Edificio {n}")).await?.tenant_id);
    }
    Ok(ids)
}

async fn client(
    tenants: Tenants,
    own: Vec<String>,
    per_request: usize,
    pause: Duration,
    until: Instant,
) -> Result<Begun> {
    let mut begun = Begun::new();
    let mut next = tokio::time::Instant::now();
    for n in 0u64.. {
        tokio::time::sleep_until(next).await;
        next += pause;
        if Instant::now() >= until {
            break;
        }
        let first = (n as usize * per_request) % (own.len() - per_request + 1);
        let quorum_percent = 1 + (n % 100) as u8;
        let governance = Governance { quorum_percent, voting: Voting::ByHead, president: None };
        let request = Utc::now();
        let changed =
            tenants.change_governance_of_all(&own[first..first + per_request], &governance).await?;
        begun.extend(changed.into_iter().map(|changed| (changed.event_id, request)));
    }
    Ok(begun)
}

/// Waits until the broker has confirmed every event; answers when that was.
async fn relayed(service: &Db, patience: Duration) -> Result<Instant> {
    let pending = Sql::both("SELECT count(*) FROM outbox_events WHERE published_at IS NULL");
    let began = Instant::now();
    while service.number(&pending, &[]).await? > 0 {
        ensure!(began.elapsed() < patience, "not everything was relayed within {patience:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(Instant::now())
}

/// Waits until every change has taken effect; answers when that was.
async fn settled(service: &Db, downstream: &Db, patience: Duration) -> Result<Instant> {
    let made = Sql::each(
        "SELECT coalesce(sum(version), 0)::bigint FROM tenants",
        "SELECT coalesce(sum(version), 0) FROM tenants",
    );
    let done = Sql::both("SELECT count(*) FROM audit_log");
    let wanted = service.number(&made, &[]).await?;
    let began = Instant::now();
    loop {
        let effects = downstream.number(&done, &[]).await?;
        if effects >= wanted {
            return Ok(Instant::now());
        }
        let late = || format!("{effects} of {wanted} took effect within {patience:?}");
        (began.elapsed() < patience).then_some(()).with_context(late)?;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
