//! The command line. Every option is also a variable of the environment.

use anyhow::{Context, Result};
use chrono::Utc;
use clap::{ArgGroup, Args, Parser, Subcommand};
use relevo::{ErrorClass, EventId, Kind};
use smartedify::broker::Broker;
use smartedify::config::{BrokerArgs, DownstreamDb, OutboxArgs, ServiceDb, admin_token};
use smartedify::db::Db;
use smartedify::embedded::{self, Break, Options};
use smartedify::http::{Api, follow_broker};
use smartedify::outbox::{Outbox, cleanup, dead_letters};
use smartedify::tenants::Tenants;
use smartedify::{downstream, load, member, metrics, migrate, wall_clock};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// SmartEdify's tenant service on Relevo: changes and their events commit together, the relay takes the events to NATS
/// JetStream or Kafka, a downstream consumer does each effect once.
///
/// Without anything installed:  smartedify demo
///
/// On PostgreSQL and NATS (compose.yaml starts both):
///   export DATABASE_URL=postgres://postgres:relevo@127.0.0.1:5432/tenants
///   export DOWNSTREAM_DATABASE_URL=postgres://postgres:relevo@127.0.0.1:5432/directory
///   export SMARTEDIFY_BROKER_URL=nats://127.0.0.1:4222
///   smartedify serve      the API and the relay
///   smartedify consume    the downstream service
#[derive(Debug, Parser)]
#[command(version, verbatim_doc_comment)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The API, with the relay of its outbox
    Serve(Serve),
    /// A further relay of the outbox, without the API
    Relay(Relay),
    /// The downstream service: consumes from the broker into its own database
    Consume(Consume),
    /// Bring the tables up to date
    Migrate(Migrate),
    /// Show the newest dead letters
    Dlq(ServiceDb),
    /// Send dead letters again
    Reprocess(Reprocess),
    /// Delete what is older than its retention, now
    Cleanup(Cleanup),
    /// All of it in this process on SQLite, with traffic, faults and a verdict
    Demo(Demo),
    /// How much it holds: events a second, and how long they take
    Load(load::LoadArgs),
}

#[derive(Debug, Args)]
struct Serve {
    #[command(flatten)]
    relay: Relay,

    /// Where the API listens
    #[arg(
        long,
        env = "SMARTEDIFY_LISTEN",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:8080"
    )]
    listen: SocketAddr,

    /// The token for /admin; without it nobody may use it
    #[arg(long, env = "SMARTEDIFY_ADMIN_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    admin_token: Option<String>,
}

#[derive(Debug, Args)]
struct Relay {
    #[command(flatten)]
    service: ServiceDb,
    #[command(flatten)]
    broker: BrokerArgs,
    #[command(flatten)]
    outbox: OutboxArgs,

    /// The label `service` of every metric
    #[arg(long, env = "SMARTEDIFY_SERVICE", value_name = "NAME", default_value = "tenant-service")]
    name: String,
}

#[derive(Debug, Args)]
struct Consume {
    #[command(flatten)]
    downstream: DownstreamDb,
    #[command(flatten)]
    broker: BrokerArgs,
}

#[derive(Debug, Args)]
struct Migrate {
    #[command(flatten)]
    service: ServiceDb,

    /// Also partition the outbox by month (PostgreSQL)
    #[arg(long)]
    partition: bool,
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("which").args(["event", "class", "all"]).required(true).multiple(true)))]
struct Reprocess {
    /// This event
    #[arg(long, value_name = "ID")]
    event: Option<EventId>,

    /// Those of this class: transient, permanent, poison or unknown
    #[arg(long, value_name = "CLASS", value_parser = class)]
    class: Option<ErrorClass>,

    /// All of them
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    service: ServiceDb,
}

#[derive(Debug, Args)]
struct Cleanup {
    #[command(flatten)]
    service: ServiceDb,
    #[command(flatten)]
    outbox: OutboxArgs,
}

#[derive(Debug, Args)]
struct Demo {
    /// Run for so many seconds
    #[arg(long = "for", value_name = "S", default_value_t = 20)]
    seconds: u64,

    /// Changes a second
    #[arg(long, default_value_t = 50)]
    rate: u32,

    /// Break this meanwhile, one after the other; several parted by commas
    #[arg(long = "break", value_enum, value_delimiter = ',')]
    breaks: Vec<Break>,

    /// Keep everything in this folder [default: a temporary one]
    #[arg(long)]
    dir: Option<PathBuf>,
}

fn class(text: &str) -> Result<ErrorClass, String> {
    let found = ErrorClass::ALL.into_iter().find(|class| class.as_str() == text);
    found.ok_or_else(|| "transient, permanent, poison or unknown".to_owned())
}

impl Cli {
    pub(crate) async fn run(self) -> Result<ExitCode> {
        match self.command {
            Command::Serve(serve) => serve.run().await?,
            Command::Relay(relay) => relay.run().await?,
            Command::Consume(consume) => consume.run().await?,
            Command::Migrate(migrate) => migrate.run().await?,
            Command::Dlq(service) => dlq(&service).await?,
            Command::Reprocess(reprocess) => return reprocess.run().await,
            Command::Cleanup(cleanup) => cleanup.run().await?,
            Command::Demo(demo) => return demo.run().await,
            Command::Load(load) => return load.run().await,
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn told_to_stop() -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminate.recv() => {}
        interrupted = tokio::signal::ctrl_c() => interrupted?,
    }
    Ok(())
}

impl Relay {
    async fn open(&self) -> Result<(Db, Outbox)> {
        let db = Db::open(&self.service.url).await.context("the service's database")?;
        migrate::tenants(&db).await?;
        Ok((db, Outbox::adopt(&self.service.url).await?))
    }

    /// Relays until told to stop, as soon as the broker has what must be there: before that it could only refuse.
    async fn work(&self, outbox: Outbox, down: watch::Sender<bool>) -> Result<()> {
        let broker = self.broker.broker();
        let publisher = broker.publisher()?;
        tokio::select! {
            prepared = ready(&broker) => prepared?,
            stopped = told_to_stop() => return stopped,
        }
        let relay = outbox.relay(&member("relay"), &self.outbox.settings(), publisher).await?;
        follow_broker(&relay, down);
        told_to_stop().await?;
        Ok(relay.stop().await?)
    }

    async fn run(self) -> Result<()> {
        let (_, outbox) = self.open().await?;
        println!("relaying");
        self.work(outbox, watch::channel(true).0).await
    }
}

/// Tries until the broker has its streams. Meanwhile events wait in the outbox, where they are safe.
async fn ready(broker: &Broker) -> Result<()> {
    while let Err(error) = broker.prepare().await {
        if error.downcast_ref().is_some_and(|e: &relevo::Error| e.kind() == Kind::InvalidConfig) {
            return Err(error);
        }
        tracing::warn!(error = format!("{error:#}"), "the broker is not ready; trying again");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}

impl Serve {
    async fn run(self) -> Result<()> {
        let metrics = metrics::install(&self.relay.name)?;
        let (db, outbox) = self.relay.open().await?;
        let (down, broker_down) = watch::channel(true);
        let api = Api {
            tenants: Tenants::on(db.clone()),
            db: db.clone(),
            outbox: outbox.clone(),
            metrics: Some(metrics.clone()),
            admin_token: admin_token(self.admin_token.as_deref()),
            broker_down,
        };
        let listener = TcpListener::bind(self.listen).await?;
        println!("listening on http://{}", listener.local_addr()?);
        tokio::spawn(metrics::run(db.clone(), metrics, Duration::from_secs(2)));
        let keep = self.relay.outbox.keep();
        tokio::spawn(cleanup::run(db, wall_clock(), keep, Duration::from_secs(3600)));
        let stop = async { drop(told_to_stop().await) };
        let served =
            async { Ok(axum::serve(listener, api.router()).with_graceful_shutdown(stop).await?) };
        tokio::try_join!(served, self.relay.work(outbox, down)).map(drop)
    }
}

impl Consume {
    async fn run(self) -> Result<()> {
        let broker = self.broker.broker();
        ready(&broker).await?;
        let consuming =
            downstream::consumer::start(&self.downstream.url, &broker, &member("consumer")).await?;
        println!("consuming");
        told_to_stop().await?;
        Ok(consuming.stop(Duration::from_secs(30)).await?)
    }
}

impl Migrate {
    async fn run(self) -> Result<()> {
        let db = Db::open(&self.service.url).await?;
        let applied = migrate::tenants(&db).await?;
        for name in &applied {
            println!("applied {name}");
        }
        if applied.is_empty() {
            println!("nothing to apply");
        }
        if self.partition {
            let done = migrate::partition(&db).await?;
            println!(
                "{}",
                if done {
                    "outbox_events is partitioned by month"
                } else {
                    "SQLite has no partitions"
                }
            );
        }
        Outbox::adopt(&self.service.url).await?;
        Ok(())
    }
}

async fn dlq(service: &ServiceDb) -> Result<()> {
    let db = Db::open(&service.url).await?;
    for dead in dead_letters::list(&db, 100).await? {
        println!("{}", serde_json::to_string(&dead)?);
    }
    Ok(())
}

impl Reprocess {
    async fn run(self) -> Result<ExitCode> {
        let outbox = Outbox::adopt(&self.service.url).await?;
        let which = match self.all {
            true => dead_letters::Which::default(),
            false => dead_letters::Which { event_id: self.event, error_class: self.class },
        };
        let asked = dead_letters::reprocess(&outbox, &which).await?;
        println!("{} to be sent again by the relay", asked.total);
        Ok(if asked.total > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

impl Cleanup {
    async fn run(self) -> Result<()> {
        let db = Db::open(&self.service.url).await?;
        let gone = cleanup::sweep(&db, Utc::now(), self.outbox.keep()).await?;
        println!("{} published events and {} dead letters are gone", gone.published, gone.dead);
        Ok(())
    }
}

impl Demo {
    async fn run(self) -> Result<ExitCode> {
        let temporary = tempfile::tempdir()?;
        let folder = self.dir.clone().unwrap_or_else(|| temporary.path().to_owned());
        let mut options = Options::in_folder(folder);
        options.rate = self.rate;
        options.metrics = Some(metrics::install("tenant-service")?);
        let running = embedded::start(options).await?;
        println!("the API, open on loopback only: http://{}", running.addresses().api);
        let part = Duration::from_secs(self.seconds) / (self.breaks.len() as u32 + 1);
        tokio::time::sleep(part).await;
        for what in self.breaks {
            println!("broken: {what:?}");
            running.break_it(what).await?;
            tokio::time::sleep(part / 2).await;
            running.mend();
            tokio::time::sleep(part / 2).await;
        }
        let verdict = running.finish(Duration::from_secs(120)).await?;
        println!("{}", serde_json::to_string(&verdict.report)?);
        verdict.broken.iter().for_each(|broken| eprintln!("BROKEN: {broken}"));
        Ok(if verdict.broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn no_two_options_of_a_command_clash() {
        Cli::command().debug_assert();
    }
}
