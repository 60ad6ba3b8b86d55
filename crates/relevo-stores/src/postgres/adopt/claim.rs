//! Pending rows into the log: a short transaction that ends before anything is published.
//!
//! One claims at a time (`relevo.adopted` is locked, and whoever finds it locked goes on without), so the log gets the
//! rows in the table's order. A claim has no owner of its own: its event lies in a lane, and the lane's lease is what
//! comes back when its owner does not.

use super::super::publish::insert_landed;
use super::super::record::shown;
use super::super::session::{Session, Tx, args, in_one_trip};
use super::Adopted;
use bytes::Bytes;
use relevo_core::event::{lane_of, order_key};
use relevo_core::outbox::adopt::{Failure, Fit, Harvest, Pending, RawRow, Unfit, sort_out};
use relevo_core::{Result, telemetry};
use std::collections::{HashSet, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use tokio_postgres::Row;
use uuid::Uuid;

/// Most rows of one claim, if nobody says otherwise: its transaction stays short.
pub(super) const MOST_ROWS: usize = 1000;
/// So many rows that others hold are looked past.
const MOST_HELD: usize = 20_000;
/// One claims at a time.
const ALONE: &str = "SELECT FROM relevo.adopted WHERE name = $1 FOR UPDATE SKIP LOCKED";
/// More are not counted.
const MOST_COUNTED: i64 = 100_000;

/// Claims one after another, of what one look found.
#[derive(Default)]
struct Pass {
    /// What the look found and nobody claimed yet.
    ids: VecDeque<String>,
    looked: bool,
    /// Keys of rows that others hold: what follows of them is left as well.
    held_keys: HashSet<String>,
    held: usize,
    claimed: usize,
}

impl Adopted {
    /// Claims pending rows, in short transactions; answers how many.
    pub(super) async fn claim(&self, max_rows: usize, max_bytes: usize) -> Result<usize> {
        let session = self.store.session().await?;
        let mut pass = Pass::default();
        while self.claim_some(&session, &mut pass, max_rows, max_bytes).await? {}
        if pass.looked {
            self.held.store(pass.held.min(MOST_HELD), Relaxed);
        }
        Ok(pass.claimed)
    }

    /// One transaction; false if it was the last of its pass.
    async fn claim_some(
        &self,
        session: &Session,
        pass: &mut Pass,
        max_rows: usize,
        max_bytes: usize,
    ) -> Result<bool> {
        let name = &*self.name;
        let (tx, alone) =
            session.begin_by_index_with(session.query_opt(ALONE, args![name])).await?;
        if alone.is_none() {
            tx.rollback().await?;
            return Ok(false);
        }
        if !pass.looked {
            // Behind rows that others hold there are some that nobody does.
            pass.ids = self.look(&tx, max_rows + self.held.load(Relaxed)).await?;
            pass.looked = true;
        }
        let ids: Vec<String> = pass.ids.drain(..self.claim_rows.min(pass.ids.len())).collect();
        let rows = match ids.is_empty() {
            true => Vec::new(),
            false => self.rows(&tx, &ids, max_bytes).await?,
        };
        // Some were too large for one claim, or somebody was quicker: what follows of their keys waits for the next look.
        let all_came = rows.len() == ids.len();
        let harvest = sort_out(&self.statements.mapping, &self.name, rows, &mut pass.held_keys);
        pass.held += harvest.held;
        let claimed = harvest.fit.len() + harvest.unfit.len();
        match claimed {
            0 => tx.rollback().await?,
            _ => self.take(session, tx, &harvest).await?,
        }
        self.tell(&harvest);
        pass.claimed += claimed;
        Ok(all_came && !pass.ids.is_empty() && pass.claimed < max_rows)
    }

    async fn look(&self, session: &Session, max_rows: usize) -> Result<VecDeque<String>> {
        let args = args![&*self.name, max_rows.max(1) as i64];
        let found = session.query(&self.statements.look, args).await?;
        Ok(found.iter().map(|row| row.get(0)).collect())
    }

    async fn rows(
        &self,
        session: &Session,
        ids: &[String],
        max_bytes: usize,
    ) -> Result<Vec<RawRow<String>>> {
        let bytes = max_bytes.min(1 << 40) as i64;
        let args = args![&*self.name, ids.to_vec(), bytes];
        let found = session.query(&self.statements.claim, args).await?;
        Ok(found.iter().map(|row| raw(row, self.statements.content_type)).collect())
    }

    /// What was found is claimed, and so part of the log. The last statements travel together: each round trip keeps the
    /// rows locked, and everybody else from claiming.
    async fn take(&self, session: &Session, tx: Tx<'_>, harvest: &Harvest<String>) -> Result<()> {
        if !harvest.unfit.is_empty() {
            let rows = harvest.unfit.iter().map(|unfit| (unfit.row.as_str(), unfit.id.0));
            self.remember(session, rows).await?;
        }
        for unfit in &harvest.unfit {
            self.refuse(session, unfit).await?;
        }
        if harvest.fit.is_empty() {
            return tx.commit().await;
        }
        let rows = harvest.fit.iter().map(|fit| (fit.row.as_str(), fit.event.id.0));
        let events: Vec<_> =
            harvest.fit.iter().map(|Fit { event, created_at, .. }| (event, *created_at)).collect();
        let claimed = async {
            let (remembered, landed) =
                in_one_trip(self.remember(session, rows), insert_landed(session, &events)).await?;
            remembered.and(landed)
        };
        tx.commit_with(claimed).await
    }

    /// Which event a row is.
    async fn remember(
        &self,
        session: &Session,
        rows: impl IntoIterator<Item = (&str, Uuid)>,
    ) -> Result<()> {
        let (ids, events): (Vec<&str>, Vec<Uuid>) = rows.into_iter().unzip();
        let sql = "INSERT INTO relevo.claim (adoption, row_id, event)
                   SELECT $1, r.row_id, r.event FROM unnest($2::text[], $3::uuid[]) AS r (row_id, event)
                   ON CONFLICT (adoption, row_id) DO UPDATE
                      SET event = excluded.event, state = 'claimed', claimed_at = clock_timestamp()";
        session.execute(sql, args![&*self.name, ids, events]).await?;
        Ok(())
    }

    /// A row that makes no event is a dead letter at once.
    async fn refuse(&self, session: &Session, unfit: &Unfit<String>) -> Result<()> {
        let Unfit { id, key, topic, payload, headers, error, .. } = unfit;
        let order_key = order_key(key.as_deref(), *id);
        let (lane, error) = (lane_of(&order_key) as i16, shown(&error.to_string()));
        let sql = "INSERT INTO relevo.dead_letter (subscription, lane, key, to_number, to_nonce, seq, id, topic, event_key,
                       headers, payload, created_at, class, error, attempts, first_failed_at)
                   VALUES ($1, $2, $3, 0, 0, 0, $4, $5, $6, $7::text::jsonb, $8, clock_timestamp(), 'poison', $9, 0, clock_timestamp())";
        let (name, topic, key) = (self.subscription(), shown(topic), key.as_deref().map(shown));
        let (order_key, headers) = (shown(&order_key), headers.to_json());
        let args = args![name, lane, order_key, id.0, topic, key, headers, &payload[..], error];
        session.execute(sql, args).await?;
        self.mark_dead(session, &[Failure::poison(*id, error)]).await
    }

    fn tell(&self, harvest: &Harvest<String>) {
        for Unfit { row, error, .. } in &harvest.unfit {
            tracing::warn!(adoption = %self.name, row, %error, "a row that makes no event is a dead letter");
            telemetry::refused_row(self.subscription());
        }
        if harvest.held > 0 {
            tracing::debug!(adoption = %self.name, rows = harvest.held, "rows that others hold are left for later");
        }
    }

    pub(super) async fn count_pending(&self) -> Result<Pending> {
        let session = self.store.session().await?;
        let args = args![&*self.name, MOST_COUNTED];
        let row = session.query_one(&self.statements.pending, args).await?;
        Ok(Pending { rows: row.get(0), oldest_s: row.get(1) })
    }
}

pub(super) fn raw(row: &Row, content_type: &'static str) -> RawRow<String> {
    let id: String = row.get(0);
    RawRow {
        row: id.clone(),
        id,
        topic: row.get(1),
        key: row.get(2),
        kind: row.get(3),
        payload: row.get::<_, Option<&[u8]>>(4).map(Bytes::copy_from_slice),
        content_type,
        headers: row.get(5),
        correlation_id: row.get(6),
        tenant: row.get(7),
        created_at: row.get(8),
        locked_by_others: row.get(9),
    }
}
