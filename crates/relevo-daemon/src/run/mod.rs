//! `relevo run`: the daemon. It works every subscription of the configuration and shows how it does.
//!
//! - `worker`: one subscription at work, its failures its own
//! - `stores`: from names in the configuration to open stores
//! - `board`, [`readiness`]: what is known of each subscription, and whether it progresses
//! - `serve`: `/metrics` and `/health/*`
//! - `upkeep`: figures and housekeeping of the stores
//! - `signals`: how it ends

mod board;
pub mod readiness;
mod serve;
mod signals;
mod stores;
mod upkeep;
mod worker;

use crate::broker;
use crate::cli::Globals;
use crate::config::{Config, FILE_NAME, Secret, duration};
use board::Board;
use metrics_exporter_prometheus::PrometheusHandle;
use relevo_core::outbox::MemberId;
use relevo_core::{Error, Kind, Result};
use signals::{AT_ONCE, Signals};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use stores::Stores;
use tokio::sync::watch;
use tokio::task::JoinSet;
use worker::Worker;

/// Options of `relevo run`.
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// Bring the schema of every store up to this version first
    #[arg(long)]
    migrate: bool,

    /// Without a configuration: hand the events of --store to this address (http://..., amqp://..., nats://..., stdout:)
    #[arg(long, value_name = "URL", conflicts_with = "config")]
    to: Option<String>,

    /// The name of the subscription that --to works
    #[arg(long, value_name = "NAME", default_value = "run", requires = "to")]
    subscription: String,

    /// Serve /metrics and /health/* here instead of [http] listen (port 0 takes a free one)
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,

    /// How long SIGTERM waits for deliveries under way before it ends all the same, instead of [limits] drain
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    drain: Option<Duration>,

    /// Something due that stands still for this long makes /health/ready answer 503
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration::parse, hide = true)]
    ready_patience: Duration,

    /// The name this process signs its leases with; must differ between processes [default: host-pid-random]
    #[arg(long, value_name = "NAME")]
    member: Option<String>,
}

/// What to do is said so that it can be pasted.
const NOTHING_TO_RUN: &str = "there is nothing to run: the configuration has no [subscription.NAME]; add these lines to it, and run again
[broker.out]
url = \"stdout:\"
[subscription.notify]
to = \"out\"";

/// Works every subscription of the configuration until it is told to stop.
pub async fn run(args: RunArgs, globals: &Globals) -> Result<ExitCode> {
    log_to_stderr();
    let config = configuration(&args, globals)?;
    if config.subscriptions.is_empty() {
        return Err(Error::new(Kind::InvalidConfig, NOTHING_TO_RUN));
    }
    Daemon::prepare(config, args)?.run().await
}

/// The file's configuration, or the one that `--store` and `--to` amount to.
fn configuration(args: &RunArgs, globals: &Globals) -> Result<Config> {
    let Some(to) = &args.to else {
        let config = globals.load_config()?.ok_or_else(no_configuration)?;
        return with_store(config, globals);
    };
    let quoted = |text: &str| toml::Value::from(text).to_string();
    let text = format!(
        "[store.store]\nurl = {}\n[broker.to]\nurl = {}\n[subscription.{}]\n",
        quoted(globals.store_url()?.expose()),
        quoted(to),
        quoted(&args.subscription)
    );
    Config::read("--store and --to", &text, std::env::vars())
}

fn no_configuration() -> Error {
    let why = format!(
        "there is no {FILE_NAME} here; `relevo init` writes one, -c FILE names another, and with --to (--to stdout:) a \
         store is enough"
    );
    Error::new(Kind::InvalidConfig, why)
}

/// `--store`, or `RELEVO_STORE` where no `-c` names the file, stands in for the only store of the file.
fn with_store(mut config: Config, globals: &Globals) -> Result<Config> {
    globals.note_store_of(&config);
    let Some((said, url)) = globals.stand_in()? else { return Ok(config) };
    let several = config.stores.len();
    let mut stores: Vec<&mut Secret> = config.stores.values_mut().collect();
    let [only] = stores.as_mut_slice() else {
        let why = format!(
            "{said} can stand in for the only store of a configuration; this one has {several}: leave it out, or name \
             the configuration with -c"
        );
        return Err(Error::new(Kind::InvalidArgument, why));
    };
    **only = url;
    Ok(config)
}

/// What happens is told on standard error; `RELEVO_LOG` says how much of it.
pub(crate) fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("RELEVO_LOG")
        // The client for RabbitMQ would write whole messages that came back unrouted.
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info,lapin=error"));
    let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(ansi);
    crate::logging::set_up(subscriber.finish());
}

/// Everything that is decided before anything is opened.
struct Daemon {
    config: Config,
    args: RunArgs,
    stores: Arc<Stores>,
    board: Board,
    metrics: PrometheusHandle,
    signals: Signals,
}

impl Daemon {
    fn prepare(config: Config, args: RunArgs) -> Result<Self> {
        let signals = Signals::listen()?;
        let metrics = serve::install_recorder(&config.service)?;
        let stores = Arc::new(Stores::of(&config, args.migrate));
        let board = Board::of(config.subscriptions.keys().map(String::as_str), args.ready_patience);
        Ok(Self { config, args, stores, board, metrics, signals })
    }

    async fn run(mut self) -> Result<ExitCode> {
        for warning in &self.config.warnings {
            eprintln!("warning: {warning}");
        }
        let workers = self.workers()?;
        let mut around = self.start_around().await?;
        let (stop, stopped) = watch::channel(false);
        let mut at_work = JoinSet::new();
        for worker in workers {
            serve::announce(&worker.name);
            at_work.spawn(worker.work(stopped.clone()));
        }
        let name = self.signals.next().await;
        eprintln!(
            "{name}: finishing what is under way, at most {}",
            duration::written(self.drain())
        );
        stop.send_replace(true);
        let code = tokio::select! {
            result = all_ended(at_work) => result.map(|()| {
                eprintln!("ended: every lane is given back");
                ExitCode::SUCCESS
            }),
            name = self.signals.next() => {
                eprintln!("{name} again: ending at once; the leases run out by themselves");
                Ok(ExitCode::from(AT_ONCE))
            }
        };
        around.shutdown().await;
        code
    }

    fn drain(&self) -> Duration {
        self.args.drain.unwrap_or(self.config.drain)
    }

    /// What a wrong destination would make impossible is found out before anything starts.
    fn workers(&self) -> Result<Vec<Worker>> {
        let member = MemberId(self.args.member.clone().unwrap_or_else(member_name).into());
        let worker = |(name, subscription): (&String, &crate::config::SubscriptionConfig)| {
            let missing = || {
                Error::new(Kind::InvalidConfig, format!("there is no [broker.{}]", subscription.to))
            };
            let broker = self.config.brokers.get(&subscription.to).ok_or_else(missing)?;
            let limit = subscription.handler_limit;
            let destination = broker::destination(broker, &self.config.service, limit)?;
            eprintln!(
                "subscription {name}: store {}{} -> {}",
                subscription.store,
                subscription.adopt.as_ref().map(|it| format!(" ({it})")).unwrap_or_default(),
                subscription.subscription.destination
            );
            let adopted = subscription.adopt.as_ref().and_then(|name| {
                Some((name.clone(), self.config.adopted.get(name)?.mapping.clone()))
            });
            Ok(Worker {
                name: name.clone(),
                config: subscription.clone(),
                adopted,
                destination,
                member: member.clone(),
                stores: self.stores.clone(),
                board: self.board.clone(),
                drain: self.drain(),
            })
        };
        self.config.subscriptions.iter().map(worker).collect()
    }

    /// Everything beside the work itself: metrics, health, housekeeping.
    async fn start_around(&self) -> Result<JoinSet<()>> {
        let listener = serve::bind(self.args.listen.unwrap_or(self.config.listen)).await?;
        if let Ok(address) = listener.local_addr() {
            eprintln!("listening on http://{address} (/metrics, /health/live, /health/ready)");
        }
        let mut around = JoinSet::new();
        around.spawn(serve::serve(listener, self.metrics.clone(), self.board.clone()));
        around.spawn(serve::keep_bounded(self.metrics.clone()));
        around.spawn(self.board.clone().watch());
        for (store, names) in self.by_store() {
            let (stores, board) = (self.stores.clone(), self.board.clone());
            around.spawn(upkeep::show_backlogs(stores, store.clone(), names.clone(), board));
            let retention = self.config.retention.clone();
            around.spawn(upkeep::keep_up(self.stores.clone(), (store, names), retention));
        }
        Ok(around)
    }

    /// The names of the subscriptions worked here, by store. A store nobody reads is left alone.
    fn by_store(&self) -> BTreeMap<String, Vec<String>> {
        let mut by_store: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, subscription) in &self.config.subscriptions {
            by_store.entry(subscription.store.clone()).or_default().push(name.clone());
        }
        by_store
    }
}

/// Waits for every worker; the first failure is told at the end, the others at once.
async fn all_ended(mut at_work: JoinSet<Result<()>>) -> Result<()> {
    let mut first = Ok(());
    while let Some(joined) = at_work.join_next().await {
        let result = joined.unwrap_or_else(|e| {
            Err(Error::new(Kind::StoreFailed, format!("a worker's task failed: {e}")))
        });
        match (&first, result) {
            (_, Ok(())) => {}
            (Ok(()), Err(error)) => first = Err(error),
            (Err(_), Err(error)) => eprintln!("{error}"),
        }
    }
    first
}

/// Unique among processes, and readable in `relevo status`.
fn member_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    let host = if host.is_empty() { "relevo" } else { host };
    let random = &uuid::Uuid::new_v4().simple().to_string()[..6];
    format!("{host}-{}-{random}", std::process::id())
}
