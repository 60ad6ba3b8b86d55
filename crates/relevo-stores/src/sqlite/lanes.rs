//! Leases, cursors, and what waits in a lane.

use super::errors::{Sql, own};
use super::rows::{event, event_id, now, now_ms, text, tick};
use super::{log, requests};
use relevo_core::Kind;
use relevo_core::outbox::{
    Beat, Claim, EventRef, Fleet, LaneId, LaneState, Lease, MemberId, ParkedEvent, ParkedKey,
    Position, Token,
};
use rusqlite::{OptionalExtension, Row, Transaction, params};
use std::time::Duration;

/// Signs life and reads who is there.
pub(super) fn beat(tx: &Transaction<'_>, beat: &Beat) -> Sql<Fleet> {
    let name = &*beat.subscription;
    let paused = "SELECT paused IS NOT NULL FROM relevo_subscription WHERE name = ?1";
    let Some(paused) = tx.prepare_cached(paused)?.query_row([name], |row| row.get(0)).optional()?
    else {
        return Ok(Fleet { removed: true, ..Fleet::default() });
    };
    let sql = concat!(
        "INSERT INTO relevo_member (subscription, member, beat, note, seen_at) VALUES (?1, ?2, 1, ?3, ",
        now_ms!(),
        ") ON CONFLICT (subscription, member) DO UPDATE
           SET beat = beat + 1, note = excluded.note, seen_at = excluded.seen_at"
    );
    tx.prepare_cached(sql)?.execute(params![name, &*beat.member.0, beat.note])?;
    note_tick(tx)?;
    let members = members(tx, name)?;
    let leases = leases(tx, name)?;
    let requests = requests::due(tx, name, &beat.member)?;
    Ok(Fleet { members, leases, paused, removed: false, requests })
}

/// Notes how far the log had come at this time; a start at a time goes by it. Nothing is written while
/// nothing comes.
pub(super) fn note_tick(tx: &Transaction<'_>) -> Sql<()> {
    let number = log::newest(tx)?;
    let sql = concat!(
        "INSERT INTO relevo_tick (number, at) SELECT ?1, ",
        now_ms!(),
        " WHERE ?1 > (SELECT COALESCE(max(number), 0) FROM relevo_tick)"
    );
    tx.prepare_cached(sql)?.execute([number])?;
    Ok(())
}

fn members(tx: &Transaction<'_>, subscription: &str) -> Sql<Vec<(MemberId, i64)>> {
    let mut statement = tx.prepare_cached(
        "SELECT member, beat FROM relevo_member WHERE subscription = ?1 ORDER BY member",
    )?;
    let rows = statement.query_map([subscription], |row| {
        Ok((MemberId(row.get::<_, String>(0)?.into()), row.get(1)?))
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

fn leases(tx: &Transaction<'_>, subscription: &str) -> Sql<Vec<Lease>> {
    let mut statement = tx.prepare_cached(
        "SELECT lane, owner, token, from_number, to_number, seq FROM relevo_cursor WHERE subscription = ?1 ORDER BY lane",
    )?;
    let lease = |row: &Row<'_>| {
        let owner = row.get::<_, Option<String>>(1)?.map(|name| MemberId(name.into()));
        Ok(Lease { lane: row.get(0)?, owner, token: row.get(2)?, position: position(row, 3)? })
    };
    let rows = statement.query_map([subscription], lease)?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// Takes lanes whose token is still the one seen. A paused subscription's lanes are not to be had.
pub(super) fn take(
    tx: &Transaction<'_>,
    subscription: &str,
    claims: &[Claim],
    member: &MemberId,
    max_parked: usize,
) -> Sql<Vec<(u16, LaneState)>> {
    let sql = "UPDATE relevo_cursor SET token = ?4, owner = ?5 WHERE subscription = ?1 AND lane = ?2 AND token = ?3
               AND EXISTS (SELECT 1 FROM relevo_subscription WHERE name = ?1 AND paused IS NULL)";
    let mut taken = Vec::new();
    for claim in claims {
        let swapped = tx.prepare_cached(sql)?.execute(params![
            subscription,
            claim.lane,
            claim.seen,
            claim.fresh,
            &*member.0
        ])?;
        if swapped == 1
            && let Some(state) = load(tx, subscription, claim.lane, claim.fresh, max_parked)?
        {
            taken.push((claim.lane, state));
        }
    }
    Ok(taken)
}

/// Gives lanes back; a claim that no longer matches is passed over.
pub(super) fn release(tx: &Transaction<'_>, subscription: &str, claims: &[Claim]) -> Sql<()> {
    let sql = "UPDATE relevo_cursor SET token = ?4, owner = NULL WHERE subscription = ?1 AND lane = ?2 AND token = ?3";
    for claim in claims {
        tx.prepare_cached(sql)?.execute(params![
            subscription,
            claim.lane,
            claim.seen,
            claim.fresh
        ])?;
    }
    Ok(())
}

/// A lane under its token; `None` if the token is no longer in force.
pub(super) fn load(
    tx: &Transaction<'_>,
    subscription: &str,
    lane: u16,
    token: Token,
    max_parked: usize,
) -> Sql<Option<LaneState>> {
    let sql = "SELECT from_number, to_number, seq FROM relevo_cursor WHERE subscription = ?1 AND lane = ?2 AND token = ?3";
    let position = tx
        .prepare_cached(sql)?
        .query_row(params![subscription, lane, token], |row| position(row, 0))
        .optional()?;
    let Some(position) = position else { return Ok(None) };
    Ok(Some(LaneState { position, parked: parked_keys(tx, subscription, lane, max_parked)? }))
}

/// The columns `from_number, to_number, seq`, from `first` on.
fn position(row: &Row<'_>, first: usize) -> rusqlite::Result<Position> {
    Ok(Position {
        from: tick(row.get(first)?),
        to: row.get::<_, Option<i64>>(first + 1)?.map(tick),
        seq: row.get(first + 2)?,
    })
}

fn parked_keys(
    tx: &Transaction<'_>,
    subscription: &str,
    lane: u16,
    max: usize,
) -> Sql<Vec<ParkedKey>> {
    let now = now(tx)?;
    let sql = "SELECT key, attempts, deaths, due FROM relevo_parked_key WHERE subscription = ?1 AND lane = ?2
               ORDER BY key LIMIT ?3";
    let mut statement = tx.prepare_cached(sql)?;
    let limit = i64::try_from(max).unwrap_or(i64::MAX).saturating_add(1);
    let parked = |row: &Row<'_>| {
        let due: Option<i64> = row.get(3)?;
        let due_in = due
            .map(|due| Duration::from_millis(u64::try_from(due.saturating_sub(now)).unwrap_or(0)));
        Ok(ParkedKey { key: row.get(0)?, attempts: row.get(1)?, deaths: row.get(2)?, due_in })
    };
    let rows = statement.query_map(params![subscription, lane, limit], parked)?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// The first events that wait behind a key, in delivery order; their bytes come from the dead letter they
/// were, or from the log.
pub(super) fn read_parked(
    tx: &Transaction<'_>,
    lane: &LaneId,
    key: &str,
    max_rows: usize,
) -> Sql<Vec<ParkedEvent>> {
    let sql = "SELECT r.to_number, r.seq, r.id,
                      r.id, COALESCE(d.topic, o.topic), iif(d.number IS NULL, o.key, d.key), COALESCE(d.headers, o.headers),
                      COALESCE(d.payload, o.payload), COALESCE(d.created_at, o.created_at)
               FROM relevo_parked_ref r
               LEFT JOIN relevo_dead_letter d ON d.number = r.letter
               LEFT JOIN relevo_outbox o ON o.seq = r.seq AND o.id = r.id
               WHERE r.subscription = ?1 AND r.lane = ?2 AND r.key = ?3
               ORDER BY r.to_number, r.seq, r.id LIMIT ?4";
    let mut statement = tx.prepare_cached(sql)?;
    let limit = i64::try_from(max_rows).unwrap_or(i64::MAX);
    let mut rows = statement.query(params![&*lane.subscription, lane.lane, key, limit])?;
    let mut events = Vec::new();
    while let Some(row) = rows.next()? {
        let at = EventRef {
            key: key.to_owned(),
            to: tick(row.get(0)?),
            seq: row.get(1)?,
            id: event_id(row.get_ref(2)?),
        };
        if text(row.get_ref(4)?).is_none() {
            let why =
                format!("event {} is parked, but number {} is gone from the log", at.id, at.seq);
            return Err(own(Kind::EventNotFound, why).into());
        }
        events.push(ParkedEvent { at, event: event(row, 3)? });
    }
    Ok(events)
}

/// Forgets a member.
pub(super) fn forget(tx: &Transaction<'_>, subscription: &str, member: &MemberId) -> Sql<()> {
    tx.execute(
        "DELETE FROM relevo_member WHERE subscription = ?1 AND member = ?2",
        params![subscription, &*member.0],
    )?;
    Ok(())
}
