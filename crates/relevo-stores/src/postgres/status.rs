//! The whole state, from sequence numbers and ticks: the log is never counted.

use super::PostgresStore;
use super::log::LANE;
use super::retention::segments;
use super::session::{Session, args};
use relevo_core::Result;
use relevo_core::dead_letters::{LogStatus, MemberStatus, SubscriptionStatus};
use relevo_core::outbox::Store;
use tokio_postgres::Row;

/// How far beyond a cursor the oldest pending event is looked for, row by row.
const LOOK: i64 = 5_000;

/// Nobody counts as working on a subscription whose members have all been silent for this long.
const SILENT_S: f64 = 60.0;

/// How far each lane is decided: (subscription, lane, seq). Below the emptied end of the log nothing is pending.
const DECIDED: &str = "SELECT c.subscription, c.lane,
        greatest(CASE WHEN c.to_number IS NOT NULL AND c.seq > 0 THEN least(c.seq, greatest(t.low, c.seq)) ELSE t.low END,
                 coalesce((SELECT value::bigint FROM relevo.meta WHERE name = 'emptied_to_seq'), 0)) AS seq
   FROM relevo.cursor c JOIN relevo.tick t ON t.number = c.from_number";

impl PostgresStore {
    pub(crate) async fn whole_status(&self) -> Result<LogStatus> {
        let probe = self.probe().await?;
        let session = self.session().await?;
        let sql = "SELECT relevo.last_seq(), (SELECT max(number) FROM relevo.tick)";
        let row = session.query_one(sql, args![]).await?;
        let segments = segments(&session).await?;
        let bytes = segments.iter().map(|segment| segment.bytes).sum();
        let mut status =
            LogStatus::new(probe, row.get(0), segments.len() as i64, Some(bytes), row.get(1));
        status.subscriptions = subscriptions(&session).await?;
        Ok(status)
    }
}

pub(crate) async fn subscriptions(session: &Session) -> Result<Vec<SubscriptionStatus>> {
    let sql = format!(
        "WITH decided AS MATERIALIZED ({DECIDED})
         SELECT s.name, s.topics, s.destination, s.paused,
                (SELECT count(*) FROM relevo.cursor c WHERE c.subscription = s.name AND c.owner IS NOT NULL),
                relevo.events_between(coalesce((SELECT min(d.seq) FROM decided d WHERE d.subscription = s.name), 0), relevo.last_seq()),
                (SELECT count(*) FROM relevo.parked_key k WHERE k.subscription = s.name),
                (SELECT count(*) FROM relevo.parked_ref r WHERE r.subscription = s.name),
                (SELECT count(*) FROM relevo.dead_letter d WHERE d.subscription = s.name AND d.state = 'dead'),
                (SELECT max(c.moved_at) FROM relevo.cursor c WHERE c.subscription = s.name),
                extract(epoch FROM clock_timestamp() - greatest(
                    (SELECT max(m.seen_at) FROM relevo.member m WHERE m.subscription = s.name),
                    (SELECT max(c.moved_at) FROM relevo.cursor c WHERE c.subscription = s.name)))::float8
           FROM relevo.subscription s ORDER BY s.name"
    );
    let rows = session.query(&sql, args![]).await?;
    let mut found = Vec::with_capacity(rows.len());
    for row in &rows {
        let mut status = subscription(row);
        status.members = members(session, &status.name).await?;
        if status.backlog > 0 {
            status.oldest_pending_s = oldest_pending(session, &status.name).await?;
        }
        found.push(status);
    }
    Ok(found)
}

fn subscription(row: &Row) -> SubscriptionStatus {
    let mut status = SubscriptionStatus::named(row.get::<_, String>(0));
    status.topics = row.get(1);
    status.destination = row.get(2);
    status.paused = row.get(3);
    status.lanes_owned = row.get::<_, i64>(4) as u32;
    status.backlog = row.get(5);
    status.parked_keys = row.get(6);
    status.parked_events = row.get(7);
    status.dead_letters = row.get(8);
    status.moved_at = row.get(9);
    let waits = status.backlog > 0 || status.parked_keys > 0;
    let silent_s = row.get::<_, Option<f64>>(10).filter(|_| waits);
    status.forgotten_for_s = silent_s.filter(|silent_s| *silent_s > SILENT_S);
    status
}

async fn members(session: &Session, subscription: &str) -> Result<Vec<MemberStatus>> {
    let sql = "SELECT m.member, (SELECT count(*) FROM relevo.cursor c WHERE c.subscription = $1 AND c.owner = m.member),
                      extract(epoch FROM clock_timestamp() - m.seen_at)::float8, m.note::text
                 FROM relevo.member m WHERE m.subscription = $1 ORDER BY m.member";
    let rows = session.query(sql, args![subscription]).await?;
    let member = |row: &Row| {
        let note = row.get::<_, String>(3);
        let note = serde_json::from_str(&note).unwrap_or(serde_json::Value::String(note));
        MemberStatus::new(row.get::<_, String>(0), row.get::<_, i64>(1) as u32, row.get(2), note)
    };
    Ok(rows.iter().map(member).collect())
}

/// Age of the first event beyond the cursors, in seconds. Lanes that stand together are looked at together, and no
/// further than a few thousand rows: beyond those, the row where the look ended is young enough an answer.
async fn oldest_pending(session: &Session, subscription: &str) -> Result<f64> {
    let sql = format!(
        "WITH groups AS (SELECT d.seq, array_agg(d.lane) AS lanes FROM ({DECIDED}) d WHERE d.subscription = $1 GROUP BY d.seq)
         SELECT extract(epoch FROM clock_timestamp() - min(coalesce(near.created_at, far.created_at)))::float8
           FROM groups g
           LEFT JOIN LATERAL (SELECT o.created_at FROM relevo.outbox o
                WHERE o.seq > g.seq AND o.seq <= g.seq + $2 AND {LANE} = ANY(g.lanes)
                ORDER BY o.seq LIMIT 1) near ON true
           LEFT JOIN LATERAL (SELECT o.created_at FROM relevo.outbox o
                WHERE near.created_at IS NULL AND o.seq > g.seq + $2 ORDER BY o.seq LIMIT 1) far ON true"
    );
    let row = session.query_one(&sql, args![subscription, LOOK]).await?;
    Ok(row.get::<_, Option<f64>>(0).unwrap_or(0.0).max(0.0))
}
