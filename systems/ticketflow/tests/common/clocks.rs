use super::ticket;
use chrono::{DateTime, TimeDelta, Utc};
use std::iter;
use ticketflow::client::Client;
use ticketflow::clock::Clock;
use ticketflow::database::Database;
use ticketflow::ticket::TicketEvent;
use ticketflow::tickets::Tickets;
use tokio::task::JoinSet;
use uuid::Uuid;

const WRITERS: usize = 6;
/// Changes that each of them makes while no other does, and then again while all of them do.
const ROUNDS: usize = 3;
/// All of them, and that the ticket was opened.
pub(crate) const CHANGES: u64 = (1 + 2 * WRITERS * ROUNDS) as u64;

/// Somebody who gives the ticket to one after the other.
#[derive(Clone)]
enum Writer {
    /// In this process, by a clock of the test's.
    Here(Tickets),
    /// In the API's, by the machine's clock.
    There(Client),
}

impl Writer {
    async fn assign(&self, ticket: Uuid, assignee: String) {
        let assigned = match self {
            Self::Here(tickets) => {
                let assigned = tickets.assign(ticket, assignee.clone(), "c".into()).await;
                assigned.unwrap_or_else(|refusal| panic!("{refusal:?}"))
            }
            Self::There(client) => client.assign(ticket, &assignee).await.expect("assigned"),
        };
        assert_eq!(assigned.assignee, Some(assignee));
    }
}

/// The same tickets as two processes see them, of which one has a clock that is an hour ahead.
pub(crate) struct Clocks {
    ahead: Tickets,
    behind: Tickets,
}

impl Clocks {
    pub(crate) fn on(database: &Database) -> Self {
        let (ahead, behind) = (Clock::default(), Clock::default());
        ahead.advance(TimeDelta::hours(1));
        let tickets = |clock| Tickets::new(database.clone(), clock);
        Self { ahead: tickets(ahead), behind: tickets(behind) }
    }

    /// Opens a ticket. Then one writer comes after the other, and every second one is behind. For a time in which nobody
    /// dispatches: what has the wrong time has it among all the others.
    pub(crate) async fn write_in_turn(&self) -> Uuid {
        let opened = self.ahead.create(ticket(), "c".into()).await;
        let ticket = opened.unwrap_or_else(|refusal| panic!("{refusal:?}")).id;
        for turn in 0..WRITERS * ROUNDS {
            let tickets = if turn % 2 == 0 { &self.behind } else { &self.ahead };
            let assignee = format!("turn-{turn}@example.org");
            Writer::Here(tickets.clone()).assign(ticket, assignee).await;
        }
        ticket
    }

    /// All of them write at the same time: two ahead, two behind, two by APIs.
    pub(crate) async fn write_at_once(&self, ticket: Uuid, apis: [Client; 2]) {
        let here = [&self.ahead, &self.behind].map(|tickets| Writer::Here(tickets.clone()));
        let there = apis.map(Writer::There);
        let writers = here.clone().into_iter().chain(here).chain(there);
        let mut at_work = JoinSet::new();
        for (number, writer) in writers.enumerate() {
            at_work.spawn(async move {
                for round in 0..ROUNDS {
                    writer.assign(ticket, format!("writer-{number}-{round}@example.org")).await;
                }
            });
        }
        assert_eq!(at_work.join_all().await.len(), WRITERS);
    }
}

/// Ordered by `OccurredAt`, the ticket's rows are its changes in their order, and no two have the same time.
pub(crate) async fn assert_times_rise_with_versions(database: &Database) {
    const ROWS: &str = r#"SELECT "OccurredAt", "PayloadJson" FROM "Outbox" ORDER BY "OccurredAt""#;
    let mut connection = database.connect().await.expect("a connection");
    let rows = connection.session().query(ROWS, &[]).await.expect("an answer");
    let told = rows.iter().map(|row| {
        let told: TicketEvent =
            serde_json::from_str(&row.text(1).expect("text")).expect("an event");
        let time = row.time(0).expect("a time");
        assert_eq!(told.occurred_at, time, "the event has its row's time");
        (time, told.version)
    });
    let (times, versions): (Vec<DateTime<Utc>>, Vec<i64>) = told.unzip();
    assert!(iter::zip(&times, &times[1..]).all(|(one, next)| one < next), "{times:?}");
    assert_eq!(versions, (1..=CHANGES as i64).collect::<Vec<_>>());
}
