//! The parts put together on PostgreSQL (or SQLite), RabbitMQ and SMTP. Each may be down when this starts.

use crate::api::{Admin, Check, Health, Serving, Site};
use crate::clock::Clock;
use crate::database::{Database, ProcessedKey};
use crate::dispatcher::{self, Dispatcher, Gated, INTERVAL};
use crate::rabbit::Rabbit;
use crate::tickets::Tickets;
use crate::topology::{self, EXCHANGE, QUEUES, dlq};
use crate::worker::mail::{LIMIT, Mailer, Smtp};
use crate::worker::{Crew, EVERY, Forwarder, Pulse};
use crate::{retention, telemetry};
use anyhow::Result;
use async_trait::async_trait;
use relevo::adopt::AdoptedTable;
use relevo::rabbitmq::{RabbitMqConfig, RabbitMqPublisher};
use relevo::{Consuming, Operate};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Between two looks at what the gauges show.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// What is under way may take so long to end.
const DRAIN: Duration = Duration::from_secs(20);

/// Where things are, and how often they are looked at. The command line fills it from the environment.
#[derive(Debug, Clone, clap::Args)]
pub struct Settings {
    /// postgres://user:password@host/database, or sqlite:file
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    pub database_url: String,
    /// amqp://user:password@host/vhost
    #[arg(long, env = "RABBITMQ_URL", hide_env_values = true)]
    pub rabbitmq_url: String,
    /// Where this process serves health and metrics, and the API its tickets
    #[arg(long, env = "LISTEN", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
    /// What operators show as `authorization: Bearer TOKEN`; without it nobody is one
    #[arg(long, env = "ADMIN_TOKEN", hide_env_values = true)]
    pub admin_token: Option<String>,
}

/// What only the API needs.
#[derive(Debug, Clone, clap::Args)]
pub struct ApiSettings {
    /// Between two looks of the dispatcher at Outbox
    #[arg(long, env = "OUTBOX_DISPATCH_INTERVAL_MS", default_value_t = INTERVAL.as_millis() as u64)]
    pub dispatch_interval_ms: u64,
}

/// What only a worker needs.
#[derive(Debug, Clone, clap::Args)]
pub struct WorkerSettings {
    /// smtp://host:port, or smtps://user:password@host
    #[arg(long, env = "SMTP_URL", hide_env_values = true)]
    pub smtp_url: String,
    /// Whom e-mails are from
    #[arg(long, env = "MAIL_FROM", default_value = "TicketFlow <tickets@ticketflow.invalid>")]
    pub mail_from: String,
    /// Seconds that the mail server may take with an e-mail, 50 at most
    #[arg(
        long,
        env = "SMTP_LIMIT_S",
        default_value_t = LIMIT.as_secs(),
        value_parser = clap::value_parser!(u64).range(1..=50)
    )]
    pub smtp_limit_s: u64,
    /// A name that no other worker has
    #[arg(long, env = "WORKER_NAME", default_value_t = format!("worker-{}", std::process::id()))]
    pub worker_name: String,
    /// Seconds between the attempts at a message that fails
    #[arg(long, env = "RETRY_DELAYS_S", value_delimiter = ',', default_value = "60,300,900")]
    pub retry_delays_s: Vec<f64>,
    /// Between two signs of life
    #[arg(long, env = "HEARTBEAT_INTERVAL_S", default_value_t = EVERY.as_secs())]
    pub heartbeat_interval_s: u64,
}

impl WorkerSettings {
    /// How its e-mails leave.
    pub(crate) fn smtp(&self) -> Result<Smtp> {
        let smtp = Smtp::at(&self.smtp_url, &self.mail_from)?;
        Ok(smtp.limit(Duration::from_secs(self.smtp_limit_s)))
    }

    fn retries(&self) -> Vec<Duration> {
        self.retry_delays_s.iter().map(|seconds| Duration::from_secs_f64(*seconds)).collect()
    }
}

/// A process at work.
pub struct Running {
    /// Where it serves.
    pub address: SocketAddr,
    site: Serving,
    dispatching: Option<Dispatching>,
    dispatcher: Option<Dispatcher>,
    consuming: Vec<Consuming>,
    /// They end with this value.
    _tasks: JoinSet<()>,
}

impl Running {
    /// The dispatcher of an API stands still: tickets are accepted, and `Outbox` fills.
    pub async fn stop_dispatcher(&mut self) -> Result<()> {
        match self.dispatcher.take() {
            Some(dispatcher) => dispatcher.stop().await,
            None => Ok(()),
        }
    }

    /// It goes on.
    pub async fn start_dispatcher(&mut self) -> Result<()> {
        if let (None, Some(dispatching)) = (&self.dispatcher, &self.dispatching) {
            self.dispatcher = Some(dispatching.start().await?);
        }
        Ok(())
    }

    /// Ends in good order: requests, then what is under way.
    pub async fn stop(self) -> Result<()> {
        self.site.stop().await?;
        if let Some(dispatcher) = self.dispatcher {
            dispatcher.stop().await?;
        }
        for consuming in self.consuming {
            consuming.stop(DRAIN).await?;
        }
        Ok(())
    }
}

/// What every process has.
struct Common {
    database: Database,
    config: RabbitMqConfig,
    rabbit: Arc<Rabbit>,
    clock: Clock,
    /// Is the topology made?
    is_made: watch::Receiver<bool>,
    tasks: JoinSet<()>,
}

impl Common {
    async fn of(settings: &Settings) -> Result<Self> {
        telemetry::install();
        let database = Database::open(&settings.database_url).await?;
        database.migrate().await?;
        let config = RabbitMqConfig::to(&settings.rabbitmq_url)?.source("ticketflow");
        let config = config.exchange(EXCHANGE);
        let rabbit = Arc::new(Rabbit::at(&settings.rabbitmq_url));
        let mut tasks = JoinSet::new();
        let (made, is_made) = watch::channel(false);
        tasks.spawn(make_topology(config.clone(), made));
        Ok(Self { database, config, rabbit, clock: Clock::default(), is_made, tasks })
    }

    fn site(&self, settings: &Settings) -> Site {
        let parts: Vec<Box<dyn Check>> =
            vec![Box::new(self.database.clone()), Box::new(Shared(self.rabbit.clone()))];
        let admin = Admin::new(self.database.operate(), settings.admin_token.clone());
        Site::new(Health::of(parts)).with_admin(admin.with_copies(self.rabbit.clone()))
    }
}

/// What a dispatcher is made of.
struct Dispatching {
    database: Database,
    config: RabbitMqConfig,
    is_made: watch::Receiver<bool>,
    interval: Duration,
    clock: Clock,
}

impl Dispatching {
    async fn start(&self) -> Result<Dispatcher> {
        let publisher = RabbitMqPublisher::new(self.config.clone());
        let publisher = Gated::new(publisher, self.is_made.clone());
        Dispatcher::start(&self.database, publisher, self.interval, self.clock.clone()).await
    }
}

/// Starts the API with its dispatcher.
pub async fn api(settings: &Settings, own: &ApiSettings) -> Result<Running> {
    let mut common = Common::of(settings).await?;
    let (database, clock) = (common.database.clone(), common.clock.clone());
    let dispatching = Dispatching {
        database: database.clone(),
        config: common.config.clone(),
        is_made: common.is_made.clone(),
        interval: Duration::from_millis(own.dispatch_interval_ms),
        clock: clock.clone(),
    };
    let dispatcher = dispatching.start().await?;
    let operate = database.operate();
    common.tasks.spawn(watch(dispatcher.outbox.clone(), operate, common.rabbit.clone()));
    common.tasks.spawn(retention::keep(database.clone(), clock.clone(), retention::EVERY));
    let site = common.site(settings).with_tickets(Tickets::new(database, clock));
    let site = site.serve(settings.listen).await?;
    Ok(Running {
        address: site.address,
        site,
        dispatching: Some(dispatching),
        dispatcher: Some(dispatcher),
        consuming: Vec::new(),
        _tasks: common.tasks,
    })
}

/// Starts a worker.
pub async fn worker(settings: &Settings, own: &WorkerSettings) -> Result<Running> {
    worker_with(settings, own, Arc::new(own.smtp()?)).await
}

/// Starts a worker whose e-mails leave this way.
pub async fn worker_with(
    settings: &Settings,
    own: &WorkerSettings,
    mailer: Arc<dyn Mailer>,
) -> Result<Running> {
    let mut common = Common::of(settings).await?;
    let (database, clock) = (common.database.clone(), common.clock.clone());
    let pulse = Pulse::default();
    let crew = Crew {
        database: database.clone(),
        mailer,
        retries: own.retries(),
        clock: clock.clone(),
        pulse: pulse.clone(),
        processed_key: ProcessedKey::default(),
    };
    let consuming = crew.consume(&common.config, &own.worker_name).await?;
    let forwarder = Forwarder::new(database.clone(), &common.config, clock.clone());
    common.tasks.spawn(forwarder.keep());
    let every = Duration::from_secs(own.heartbeat_interval_s.max(1));
    common.tasks.spawn(pulse.keep(database, clock, own.worker_name.clone(), every));
    common.tasks.spawn(keep_metrics());
    let site = common.site(settings).serve(settings.listen).await?;
    Ok(Running {
        address: site.address,
        site,
        dispatching: None,
        dispatcher: None,
        consuming,
        _tasks: common.tasks,
    })
}

/// Tries until the exchange and the queues are there: RabbitMQ may come up later than we do.
async fn make_topology(config: RabbitMqConfig, made: watch::Sender<bool>) {
    while let Err(error) = topology::apply(&config).await {
        tracing::warn!(error = format!("{error:#}"), "RabbitMQ's topology; trying again");
        tokio::time::sleep(LOOK_EVERY).await;
    }
    made.send_replace(true);
}

/// Shows what waits in `Outbox` and in the dead-letter queues, and what RabbitMQ refused for good.
async fn watch(outbox: Arc<dyn AdoptedTable>, operate: Arc<dyn Operate>, rabbit: Arc<Rabbit>) {
    loop {
        match outbox.pending().await {
            Ok(pending) => telemetry::pending(pending.rows),
            Err(error) => tracing::warn!(%error, "what waits in Outbox"),
        }
        for queue in QUEUES.map(dlq) {
            match rabbit.depth(&queue).await {
                Ok(messages) => telemetry::dead_letters(&queue, messages),
                Err(error) => tracing::debug!(error = format!("{error:#}"), queue, "its length"),
            }
        }
        telemetry::count_dead_letters(&*operate, dispatcher::NAME, dispatcher::NAME).await;
        telemetry::upkeep();
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn keep_metrics() {
    loop {
        telemetry::upkeep();
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

struct Shared(Arc<Rabbit>);

#[async_trait]
impl Check for Shared {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    async fn check(&self) -> Result<()> {
        self.0.check().await
    }
}

#[async_trait]
impl Check for Database {
    fn name(&self) -> &'static str {
        match self {
            Database::Postgres(_) => "PostgreSQL",
            Database::Sqlite(..) => "SQLite",
        }
    }

    async fn check(&self) -> Result<()> {
        const ASK: &str = "SELECT 'yes'";
        self.connect().await?.session().query(ASK, &[]).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::RETRIES;
    use clap::Parser;

    #[derive(Parser)]
    struct Args {
        #[command(flatten)]
        worker: WorkerSettings,
    }

    #[test]
    fn a_worker_waits_between_attempts_as_it_is_told_and_in_that_order() {
        let retries = |told: &[&str]| {
            let command = ["ticketflow", "--smtp-url", "smtp://127.0.0.1"];
            let args = command.iter().chain(told).copied();
            Args::try_parse_from(args).map(|args| args.worker.retries()).unwrap()
        };
        assert_eq!(retries(&[]), RETRIES);
        let told = [9, 1, 4].map(Duration::from_secs);
        assert_eq!(retries(&["--retry-delays-s", "9,1,4"]), told);
    }
}
