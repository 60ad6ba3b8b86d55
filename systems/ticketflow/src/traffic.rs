//! People at work: they open tickets, take them, move them on, reopen some, and note what they were told.

use crate::client::Client;
use crate::ticket::{NewTicket, Priority, Status, Ticket};
use anyhow::Result;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use uuid::Uuid;

/// What people were told, apart from everything the service keeps: the other side of the proof.
#[derive(Debug, Clone, Default)]
pub struct Journal {
    notes: Arc<Mutex<Notes>>,
}

#[derive(Debug, Default)]
struct Notes {
    /// The last change of each ticket that was accepted.
    accepted: BTreeMap<Uuid, i64>,
    /// When each change was asked for.
    asked: BTreeMap<(Uuid, i64), std::time::SystemTime>,
    /// Requests without a clear answer: they may have been carried out.
    unclear: u64,
}

impl Journal {
    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accepted(&self, ticket: &Ticket, asked: std::time::SystemTime) {
        let mut notes = self.notes();
        notes.accepted.insert(ticket.id, ticket.version);
        notes.asked.insert((ticket.id, ticket.version), asked);
    }

    /// The last accepted change of each ticket.
    pub fn tickets(&self) -> BTreeMap<Uuid, i64> {
        self.notes().accepted.clone()
    }

    /// When each accepted change was asked for.
    pub fn asked(&self) -> BTreeMap<(Uuid, i64), std::time::SystemTime> {
        self.notes().asked.clone()
    }

    /// How many changes were accepted.
    pub fn changes(&self) -> u64 {
        self.notes().accepted.values().sum::<i64>().unsigned_abs()
    }

    /// How many requests had no clear answer.
    pub fn unclear(&self) -> u64 {
        self.notes().unclear
    }
}

/// Traffic that goes on until it is stopped.
pub struct Traffic {
    /// What the people were told.
    pub journal: Journal,
    stop: watch::Sender<bool>,
    people: JoinSet<()>,
}

impl Traffic {
    /// So many people who together make so many requests a second.
    pub fn start(client: &Client, people: u32, per_second: u32) -> Self {
        let (stop, stopped) = watch::channel(false);
        let journal = Journal::default();
        let every = Duration::from_secs(u64::from(people)) / per_second.max(1);
        let mut set = JoinSet::new();
        for number in 0..people {
            let person = Person { client: client.clone(), journal: journal.clone(), number };
            set.spawn(person.work(every, stopped.clone()));
        }
        Self { journal, stop, people: set }
    }

    /// Everybody finishes the request at hand.
    pub async fn stop(self) -> Journal {
        self.stop.send_replace(true);
        self.people.join_all().await;
        self.journal
    }
}

struct Person {
    client: Client,
    journal: Journal,
    number: u32,
}

/// What happens to a ticket after it was opened.
#[derive(Debug, Clone, Copy)]
enum Step {
    Assign(u32),
    Become(Status),
}

/// The ways of tickets: most are taken, worked on and closed, some are passed on or reopened, some wait.
const WAYS: [&[Step]; 4] = [
    &[
        Step::Assign(0),
        Step::Become(Status::InProgress),
        Step::Become(Status::Resolved),
        Step::Become(Status::Closed),
    ],
    &[
        Step::Assign(1),
        Step::Become(Status::InProgress),
        Step::Assign(2),
        Step::Become(Status::Resolved),
        Step::Become(Status::InProgress),
        Step::Become(Status::Resolved),
        Step::Become(Status::Closed),
    ],
    &[Step::Become(Status::Closed)],
    &[Step::Assign(3), Step::Become(Status::InProgress)],
];

const TITLES: [&str; 6] = [
    "Printer on fire",
    "Cannot log in since this morning",
    "Invoice 4711 has the wrong address",
    "A monitor for the new desk, please",
    "The door at gate 3 does not open",
    "Backup of last night is missing",
];

impl Person {
    async fn work(self, every: Duration, stopped: watch::Receiver<bool>) {
        let mut turns = tokio::time::interval_at(Instant::now() + every, every);
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut opened = self.number as usize;
        while !*stopped.borrow() {
            turns.tick().await;
            let asked = std::time::SystemTime::now();
            let Some(ticket) = self.told(asked, self.client.create(&self.ticket(opened)).await)
            else {
                continue;
            };
            for step in WAYS[opened % WAYS.len()] {
                turns.tick().await;
                let asked = std::time::SystemTime::now();
                if *stopped.borrow()
                    || self.told(asked, self.step(ticket.id, *step).await).is_none()
                {
                    break;
                }
            }
            opened += 1;
        }
    }

    async fn step(&self, ticket: Uuid, step: Step) -> Result<Ticket> {
        match step {
            Step::Assign(who) => {
                self.client.assign(ticket, &format!("agent-{who}@example.org")).await
            }
            Step::Become(status) => self.client.change_status(ticket, status).await,
        }
    }

    fn ticket(&self, opened: usize) -> NewTicket {
        NewTicket {
            title: TITLES[opened % TITLES.len()].to_owned(),
            description: format!("Told by person {}, their number {opened}.", self.number),
            requester: format!("person-{}@example.org", self.number),
            priority: [Priority::Normal, Priority::Low, Priority::High][opened % 3],
        }
    }

    /// Notes the answer. Without a clear one the ticket is left alone: nobody knows what became of the request.
    fn told(&self, asked: std::time::SystemTime, answer: Result<Ticket>) -> Option<Ticket> {
        match answer {
            Ok(ticket) => {
                self.journal.accepted(&ticket, asked);
                Some(ticket)
            }
            Err(error) => {
                tracing::debug!(error = format!("{error:#}"), "no clear answer");
                self.journal.notes().unclear += 1;
                None
            }
        }
    }
}
