//! Tickets and their changes. A change and its row in `Outbox` are one transaction: both, or neither.
//!
//! The order of a ticket's events has to be found again in `Outbox`, which has no number drawn from a sequence, only
//! `OccurredAt`. So that time is chosen while the ticket's row is locked, and is later than that of the change before,
//! whatever the clocks of several processes say: ordered by it, a ticket's events are in the order of their commits.

use crate::clock::Clock;
use crate::database::{Database, Row, Session, Value};
use crate::ticket::{NewTicket, Priority, Status, Ticket, TicketEvent, topic};
use anyhow::{Context, Result};
use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

/// Why a request was not carried out.
#[derive(Debug)]
pub enum Refusal {
    /// There is no such ticket.
    NotFound(Uuid),
    /// The ticket is not in a state for it.
    Conflict(String),
    /// It is our fault.
    Broken(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Refusal {
    fn from(error: E) -> Self {
        Self::Broken(error.into())
    }
}

/// Where a page of the list begins: after this ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    /// When it came into being.
    pub created_at: DateTime<Utc>,
    /// Its id.
    pub id: Uuid,
}

/// What happens to a ticket.
#[derive(Debug, Clone)]
enum Change {
    Status(Status),
    Assign(String),
}

/// The tickets of a database.
#[derive(Debug, Clone)]
pub struct Tickets {
    database: Database,
    clock: Clock,
}

/// The columns in the order in which [`ticket`] reads them.
macro_rules! columns {
    () => {
        r#""Id", "Title", "Description", "Requester", "Assignee", "Priority", "Status", "Version", "CreatedAt", "UpdatedAt""#
    };
}

impl Tickets {
    /// Over this database, by this clock.
    pub fn new(database: Database, clock: Clock) -> Self {
        Self { database, clock }
    }

    /// Opens a ticket.
    pub async fn create(&self, new: NewTicket, correlation: String) -> Result<Ticket, Refusal> {
        let this = self.clone();
        to_its_end(async move { this.insert(new, &correlation).await }).await
    }

    /// Changes its status.
    pub async fn change_status(
        &self,
        id: Uuid,
        status: Status,
        correlation: String,
    ) -> Result<Ticket, Refusal> {
        let this = self.clone();
        to_its_end(async move { this.change(id, Change::Status(status), &correlation).await }).await
    }

    /// Gives it to somebody.
    pub async fn assign(
        &self,
        id: Uuid,
        assignee: String,
        correlation: String,
    ) -> Result<Ticket, Refusal> {
        let this = self.clone();
        to_its_end(async move { this.change(id, Change::Assign(assignee), &correlation).await })
            .await
    }

    /// The ticket as it is.
    pub async fn show(&self, id: Uuid) -> Result<Ticket, Refusal> {
        const SHOW: &str = concat!("SELECT ", columns!(), r#" FROM "Tickets" WHERE "Id" = $1"#);
        let mut connection = self.database.connect().await?;
        let row = connection.session().query_one(SHOW, &[id.into()]).await?;
        row.map_or(Err(Refusal::NotFound(id)), |row| Ok(ticket(&row)?))
    }

    /// A page of tickets, newest first.
    pub async fn list(&self, after: Option<Cursor>, limit: i64) -> Result<Vec<Ticket>> {
        const PAGE: &str = concat!(
            "SELECT ",
            columns!(),
            r#" FROM "Tickets" WHERE "CreatedAt" < $1 OR ("CreatedAt" = $1 AND "Id" < $2)
                ORDER BY "CreatedAt" DESC, "Id" DESC LIMIT $3"#
        );
        let after = after.unwrap_or(Cursor {
            created_at: self.clock.now() + TimeDelta::days(36_500),
            id: Uuid::max(),
        });
        let values = [after.created_at.into(), after.id.into(), limit.into()];
        let mut connection = self.database.connect().await?;
        let rows = connection.session().query(PAGE, &values).await?;
        rows.iter().map(ticket).collect()
    }

    async fn insert(&self, new: NewTicket, correlation: &str) -> Result<Ticket, Refusal> {
        const INSERT: &str = concat!(
            r#"INSERT INTO "Tickets" ("#,
            columns!(),
            ") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
        );
        let now = self.clock.now();
        let ticket = Ticket {
            id: Uuid::now_v7(),
            title: new.title.trim().to_owned(),
            description: new.description,
            requester: new.requester,
            assignee: None,
            priority: new.priority,
            status: Status::Open,
            version: 1,
            created_at: now,
            updated_at: now,
        };
        let mut connection = self.database.connect().await?;
        let mut tx = connection.begin().await?;
        tx.session().execute(INSERT, &values(&ticket)).await?;
        let told = TicketEvent::of(&ticket, None);
        tell(&mut tx.session(), topic::CREATED, &told, correlation).await?;
        tx.commit().await?;
        Ok(ticket)
    }

    async fn change(&self, id: Uuid, change: Change, correlation: &str) -> Result<Ticket, Refusal> {
        // Locks the row: who changes the same ticket waits here until this one has committed.
        const LOCK: &str = concat!(
            r#"UPDATE "Tickets" SET "Version" = "Version" + 1 WHERE "Id" = $1 RETURNING "#,
            columns!()
        );
        const WRITE: &str = r#"UPDATE "Tickets" SET "Assignee" = $2, "Status" = $3, "UpdatedAt" = $4 WHERE "Id" = $1"#;
        let mut connection = self.database.connect().await?;
        let mut tx = connection.begin().await?;
        let row = tx.session().query_one(LOCK, &[id.into()]).await?;
        let mut ticket = ticket(&row.ok_or(Refusal::NotFound(id))?)?;
        let (topic, before) = apply(&mut ticket, change)?;
        ticket.updated_at = self.clock.now().max(ticket.updated_at + TimeDelta::microseconds(1));
        let Ticket { assignee, status, updated_at, .. } = &ticket;
        let values =
            [id.into(), assignee.as_deref().into(), status.as_str().into(), (*updated_at).into()];
        tx.session().execute(WRITE, &values).await?;
        tell(&mut tx.session(), topic, &TicketEvent::of(&ticket, before), correlation).await?;
        tx.commit().await?;
        Ok(ticket)
    }
}

/// A request whose client went away is carried out all the same: a transaction is never dropped half-way.
async fn to_its_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, Refusal>> + Send + 'static,
) -> Result<T, Refusal> {
    tokio::spawn(work).await.unwrap_or_else(|join| Err(Refusal::Broken(join.into())))
}

/// Changes the ticket, and says what to call that.
fn apply(ticket: &mut Ticket, change: Change) -> Result<(&'static str, Option<Status>), Refusal> {
    match change {
        Change::Status(next) if !ticket.status.may_become(next) => {
            let (from, to) = (ticket.status.as_str(), next.as_str());
            Err(Refusal::Conflict(format!("a ticket that is {from} cannot become {to}")))
        }
        Change::Status(next) => {
            let before = std::mem::replace(&mut ticket.status, next);
            Ok((topic::STATUS_CHANGED, Some(before)))
        }
        Change::Assign(who) if ticket.assignee.as_ref() == Some(&who) => {
            Err(Refusal::Conflict(format!("{who} has it already")))
        }
        Change::Assign(_) if ticket.status == Status::Closed => {
            Err(Refusal::Conflict("a closed ticket is nobody's any more".into()))
        }
        Change::Assign(who) => {
            ticket.assignee = Some(who);
            Ok((topic::ASSIGNED, None))
        }
    }
}

/// The event's row, in the transaction of the change.
async fn tell(
    session: &mut Session<'_>,
    topic: &str,
    event: &TicketEvent,
    correlation: &str,
) -> Result<()> {
    const INSERT: &str = r#"INSERT INTO "Outbox" ("Id", "Type", "PayloadJson", "CorrelationId", "OccurredAt")
        VALUES ($1, $2, $3, $4, $5)"#;
    let payload = serde_json::to_string(event)?;
    let values = [
        Uuid::now_v7().into(),
        topic.into(),
        payload.as_str().into(),
        correlation.into(),
        event.occurred_at.into(),
    ];
    session.execute(INSERT, &values).await.map(drop)
}

fn values(ticket: &Ticket) -> [Value; 10] {
    [
        ticket.id.into(),
        ticket.title.as_str().into(),
        ticket.description.as_str().into(),
        ticket.requester.as_str().into(),
        ticket.assignee.as_deref().into(),
        ticket.priority.as_str().into(),
        ticket.status.as_str().into(),
        ticket.version.into(),
        ticket.created_at.into(),
        ticket.updated_at.into(),
    ]
}

fn ticket(row: &Row) -> Result<Ticket> {
    Ok(Ticket {
        id: Uuid::parse_str(&row.text(0)?)?,
        title: row.text(1)?,
        description: row.text(2)?,
        requester: row.text(3)?,
        assignee: row.maybe_text(4)?,
        priority: Priority::parse(&row.text(5)?).context("an unknown priority")?,
        status: Status::parse(&row.text(6)?).context("an unknown status")?,
        version: row.number(7)?,
        created_at: row.time(8)?,
        updated_at: row.time(9)?,
    })
}
