//! The port through which people look and act.

use super::{
    Answer, DeadFilter, DeadLetter, DeadLetterId, Finding, LogStatus, RetentionPlan, Unproven,
};
use crate::error::Result;
use crate::event::{Event, EventId, Headers, NewEvent};
use crate::outbox::{Retention, Start};
use async_trait::async_trait;
use bytes::Bytes;
use serde::Serialize;

/// A replay of many: a frozen set, at a rate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ReplayProgress {
    /// The operation's number.
    pub operation: i64,
    /// Dead letters in the frozen set.
    pub total: i64,
    /// Still to be put back.
    pub waiting: i64,
    /// Put back.
    pub replayed: i64,
    /// Taken out by a cancel.
    pub cancelled: i64,
}

impl ReplayProgress {
    /// Progress as the store counts it.
    pub fn new(operation: i64, total: i64, waiting: i64, replayed: i64, cancelled: i64) -> Self {
        Self { operation, total, waiting, replayed, cancelled }
    }
}

/// The port through which people look and act: the command line, later the console.
#[async_trait]
pub trait Operate: Send + Sync + 'static {
    /// Brings the schema up to this version; safe when two processes do it at once. Returns what it applied.
    async fn migrate(&self) -> Result<Vec<String>>;

    /// The whole state, without counting the log.
    async fn status(&self) -> Result<LogStatus>;

    /// Why is this event where it is?
    async fn why(&self, event: EventId) -> Result<Answer>;

    /// Publishes in a transaction of its own, for the command line.
    async fn publish_now(&self, event: NewEvent) -> Result<EventId>;

    /// Events above `after` in the order of their sequence numbers, for `tail`: a look, not a delivery.
    async fn peek(&self, after: i64, max_rows: usize) -> Result<Vec<(i64, Event)>>;

    /// Pauses a subscription; its owners are fenced off at once.
    async fn pause(&self, subscription: &str, by: &str) -> Result<()>;

    /// Lets a paused subscription go on.
    async fn resume(&self, subscription: &str) -> Result<()>;

    /// Moves every cursor of a subscription; effects happen again (backwards) or are left out (forwards). What goes
    /// outside and lies behind the inbox's horizon is treated as `unproven` says ([`super::proof`]).
    async fn rewind_with(&self, subscription: &str, to: Start, unproven: Unproven) -> Result<()>;

    /// [`Self::rewind_with`], refused where the proof is gone.
    async fn rewind(&self, subscription: &str, to: Start) -> Result<()> {
        self.rewind_with(subscription, to, Unproven::Refuse).await
    }

    /// Ends a subscription: cursors, parked keys and requests go; dead letters stay.
    async fn remove(&self, subscription: &str) -> Result<()>;

    /// Dead letters that match, newest first, below `before` if given.
    async fn dead_letters(
        &self,
        filter: &DeadFilter,
        before: Option<DeadLetterId>,
        max: usize,
    ) -> Result<Vec<DeadLetter>>;

    /// Freezes what matches (state dead) and asks for its replay, `rate` a second at most. All of it or nothing: one
    /// letter behind the inbox's horizon is treated as `unproven` says ([`super::proof`]).
    async fn replay_with(
        &self,
        filter: &DeadFilter,
        rate: Option<f64>,
        unproven: Unproven,
    ) -> Result<ReplayProgress>;

    /// [`Self::replay_with`], refused where the proof is gone.
    async fn replay(&self, filter: &DeadFilter, rate: Option<f64>) -> Result<ReplayProgress> {
        self.replay_with(filter, rate, Unproven::Refuse).await
    }

    /// How far a replay is.
    async fn replay_progress(&self, operation: i64) -> Result<ReplayProgress>;

    /// Takes out of a replay what was not put back yet.
    async fn cancel_replay(&self, operation: i64) -> Result<ReplayProgress>;

    /// Makes an edited copy with an id of its own, archives the original, and asks for the copy's replay.
    async fn replay_edited(
        &self,
        id: DeadLetterId,
        payload: Bytes,
        headers: Headers,
    ) -> Result<EventId>;

    /// Sets dead letters aside; a held key goes on.
    async fn archive(&self, filter: &DeadFilter) -> Result<u64>;

    /// What retention would drop now, and what holds the rest; changes nothing.
    async fn retention(&self, retention: &Retention) -> Result<RetentionPlan>;

    /// Looks at everything that commonly goes wrong.
    async fn doctor(&self) -> Result<Vec<Finding>>;
}
