//! Cases that hold wherever TicketFlow runs: on SQLite in the test's own process, and on PostgreSQL behind processes.
//!
//! - `requests`: what people may ask of the API, and what becomes of it
//! - `clocks`: writers of one ticket whose clocks differ

pub(crate) mod clocks;
pub(crate) mod requests;

use ticketflow::client::Client;
use ticketflow::database::Database;
use ticketflow::ticket::{NewTicket, Priority, Ticket};

/// What a case uses: an API, and the database beneath it.
pub(crate) struct Place<'p> {
    pub(crate) client: Client,
    pub(crate) database: &'p Database,
}

impl Place<'_> {
    pub(crate) async fn open_ticket(&self) -> Ticket {
        self.client.create(&ticket()).await.expect("a ticket")
    }

    pub(crate) async fn count(&self, sql: &'static str) -> i64 {
        count(self.database, sql).await
    }

    pub(crate) async fn say(&self, sql: &str) {
        say(self.database, sql).await;
    }
}

pub(crate) fn ticket() -> NewTicket {
    NewTicket {
        title: "Printer on fire".into(),
        description: String::new(),
        requester: "ana@example.org".into(),
        priority: Priority::High,
    }
}

/// The number that a statement answers with.
pub(crate) async fn count(database: &Database, sql: &'static str) -> i64 {
    let mut connection = database.connect().await.expect("a connection");
    let row = connection.session().query_one(sql, &[]).await.expect("an answer");
    row.expect("a row").number(0).expect("a number")
}

/// Statements by which a test makes what would take too long, or would not come about by itself.
pub(crate) async fn say(database: &Database, sql: &str) {
    let mut connection = database.connect().await.expect("a connection");
    connection.batch(sql).await.expect("said");
}
