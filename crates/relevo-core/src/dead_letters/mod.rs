//! What failed for good, with its reason; and the port through which operators look and act.
//!
//! # Layout
//! - [`DeadLetter`], [`DeadFilter`]: what failed for good, and which of it is meant
//! - [`Operate`]: the port
//! - what it answers: [`LogStatus`], why an event is where it is ([`Why`], [`Answer`]), [`RetentionPlan`], [`Finding`]
//! - [`proof`]: what may be done again, and what only for who insists

#[cfg(test)]
mod answers_tests;
mod doctor;
mod operate;
pub mod proof;
mod retention;
mod status;
mod why;

use crate::error::ErrorClass;
use crate::event::{Event, EventId};
use chrono::{DateTime, Utc};
use serde::Serialize;

pub use doctor::{Finding, Level};
pub use operate::{Operate, ReplayProgress};
pub use proof::Unproven;
pub use retention::{Holder, RetentionPlan};
pub use status::{LogStatus, MemberStatus, SubscriptionStatus};
pub use why::{Answer, OpenTransaction, Why};

/// A dead letter's number.
pub type DeadLetterId = i64;

/// What became of a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum DeadState {
    /// Waiting for a person.
    Dead,
    /// Asked to be replayed; the lane's owner will put it back.
    Requested,
    /// Put back into delivery.
    Replayed,
    /// Set aside.
    Archived,
}

impl DeadState {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Dead, Self::Requested, Self::Replayed, Self::Archived];

    /// The word used in tables and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Dead => "dead",
            Self::Requested => "requested",
            Self::Replayed => "replayed",
            Self::Archived => "archived",
        }
    }

    /// Reads the word that [`Self::as_str`] writes.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

/// An event that failed for good.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeadLetter {
    /// Its number.
    pub id: DeadLetterId,
    /// Whose delivery failed.
    pub subscription: String,
    /// The lane it came from.
    pub lane: u16,
    /// The event with its original bytes and headers.
    pub event: Event,
    /// Class of the last error.
    pub class: ErrorClass,
    /// Text of the last error.
    pub error: String,
    /// Attempts it had.
    pub attempts: u32,
    /// When it first failed.
    pub first_failed_at: DateTime<Utc>,
    /// When it was given up.
    pub died_at: DateTime<Utc>,
    /// What became of it.
    pub state: DeadState,
    /// The dead letter this is an edited copy of.
    pub copy_of: Option<DeadLetterId>,
}

impl DeadLetter {
    /// Puts a dead letter together from what a store read.
    #[allow(clippy::too_many_arguments)]
    pub fn stored(
        id: DeadLetterId,
        subscription: String,
        lane: u16,
        event: Event,
        failure: (ErrorClass, String, u32),
        first_failed_at: DateTime<Utc>,
        died_at: DateTime<Utc>,
        state: DeadState,
        copy_of: Option<DeadLetterId>,
    ) -> Self {
        let (class, error, attempts) = failure;
        Self {
            id,
            subscription,
            lane,
            event,
            class,
            error,
            attempts,
            first_failed_at,
            died_at,
            state,
            copy_of,
        }
    }
}

/// Which dead letters are meant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadFilter {
    /// These numbers only.
    pub ids: Vec<DeadLetterId>,
    /// Of this subscription only.
    pub subscription: Option<String>,
    /// With this topic (exactly) only.
    pub topic: Option<String>,
    /// Of this key only.
    pub key: Option<String>,
    /// Of this class only.
    pub class: Option<ErrorClass>,
    /// In this state only (default: dead).
    pub state: Option<DeadState>,
    /// Whose error contains this text.
    pub text: Option<String>,
    /// Of this event only.
    pub event: Option<EventId>,
    /// Up to this number only: what dies later has a higher one and is not meant.
    pub up_to: Option<DeadLetterId>,
}
