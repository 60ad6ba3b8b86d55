//! TicketFlow as a part of `relevo demo`: people at work, what can be broken meanwhile, and the verdict.

use crate::client::Client;
use crate::database::{Database, ProcessedKey};
use crate::embedded::{self, Embedded, Options};
use crate::real::{self, Real};
use crate::topology::QUEUES;
use crate::traffic::Traffic;
use crate::verify::{self, Witness};
use crate::worker::mail::InProcess;
use anyhow::{Result, bail};
use async_trait::async_trait;
use proof::{Break, Figures, System, Verdict};
use std::path::Path;
use std::time::Duration;

/// What can be broken.
pub const BREAKS: &[Break] = &[MAIL, DISPATCHER, WORKER];

const MAIL: Break = Break {
    name: "ticketflow-mail",
    help: "TicketFlow's mail server takes nothing for two seconds",
    key: 'm',
    label: "mail server",
    begins: "the mail server takes nothing; e-mails wait, in order",
    ends: Some("the mail server takes e-mails again"),
};

const DISPATCHER: Break = Break {
    name: "ticketflow-dispatcher",
    help: "TicketFlow's dispatcher stands still for two seconds",
    key: 'd',
    label: "dispatcher",
    begins: "the dispatcher stands still; tickets wait in Outbox",
    ends: Some("the dispatcher goes on"),
};

const WORKER: Break = Break {
    name: "ticketflow-worker",
    help: "TicketFlow's worker is gone in the middle of its work; another comes after two seconds",
    key: 'w',
    label: "worker",
    begins: "the worker is gone in the middle of its work",
    ends: Some("another worker takes its place"),
};

/// How many people there are.
const PEOPLE: u32 = 8;

/// Shorter than the document's, so that one sees what is down for a while come back: two minutes, then dead letters.
const RETRIES: [Duration; 240] = [Duration::from_millis(500); 240];

/// On a file in this folder; people ask for so many changes a second.
pub async fn embedded(folder: &Path, rate: u32) -> Result<Box<dyn System>> {
    start_embedded(folder, rate, ProcessedKey::default()).await
}

/// The same with the document's key of `ProcessedEvents`, which loses effects: whoever shows this must notice.
#[doc(hidden)]
pub async fn sabotaged(folder: &Path, rate: u32) -> Result<Box<dyn System>> {
    start_embedded(folder, rate, ProcessedKey::EventAlone).await
}

async fn start_embedded(folder: &Path, rate: u32, key: ProcessedKey) -> Result<Box<dyn System>> {
    let mut options = Options::in_folder(folder);
    options.retries = RETRIES.to_vec();
    options.processed_key = key;
    let embedded = embedded::start(options).await?;
    Ok(Box::new(Show::of(embedded, rate).await?))
}

/// On the parts that the environment names.
pub async fn real(rate: u32) -> Result<Box<dyn System>> {
    Ok(Box::new(Show::of(real::start(&RETRIES).await?, rate).await?))
}

/// What both ways to run it have.
#[async_trait]
trait Stage: Witness + Sized {
    fn url(&self) -> String;
    fn client(&self) -> Client;
    fn database(&self) -> &Database;
    fn mailbox(&self) -> &InProcess;
    async fn set_dispatcher(&mut self, on: bool) -> Result<()>;
    async fn set_worker(&mut self, on: bool) -> Result<()>;
    async fn stop(self) -> Result<()>;
}

macro_rules! stage {
    ($stage:ty) => {
        #[async_trait]
        impl Stage for $stage {
            fn url(&self) -> String {
                format!("http://{}", self.address)
            }

            fn client(&self) -> Client {
                Client::at(self.address)
            }

            fn database(&self) -> &Database {
                &self.database
            }

            fn mailbox(&self) -> &InProcess {
                &self.mailbox
            }

            async fn set_dispatcher(&mut self, on: bool) -> Result<()> {
                if on { self.start_dispatcher().await } else { self.stop_dispatcher().await }
            }

            async fn set_worker(&mut self, on: bool) -> Result<()> {
                if on {
                    return self.start_worker().await;
                }
                self.drop_worker();
                Ok(())
            }

            async fn stop(self) -> Result<()> {
                <$stage>::stop(self).await
            }
        }
    };
}

stage!(Embedded);
stage!(Real);

struct Show<S> {
    stage: S,
    traffic: Traffic,
    /// What was counted and given up before this run.
    before: Counted,
}

#[derive(Debug, Clone, Copy)]
struct Counted {
    numbers: u64,
    dead: u64,
}

impl Counted {
    async fn of(database: &Database) -> Result<Self> {
        const COUNTED: &str = r#"SELECT count(*) FROM "TicketActivity""#;
        let row = database.connect().await?.session().query_one(COUNTED, &[]).await?;
        let numbers = row.map_or(Ok(0), |row| row.number(0))?.unsigned_abs();
        let status = database.operate().status().await?;
        let consumers = status.subscriptions.iter();
        let consumers = consumers.filter(|it| QUEUES.contains(&it.name.as_str()));
        Ok(Self { numbers, dead: consumers.map(|it| it.dead_letters).sum::<i64>().unsigned_abs() })
    }
}

impl<S: Stage> Show<S> {
    async fn of(stage: S, rate: u32) -> Result<Self> {
        let before = Counted::of(stage.database()).await?;
        let traffic = Traffic::start(&stage.client(), PEOPLE, rate);
        Ok(Self { stage, traffic, before })
    }

    async fn set(&mut self, name: &str, well: bool) -> Result<()> {
        match name {
            name if name == MAIL.name => self.stage.mailbox().set_down(!well),
            name if name == DISPATCHER.name => self.stage.set_dispatcher(well).await?,
            name if name == WORKER.name => self.stage.set_worker(well).await?,
            other => bail!("TicketFlow has no {other}"),
        }
        Ok(())
    }
}

#[async_trait]
impl<S: Stage> System for Show<S> {
    fn url(&self) -> String {
        self.stage.url()
    }

    async fn figures(&self) -> Result<Figures> {
        let now = Counted::of(self.stage.database()).await?;
        let committed = self.traffic.journal.changes();
        let mails = self.stage.mailbox().count() as u64;
        let effects = mails + now.numbers.saturating_sub(self.before.numbers);
        let dead = now.dead.saturating_sub(self.before.dead);
        Ok(Figures {
            committed,
            effects,
            // Each change is mailed and counted.
            pending: (2 * committed).saturating_sub(effects + dead),
            dead,
            retried: self.stage.mailbox().refused(),
            duplicates: 0,
        })
    }

    async fn begin(&mut self, name: &str) -> Result<()> {
        self.set(name, false).await
    }

    async fn mend(&mut self, name: &str) -> Result<()> {
        self.set(name, true).await
    }

    async fn finish(mut self: Box<Self>, patience: Duration) -> Result<Verdict> {
        for broken in BREAKS {
            self.mend(broken.name).await?;
        }
        let Self { stage, traffic, .. } = *self;
        let journal = traffic.stop().await;
        let verdict = verify::verdict(&stage, &journal, patience).await?;
        stage.stop().await?;
        Ok(verdict)
    }
}
