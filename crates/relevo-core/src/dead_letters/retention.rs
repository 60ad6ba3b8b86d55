//! What retention would drop, and who holds the rest of the log.

use super::SubscriptionStatus;
use serde::Serialize;

/// What retention would drop now, and what holds the rest of the log.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct RetentionPlan {
    /// Events that would go now, at most: nothing is counted one by one.
    pub droppable_events: i64,
    /// Their bytes on disk, where the store can tell.
    pub droppable_bytes: Option<i64>,
    /// Events that every subscription is past, but that are not old enough, at most.
    pub young_events: i64,
    /// Their bytes on disk, where the store can tell.
    pub young_bytes: Option<i64>,
    /// Parked events whose bytes are kept apart when their part of the log goes.
    pub parked_events: i64,
    /// Dead letters that would go now.
    pub dead_letters: i64,
    /// Nobody subscribes: all of the log is kept.
    pub unread: bool,
    /// Each subscription with what it holds, the one that holds most first.
    pub holders: Vec<Holder>,
}

impl RetentionPlan {
    /// Whoever holds most comes first.
    pub fn sorted(mut self) -> Self {
        self.holders.sort_by_key(|holder| (holder.decided_seq, holder.subscription.clone()));
        self
    }
}

/// What a subscription keeps from being dropped.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Holder {
    /// Its name.
    pub subscription: String,
    /// Why it is not further: `at work`, `paused (by whom)`, `nobody works it`.
    pub state: String,
    /// Everything up to this place is decided for it.
    pub decided_seq: i64,
    /// Events it holds, at most.
    pub events: i64,
    /// Bytes of the log it holds, where the store can tell.
    pub bytes: Option<i64>,
}

impl Holder {
    /// What `status` holds, being decided up to `decided_seq`.
    pub fn of(
        status: &SubscriptionStatus,
        decided_seq: i64,
        events: i64,
        bytes: Option<i64>,
    ) -> Self {
        let at_work = status.members.iter().any(|member| member.silent_s < 60.0);
        let state = match &status.paused {
            Some(by) => format!("paused ({by})"),
            None if at_work => "at work".to_owned(),
            None => "nobody works it".to_owned(),
        };
        Self { subscription: status.name.clone(), state, decided_seq, events, bytes }
    }
}
