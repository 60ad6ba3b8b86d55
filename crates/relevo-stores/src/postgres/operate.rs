//! What people look at and do. Each method is written where its name says; pausing, rewinding and removing are here.
//!
//! # Locks, in the one order that everybody takes them
//!
//! 1. history (`relevo.lock_history`): whoever moves cursors to other ticks, prunes ticks, empties segments;
//! 2. the row of the subscription: pause, rewind and remove for update; a replay shares it, so that its subscription
//!    stays while it is asked for;
//! 3. records (`relevo.lock_records`): shared by everybody who records, held alone by pause, rewind and remove;
//! 4. a record's own rows (dead letters, refs, keys, requests), then the cursor. The cursor comes last there, because it
//!    is the fence; operators take it first. Only the third lock keeps the two from waiting for each other.
//!
//! The inbox's horizon is shared by whoever brings events again, at any point: only retention wants it alone, does without
//! if it is taken, and waits for nobody while it has it.
//!
//! A take-over knows none of this: it takes cursors that nobody holds, and passes over the others.

use super::horizon::prove_rewind;
use super::lanes::unknown;
use super::log::{EVENT, event_at};
use super::session::{Tx, args};
use super::{PostgresStore, random};
use async_trait::async_trait;
use bytes::Bytes;
use relevo_core::dead_letters::{
    Answer, DeadFilter, DeadLetter, DeadLetterId, Finding, LogStatus, Operate, ReplayProgress,
    RetentionPlan, Unproven,
};
use relevo_core::limits::LANES;
use relevo_core::outbox::{Retention, Start, Tick};
use relevo_core::{Event, EventId, Headers, NewEvent, Result};

#[async_trait]
impl Operate for PostgresStore {
    async fn migrate(&self) -> Result<Vec<String>> {
        self.bring_up().await
    }

    async fn status(&self) -> Result<LogStatus> {
        self.whole_status().await
    }

    async fn why(&self, event: EventId) -> Result<Answer> {
        self.answer_why(event).await
    }

    async fn publish_now(&self, event: NewEvent) -> Result<EventId> {
        self.publish_alone(event).await
    }

    async fn peek(&self, after: i64, max_rows: usize) -> Result<Vec<(i64, Event)>> {
        let session = self.session().await?;
        let sql =
            format!("SELECT seq, {EVENT} FROM relevo.outbox WHERE seq > $1 ORDER BY seq LIMIT $2");
        let rows = session.query(&sql, args![after, max_rows as i64]).await?;
        Ok(rows.iter().map(|row| (row.get(0), event_at(row, 1))).collect())
    }

    async fn pause(&self, subscription: &str, by: &str) -> Result<()> {
        let session = self.session().await?;
        let tx = session.begin().await?;
        let sql = "UPDATE relevo.subscription SET paused = $2 WHERE name = $1";
        if tx.execute(sql, args![subscription, by]).await? == 0 {
            tx.rollback().await?;
            return Err(unknown(subscription));
        }
        fence_off(&tx, subscription).await?;
        tx.commit().await
    }

    async fn resume(&self, subscription: &str) -> Result<()> {
        let session = self.session().await?;
        let sql = "UPDATE relevo.subscription SET paused = NULL WHERE name = $1";
        match session.execute(sql, args![subscription]).await? {
            0 => Err(unknown(subscription)),
            _ => Ok(()),
        }
    }

    async fn rewind_with(&self, subscription: &str, to: Start, unproven: Unproven) -> Result<()> {
        let session = self.session().await?;
        let known = session
            .query_opt("SELECT FROM relevo.subscription WHERE name = $1", args![subscription])
            .await?;
        known.ok_or_else(|| unknown(subscription))?;
        let tick = self.start_tick(&session, to).await?;
        let tx = session.begin().await?;
        tx.query("SELECT relevo.lock_history()", args![]).await?;
        let sql = "SELECT FROM relevo.subscription WHERE name = $1 FOR UPDATE";
        if tx.query_opt(sql, args![subscription]).await?.is_none() {
            tx.rollback().await?;
            return Err(unknown(subscription));
        }
        let tick = self.kept(&tx, tick, to).await?;
        if let Err(refusal) = prove_rewind(&tx, subscription, &tick, unproven).await {
            tx.rollback().await?;
            return Err(refusal);
        }
        fence_off(&tx, subscription).await?;
        note_moves(&tx, subscription, &tick).await?;
        move_cursors(&tx, subscription, &tick).await?;
        unpark_what_comes_again(&tx, subscription, &tick).await?;
        tx.commit().await
    }

    async fn remove(&self, subscription: &str) -> Result<()> {
        let session = self.session().await?;
        let tx = session.begin().await?;
        if tx
            .execute("DELETE FROM relevo.subscription WHERE name = $1", args![subscription])
            .await?
            == 0
        {
            tx.rollback().await?;
            return Err(unknown(subscription));
        }
        tx.query("SELECT relevo.lock_records($1, true)", args![subscription]).await?;
        forget_all(&tx, subscription).await?;
        tx.commit().await
    }

    async fn dead_letters(
        &self,
        filter: &DeadFilter,
        before: Option<DeadLetterId>,
        max: usize,
    ) -> Result<Vec<DeadLetter>> {
        self.find_dead(filter, before, max).await
    }

    async fn replay_with(
        &self,
        filter: &DeadFilter,
        rate: Option<f64>,
        unproven: Unproven,
    ) -> Result<ReplayProgress> {
        self.ask_replay(filter, rate, unproven).await
    }

    async fn replay_progress(&self, operation: i64) -> Result<ReplayProgress> {
        self.progress(operation).await
    }

    async fn cancel_replay(&self, operation: i64) -> Result<ReplayProgress> {
        self.cancel(operation).await
    }

    async fn replay_edited(
        &self,
        id: DeadLetterId,
        payload: Bytes,
        headers: Headers,
    ) -> Result<EventId> {
        self.ask_edited(id, payload, headers).await
    }

    async fn archive(&self, filter: &DeadFilter) -> Result<u64> {
        self.set_aside(filter).await
    }

    async fn retention(&self, retention: &Retention) -> Result<RetentionPlan> {
        self.plan_retention(retention).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        self.examine().await
    }
}

/// New tokens for every lane: whoever works them can record nothing any more.
async fn fence_off(tx: &Tx<'_>, subscription: &str) -> Result<()> {
    tx.query("SELECT relevo.lock_records($1, true)", args![subscription]).await?;
    tx.query("SELECT relevo.durable(true)", args![]).await?;
    tx.query(
        "SELECT FROM relevo.cursor WHERE subscription = $1 ORDER BY lane FOR UPDATE",
        args![subscription],
    )
    .await?;
    let lanes: Vec<i16> = (0..LANES as i16).collect();
    let tokens: Vec<i64> = lanes.iter().map(|_| random()).collect();
    let sql = "UPDATE relevo.cursor c SET token = f.token, owner = NULL
                 FROM unnest($2::smallint[], $3::bigint[]) AS f (lane, token) WHERE c.subscription = $1 AND c.lane = f.lane";
    tx.execute(sql, args![subscription, lanes, tokens]).await?;
    Ok(())
}

/// So that `why` can tell what is left out.
async fn note_moves(tx: &Tx<'_>, subscription: &str, after: &Tick) -> Result<()> {
    let sql = "INSERT INTO relevo.moved (subscription, lane, from_tick, to_tick, seq, after_tick)
        SELECT c.subscription, c.lane, to_jsonb(f), to_jsonb(t), c.seq, to_jsonb(a)
          FROM relevo.cursor c
          JOIN relevo.tick f ON f.number = c.from_number AND f.nonce = c.from_nonce
          LEFT JOIN relevo.tick t ON t.number = c.to_number AND t.nonce = c.to_nonce
          JOIN relevo.tick a ON a.number = $2 AND a.nonce = $3
         WHERE c.subscription = $1 ORDER BY c.lane";
    tx.execute(sql, args![subscription, after.tick.number, after.tick.nonce]).await?;
    Ok(())
}

async fn move_cursors(tx: &Tx<'_>, subscription: &str, tick: &Tick) -> Result<()> {
    let sql = "UPDATE relevo.cursor SET from_number = $2, from_nonce = $3, to_number = NULL, to_nonce = NULL, seq = 0,
                      moved_at = clock_timestamp() WHERE subscription = $1";
    tx.execute(sql, args![subscription, tick.tick.number, tick.tick.nonce]).await?;
    // Further back than it began: what lies between is its own now.
    let start =
        "UPDATE relevo.subscription SET start_generation = $2, start_snapshot = $3, start_top = $4
                  WHERE name = $1 AND start_top > $4";
    tx.execute(start, args![subscription, tick.generation, tick.snapshot.to_string(), tick.top])
        .await?;
    Ok(())
}

/// What the log brings again waits no more; what lies before the new position goes on waiting, and so do keys that
/// are held for an operator.
async fn unpark_what_comes_again(tx: &Tx<'_>, subscription: &str, tick: &Tick) -> Result<()> {
    // An edited copy has an id of its own: the log does not bring it again.
    let refs = "DELETE FROM relevo.parked_ref r USING relevo.outbox o
         WHERE r.subscription = $1 AND o.seq = r.seq AND o.id = r.id
           AND o.seq > $4 AND (o.seq > $3 OR NOT txid_visible_in_snapshot(o.xid, $2::text::txid_snapshot))";
    // Up to its floor a tick has decided everything, also what came from another cluster with ids that mean nothing here.
    let args = args![subscription, tick.snapshot.to_string(), tick.top, tick.floor];
    tx.execute(refs, args).await?;
    let keys = "DELETE FROM relevo.parked_key k WHERE k.subscription = $1 AND k.due IS NOT NULL AND NOT EXISTS (
         SELECT FROM relevo.parked_ref r WHERE r.subscription = k.subscription AND r.lane = k.lane AND r.key = k.key)";
    tx.execute(keys, args![subscription]).await?;
    Ok(())
}

/// Everything of a subscription but its dead letters, those asked for included.
async fn forget_all(tx: &Tx<'_>, subscription: &str) -> Result<()> {
    for sql in [
        "DELETE FROM relevo.cursor WHERE subscription = $1",
        "DELETE FROM relevo.member WHERE subscription = $1",
        "DELETE FROM relevo.parked_ref WHERE subscription = $1",
        "DELETE FROM relevo.parked_key WHERE subscription = $1",
        "UPDATE relevo.request SET state = 'cancelled', settled_at = clock_timestamp() WHERE subscription = $1 AND state = 'waiting'",
        "DELETE FROM relevo.skip WHERE subscription = $1",
        "DELETE FROM relevo.moved WHERE subscription = $1",
        "UPDATE relevo.dead_letter SET state = 'dead' WHERE subscription = $1 AND state = 'requested'",
    ] {
        tx.execute(sql, args![subscription]).await?;
    }
    Ok(())
}
