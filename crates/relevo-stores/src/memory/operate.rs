//! What people look at and do.

use super::db::Db;
use super::lanes::{MemberRow, SubscriptionRow};
use super::log::LogRow;
use super::record::DeadRow;
use super::store::MemoryStore;
use async_trait::async_trait;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use relevo_core::dead_letters::{
    Answer, DeadFilter, DeadLetter, DeadLetterId, DeadState, Finding, LogStatus, MemberStatus,
    Operate, ReplayProgress, RetentionPlan, SubscriptionStatus, Unproven,
};
use relevo_core::event::{Event, EventId, Headers, NewEvent};
use relevo_core::outbox::{LaneId, MemberId, Probe, PublishIn, Retention, Start, Store};
use relevo_core::{Error, Kind, Result};
use std::sync::Arc;

/// Nobody counts as working on a subscription whose members have all been silent for this long.
const FORGOTTEN_S: f64 = 60.0;

impl Db {
    /// The whole state.
    pub fn status(&self, probe: Probe) -> LogStatus {
        let mut status =
            LogStatus::new(probe, self.sequence, 1, None, self.newest_tick().tick.number);
        status.subscriptions =
            self.subscriptions.iter().map(|(name, row)| self.status_of(name, row)).collect();
        status
    }

    pub(super) fn status_of(&self, name: &Arc<str>, row: &SubscriptionRow) -> SubscriptionStatus {
        let mut status = SubscriptionStatus::named(&**name);
        status.topics = row.about.topics.iter().map(ToString::to_string).collect();
        status.destination = row.about.destination.clone();
        status.paused = row.paused.clone();
        status.members =
            self.members_of(name).map(|(who, row)| self.member_status(name, who, row)).collect();
        status.lanes_owned =
            self.cursors(name).filter(|(_, cursor)| cursor.owner.is_some()).count() as u32;
        status.parked_keys = self.parked(name).count() as i64;
        status.parked_events = self.waiting(name).count() as i64;
        let dead = |row: &&DeadRow| row.state == DeadState::Dead && row.lane.subscription == *name;
        status.dead_letters = self.dead_letters.values().filter(dead).count() as i64;
        status.moved_at = self.cursors(name).filter_map(|(_, cursor)| cursor.moved_at).max();
        self.describe_backlog(name, &mut status);
        status
    }

    /// In memory counting is cheap, so the backlog is exact: rows whose own lane has not decided them.
    fn describe_backlog(&self, name: &Arc<str>, status: &mut SubscriptionStatus) {
        let undecided = |seq: i64, row: &LogRow| {
            let lane = LaneId { subscription: name.clone(), lane: row.lane };
            self.cursors
                .get(&lane)
                .is_some_and(|cursor| !self.is_decided(cursor.position, seq, row))
        };
        let pending: Vec<&LogRow> = self
            .rows_after(0)
            .filter(|(seq, row)| undecided(*seq, row))
            .map(|(_, row)| row)
            .collect();
        let seconds = |since: DateTime<Utc>| (self.now - since).num_milliseconds() as f64 / 1000.0;
        status.backlog = pending.len() as i64;
        let oldest = pending.iter().map(|row| row.event.created_at).min();
        status.oldest_pending_s = oldest.map_or(0.0, seconds);
        if oldest.is_none() && status.parked_keys == 0 {
            return;
        }
        let last_sign = self.members_of(name).map(|(_, row)| row.at).max();
        let silent_s = last_sign.max(status.moved_at).or(oldest).map(seconds);
        status.forgotten_for_s = silent_s.filter(|silent_s| *silent_s > FORGOTTEN_S);
    }

    fn member_status(&self, name: &str, who: &MemberId, row: &MemberRow) -> MemberStatus {
        let lanes =
            self.cursors(name).filter(|(_, cursor)| cursor.owner.as_ref() == Some(who)).count()
                as u32;
        let note = serde_json::from_str(&row.note)
            .unwrap_or_else(|_| serde_json::Value::String(row.note.clone()));
        MemberStatus::new(
            who.to_string(),
            lanes,
            (self.now - row.at).num_milliseconds() as f64 / 1000.0,
            note,
        )
    }
}

fn letter(id: DeadLetterId, row: &DeadRow) -> DeadLetter {
    DeadLetter::stored(
        id,
        row.lane.subscription.to_string(),
        row.lane.lane,
        row.event.clone(),
        (row.class, row.error.clone(), row.attempts),
        row.first_failed_at,
        row.died_at,
        row.state,
        row.copy_of,
    )
}

#[async_trait]
impl Operate for MemoryStore {
    async fn migrate(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    async fn status(&self) -> Result<LogStatus> {
        let probe = self.probe().await?;
        Ok(self.with(|db| db.status(probe)))
    }

    async fn why(&self, event: EventId) -> Result<Answer> {
        Ok(self.with(|db| db.why(event)))
    }

    async fn publish_now(&self, event: NewEvent) -> Result<EventId> {
        let mut tx = self.begin();
        let id = self.outbox().publish(&mut tx, event).await?;
        tx.commit()?;
        Ok(id)
    }

    async fn peek(&self, after: i64, max_rows: usize) -> Result<Vec<(i64, Event)>> {
        Ok(self.with(|db| {
            db.rows_after(after).take(max_rows).map(|(seq, row)| (seq, row.event.clone())).collect()
        }))
    }

    async fn pause(&self, subscription: &str, by: &str) -> Result<()> {
        self.statement(|db, random| db.pause(subscription, by, || random.token())).await
    }

    async fn resume(&self, subscription: &str) -> Result<()> {
        self.with(|db| db.resume(subscription))
    }

    async fn rewind_with(&self, subscription: &str, to: Start, unproven: Unproven) -> Result<()> {
        self.statement(|db, random| {
            if unproven == Unproven::Refuse {
                db.prove_rewind(subscription, to)?;
            }
            let nonce = random.token();
            db.rewind(subscription, to, nonce, || random.token())
        })
        .await
    }

    async fn remove(&self, subscription: &str) -> Result<()> {
        self.statement(|db, random| db.remove(subscription, || random.token())).await
    }

    async fn dead_letters(
        &self,
        filter: &DeadFilter,
        before: Option<DeadLetterId>,
        max: usize,
    ) -> Result<Vec<DeadLetter>> {
        Ok(self.with(|db| {
            db.find_dead(filter, before).take(max).map(|(id, row)| letter(id, row)).collect()
        }))
    }

    async fn replay_with(
        &self,
        filter: &DeadFilter,
        rate: Option<f64>,
        unproven: Unproven,
    ) -> Result<ReplayProgress> {
        if rate.is_some_and(|rate| rate.is_nan() || rate <= 0.0) {
            return Err(Error::new(Kind::InvalidArgument, "the rate must be above 0 a second")
                .from_adapter("memory"));
        }
        let progress = self.with(|db| {
            if unproven == Unproven::Refuse {
                db.prove_replay(filter)?;
            }
            db.replay(filter, rate)
        })?;
        self.ring();
        Ok(progress)
    }

    async fn replay_progress(&self, operation: i64) -> Result<ReplayProgress> {
        self.with(|db| db.replay_progress(operation))
    }

    async fn cancel_replay(&self, operation: i64) -> Result<ReplayProgress> {
        self.with(|db| db.cancel_replay(operation))
    }

    async fn replay_edited(
        &self,
        id: DeadLetterId,
        payload: Bytes,
        headers: Headers,
    ) -> Result<EventId> {
        let mut edited = NewEvent::bytes("edited", payload);
        edited.headers = headers;
        self.limits().check(&edited)?;
        self.with(|db| db.replay_edited(id, edited.id, edited.payload, edited.headers))
    }

    async fn archive(&self, filter: &DeadFilter) -> Result<u64> {
        self.statement(|db, _| db.archive(filter)).await
    }

    async fn retention(&self, retention: &Retention) -> Result<RetentionPlan> {
        Ok(self.with(|db| db.plan_retention(retention)))
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        Ok(self.with(|db| db.doctor()))
    }
}
