use crate::error::ErrorClass;
use crate::event::EventId;
use crate::outbox::LaneChange;
use std::time::Duration;

/// What changes of lanes mean for the owner's rows.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Marks {
    /// Confirmed (or skipped by choice): done with.
    pub published: Vec<EventId>,
    /// Failed, and tried again.
    pub failed: Vec<Failure>,
    /// Failed for good.
    pub dead: Vec<Failure>,
}

/// A failure of one event.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Failure {
    /// Which event.
    pub event: EventId,
    /// Attempts it had.
    pub attempts: u32,
    /// When it is tried again; `None`: not by itself.
    pub retry_in: Option<Duration>,
    /// Class of the error.
    pub class: ErrorClass,
    /// Its text.
    pub error: String,
}

impl Failure {
    /// An event that nobody can work on.
    pub fn poison(event: EventId, error: impl Into<String>) -> Self {
        let error = error.into();
        Self { event, attempts: 0, retry_in: None, class: ErrorClass::Poison, error }
    }
}

impl Marks {
    /// What these changes mean.
    pub fn of(changes: &[LaneChange]) -> Self {
        let mut marks = Self::default();
        for change in changes {
            marks.published.extend(&change.done);
            marks.published.extend(change.skips.iter().map(|skip| skip.event.id));
            marks.failed.extend(failures(change));
            marks.dead.extend(change.deaths.iter().map(|death| Failure {
                event: death.event.id,
                attempts: death.attempts,
                retry_in: None,
                class: death.class,
                error: death.error.clone(),
            }));
        }
        marks
    }

    /// True if no row is concerned.
    pub fn is_empty(&self) -> bool {
        self.published.is_empty() && self.failed.is_empty() && self.dead.is_empty()
    }
}

/// The failed events with what their parked keys tell.
fn failures(change: &LaneChange) -> impl Iterator<Item = Failure> {
    change.failed.iter().filter_map(|at| {
        let key = change.parked.iter().find(|key| key.key == at.key)?;
        let (attempts, retry_in, class) = (key.attempts, key.retry_in, key.class);
        Some(Failure { event: at.id, attempts, retry_in, class, error: key.error.clone() })
    })
}
