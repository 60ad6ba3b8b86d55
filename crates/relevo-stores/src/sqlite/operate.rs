//! What people look at and do.

use super::errors::Sql;
use super::rows::event;
use super::{SqliteStore, doctor, migrate, requests, retention, status, subscriptions, why};
use async_trait::async_trait;
use bytes::Bytes;
use relevo_core::dead_letters::{
    Answer, DeadFilter, DeadLetter, DeadLetterId, Finding, LogStatus, Operate, ReplayProgress,
    RetentionPlan, Unproven,
};
use relevo_core::limits::Limits;
use relevo_core::outbox::{Retention, Start};
use relevo_core::{Event, EventId, Headers, NewEvent, Result};
use rusqlite::{Transaction, params};

#[async_trait]
impl Operate for SqliteStore {
    async fn migrate(&self) -> Result<Vec<String>> {
        let next = self.inner.next;
        self.write(move |tx| migrate::apply(tx, next.as_ref())).await
    }

    async fn status(&self) -> Result<LogStatus> {
        status::status(self).await
    }

    async fn why(&self, event: EventId) -> Result<Answer> {
        self.read(move |tx| why::why(tx, event)).await
    }

    async fn publish_now(&self, event: NewEvent) -> Result<EventId> {
        let outbox = self.outbox();
        self.write(move |tx| Ok(outbox.publish_sync(tx, event)?)).await
    }

    async fn peek(&self, after: i64, max_rows: usize) -> Result<Vec<(i64, Event)>> {
        self.read(move |tx| peek(tx, after, max_rows)).await
    }

    async fn pause(&self, subscription: &str, by: &str) -> Result<()> {
        let (subscription, by) = (subscription.to_owned(), by.to_owned());
        self.write(move |tx| subscriptions::pause(tx, &subscription, &by)).await
    }

    async fn resume(&self, subscription: &str) -> Result<()> {
        let subscription = subscription.to_owned();
        self.write(move |tx| subscriptions::resume(tx, &subscription)).await
    }

    async fn rewind_with(&self, subscription: &str, to: Start, unproven: Unproven) -> Result<()> {
        let subscription = subscription.to_owned();
        self.write(move |tx| subscriptions::rewind(tx, &subscription, to, unproven)).await
    }

    async fn remove(&self, subscription: &str) -> Result<()> {
        let subscription = subscription.to_owned();
        self.write(move |tx| subscriptions::remove(tx, &subscription)).await
    }

    async fn dead_letters(
        &self,
        filter: &DeadFilter,
        before: Option<DeadLetterId>,
        max: usize,
    ) -> Result<Vec<DeadLetter>> {
        let filter = filter.clone();
        self.read(move |tx| requests::find(tx, &filter, before, max)).await
    }

    async fn replay_with(
        &self,
        filter: &DeadFilter,
        rate: Option<f64>,
        unproven: Unproven,
    ) -> Result<ReplayProgress> {
        let filter = filter.clone();
        self.write(move |tx| requests::replay(tx, &filter, rate, unproven)).await
    }

    async fn replay_progress(&self, operation: i64) -> Result<ReplayProgress> {
        self.read(move |tx| requests::progress(tx, operation)).await
    }

    async fn cancel_replay(&self, operation: i64) -> Result<ReplayProgress> {
        self.write(move |tx| requests::cancel(tx, operation)).await
    }

    async fn replay_edited(
        &self,
        id: DeadLetterId,
        payload: Bytes,
        headers: Headers,
    ) -> Result<EventId> {
        let mut edited = NewEvent::bytes("edited", payload.clone());
        edited.headers = headers.clone();
        Limits::default().check(&edited)?;
        self.write(move |tx| requests::replay_edited(tx, id, &payload, &headers)).await
    }

    async fn archive(&self, filter: &DeadFilter) -> Result<u64> {
        let filter = filter.clone();
        self.write(move |tx| requests::archive(tx, &filter)).await
    }

    async fn retention(&self, retention: &Retention) -> Result<RetentionPlan> {
        retention::look_ahead(self, retention).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        doctor::doctor(self).await
    }
}

fn peek(tx: &Transaction<'_>, after: i64, max_rows: usize) -> Sql<Vec<(i64, Event)>> {
    let sql = "SELECT seq, id, topic, key, headers, payload, created_at FROM relevo_outbox WHERE seq > ?1 ORDER BY seq LIMIT ?2";
    let mut statement = tx.prepare_cached(sql)?;
    let limit = i64::try_from(max_rows).unwrap_or(i64::MAX);
    let rows =
        statement.query_map(params![after, limit], |row| Ok((row.get(0)?, event(row, 1)?)))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}
