//! The command line. What `serve`, `relay` and `consume` are told, and where anything is, the environment may say as well.

use anyhow::{Context, Result};
use axum::Router;
use chrono::Utc;
use clap::{ArgGroup, Args, Parser, Subcommand};
use relevo::{ErrorClass, EventId, Kind};
use smartedify::broker::Broker;
use smartedify::config::{
    BrokerArgs, DownstreamDb, OutboxArgs, RetentionArgs, ServiceDb, admin_token,
};
use smartedify::db::Db;
use smartedify::downstream::{consumer, retention};
use smartedify::embedded::{self, Break, Options};
use smartedify::http::{Api, follow_broker, metrics_page};
use smartedify::outbox::{Outbox, choice, cleanup, dead_letters};
use smartedify::tenants::Tenants;
use smartedify::{load, member, metrics, migrate, wall_clock};
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
///   export SMARTEDIFY_BROKER_URL=nats://relevo:relevo@127.0.0.1:4222
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
    Relay(FurtherRelay),
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
struct FurtherRelay {
    #[command(flatten)]
    relay: Relay,

    /// Where /metrics of this process is
    #[arg(
        long,
        env = "SMARTEDIFY_METRICS_LISTEN",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:8081"
    )]
    metrics_listen: SocketAddr,
}

#[derive(Debug, Args)]
struct Consume {
    #[command(flatten)]
    downstream: DownstreamDb,
    #[command(flatten)]
    broker: BrokerArgs,
    #[command(flatten)]
    retention: RetentionArgs,
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
    retention: RetentionArgs,

    /// Clean up the downstream service's tables, too
    #[arg(long, env = "DOWNSTREAM_DATABASE_URL", value_name = "URL", hide_env_values = true)]
    downstream: Option<String>,
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

    /// The token for /admin; without it nobody may use it
    #[arg(long, env = "SMARTEDIFY_ADMIN_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    admin_token: Option<String>,
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
        let outbox = Outbox::adopt(&self.service.url).await?;
        choice::choose(&db, &outbox, &self.broker.broker()).await?;
        Ok((db, outbox))
    }

    /// Relays until told to stop, as soon as the broker has what must be there: before that it could only refuse.
    async fn work(&self, db: Db, outbox: Outbox, down: watch::Sender<bool>) -> Result<()> {
        let broker = self.broker.broker();
        let publisher = broker.publisher()?;
        tokio::select! {
            prepared = ready(&broker) => prepared?,
            stopped = told_to_stop() => return stopped,
        }
        // While this one waited for its broker, somebody may have chosen another.
        choice::choose(&db, &outbox, &broker).await?;
        let relay = outbox.relay(&member("relay"), &self.outbox.settings(), publisher).await?;
        follow_broker(&relay, down);
        told_to_stop().await?;
        Ok(relay.stop().await?)
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("listening on {address}"))
}

/// Serves until told to stop.
async fn serve(listener: TcpListener, router: Router) -> Result<()> {
    let stop = async { drop(told_to_stop().await) };
    Ok(axum::serve(listener, router).with_graceful_shutdown(stop).await?)
}

impl FurtherRelay {
    async fn run(self) -> Result<()> {
        let metrics = metrics::install(&self.relay.name)?;
        let (db, outbox) = self.relay.open().await?;
        let listener = bind(self.metrics_listen).await?;
        println!("relaying, with /metrics on http://{}", listener.local_addr()?);
        tokio::spawn(metrics::run(db.clone(), metrics.clone(), metrics::EVERY));
        let (down, _) = watch::channel(true);
        let relayed = self.relay.work(db, outbox, down);
        tokio::try_join!(serve(listener, metrics_page(metrics)), relayed).map(drop)
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
        let (metrics, keep) =
            (metrics::install(&self.relay.name)?, self.relay.outbox.retention.keep()?);
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
        let listener = bind(self.listen).await?;
        println!("listening on http://{}", listener.local_addr()?);
        tokio::spawn(metrics::run(db.clone(), metrics, metrics::EVERY));
        tokio::spawn(cleanup::run(db.clone(), wall_clock(), keep, cleanup::EVERY));
        let relayed = self.relay.work(db, outbox, down);
        tokio::try_join!(serve(listener, api.router()), relayed).map(drop)
    }
}

impl Consume {
    async fn run(self) -> Result<()> {
        let (broker, keep) = (self.broker.broker(), self.retention.keep()?);
        ready(&broker).await?;
        let consuming = consumer::start(&self.downstream.url, &broker, &member("consumer")).await?;
        let db = Db::open(&self.downstream.url).await?;
        tokio::spawn(retention::run(db, wall_clock(), keep.processed, cleanup::EVERY));
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
        let (db, keep, now) =
            (Db::open(&self.service.url).await?, self.retention.keep()?, Utc::now());
        let gone = cleanup::sweep(&db, now, keep).await?;
        println!("{} published events and {} dead letters are gone", gone.published, gone.dead);
        if let Some(url) = &self.downstream {
            let forgotten = retention::forget(&Db::open(url).await?, now, keep.processed).await?;
            println!("{forgotten} ids of processed events are forgotten");
        }
        Ok(())
    }
}

impl Demo {
    async fn run(self) -> Result<ExitCode> {
        let temporary = tempfile::tempdir()?;
        let folder = self.dir.clone().unwrap_or_else(|| temporary.path().to_owned());
        let mut options = Options::in_folder(folder);
        options.rate = self.rate;
        options.admin_token = self.admin_token.clone();
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

    #[test]
    fn what_a_service_is_told_the_environment_may_say() {
        for command in ["serve", "relay", "consume"] {
            let cli = Cli::command();
            let command = cli.find_subcommand(command).unwrap();
            for option in command.get_arguments() {
                assert!(option.get_env().is_some(), "{} {option}", command.get_name());
            }
        }
    }

    /// Nobody logs in to read metrics.
    #[test]
    fn what_listens_does_so_on_this_machine_only_unless_told_otherwise() {
        for (command, option) in [("serve", "listen"), ("relay", "metrics_listen")] {
            let cli = Cli::command();
            let command = cli.find_subcommand(command).unwrap();
            let option = command.get_arguments().find(|arg| arg.get_id() == option).unwrap();
            let address = option.get_default_values()[0].to_str().unwrap();
            assert!(address.parse::<SocketAddr>().unwrap().ip().is_loopback(), "{address}");
        }
    }
}
