//! The whole of TicketFlow in one process on one file: no broker, no mail server, nothing to install.
//!
//! The code is the same. `Outbox` is adopted in the SQLite file, and the dispatcher relays it into Relevo's own log in
//! that file, which takes RabbitMQ's place: the two consumers are subscriptions of that log, and their effects commit
//! with its cursors. E-mails go into a mailbox of this process.
//!
//! ```no_run
//! # use std::time::Duration;
//! # async fn demo() -> anyhow::Result<()> {
//! let ticketflow = ticketflow::embedded::start(ticketflow::embedded::Options::in_folder("data")).await?;
//! println!("{}", ticketflow.url());
//! let traffic = ticketflow.traffic(8, 50);
//! ticketflow.mailbox.set_down(true); // or stop_dispatcher, or drop_worker
//! tokio::time::sleep(Duration::from_secs(10)).await;
//! ticketflow.mailbox.set_down(false);
//! let verdict = ticketflow.verdict(&traffic.stop().await, Duration::from_secs(90)).await?;
//! assert!(verdict.broken.is_empty());
//! ticketflow.stop().await
//! # }
//! ```

use crate::api::{Admin, Check, Health, Listed, Serving, Site};
use crate::client::Client;
use crate::clock::Clock;
use crate::database::{Database, ProcessedKey};
use crate::dispatcher::{self, Dispatcher, INTERVAL};
use crate::tickets::Tickets;
use crate::topology::{QUEUES, dlq};
use crate::traffic::{Journal, Traffic};
use crate::verify::{self, Evidence, Verdict, Witness};
use crate::worker::mail::InProcess;
use crate::worker::{Crew, EVERY, Pulse, RETRIES};
use crate::{retention, telemetry};
use anyhow::{Result, ensure};
use async_trait::async_trait;
use relevo::adopt::AdoptedTable;
use relevo::broker::{Capabilities, Confirm, Publisher};
use relevo::{Event, NewEvent, RunningRelay};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use uuid::Uuid;

/// How it is started.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where its file is kept.
    pub folder: PathBuf,
    /// Where it listens: an address of this machine only, because the API is open.
    pub listen: SocketAddr,
    /// `OUTBOX_DISPATCH_INTERVAL_MS`.
    pub dispatch_interval: Duration,
    /// Between the attempts at an event that fails.
    pub retries: Vec<Duration>,
    /// Between two signs of the worker's life.
    pub heartbeat: Duration,
    /// Between two sweeps of what is not kept any longer.
    pub sweep: Duration,
    /// What operators show; without it nobody is one.
    pub admin_token: Option<String>,
    /// The time.
    pub clock: Clock,
    /// See there: a mutant.
    #[doc(hidden)]
    pub processed_key: ProcessedKey,
}

impl Options {
    /// As documented, in this folder, at any free port of this machine; the token is `ADMIN_TOKEN` of the environment.
    pub fn in_folder(folder: impl AsRef<Path>) -> Self {
        Self {
            folder: folder.as_ref().to_owned(),
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            dispatch_interval: INTERVAL,
            retries: RETRIES.to_vec(),
            heartbeat: EVERY,
            sweep: retention::EVERY,
            admin_token: std::env::var("ADMIN_TOKEN").ok(),
            clock: Clock::default(),
            processed_key: ProcessedKey::default(),
        }
    }
}

/// TicketFlow at work in this process.
pub struct Embedded {
    /// Where the API is: open, and only to this machine.
    pub address: SocketAddr,
    /// Its database.
    pub database: Database,
    /// Where the e-mails are.
    pub mailbox: Arc<InProcess>,
    site: Serving,
    dispatcher: Option<Dispatcher>,
    worker: Option<RunningRelay>,
    crew: Crew,
    options: Options,
    tasks: JoinSet<()>,
    /// Tickets that are older were opened by an earlier process, whose mailbox ended with it.
    started: Uuid,
}

/// Starts it.
pub async fn start(options: Options) -> Result<Embedded> {
    let address = options.listen;
    ensure!(address.ip().is_loopback(), "{address}: the open API is for this machine only");
    telemetry::install();
    std::fs::create_dir_all(&options.folder)?;
    let file = options.folder.join("ticketflow.db");
    let database = Database::open(&format!("sqlite:{}", file.display())).await?;
    database.migrate_with(options.processed_key, false).await?;
    let mailbox = Arc::new(InProcess::default());
    let crew = Crew {
        database: database.clone(),
        mailer: mailbox.clone(),
        retries: options.retries.clone(),
        clock: options.clock.clone(),
        pulse: Pulse::default(),
        processed_key: options.processed_key,
    };
    let parts: Vec<Box<dyn Check>> = vec![Box::new(database.clone())];
    let site = Site::new(Health::of(parts))
        .with_tickets(Tickets::new(database.clone(), options.clock.clone()))
        .with_admin(Admin::new(database.operate(), options.admin_token.clone()));
    let site = site.serve(address).await?;
    let mut embedded = Embedded {
        address: site.address,
        database,
        mailbox,
        site,
        dispatcher: None,
        worker: None,
        crew,
        options,
        tasks: JoinSet::new(),
        started: Uuid::now_v7(),
    };
    embedded.start_dispatcher().await?;
    embedded.start_worker().await?;
    embedded.keep();
    Ok(embedded)
}

impl Embedded {
    /// The API's address, for people.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Everything that the API answers to.
    pub fn routes(&self) -> &[Listed] {
        &self.site.routes
    }

    /// People who use it: so many, who together make so many requests a second.
    pub fn traffic(&self, people: u32, per_second: u32) -> Traffic {
        Traffic::start(&Client::at(self.address), people, per_second)
    }

    /// Waits until every effect of what people were told is there, for so long at most, and weighs them.
    pub async fn verdict(&self, journal: &Journal, patience: Duration) -> Result<Verdict> {
        verify::verdict(self, journal, patience).await
    }

    /// Rows of `Outbox` that wait.
    pub async fn pending(&self) -> Result<i64> {
        match &self.dispatcher {
            Some(dispatcher) => Ok(dispatcher.outbox.pending().await?.rows),
            None => Ok(self.database.adopt().await?.table.pending().await?.rows),
        }
    }

    /// The dispatcher stands still: tickets are accepted, and `Outbox` fills.
    pub async fn stop_dispatcher(&mut self) -> Result<()> {
        match self.dispatcher.take() {
            Some(dispatcher) => dispatcher.stop().await,
            None => Ok(()),
        }
    }

    /// It goes on.
    pub async fn start_dispatcher(&mut self) -> Result<()> {
        if self.dispatcher.is_some() {
            return Ok(());
        }
        let Options { dispatch_interval, clock, .. } = &self.options;
        let publisher = IntoLog { database: self.database.clone() };
        let started =
            Dispatcher::start(&self.database, publisher, *dispatch_interval, clock.clone());
        self.dispatcher = Some(started.await?);
        Ok(())
    }

    /// The worker goes away in the middle of what it does: nobody waits for it.
    pub fn drop_worker(&mut self) {
        self.worker = None;
    }

    /// Another takes its place.
    pub async fn start_worker(&mut self) -> Result<()> {
        if self.worker.is_none() {
            self.worker = Some(self.crew.work_on_the_log().await?);
        }
        Ok(())
    }

    fn keep(&mut self) {
        let Options { clock, heartbeat, sweep, .. } = self.options.clone();
        let (database, pulse) = (self.database.clone(), self.crew.pulse.clone());
        self.tasks.spawn(retention::keep(database.clone(), clock.clone(), sweep));
        self.tasks.spawn(pulse.keep(database.clone(), clock, "embedded".into(), heartbeat));
        if let Some(dispatcher) = &self.dispatcher {
            self.tasks.spawn(watch(dispatcher.outbox.clone(), database));
        }
    }

    /// Ends in good order.
    pub async fn stop(mut self) -> Result<()> {
        self.site.stop().await?;
        if let Some(dispatcher) = self.dispatcher.take() {
            dispatcher.stop().await?;
        }
        if let Some(worker) = self.worker.take() {
            worker.stop().await?;
        }
        Ok(())
    }
}

#[async_trait]
impl Witness for Embedded {
    async fn evidence(&self, journal: &Journal) -> Result<Evidence> {
        Evidence::in_mailbox(journal, &self.database, &self.mailbox, self.started).await
    }

    /// Nothing waits in `Outbox`, and then nothing in the log.
    async fn is_idle(&self) -> Result<bool> {
        if self.pending().await? > 0 {
            return Ok(false);
        }
        let status = self.database.operate().status().await?;
        let mut consumers =
            status.subscriptions.iter().filter(|it| QUEUES.contains(&it.name.as_str()));
        Ok(consumers.all(|it| it.backlog == 0 && it.parked_events == 0 && it.parked_keys == 0))
    }
}

/// Shows what waits, and what failed for good: there is no queue, so dead letters are counted where they are.
async fn watch(outbox: Arc<dyn AdoptedTable>, database: Database) {
    loop {
        match outbox.pending().await {
            Ok(pending) => telemetry::pending(pending.rows),
            Err(error) => tracing::warn!(%error, "what waits in Outbox"),
        }
        for queue in QUEUES {
            telemetry::count_dead_letters(&*database.operate(), queue, &dlq(queue)).await;
        }
        telemetry::count_dead_letters(&*database.operate(), dispatcher::NAME, dispatcher::NAME)
            .await;
        telemetry::upkeep();
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

/// Relevo's own log in the broker's place. A copy of what was published before keeps its id, and `ProcessedEvents` drops
/// it.
struct IntoLog {
    database: Database,
}

#[async_trait]
impl Publisher for IntoLog {
    fn name(&self) -> &'static str {
        "log"
    }

    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::default();
        can.publishes = true;
        can.durable = true;
        can
    }

    async fn publish(&self, events: &[&Event]) -> Vec<Confirm> {
        let (database, events_again) = (self.database.clone(), events.iter().copied().map(again));
        let events_again: Vec<NewEvent> = events_again.collect();
        // A task of its own: who waits for it may be gone before it ends, and a transaction must not be.
        let published = tokio::spawn(async move { database.publish(events_again).await });
        let answer = match published.await.map_err(Into::into).flatten() {
            Ok(()) => Confirm::Stored,
            Err(error) => Confirm::Unknown { error: format!("{error:#}") },
        };
        vec![answer; events.len()]
    }
}

fn again(event: &Event) -> NewEvent {
    let mut new = NewEvent::bytes(&event.topic, event.payload.clone()).id(event.id);
    new.key = event.key.clone();
    new.headers = event.headers.clone();
    new
}
