//! The whole of TicketFlow in one process on PostgreSQL, RabbitMQ and SMTP, which the environment names as it does for the
//! binary. The other way to run it so is several processes, `ticketflow api` and `ticketflow worker`.
//!
//! The worker keeps a copy of every e-mail that the server took: without it nobody could say which arrived. So it must be
//! the only worker of its queues.

use crate::api::Check;
use crate::database::Database;
use crate::rabbit::Rabbit;
use crate::service::{self, ApiSettings, Running, Settings, WorkerSettings};
use crate::traffic::Journal;
use crate::verify::{Evidence, Witness};
use crate::worker::mail::{Copying, InProcess};
use anyhow::{Result, anyhow};
use async_trait::async_trait;
use clap::Parser;
use proof::NotThere;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// A part that does not answer within this is not there.
const LIMIT: Duration = Duration::from_secs(10);

const VARIABLES: [(&str, &str); 3] =
    [("DATABASE_URL", "PostgreSQL"), ("RABBITMQ_URL", "RabbitMQ"), ("SMTP_URL", "a mail server")];

const REMEDY: &[&str] = &[
    "start them:  docker compose -f systems/ticketflow/compose.yaml up --wait",
    "and then:    export DATABASE_URL, RABBITMQ_URL and SMTP_URL as the top of that file shows",
];

/// What the environment says, as the binary reads it.
#[derive(Debug, Clone, Parser)]
#[command(name = "ticketflow")]
struct Environment {
    #[command(flatten)]
    common: Settings,
    #[command(flatten)]
    api: ApiSettings,
    #[command(flatten)]
    worker: WorkerSettings,
}

impl Environment {
    /// What the binary would read; but the API listens at a free port of this machine only, because it is open.
    fn read() -> Result<Self> {
        let missing = proof::unset(&VARIABLES);
        if !missing.is_empty() {
            return Err(NotThere { missing, remedy: REMEDY }.into());
        }
        let mut read = Self::try_parse_from(["ticketflow"]).map_err(|error| anyhow!("{error}"))?;
        read.common.listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Ok(read)
    }

    /// Asks each part whether it is there.
    async fn check(&self) -> Result<()> {
        let database = async { Database::open(&self.common.database_url).await?.check().await };
        let rabbit = Rabbit::at(&self.common.rabbitmq_url);
        let smtp = async { self.worker.smtp()?.check().await };
        let answers = tokio::join!(answer(database), answer(rabbit.check()), answer(smtp));
        let answers = VARIABLES.iter().zip([answers.0, answers.1, answers.2]);
        let missing = answers.filter_map(|((variable, what), answer)| {
            Some(format!("{what}, where {variable} says: {:#}", answer.err()?))
        });
        let missing: Vec<String> = missing.collect();
        if missing.is_empty() { Ok(()) } else { Err(NotThere { missing, remedy: REMEDY }.into()) }
    }
}

async fn answer(asked: impl Future<Output = Result<()>>) -> Result<()> {
    let answer = tokio::time::timeout(LIMIT, asked).await;
    answer.unwrap_or_else(|_| Err(anyhow!("no answer in {LIMIT:?}")))
}

/// TicketFlow at work on its real parts.
pub struct Real {
    /// Where the API is: open, and only to this machine.
    pub address: SocketAddr,
    /// Its database.
    pub database: Database,
    /// Copies of the e-mails that the server took.
    pub mailbox: Arc<InProcess>,
    api: Running,
    worker: Option<Running>,
    environment: Environment,
    /// Tickets that are older are not ours to judge.
    started: Uuid,
}

/// Starts it as the environment says; `retries` are between the attempts at what fails, unless the environment has its
/// own.
pub async fn start(retries: &[Duration]) -> Result<Real> {
    let mut environment = Environment::read()?;
    environment.check().await?;
    if std::env::var_os("RETRY_DELAYS_S").is_none() {
        environment.worker.retry_delays_s = retries.iter().map(Duration::as_secs_f64).collect();
    }
    let database = Database::open(&environment.common.database_url).await?;
    let api = service::api(&environment.common, &environment.api).await?;
    let mut real = Real {
        address: api.address,
        database,
        mailbox: Arc::default(),
        api,
        worker: None,
        environment,
        started: Uuid::now_v7(),
    };
    real.start_worker().await?;
    Ok(real)
}

impl Real {
    /// See [`Running::stop_dispatcher`].
    pub async fn stop_dispatcher(&mut self) -> Result<()> {
        self.api.stop_dispatcher().await
    }

    /// It goes on.
    pub async fn start_dispatcher(&mut self) -> Result<()> {
        self.api.start_dispatcher().await
    }

    /// The worker goes away in the middle of what it does.
    pub fn drop_worker(&mut self) {
        self.worker = None;
    }

    /// Another takes its place.
    pub async fn start_worker(&mut self) -> Result<()> {
        if self.worker.is_some() {
            return Ok(());
        }
        let Environment { common, worker, .. } = &mut self.environment;
        worker.worker_name = format!("demo-{}", Uuid::new_v4());
        let mailer = Arc::new(Copying { smtp: worker.smtp()?, copies: self.mailbox.clone() });
        self.worker = Some(service::worker_with(common, worker, mailer).await?);
        Ok(())
    }

    /// Ends in good order.
    pub async fn stop(self) -> Result<()> {
        self.api.stop().await?;
        match self.worker {
            Some(worker) => worker.stop().await,
            None => Ok(()),
        }
    }
}

#[async_trait]
impl Witness for Real {
    async fn evidence(&self, journal: &Journal) -> Result<Evidence> {
        Evidence::in_mailbox(journal, &self.database, &self.mailbox, self.started).await
    }

    /// RabbitMQ does not say what it has handed out.
    async fn is_idle(&self) -> Result<bool> {
        Ok(false)
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
