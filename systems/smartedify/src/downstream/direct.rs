//! Without a broker: the relay calls the downstream service itself, in this process.
//!
//! An event is confirmed once its effect has committed. If that answer gets lost (a crash between the two), the event
//! comes again and `processed_event_ids` knows it. No transaction spans the two databases, and none has to.

use super::directory::{Applied, NotApplied, apply};
use crate::db::Db;
use crate::embedded::Break;
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

impl Trouble {
    /// Begins or ends what can go wrong on the way to a destination; an answer is lost once.
    pub(crate) fn set(&self, what: Break, on: bool) {
        match what {
            Break::Fail => self.failing.store(on, Ordering::SeqCst),
            Break::Down => self.down.store(on, Ordering::SeqCst),
            Break::Twice if on => _ = self.lost_answers.fetch_add(1, Ordering::SeqCst),
            Break::Twice | Break::Poison | Break::Relay => {}
        }
    }

    /// Ends whatever lasts.
    pub(crate) fn end(&self) {
        [Break::Fail, Break::Down].into_iter().for_each(|what| self.set(what, false));
    }

    /// What a destination that is down answers, while it is to be.
    pub(crate) fn down(&self, events: &[&Event]) -> Option<Vec<Confirm>> {
        let down = || Confirm::Down { error: "the directory is down, on request".into() };
        self.down.load(Ordering::SeqCst).then(|| events.iter().map(|_| down()).collect())
    }

    /// What a destination that fails answers, while it is to.
    pub(crate) fn failure(&self, events: &[&Event]) -> Option<Vec<Confirm>> {
        let (class, error) = (ErrorClass::Transient, "the directory fails, on request");
        let refused = || Confirm::Refused { class, error: error.into(), after: None };
        self.failing.load(Ordering::SeqCst).then(|| events.iter().map(|_| refused()).collect())
    }

    /// The answers as they arrive: now and then none does.
    pub(crate) fn answers(&self, confirms: Vec<Confirm>) -> Vec<Confirm> {
        let one_less = |left: u32| left.checked_sub(1);
        if self.lost_answers.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_err() {
            return confirms;
        }
        let unknown = || Confirm::Unknown { error: "the answer was lost, on request".into() };
        confirms.iter().map(|_| unknown()).collect()
    }
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
        if let Some(down) = self.trouble.down(events) {
            return down;
        }
        if let Some(failed) = self.trouble.failure(events) {
            events.iter().for_each(|event| self.note(event, Attempt::Failed));
            return failed;
        }
        self.trouble.answers(self.effects(events).await)
    }
}
