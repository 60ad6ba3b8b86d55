//! Without a broker: the relay calls the downstream service itself, in this process.
//!
//! An event is confirmed once its effect has committed. If that answer gets lost (a crash between the two), the event
//! comes again and `processed_event_ids` knows it. No transaction spans the two databases, and none has to.

use super::directory::{Applied, NotApplied, apply};
use crate::db::Db;
use crate::embedded::journal::{Attempt, Journal};
use async_trait::async_trait;
use relevo::broker::{Capabilities, Confirm, Publisher};
use relevo::{ErrorClass, Event};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// What goes wrong on request.
#[derive(Debug, Default)]
pub struct Trouble {
    /// Every effect fails.
    pub failing: AtomicBool,
    /// The service cannot be reached.
    pub down: AtomicBool,
    /// So many more waves take effect without their answer.
    pub lost_answers: AtomicU32,
}

/// Hands events to the downstream service in this process.
pub struct Direct {
    db: Db,
    journal: Option<Journal>,
    trouble: Arc<Trouble>,
}

impl Direct {
    /// Into this database.
    pub fn to(db: Db) -> Self {
        Self { db, journal: None, trouble: Arc::default() }
    }

    /// Notes every attempt, outside of any transaction.
    pub fn noting(mut self, journal: Journal) -> Self {
        self.journal = Some(journal);
        self
    }

    /// Goes wrong on request.
    pub fn troubled_by(mut self, trouble: Arc<Trouble>) -> Self {
        self.trouble = trouble;
        self
    }

    /// All of them in one transaction.
    async fn together(&self, events: &[&Event]) -> Result<Vec<Applied>, NotApplied> {
        let mut tx = self.db.begin().await?;
        let mut applied = Vec::new();
        for event in events {
            applied.push(apply(&mut tx.conn(), event).await?);
        }
        tx.commit().await?;
        Ok(applied)
    }

    /// A wave shares a transaction; if that fails each event has its own, so that each has an answer of its own.
    async fn effects(&self, events: &[&Event]) -> Vec<Confirm> {
        if let Ok(applied) = self.together(events).await {
            events
                .iter()
                .zip(applied)
                .for_each(|(event, applied)| self.note(event, applied.into()));
            return events.iter().map(|_| Confirm::Stored).collect();
        }
        let mut confirms = Vec::new();
        for event in events {
            let applied = self.together(std::slice::from_ref(event)).await;
            let attempt = applied.as_ref().map_or(Attempt::Failed, |applied| applied[0].into());
            self.note(event, attempt);
            confirms.push(applied.map_or_else(refusal, |_| Confirm::Stored));
        }
        confirms
    }

    fn note(&self, event: &Event, attempt: Attempt) {
        if let Some(journal) = &self.journal {
            journal.note(attempt, event.id);
        }
    }

    fn fail(&self, events: &[&Event]) -> Vec<Confirm> {
        events.iter().for_each(|event| self.note(event, Attempt::Failed));
        let (class, error) = (ErrorClass::Transient, "the directory fails, on request".to_owned());
        events
            .iter()
            .map(|_| Confirm::Refused { class, error: error.clone(), after: None })
            .collect()
    }
}

impl From<Applied> for Attempt {
    fn from(applied: Applied) -> Self {
        match applied {
            Applied::Now => Self::Effect,
            Applied::Before => Self::Duplicate,
        }
    }
}

fn refusal(why: NotApplied) -> Confirm {
    let class = match why {
        NotApplied::Invalid(_) => ErrorClass::Permanent,
        NotApplied::Database(_) => ErrorClass::Transient,
    };
    Confirm::Refused { class, error: why.to_string(), after: None }
}

#[async_trait]
impl Publisher for Direct {
    fn name(&self) -> &'static str {
        "direct"
    }

    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::default();
        can.publishes = true;
        can.durable = true;
        can.drops_duplicates = true;
        can
    }

    async fn publish(&self, events: &[&Event]) -> Vec<Confirm> {
        if self.trouble.down.load(Ordering::SeqCst) {
            let down = || Confirm::Down { error: "the directory is down, on request".into() };
            return events.iter().map(|_| down()).collect();
        }
        if self.trouble.failing.load(Ordering::SeqCst) {
            return self.fail(events);
        }
        let confirms = self.effects(events).await;
        let one_less = |left: u32| left.checked_sub(1);
        let lost = &self.trouble.lost_answers;
        if lost.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok() {
            let unknown = || Confirm::Unknown { error: "the answer was lost, on request".into() };
            return events.iter().map(|_| unknown()).collect();
        }
        confirms
    }
}
