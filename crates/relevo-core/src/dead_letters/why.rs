//! Why an event is where it is.

use super::DeadLetterId;
use crate::event::EventId;
use chrono::{DateTime, Utc};
use serde::Serialize;

/// Why an event is where it is, for one subscription.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Why {
    /// Its effect happened, or its destination confirmed it.
    Delivered,
    /// The handler skipped it.
    Skipped {
        /// Why.
        reason: String,
    },
    /// The subscription does not want its topic.
    FilteredOut {
        /// What it wants.
        topics: Vec<String>,
    },
    /// The subscription starts after it.
    BeforeStart,
    /// Its key is parked and it is the first: it is tried again.
    Parked {
        /// Attempts so far.
        attempts: u32,
        /// When it is due; `None` while it is held for a person.
        due: Option<DateTime<Utc>>,
        /// Class of the last error.
        class: String,
        /// Text of the last error.
        error: String,
    },
    /// It waits behind another event of its key.
    ParkedBehind {
        /// The event it waits for.
        event: EventId,
        /// Events of its key before it.
        before: i64,
        /// When the first one is due.
        due: Option<DateTime<Utc>>,
        /// Text of its last error.
        error: String,
    },
    /// A dead letter holds its key (`after_dead = hold`, or too many in a row): it goes on once that one is replayed
    /// or archived.
    Held {
        /// The dead letter that holds the key.
        dead_letter: DeadLetterId,
        /// Its event.
        event: EventId,
        /// Events of its key that wait before it.
        before: i64,
        /// Class of the dead letter's last error.
        class: String,
        /// Text of the dead letter's last error.
        error: String,
    },
    /// It is a dead letter.
    Dead {
        /// Its number.
        dead_letter: DeadLetterId,
        /// What became of it: dead, requested, archived.
        dead_state: String,
        /// Class of the last error.
        class: String,
        /// Text of the last error.
        error: String,
    },
    /// An operator paused the subscription.
    Paused {
        /// Who, when and why.
        by: String,
        /// What it waits for once the subscription goes on, if it waited for something before.
        #[serde(skip_serializing_if = "Option::is_none")]
        then: Option<Box<Why>>,
    },
    /// The destination is down; the breaker probes.
    BreakerOpen {
        /// What the destination last answered, or did not.
        reason: String,
        /// For how long, in seconds.
        open_s: f64,
    },
    /// Another process has its lane and will get to it.
    LaneLeased {
        /// The lane.
        lane: u16,
        /// Who.
        owner: String,
        /// Seconds since the owner's last sign of life.
        silent_s: f64,
    },
    /// Nobody has its lane.
    NobodyWorks {
        /// The lane.
        lane: u16,
    },
    /// It is newer than the newest tick: the next one takes it.
    WaitsForTick,
    /// It is a row of an adopted table that no subscription relays.
    NotRelayed,
    /// It is a row of an adopted table whose own time has not come.
    NotDue {
        /// When it has.
        until: DateTime<Utc>,
    },
    /// It is a row of an adopted table that somebody holds locked.
    RowLocked {
        /// Who.
        by: Vec<OpenTransaction>,
    },
    /// It is a row of an adopted table; one of its key comes first, and somebody holds that one locked.
    BehindRow {
        /// The row that is held.
        row: String,
    },
    /// It is a row of an adopted table that the next claims will get to.
    Unclaimed {
        /// A process that claims.
        relay: String,
        /// Seconds since its last sign of life.
        silent_s: f64,
        /// Rows that come first.
        before: i64,
        /// There are more than that; they were not counted further.
        more: bool,
    },
    /// It is a row of an adopted table that says it was relayed; the log does not have it any more.
    Marked {
        /// When, if the table tells.
        at: Option<DateTime<Utc>>,
    },
    /// It is a row of an adopted table that failed for good. The table cannot tell, and its dead letter is gone.
    GivenUp,
    /// It is a row of an adopted table that was claimed, and the log does not have it.
    Taken,
    /// Its row was moved to its owner's table of dead letters.
    Buried {
        /// That table.
        table: String,
    },
    /// It is a row of an adopted table whose state is none of those to be relayed.
    OtherState {
        /// What the row says.
        says: Option<String>,
    },
}

impl Why {
    /// The same in a subscription that may be paused: what waits there for anything waits for the pause first.
    pub fn while_paused(self, by: Option<&str>) -> Self {
        let waits = match &self {
            Self::Parked { .. } | Self::ParkedBehind { .. } | Self::Held { .. } => true,
            Self::Dead { dead_state, .. } => dead_state == "requested",
            _ => false,
        };
        match by.filter(|_| waits) {
            Some(by) => Self::Paused { by: by.to_owned(), then: Some(Box::new(self)) },
            None => self,
        }
    }
}

/// Why an event is where it is.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "found", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Answer {
    /// No such event: never published, rolled back, or still inside an open transaction. `suspects` are the
    /// transactions that might hold it: those with an id that began before now and wrote.
    Unknown {
        /// Sessions with an open writing transaction, longest first.
        suspects: Vec<OpenTransaction>,
        /// The id lies before what retention has dropped.
        past_retention: bool,
    },
    /// It is in the log, or in parked keys or dead letters.
    Known {
        /// Its topic.
        topic: String,
        /// Its key.
        key: Option<String>,
        /// Its lane.
        lane: u16,
        /// Its place in the log.
        seq: Option<i64>,
        /// When it was published.
        created_at: DateTime<Utc>,
        /// For each subscription, why.
        subscriptions: Vec<(String, Why)>,
    },
    /// It is a row of an adopted table, and no event of the log: not yet, or not any more.
    InTable {
        /// The name under which the table was adopted.
        adoption: String,
        /// The table.
        table: String,
        /// The row's own id.
        row: String,
        /// Its topic, as far as there is one.
        topic: Option<String>,
        /// Its key.
        key: Option<String>,
        /// When it was made, if the table tells.
        created_at: Option<DateTime<Utc>>,
        /// Who relays the table.
        subscription: Option<String>,
        /// Why it is where it is.
        why: Why,
    },
}

/// A session that holds a transaction open.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct OpenTransaction {
    /// The server's process id.
    pub pid: i32,
    /// The application's name.
    pub application: String,
    /// How long it has been open, in seconds.
    pub open_s: f64,
    /// Its state (active, idle in transaction).
    pub state: String,
    /// Its last query, shortened.
    pub query: String,
}

impl OpenTransaction {
    /// A session as the server shows it.
    pub fn new(pid: i32, application: String, open_s: f64, state: String, query: String) -> Self {
        Self { pid, application, open_s, state, query }
    }
}
