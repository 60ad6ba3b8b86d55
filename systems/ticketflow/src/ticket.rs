//! What a ticket is, what may be asked of it, and what is told of its changes.

use chrono::{DateTime, Utc};
use lettre::Address;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The routing keys, each the type of an event.
pub mod topic {
    /// A ticket came into being.
    pub const CREATED: &str = "ticket.created";
    /// Its status changed.
    pub const STATUS_CHANGED: &str = "ticket.status.changed";
    /// Somebody is to work on it.
    pub const ASSIGNED: &str = "ticket.assigned";
    /// All of them.
    pub const ALL: [&str; 3] = [CREATED, STATUS_CHANGED, ASSIGNED];
}

/// How far a ticket is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Nobody has begun.
    Open,
    /// Somebody works on it.
    InProgress,
    /// Done, as far as its worker knows.
    Resolved,
    /// Done with; it stays so.
    Closed,
}

impl Status {
    /// Every status.
    pub const ALL: [Self; 4] = [Self::Open, Self::InProgress, Self::Resolved, Self::Closed];

    /// As it is written everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::InProgress => "in_progress",
            Self::Resolved => "resolved",
            Self::Closed => "closed",
        }
    }

    /// Reads what [`Self::as_str`] writes.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text)
    }

    /// May a ticket go from here to `next`?
    pub fn may_become(self, next: Self) -> bool {
        match self {
            Self::Closed => false,
            Self::Resolved => matches!(next, Self::InProgress | Self::Closed),
            Self::Open | Self::InProgress => next != self,
        }
    }
}

/// How soon somebody should look at it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// Some time.
    Low,
    /// In its turn.
    #[default]
    Normal,
    /// Now.
    High,
}

impl Priority {
    /// As it is written everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Normal => "normal",
            Self::High => "high",
        }
    }

    /// Reads what [`Self::as_str`] writes.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Low, Self::Normal, Self::High].into_iter().find(|it| it.as_str() == text)
    }
}

/// A ticket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ticket {
    /// Its id, and the key by which its events keep their order.
    pub id: Uuid,
    /// In a few words.
    pub title: String,
    /// In more words.
    pub description: String,
    /// Whose it is: gets the e-mails.
    pub requester: String,
    /// Who works on it.
    pub assignee: Option<String>,
    /// How soon.
    pub priority: Priority,
    /// How far.
    pub status: Status,
    /// Counts its changes, from one.
    pub version: i64,
    /// When it came into being.
    pub created_at: DateTime<Utc>,
    /// When it was changed last. Later for every change, whatever the clocks say: see [`crate::tickets`].
    pub updated_at: DateTime<Utc>,
}

/// What somebody who opens a ticket says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NewTicket {
    /// In a few words.
    pub title: String,
    /// In more words.
    #[serde(default)]
    pub description: String,
    /// An e-mail address.
    pub requester: String,
    /// How soon.
    #[serde(default)]
    pub priority: Priority,
}

/// Another status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeStatus {
    /// The new one.
    pub status: Status,
}

/// Somebody to work on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Assign {
    /// An e-mail address.
    pub assignee: String,
}

/// A field that cannot be accepted, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Invalid {
    /// Its name.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: String,
}

/// Says what is wrong with a request, all of it at once.
pub trait Validate {
    /// Nothing, if it can be accepted.
    fn problems(&self) -> Vec<Invalid>;
}

impl Validate for NewTicket {
    fn problems(&self) -> Vec<Invalid> {
        let title = text("title", &self.title, 1, 200);
        let description = text("description", &self.description, 0, 10_000);
        title.into_iter().chain(description).chain(address("requester", &self.requester)).collect()
    }
}

impl Validate for ChangeStatus {
    fn problems(&self) -> Vec<Invalid> {
        Vec::new()
    }
}

impl Validate for Assign {
    fn problems(&self) -> Vec<Invalid> {
        address("assignee", &self.assignee).into_iter().collect()
    }
}

fn text(field: &'static str, text: &str, least: usize, most: usize) -> Option<Invalid> {
    let long = text.trim().chars().count();
    let odd = text.chars().any(|c| c.is_control() && c != '\n' && c != '\t');
    let problem = match long {
        _ if odd => "has control characters".to_owned(),
        long if long < least => "must not be empty".to_owned(),
        long if long > most => format!("has {long} characters, at most {most} are allowed"),
        _ => return None,
    };
    Some(Invalid { field, problem })
}

fn address(field: &'static str, text: &str) -> Option<Invalid> {
    let problem = match text.parse::<Address>() {
        Ok(_) if text.len() <= 254 => return None,
        Ok(_) => "is longer than 254 characters".to_owned(),
        Err(why) => format!("is no e-mail address: {why}"),
    };
    Some(Invalid { field, problem })
}

/// What is told of a change: the payload of an event. `ticketId` is where the adopted table's mapping finds the key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TicketEvent {
    /// Which ticket.
    pub ticket_id: Uuid,
    /// Which of its changes.
    pub version: i64,
    /// When.
    pub occurred_at: DateTime<Utc>,
    /// In a few words.
    pub title: String,
    /// Whose it is.
    pub requester: String,
    /// Who works on it now.
    pub assignee: Option<String>,
    /// How soon.
    pub priority: Priority,
    /// How far it is now.
    pub status: Status,
    /// How far it was before.
    pub previous_status: Option<Status>,
}

impl TicketEvent {
    /// What is told of `ticket` as it is now.
    pub fn of(ticket: &Ticket, previous_status: Option<Status>) -> Self {
        Self {
            ticket_id: ticket.id,
            version: ticket.version,
            occurred_at: ticket.updated_at,
            title: ticket.title.clone(),
            requester: ticket.requester.clone(),
            assignee: ticket.assignee.clone(),
            priority: ticket.priority,
            status: ticket.status,
            previous_status,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_ticket_stays_closed_and_no_status_follows_itself() {
        for next in Status::ALL {
            assert!(!Status::Closed.may_become(next));
            assert!(!next.may_become(next));
            assert_eq!(Status::parse(next.as_str()), Some(next));
        }
        assert!(Status::Resolved.may_become(Status::InProgress), "it can be reopened");
    }

    #[test]
    fn everything_that_is_wrong_is_named_at_once() {
        let new = NewTicket {
            title: "  ".into(),
            description: "x".repeat(10_001),
            requester: "nobody".into(),
            priority: Priority::Low,
        };
        let fields: Vec<&str> = new.problems().iter().map(|problem| problem.field).collect();
        assert_eq!(fields, ["title", "description", "requester"]);
        let right = NewTicket {
            title: "Printer on fire".into(),
            description: String::new(),
            requester: "ana@example.org".into(),
            priority: Priority::High,
        };
        assert!(right.problems().is_empty());
    }
}
