//! Pages of the log. A tick is a number of the log; the window from `a` to `b` is `a < seq <= b`.

use super::errors::{Sql, own};
use super::migrate;
use super::rows::{event, event_id, last_seq, text, tick};
use relevo_core::Kind;
use relevo_core::event::{lane_of, order_key};
use relevo_core::limits::LANES;
use relevo_core::outbox::{Page, PageRequest, Position, Probe, Row, TickRef};
use rusqlite::Transaction;

/// At most this many rows are looked at for one page, whatever part of them is of the asked lanes.
const MAX_SCAN: usize = 16_384;

/// Looks whether this file can be worked.
pub(super) fn probe(tx: &Transaction<'_>, next: Option<&migrate::Migration>) -> Sql<Probe> {
    let schema = migrate::require_current(tx, next)?;
    sequence_is_whole(tx)?;
    let server = format!("SQLite {}", rusqlite::version());
    let mut probe = Probe::new(server, schema, super::bell::WAKING);
    let version = migrate::version(next);
    if schema > version {
        let note = format!(
            "the file has schema {schema}, newer than this build's {version}; it goes on beside it"
        );
        probe.notes.push(note);
    }
    Ok(probe)
}

/// A cursor beyond the log's end means that the numbers began again (`sqlite_sequence` was emptied, or an
/// older copy of the log was put in): new events would lie behind the cursors.
fn sequence_is_whole(tx: &Transaction<'_>) -> Sql<()> {
    let sql =
        "SELECT COALESCE(max(max(from_number, COALESCE(to_number, 0), seq)), 0) FROM relevo_cursor";
    let highest: i64 = tx.query_row(sql, [], |row| row.get(0))?;
    let last = last_seq(tx)?;
    if last >= highest {
        return Ok(());
    }
    let message = format!(
        "the log's last number is {last}, but a cursor stands at {highest}: set sqlite_sequence for relevo_outbox \
         to {highest} or more, or rewind the subscriptions"
    );
    Err(own(Kind::SequenceReset, message).into())
}

/// The newest number that is there.
pub(super) fn newest(tx: &Transaction<'_>) -> Sql<i64> {
    let sql = "SELECT COALESCE(max(seq), 0) FROM relevo_outbox";
    Ok(tx.prepare_cached(sql)?.query_row([], |row| row.get(0))?)
}

/// Reads on from where the asked lanes stand.
pub(super) fn read_page(tx: &Transaction<'_>, request: &PageRequest) -> Sql<Page> {
    let position = request.position;
    let to = match position.to {
        Some(to) => to,
        None => tick(newest(tx)?),
    };
    if to.number <= position.from.number {
        return Ok(Page::nothing(position));
    }
    let mut rows = Vec::new();
    let seen = scan(tx, request, to, &mut rows)?;
    let end = match seen {
        Some(seq) if seq < to.number => Position { from: position.from, to: Some(to), seq },
        _ => Position::at(to),
    };
    Ok(Page { rows, to: Some(to), end })
}

/// Collects rows of the asked lanes. Answers with the last row looked at if it stopped early, or `None` if
/// the window is done. Rows of other lanes count as looked at: what the asked lanes want of them is decided.
fn scan(
    tx: &Transaction<'_>,
    request: &PageRequest,
    to: TickRef,
    rows: &mut Vec<Row>,
) -> Sql<Option<i64>> {
    let wanted = lanes_wanted(&request.lanes);
    let sql = "SELECT seq, id, topic, key, headers, payload, created_at FROM relevo_outbox
               WHERE seq > ?1 AND seq <= ?2 ORDER BY seq LIMIT ?3";
    let mut statement = tx.prepare_cached(sql)?;
    let start = request.position.from.number.max(request.position.seq);
    let mut found = statement.query((start, to.number, MAX_SCAN as i64))?;
    let (mut looked, mut bytes) = (0, 0);
    while let Some(row) = found.next()? {
        let seq: i64 = row.get(0)?;
        looked += 1;
        // Only the key is read of a row that another reader wants: its payload stays on the disk.
        let id = event_id(row.get_ref(1)?);
        let lane = lane_of(&order_key(text(row.get_ref(3)?).as_deref(), id));
        if wanted[usize::from(lane)] {
            let event = event(row, 1)?;
            bytes += event.payload.len();
            rows.push(Row { lane, seq, event });
        }
        if rows.len() >= request.max_rows.max(1)
            || bytes >= request.max_bytes.max(1)
            || looked >= MAX_SCAN
        {
            return Ok(Some(seq));
        }
    }
    Ok(None)
}

fn lanes_wanted(lanes: &[u16]) -> [bool; LANES as usize] {
    let mut wanted = [false; LANES as usize];
    for lane in lanes {
        if let Some(slot) = wanted.get_mut(usize::from(*lane)) {
            *slot = true;
        }
    }
    wanted
}
