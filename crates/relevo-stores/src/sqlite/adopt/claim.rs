//! Pending rows into the log: a short transaction that ends before anything is published.
//!
//! The file's write lock lets one claim at a time, so the log gets the rows in the table's order. A claim has no owner
//! of its own: its event lies in a lane, and the lane's lease is what comes back when its owner does not.

use super::super::errors::Sql;
use super::super::publish::insert_landed;
use super::super::record::shortened;
use super::super::rows::{now_ms, payload, text, time};
use super::Adopted;
use super::marks::mark_dead;
use super::statements::Statements;
use relevo_core::event::{lane_of, order_key};
use relevo_core::outbox::adopt::{Failure, Harvest, Pending, RawRow, Unfit, sort_out};
use relevo_core::{Result, telemetry};
use rusqlite::types::Value;
use rusqlite::{Row, Transaction, params};
use std::collections::HashSet;

/// Most rows of one claim, if nobody says otherwise: its transaction stays short.
pub(super) const MOST_ROWS: usize = 1000;
/// More are not counted.
const MOST_COUNTED: i64 = 100_000;

impl Adopted {
    /// Claims pending rows; answers how many.
    pub(super) async fn claim(&self, max_rows: usize, max_bytes: usize) -> Result<usize> {
        // The write lock is taken only if there is something to take.
        let (name, statements) = (self.name.clone(), self.statements.clone());
        if self.store.read(move |tx| look(tx, &statements, &name, 1, 0)).await?.is_empty() {
            return Ok(0);
        }
        let (name, statements) = (self.name.clone(), self.statements.clone());
        let subscription = self.subscription().to_owned();
        let harvest = self.store.write(move |tx| {
            let rows = look(tx, &statements, &name, max_rows, max_bytes)?;
            let harvest = sort_out(&statements.mapping, &name, rows, &mut HashSet::new());
            take(tx, &statements, (&name, &subscription), &harvest)?;
            Ok(harvest)
        });
        let harvest = harvest.await?;
        self.tell(&harvest);
        Ok(harvest.fit.len() + harvest.unfit.len())
    }

    fn tell(&self, harvest: &Harvest<Value>) {
        for Unfit { id, error, .. } in &harvest.unfit {
            tracing::warn!(adoption = %self.name, %id, %error, "a row that makes no event is a dead letter");
            telemetry::refused_row(self.subscription());
        }
    }

    pub(super) async fn count_pending(&self) -> Result<Pending> {
        let (name, statements) = (self.name.clone(), self.statements.clone());
        let counting = move |tx: &Transaction<'_>| {
            let found = tx.query_row(&statements.pending, params![&*name, MOST_COUNTED], |row| {
                Ok(Pending { rows: row.get(0)?, oldest_s: row.get(1)? })
            });
            Ok(found?)
        };
        self.store.read(counting).await
    }
}

/// Pending rows in order: at least one, if there is one, and none after there are so many bytes.
fn look(
    tx: &Transaction<'_>,
    statements: &Statements,
    name: &str,
    max_rows: usize,
    max_bytes: usize,
) -> Sql<Vec<RawRow<Value>>> {
    let mut statement = tx.prepare_cached(&statements.look)?;
    let mut found = statement.query(params![name, max_rows.max(1) as i64])?;
    let (mut rows, mut bytes) = (Vec::new(), 0);
    while let Some(row) = found.next()? {
        let row = raw(row, statements.content_type)?;
        bytes += row.payload.as_ref().map_or(0, |payload| payload.len());
        rows.push(row);
        if bytes > max_bytes {
            break;
        }
    }
    Ok(rows)
}

pub(super) fn raw(row: &Row<'_>, content_type: &'static str) -> rusqlite::Result<RawRow<Value>> {
    let text = |index: usize| row.get_ref(index).map(text);
    let bytes =
        Some(row.get_ref(4)?).filter(|value| !matches!(value, rusqlite::types::ValueRef::Null));
    Ok(RawRow {
        row: row.get(0)?,
        id: identity(row)?,
        topic: text(1)?,
        key: text(2)?,
        kind: text(3)?,
        payload: bytes.map(payload),
        content_type,
        headers: text(5)?,
        correlation_id: text(6)?,
        tenant: text(7)?,
        created_at: row.get::<_, Option<i64>>(8)?.map(time),
        locked_by_others: false,
    })
}

/// The id as text; sixteen bytes are a UUID.
pub(super) fn identity(row: &Row<'_>) -> rusqlite::Result<String> {
    let value = row.get_ref(0)?;
    let bytes = value.as_blob().ok().and_then(|blob| uuid::Uuid::from_slice(blob).ok());
    Ok(bytes.map_or_else(|| text(value).unwrap_or_default(), |uuid| uuid.to_string()))
}

fn take(
    tx: &Transaction<'_>,
    statements: &Statements,
    (name, subscription): (&str, &str),
    harvest: &Harvest<Value>,
) -> Sql<()> {
    let sql = concat!(
        "INSERT INTO relevo_claim (adoption, row_id, event) VALUES (?1, ?2, ?3) ON CONFLICT (adoption, row_id)
         DO UPDATE SET event = excluded.event, state = 'claimed', claimed_at = ",
        now_ms!()
    );
    let mut claim = tx.prepare_cached(sql)?;
    for fit in &harvest.fit {
        claim.execute(params![name, fit.row, fit.event.id.to_string()])?;
        insert_landed(tx, &fit.event, fit.created_at)?;
    }
    for unfit in &harvest.unfit {
        claim.execute(params![name, unfit.row, unfit.id.to_string()])?;
        refuse(tx, subscription, unfit)?;
        mark_dead(tx, statements, name, &Failure::poison(unfit.id, unfit.error.to_string()))?;
    }
    Ok(())
}

/// A row that makes no event is a dead letter at once.
fn refuse(tx: &Transaction<'_>, subscription: &str, unfit: &Unfit<Value>) -> Sql<()> {
    let Unfit { id, key, topic, payload, headers, error, .. } = unfit;
    let sql = concat!(
        "INSERT INTO relevo_dead_letter (subscription, lane, order_key, to_number, seq, event_id, topic, key, headers,
             payload, created_at, class, error, attempts, first_failed_at, died_at, state)
         VALUES (?1, ?2, ?3, 0, 0, ?4, ?5, ?6, ?9, ?7, ",
        now_ms!(),
        ", 'poison', ?8, 0, ",
        now_ms!(),
        ", ",
        now_ms!(),
        ", 'dead')"
    );
    let order_key = order_key(key.as_deref(), *id);
    let error = error.to_string();
    let params = params![
        subscription,
        lane_of(&order_key),
        order_key,
        id.to_string(),
        topic,
        key,
        &payload[..],
        shortened(&error),
        headers.to_json()
    ];
    tx.prepare_cached(sql)?.execute(params)?;
    Ok(())
}
