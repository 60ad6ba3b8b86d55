//! `ticketflow --help` tells.

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use relevo::rabbitmq::RabbitMqConfig;
use std::net::SocketAddr;
use std::path::PathBuf;
use ticketflow::database::{Database, ProcessedKey};
use ticketflow::service::{ApiSettings, Settings, WorkerSettings};
use ticketflow::{embedded, load, service, topology};
use tokio::signal::unix::{SignalKind, signal};

/// Tickets, whose changes are told by e-mail and counted, each once, whatever is down meanwhile.
///
/// To see it without installing anything:   ticketflow embedded
///
/// On its real parts, each a process; any number of each may run:
///
///   export DATABASE_URL=postgres://app:secret@localhost/ticketflow
///   export RABBITMQ_URL=amqp://guest:guest@localhost
///   export SMTP_URL=smtp://localhost:25 ADMIN_TOKEN=...
///   ticketflow api & ticketflow worker --listen 127.0.0.1:8081
///   curl -X POST localhost:8080/api/v1/tickets -d '{"title": "Printer on fire", "requester": "ana@example.org"}'
#[derive(Parser)]
#[command(name = "ticketflow", version, verbatim_doc_comment)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Everything in one process on one SQLite file: no broker, no mail server
    Embedded {
        /// Where the file is kept
        #[arg(long, default_value = "ticketflow-data")]
        dir: PathBuf,
        /// An address of this machine: the API is open
        #[arg(long, default_value = "127.0.0.1:8080")]
        listen: SocketAddr,
    },
    /// The HTTP API and the dispatcher of its Outbox
    Api {
        #[command(flatten)]
        settings: Settings,
        #[command(flatten)]
        own: ApiSettings,
    },
    /// E-mails and metrics
    Worker {
        #[command(flatten)]
        settings: Settings,
        #[command(flatten)]
        own: WorkerSettings,
    },
    /// Makes the tables; the other commands do it too
    Migrate {
        /// postgres://..., or sqlite:file
        #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
        database_url: String,
        /// A new Outbox of PostgreSQL has a partition for each month
        #[arg(long)]
        partitioned: bool,
    },
    /// What must be there at RabbitMQ
    Topology {
        /// plan compares, apply makes what is missing, doc prints docs/rabbitmq-topology.md
        #[arg(value_parser = ["plan", "apply", "doc"])]
        act: String,
        /// amqp://user:password@host/vhost; for doc, of an empty virtual host
        #[arg(long, env = "RABBITMQ_URL", hide_env_values = true)]
        rabbitmq_url: String,
    },
    /// People at work, and the proof that nothing of it was lost
    Load(load::LoadArgs),
}

#[tokio::main]
async fn main() -> Result<()> {
    let filter = std::env::var("RUST_LOG").unwrap_or_else(|_| "info,lapin=off".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match Args::parse().command {
        Command::Embedded { dir, listen } => embedded(dir, listen).await,
        Command::Api { settings, own } => serve(service::api(&settings, &own).await?).await,
        Command::Worker { settings, own } => serve(service::worker(&settings, &own).await?).await,
        Command::Migrate { database_url, partitioned } => {
            let database = Database::open(&database_url).await?;
            database.migrate_with(ProcessedKey::default(), partitioned).await
        }
        Command::Topology { act, rabbitmq_url } => topology_command(&act, &rabbitmq_url).await,
        Command::Load(args) => load::run(args).await,
    }
}

async fn embedded(dir: PathBuf, listen: SocketAddr) -> Result<()> {
    let options = embedded::Options { listen, ..embedded::Options::in_folder(dir) };
    let running = embedded::start(options).await?;
    println!("listening on {}", running.address);
    println!("the API is open, to this machine only; {}/openapi.json describes it", running.url());
    stopped().await?;
    running.stop().await
}

async fn serve(running: service::Running) -> Result<()> {
    println!("listening on {}", running.address);
    if !running.address.ip().is_loopback() {
        tracing::warn!(
            "whoever reaches {} may change tickets: keep it behind a gateway",
            running.address
        );
    }
    stopped().await?;
    running.stop().await
}

async fn stopped() -> Result<()> {
    let mut terminated = signal(SignalKind::terminate()).context("SIGTERM")?;
    tokio::select! {
        asked = tokio::signal::ctrl_c() => asked.context("SIGINT"),
        _ = terminated.recv() => Ok(()),
    }
}

async fn topology_command(act: &str, url: &str) -> Result<()> {
    let config = RabbitMqConfig::to(url)?;
    let plan = match act {
        "apply" => topology::apply(&config).await?,
        _ => topology::plan(&config).await?,
    };
    if act == "doc" {
        print!("{}", topology::page(&plan));
        return Ok(());
    }
    plan.steps.iter().for_each(|step| println!("{step}"));
    Ok(())
}
