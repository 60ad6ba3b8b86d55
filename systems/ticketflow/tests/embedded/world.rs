//! A TicketFlow of one test's own, on a file.

use crate::common::{self, Place};
use relevo_testkit::eventually;
use std::time::Duration;
use tempfile::TempDir;
use ticketflow::client::Client;
use ticketflow::clock::Clock;
use ticketflow::database::Database;
use ticketflow::embedded::{self, Embedded, Options};
use ticketflow::ticket::Ticket;
use ticketflow::worker::mail::Mail;

pub(crate) const TOKEN: &str = "open sesame";

pub(crate) struct World {
    pub(crate) embedded: Embedded,
    pub(crate) client: Client,
    pub(crate) clock: Clock,
    _folder: TempDir,
}

impl World {
    pub(crate) async fn with(change: impl FnOnce(&mut Options)) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut options = Options::in_folder(folder.path());
        options.dispatch_interval = Duration::from_millis(50);
        options.retries = vec![Duration::from_millis(200); 3];
        options.admin_token = Some(TOKEN.into());
        change(&mut options);
        let clock = options.clock.clone();
        let embedded = embedded::start(options).await.expect("it starts");
        let client = Client::at(embedded.address);
        Self { embedded, client, clock, _folder: folder }
    }

    pub(crate) async fn new() -> Self {
        Self::with(|_| ()).await
    }

    pub(crate) fn mails(&self) -> Vec<Mail> {
        self.embedded.mailbox.mails()
    }

    pub(crate) fn database(&self) -> &Database {
        &self.embedded.database
    }

    pub(crate) fn place(&self) -> Place<'_> {
        Place { client: self.client.clone(), database: self.database() }
    }

    pub(crate) async fn open_ticket(&self) -> Ticket {
        self.place().open_ticket().await
    }

    pub(crate) async fn count(&self, sql: &'static str) -> i64 {
        common::count(self.database(), sql).await
    }

    /// Waits until so many events were processed by a consumer, all consumers together.
    pub(crate) async fn processed(&self, events: i64) {
        let done = r#"SELECT count(*) FROM "ProcessedEvents""#;
        eventually("all are processed", async || (self.count(done).await == events).then_some(()))
            .await;
    }
}
