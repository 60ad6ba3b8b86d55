//! Leases and cursors: who works which lane, and how far it is.

use super::errors::error;
use super::log::{EVENT, event_at};
use super::session::{Session, Tx, args};
use super::{PostgresStore, random, ticks};
use relevo_core::limits::LANES;
use relevo_core::outbox::{
    Beat, Claim, EventRef, Fleet, LaneId, LaneState, Lease, MemberId, ParkedEvent, ParkedKey,
    Position, Request, Start, Subscription, Tick, TickRef, Token,
};
use relevo_core::relay::AfterDead;
use relevo_core::{EventId, Kind, Result};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio_postgres::Row;

/// Requests that one beat brings.
const REQUESTS: i64 = 500;

/// The columns of a cursor, as [`position`] reads them.
const POSITION: &str = "from_number, from_nonce, to_number, to_nonce, seq";

impl PostgresStore {
    pub(crate) async fn subscribe_to(&self, subscription: &Subscription) -> Result<()> {
        let session = self.session().await?;
        self.decide_doorbell(&session).await?;
        let name: &str = &subscription.name;
        let known = session
            .query_opt("SELECT FROM relevo.subscription WHERE name = $1", args![name])
            .await?;
        let start = match known {
            Some(_) => None,
            None => Some(self.start_tick(&session, subscription.start).await?),
        };
        let tx = session.begin().await?;
        tx.query("SELECT relevo.lock_history()", args![]).await?;
        if !update_subscription(&tx, subscription).await? {
            let start = start.ok_or_else(|| unknown(name))?;
            // Found before the lock: it may have been pruned meanwhile.
            let start = self.kept(&tx, start, subscription.start).await?;
            insert_subscription(&tx, subscription, &start).await?;
        }
        tx.commit().await
    }

    /// The tick that a start means.
    pub(crate) async fn start_tick(&self, session: &Session, start: Start) -> Result<Tick> {
        match start {
            Start::Beginning => newest_until(session, None).await,
            Start::Now => self.fresh_tick(session).await,
            Start::Time(time) => newest_until(session, Some(time)).await,
        }
    }

    /// The same tick if it is still there, else the one that means the same now.
    pub(crate) async fn kept(&self, tx: &Tx<'_>, tick: Tick, start: Start) -> Result<Tick> {
        let TickRef { number, nonce } = tick.tick;
        let sql = "SELECT FROM relevo.tick WHERE number = $1 AND nonce = $2";
        match (tx.query_opt(sql, args![number, nonce]).await?, start) {
            (Some(_), _) => Ok(tick),
            (None, Start::Time(time)) => newest_until(tx, Some(time)).await,
            (None, _) => Err(error(
                Kind::TransactionConflict,
                "the tick to start from is gone already; try again",
            )),
        }
    }

    pub(crate) async fn sign_life(&self, beat: &Beat) -> Result<Fleet> {
        let session = self.reserved_session().await?;
        let (name, member): (&str, &str) = (&beat.subscription, &beat.member.0);
        let sign = "WITH asynchronously AS MATERIALIZED (SELECT relevo.durable(false))
            INSERT INTO relevo.member AS m (subscription, member, beat, note, seen_at)
            SELECT s.name, $2, 1, $3::text::jsonb, clock_timestamp() FROM relevo.subscription s, asynchronously WHERE s.name = $1
            ON CONFLICT (subscription, member) DO UPDATE
               SET beat = m.beat + 1, note = excluded.note, seen_at = excluded.seen_at";
        let note = note(&beat.note);
        let sign_args = args![name, member, note];
        let name_arg = args![name];
        let request_args = args![name, REQUESTS];
        let leases = format!(
            "SELECT lane, owner, token, {POSITION} FROM relevo.cursor WHERE subscription = $1 ORDER BY lane"
        );
        // One round trip; the server works them in this order.
        let (signed, members, leases, paused, requests) = futures::join!(
            session.execute(sign, sign_args),
            session.query("SELECT member, beat FROM relevo.member WHERE subscription = $1 ORDER BY member", name_arg),
            session.query(&leases, name_arg),
            session.query_opt("SELECT paused IS NOT NULL FROM relevo.subscription WHERE name = $1", name_arg),
            session.query(
                "SELECT request, lane, key FROM relevo.request
                  WHERE subscription = $1 AND state = 'waiting' AND due <= clock_timestamp() ORDER BY due, request LIMIT $2",
                request_args
            ),
        );
        signed?;
        let paused: Option<bool> = paused?.map(|row| row.get(0));
        Ok(Fleet {
            members: members?
                .iter()
                .map(|row| (MemberId(row.get::<_, String>(0).into()), row.get(1)))
                .collect(),
            leases: leases?.iter().map(lease).collect(),
            paused: paused.unwrap_or(false),
            removed: paused.is_none(),
            requests: requests?.iter().map(request).collect(),
        })
    }

    pub(crate) async fn take(
        &self,
        subscription: &str,
        claims: &[Claim],
        member: &MemberId,
        max_parked: usize,
    ) -> Result<Vec<(u16, LaneState)>> {
        let session = self.reserved_session().await?;
        let owner: Option<&str> = Some(&member.0);
        let got = swap_tokens(&session, subscription, claims, owner, true).await?;
        let tokens: Vec<(u16, Token)> = claims
            .iter()
            .filter(|claim| got.contains(&claim.lane))
            .map(|claim| (claim.lane, claim.fresh))
            .collect();
        // Read after the swap is committed: what the owner before wrote last is in it.
        load(&session, subscription, &tokens, max_parked).await
    }

    pub(crate) async fn load_one(
        &self,
        lane: &LaneId,
        token: Token,
        max_parked: usize,
    ) -> Result<Option<LaneState>> {
        let session = self.reserved_session().await?;
        let found = load(&session, &lane.subscription, &[(lane.lane, token)], max_parked).await?;
        Ok(found.into_iter().next().map(|(_, state)| state))
    }

    pub(crate) async fn release(&self, subscription: &str, claims: &[Claim]) -> Result<()> {
        let session = self.reserved_session().await?;
        swap_tokens(&session, subscription, claims, None, false).await?;
        Ok(())
    }

    pub(crate) async fn parked_events(
        &self,
        lane: &LaneId,
        key: &str,
        max_rows: usize,
    ) -> Result<Vec<ParkedEvent>> {
        let session = self.session().await?;
        let sql = format!(
            "SELECT to_number, to_nonce, seq, ref_id, {EVENT} FROM (
               SELECT r.to_number, r.to_nonce, r.seq, r.id AS ref_id, r.id,
                      coalesce(r.topic, o.topic) AS topic,
                      CASE WHEN r.payload IS NULL THEN o.key ELSE r.event_key END AS key,
                      coalesce(r.headers, o.headers) AS headers,
                      coalesce(r.payload, o.payload) AS payload,
                      coalesce(r.created_at, o.created_at) AS created_at
                 FROM relevo.parked_ref r
                 LEFT JOIN LATERAL (SELECT * FROM relevo.outbox x WHERE x.seq = r.seq AND r.payload IS NULL) o ON true
                WHERE r.subscription = $1 AND r.lane = $2 AND r.key = $3
                ORDER BY r.to_number, r.seq LIMIT $4) parked
              ORDER BY to_number, seq"
        );
        let (name, number): (&str, i16) = (&lane.subscription, lane.lane as i16);
        let rows = session.query(&sql, args![name, number, key, max_rows as i64]).await?;
        rows.iter().map(|row| parked_event(row, key)).collect()
    }

    pub(crate) async fn forget(&self, subscription: &str, member: &MemberId) -> Result<()> {
        let session = self.reserved_session().await?;
        let member: &str = &member.0;
        session
            .execute(
                "DELETE FROM relevo.member WHERE subscription = $1 AND member = $2",
                args![subscription, member],
            )
            .await?;
        Ok(())
    }
}

pub(crate) fn unknown(subscription: &str) -> relevo_core::Error {
    error(
        Kind::UnknownSubscription,
        format!("{subscription:?}; `relevo subscriptions list` names those there are"),
    )
}

/// The newest tick made by `time`; the beginning of the log without one.
async fn newest_until(
    session: &Session,
    time: Option<chrono::DateTime<chrono::Utc>>,
) -> Result<Tick> {
    let sql = format!(
        "SELECT {} FROM relevo.tick WHERE number = 0 OR at <= $1 ORDER BY number DESC LIMIT 1",
        ticks::columns()
    );
    ticks::read(&session.query_one(&sql, args![time]).await?)
}

fn after_dead(subscription: &Subscription) -> &'static str {
    match subscription.after_dead {
        AfterDead::Continue => "continue",
        AfterDead::Hold => "hold",
    }
}

async fn update_subscription(tx: &Tx<'_>, subscription: &Subscription) -> Result<bool> {
    let sql = "UPDATE relevo.subscription SET topics = $2, destination = $3, after_dead = $4, outside = $5 WHERE name = $1";
    let Subscription { destination, outside, .. } = subscription;
    let name: &str = &subscription.name;
    let topics: Vec<&str> = subscription.topics.iter().map(|topic| topic.as_str()).collect();
    let updated = tx
        .execute(sql, args![name, topics, *destination, after_dead(subscription), *outside])
        .await?;
    Ok(updated == 1)
}

async fn insert_subscription(tx: &Tx<'_>, subscription: &Subscription, start: &Tick) -> Result<()> {
    let sql = "INSERT INTO relevo.subscription
               (name, topics, destination, after_dead, outside, start_generation, start_snapshot, start_top)
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
    let Subscription { destination, outside, .. } = subscription;
    let name: &str = &subscription.name;
    let topics: Vec<&str> = subscription.topics.iter().map(|topic| topic.as_str()).collect();
    let (snapshot, dead) = (start.snapshot.to_string(), after_dead(subscription));
    tx.execute(
        sql,
        args![name, topics, *destination, dead, *outside, start.generation, snapshot, start.top],
    )
    .await?;
    let lanes: Vec<i16> = (0..LANES as i16).collect();
    let tokens: Vec<i64> = lanes.iter().map(|_| random()).collect();
    let cursors = "INSERT INTO relevo.cursor (subscription, lane, token, from_number, from_nonce)
                   SELECT $1, l.lane, l.token, $4, $5 FROM unnest($2, $3) AS l (lane, token)";
    tx.execute(cursors, args![name, lanes, tokens, start.tick.number, start.tick.nonce]).await?;
    Ok(())
}

/// Swaps each lane's token if it is still the one seen; answers with the lanes that were got. Rows are locked in the
/// order of lanes, so that two takers never wait for each other.
async fn swap_tokens(
    session: &Session,
    subscription: &str,
    claims: &[Claim],
    owner: Option<&str>,
    taking: bool,
) -> Result<Vec<u16>> {
    let lanes: Vec<i16> = claims.iter().map(|claim| claim.lane as i16).collect();
    let seen: Vec<i64> = claims.iter().map(|claim| claim.seen).collect();
    let fresh: Vec<i64> = claims.iter().map(|claim| claim.fresh).collect();
    // Between its fence and its commit a sleeper holds the row of one lane: the others do not wait for it.
    let unless_held = if taking { "SKIP LOCKED" } else { "" };
    let sql = format!(
        "WITH durably AS MATERIALIZED (SELECT relevo.durable(true)),
        mine AS MATERIALIZED (
            SELECT c.lane, w.fresh FROM relevo.cursor c
              JOIN unnest($2::smallint[], $3::bigint[], $4::bigint[]) AS w (lane, seen, fresh) ON w.lane = c.lane AND w.seen = c.token
             WHERE c.subscription = $1
               AND NOT ($6 AND EXISTS (SELECT FROM relevo.subscription s WHERE s.name = $1 AND s.paused IS NOT NULL))
             ORDER BY c.lane FOR UPDATE OF c {unless_held})
        UPDATE relevo.cursor c SET token = mine.fresh, owner = $5
          FROM mine, durably WHERE c.subscription = $1 AND c.lane = mine.lane RETURNING c.lane"
    );
    let rows = session.query(&sql, args![subscription, lanes, seen, fresh, owner, taking]).await?;
    Ok(rows.iter().map(|row| row.get::<_, i16>(0) as u16).collect())
}

async fn load(
    session: &Session,
    subscription: &str,
    tokens: &[(u16, Token)],
    max_parked: usize,
) -> Result<Vec<(u16, LaneState)>> {
    let lanes: Vec<i16> = tokens.iter().map(|(lane, _)| *lane as i16).collect();
    let values: Vec<i64> = tokens.iter().map(|(_, token)| *token).collect();
    // One statement, one snapshot: a cursor and its parked keys belong together.
    let sql = format!(
        "SELECT c.lane, {POSITION}, k.key, k.attempts, k.deaths,
                extract(epoch FROM k.due - clock_timestamp())::float8 AS due_in
           FROM relevo.cursor c
           JOIN unnest($2::smallint[], $3::bigint[]) AS w (lane, token) ON w.lane = c.lane AND w.token = c.token
           LEFT JOIN LATERAL (
                SELECT p.key, p.attempts, p.deaths, p.due FROM relevo.parked_key p
                 WHERE p.subscription = $1 AND p.lane = c.lane ORDER BY p.key LIMIT $4) k ON true
          WHERE c.subscription = $1 ORDER BY c.lane, k.due NULLS LAST, k.key"
    );
    let rows =
        session.query(&sql, args![subscription, lanes, values, max_parked as i64 + 1]).await?;
    let mut found: BTreeMap<u16, LaneState> = BTreeMap::new();
    for row in &rows {
        let lane = row.get::<_, i16>(0) as u16;
        let state = found
            .entry(lane)
            .or_insert_with(|| LaneState { position: position(row, 1), parked: Vec::new() });
        state.parked.extend(parked_key(row, 6));
    }
    Ok(found.into_iter().collect())
}

/// Reads the columns of [`POSITION`] from `first` on.
pub(crate) fn position(row: &Row, first: usize) -> Position {
    let to: Option<i64> = row.get(first + 2);
    let nonce: Option<i64> = row.get(first + 3);
    Position {
        from: TickRef { number: row.get(first), nonce: row.get(first + 1) },
        to: to.map(|number| TickRef { number, nonce: nonce.unwrap_or_default() }),
        seq: row.get(first + 4),
    }
}

fn parked_key(row: &Row, first: usize) -> Option<ParkedKey> {
    let key: Option<String> = row.get(first);
    let due_in: Option<f64> = row.get(first + 3);
    key.map(|key| ParkedKey {
        key,
        attempts: row.get::<_, i32>(first + 1) as u32,
        deaths: row.get::<_, i32>(first + 2) as u32,
        due_in: due_in.map(|seconds| Duration::from_secs_f64(seconds.max(0.0))),
    })
}

fn parked_event(row: &Row, key: &str) -> Result<ParkedEvent> {
    let at = EventRef {
        key: key.to_owned(),
        to: TickRef { number: row.get(0), nonce: row.get(1) },
        seq: row.get(2),
        id: EventId(row.get(3)),
    };
    // Their segment stays, or their bytes are copied before it goes.
    if row.get::<_, Option<&[u8]>>(8).is_none() {
        let message = format!(
            "event {} waits behind key {key:?}, but its bytes are neither in the log nor with it",
            at.id
        );
        return Err(error(Kind::EventNotFound, message));
    }
    Ok(ParkedEvent { at, event: event_at(row, 4) })
}

fn lease(row: &Row) -> Lease {
    let owner: Option<String> = row.get(1);
    Lease {
        lane: row.get::<_, i16>(0) as u16,
        owner: owner.map(|owner| MemberId(owner.into())),
        token: row.get(2),
        position: position(row, 3),
    }
}

fn request(row: &Row) -> Request {
    Request { id: row.get(0), lane: row.get::<_, i16>(1) as u16, key: row.get(2) }
}

/// A note as JSON whatever the process wrote.
fn note(text: &str) -> String {
    let value = match serde_json::from_str::<serde_json::Value>(text) {
        Ok(value) => value,
        Err(_) if text.is_empty() => serde_json::json!({}),
        Err(_) => serde_json::json!({ "note": text }),
    };
    super::record::storable(&value.to_string())
}
