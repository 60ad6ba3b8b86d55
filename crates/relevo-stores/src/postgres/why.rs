//! Why an event is where it is: the same predicates that the relay reads by.

use super::lanes::position;
use super::log::LANE;
use super::session::{Session, args};
use super::{PostgresStore, ticks};
use chrono::{DateTime, Utc};
use relevo_core::dead_letters::{Answer, OpenTransaction, Why};
use relevo_core::event::TopicFilter;
use relevo_core::outbox::{LEFT_OUT, MemberNote, Moved, Position, Snapshot, TickRef, Window};
use relevo_core::{EventId, Result};
use tokio_postgres::Row;

/// What is known of an event.
struct Place {
    id: EventId,
    topic: String,
    /// The consumer whose log it landed in.
    inbox: Option<String>,
    key: Option<String>,
    lane: u16,
    created_at: DateTime<Utc>,
    /// Its number and transaction, while the log has it.
    row: Option<(i64, i64)>,
}

/// A subscription and its cursor on the event's lane.
struct Reader {
    name: String,
    topics: Vec<String>,
    paused: Option<String>,
    start_generation: i64,
    start: Snapshot,
    start_top: i64,
    position: Position,
    owner: Option<String>,
}

impl PostgresStore {
    pub(crate) async fn answer_why(&self, event: EventId) -> Result<Answer> {
        self.why_on(&self.session().await?, event).await
    }

    pub(super) async fn why_on(&self, session: &Session, event: EventId) -> Result<Answer> {
        let found = find(session, event).await?;
        let inbox = found.as_ref().and_then(|place| place.inbox.as_deref());
        if let Some(answer) = self.why_in_table(session, event, found.is_some(), inbox).await? {
            return Ok(answer);
        }
        let Some(place) = found else {
            let suspects = suspects(session, THE_LOG_AND_TABLES).await?;
            return Ok(Answer::Unknown {
                suspects,
                past_retention: past_retention(session, event).await?,
            });
        };
        let mut subscriptions = Vec::new();
        for reader in readers(session, place.lane).await? {
            let why = self.why_for(session, &reader, &place).await?;
            subscriptions.push((reader.name, why));
        }
        let Place { topic, key, lane, created_at, row, .. } = place;
        Ok(Answer::Known {
            topic,
            key,
            lane,
            seq: row.map(|(seq, _)| seq),
            created_at,
            subscriptions,
        })
    }

    async fn why_for(&self, session: &Session, reader: &Reader, place: &Place) -> Result<Why> {
        if let Some(why) = exception(session, reader, place).await? {
            return Ok(why.while_paused(reader.paused.as_deref()));
        }
        if !wants(&reader.topics, place) {
            return Ok(Why::FilteredOut { topics: reader.topics.clone() });
        }
        // What the log no longer has, every cursor is past.
        let Some((seq, xid)) = place.row else { return Ok(Why::Delivered) };
        if self.is_before_start(session, reader, seq, xid).await? {
            return Ok(Why::BeforeStart);
        }
        if self.is_decided(session, reader.position, seq, xid).await? {
            let moves = moves(session, &reader.name, place.lane).await?;
            return Ok(match Moved::left_out(&moves, seq, xid) {
                true => Why::Skipped { reason: LEFT_OUT.to_owned() },
                false => Why::Delivered,
            });
        }
        self.why_undecided(session, reader, place.lane, (seq, xid)).await
    }

    /// Rows of a later generation have higher numbers than anything an earlier one has seen.
    async fn is_before_start(
        &self,
        session: &Session,
        reader: &Reader,
        seq: i64,
        xid: i64,
    ) -> Result<bool> {
        let from = self.tick(session, reader.position.from).await?;
        let same = from.generation == reader.start_generation;
        Ok(if same { reader.start.sees(xid) } else { seq <= reader.start_top })
    }

    async fn is_decided(
        &self,
        session: &Session,
        position: Position,
        seq: i64,
        xid: i64,
    ) -> Result<bool> {
        let from = self.tick(session, position.from).await?;
        if seq <= from.top && from.snapshot.sees(xid) {
            return Ok(true);
        }
        let Some(to) = position.to else { return Ok(false) };
        let to = self.tick(session, to).await?;
        Ok(seq <= position.seq && Window::between(&from, &to)?.contains(seq, xid))
    }

    async fn why_undecided(
        &self,
        session: &Session,
        reader: &Reader,
        lane: u16,
        row: (i64, i64),
    ) -> Result<Why> {
        if let Some(by) = &reader.paused {
            return Ok(Why::Paused { by: by.clone(), then: None });
        }
        let Some((owner, silent_s, note)) = owner(session, reader).await? else {
            return Ok(Why::NobodyWorks { lane });
        };
        if let Some(it) = MemberNote::read(&note).breaker_after(silent_s) {
            return Ok(Why::BreakerOpen { reason: it.reason, open_s: it.open_s });
        }
        if !self.newest_sees(session, row).await? {
            return Ok(Why::WaitsForTick);
        }
        Ok(Why::LaneLeased { lane, owner, silent_s })
    }

    async fn newest_sees(&self, session: &Session, (seq, xid): (i64, i64)) -> Result<bool> {
        let sql = "SELECT number, nonce FROM relevo.tick ORDER BY number DESC LIMIT 1";
        let row = session.query_one(sql, args![]).await?;
        let newest = self.tick(session, TickRef { number: row.get(0), nonce: row.get(1) }).await?;
        Ok(seq <= newest.top && newest.snapshot.sees(xid))
    }
}

/// Where operators moved a lane's cursor, in order.
async fn moves(session: &Session, subscription: &str, lane: u16) -> Result<Vec<Moved>> {
    let sql = "SELECT from_tick::text, to_tick::text, seq, after_tick::text FROM relevo.moved
                WHERE subscription = $1 AND lane = $2 ORDER BY move";
    let rows = session.query(sql, args![subscription, lane as i16]).await?;
    let moved = |row: &Row| {
        let to: Option<&str> = row.get(1);
        Ok(Moved {
            from: ticks::from_json(row.get(0))?,
            to: to.map(ticks::from_json).transpose()?,
            seq: row.get(2),
            after: ticks::from_json(row.get(3))?,
        })
    };
    rows.iter().map(moved).collect()
}

fn wants(topics: &[String], place: &Place) -> bool {
    let filters: Vec<_> =
        topics.iter().filter_map(|filter| TopicFilter::parse(filter).ok()).collect();
    TopicFilter::any_wants(&filters, &place.topic, place.inbox.as_deref())
}

/// Looks for the event in the log (by BRIN, its id being in time order), behind parked keys and among dead letters.
async fn find(session: &Session, event: EventId) -> Result<Option<Place>> {
    let sql = format!(
        "SELECT topic, key, {LANE}, created_at, headers->>'relevo-inbox', seq, xid FROM relevo.outbox WHERE id = $1 ORDER BY seq LIMIT 1"
    );
    if let Some(row) = session.query_opt(&sql, args![event.0]).await? {
        return Ok(Some(place(event, &row, Some((row.get(5), row.get(6))))));
    }
    let sql = "SELECT topic, event_key, lane, created_at, headers->>'relevo-inbox' FROM relevo.parked_ref
          WHERE id = $1 AND payload IS NOT NULL
         UNION ALL SELECT topic, event_key, lane, created_at, headers->>'relevo-inbox' FROM relevo.dead_letter WHERE id = $1 LIMIT 1";
    Ok(session.query_opt(sql, args![event.0]).await?.map(|row| place(event, &row, None)))
}

fn place(id: EventId, row: &Row, at: Option<(i64, i64)>) -> Place {
    Place {
        id,
        topic: row.get(0),
        inbox: row.get(4),
        key: row.get(1),
        lane: row.get::<_, i16>(2) as u16,
        created_at: row.get(3),
        row: at,
    }
}

async fn readers(session: &Session, lane: u16) -> Result<Vec<Reader>> {
    let sql = "SELECT s.name, s.topics, s.paused, s.start_generation, s.start_snapshot, s.start_top,
                      c.from_number, c.from_nonce, c.to_number, c.to_nonce, c.seq, c.owner
                 FROM relevo.subscription s JOIN relevo.cursor c ON c.subscription = s.name AND c.lane = $1 ORDER BY s.name";
    let rows = session.query(sql, args![lane as i16]).await?;
    let reader = |row: &Row| {
        Ok(Reader {
            name: row.get(0),
            topics: row.get(1),
            paused: row.get(2),
            start_generation: row.get(3),
            start: row.get::<_, &str>(4).parse()?,
            start_top: row.get(5),
            position: position(row, 6),
            owner: row.get(11),
        })
    };
    rows.iter().map(reader).collect()
}

/// Parked, dead or skipped: the exceptions are rows.
async fn exception(session: &Session, reader: &Reader, place: &Place) -> Result<Option<Why>> {
    if let Some(why) = parked(session, reader, place).await? {
        return Ok(Some(why));
    }
    let sql = "SELECT dead_letter, state, class, error FROM relevo.dead_letter
                WHERE id = $1 AND subscription = $2 ORDER BY dead_letter DESC LIMIT 1";
    let dead = session.query_opt(sql, args![place.id.0, reader.name]).await?;
    if let Some(row) = dead.filter(|row| row.get::<_, &str>(1) != "replayed") {
        let dead_letter = row.get(0);
        return Ok(Some(Why::Dead {
            dead_letter,
            dead_state: row.get(1),
            class: row.get(2),
            error: row.get(3),
        }));
    }
    let sql = "SELECT reason FROM relevo.skip WHERE subscription = $1 AND id = $2";
    let skip = session.query_opt(sql, args![reader.name, place.id.0]).await?;
    Ok(skip.map(|row| Why::Skipped { reason: row.get(0) }))
}

async fn parked(session: &Session, reader: &Reader, place: &Place) -> Result<Option<Why>> {
    let sql = "SELECT k.attempts, k.due, coalesce(held.class, k.class), coalesce(held.error, k.error), coalesce(held.id, first.id),
                      (SELECT count(*) FROM relevo.parked_ref b WHERE b.subscription = r.subscription AND b.lane = r.lane
                          AND b.key = r.key AND (b.to_number, b.seq) < (r.to_number, r.seq)), held.dead_letter
                 FROM relevo.parked_ref r
                 JOIN relevo.parked_key k ON k.subscription = r.subscription AND k.lane = r.lane AND k.key = r.key
                 JOIN LATERAL (SELECT f.id FROM relevo.parked_ref f WHERE f.subscription = r.subscription AND f.lane = r.lane
                          AND f.key = r.key ORDER BY f.to_number, f.seq LIMIT 1) first ON true
                 LEFT JOIN LATERAL (SELECT d.dead_letter, d.id, d.class, d.error FROM relevo.dead_letter d
                        WHERE k.due IS NULL AND d.state IN ('dead', 'requested') AND d.subscription = k.subscription
                          AND d.lane = k.lane AND d.key = k.key ORDER BY d.dead_letter DESC LIMIT 1) held ON true
                WHERE r.id = $1 AND r.subscription = $2 ORDER BY r.to_number, r.seq LIMIT 1";
    let row = session.query_opt(sql, args![place.id.0, reader.name]).await?;
    Ok(row.map(|row| {
        let (due, class, error): (Option<DateTime<Utc>>, String, String) =
            (row.get(1), row.get(2), row.get(3));
        let (event, before) = (EventId(row.get(4)), row.get(5));
        match (row.get(6), before) {
            (Some(dead_letter), before) => Why::Held { dead_letter, event, before, class, error },
            (None, 0) => Why::Parked { attempts: row.get::<_, i32>(0) as u32, due, class, error },
            (None, before) => Why::ParkedBehind { event, before, due, error },
        }
    }))
}

/// Who has the lane, how long it has been silent, and its note.
async fn owner(
    session: &Session,
    reader: &Reader,
) -> Result<Option<(String, f64, serde_json::Value)>> {
    let Some(owner) = &reader.owner else { return Ok(None) };
    let sql = "SELECT extract(epoch FROM clock_timestamp() - seen_at)::float8, note::text FROM relevo.member
                WHERE subscription = $1 AND member = $2";
    let row = session.query_opt(sql, args![reader.name, *owner]).await?;
    Ok(row.map(|row| {
        let note = serde_json::from_str(row.get(1)).unwrap_or_default();
        (owner.clone(), row.get(0), note)
    }))
}

/// What a session wrote to that may hold back an event of the log.
pub(super) const THE_LOG: &str = "SELECT 'relevo.outbox'::regclass";
/// The same of any event: a row of an adopted table is one, too. (to_regclass fails in a schema that one may not use.)
const THE_LOG_AND_TABLES: &str = "SELECT 'relevo.outbox'::regclass::oid UNION ALL SELECT c.oid FROM relevo.adopted o
     JOIN pg_namespace n ON n.nspname = split_part(o.table_name, '.', 1)
     JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = substr(o.table_name, strpos(o.table_name, '.') + 1)";

/// Sessions (and prepared transactions) that wrote to one of these and have not ended: whoever may hold the event. Locks
/// are for everybody to see; what a session of another user does is shown only to those with pg_read_all_stats.
pub(crate) async fn suspects(session: &Session, relations: &str) -> Result<Vec<OpenTransaction>> {
    let sql = format!("SELECT DISTINCT coalesce(l.pid, 0), coalesce(a.application_name, p.gid, ''),
                      coalesce(extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared))::float8, 0),
                      CASE WHEN l.pid IS NULL THEN 'prepared' ELSE coalesce(a.state, 'not shown to this user') END,
                      coalesce(left(a.query, 200), CASE WHEN l.pid IS NULL THEN 'COMMIT PREPARED ' || quote_literal(p.gid) END, '')
                 FROM pg_locks l
                 LEFT JOIN pg_stat_activity a ON a.pid = l.pid
                 LEFT JOIN pg_locks x ON l.pid IS NULL AND x.pid IS NULL AND x.locktype = 'transactionid'
                      AND x.virtualtransaction = l.virtualtransaction
                 LEFT JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
                WHERE l.locktype = 'relation' AND l.granted
                  AND l.relation IN ({relations})
                  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
                  AND l.mode = 'RowExclusiveLock' AND l.pid IS DISTINCT FROM pg_backend_pid()
                ORDER BY 3 DESC");
    let rows = session.query(&sql, args![]).await?;
    let open = |row: &Row| {
        OpenTransaction::new(row.get(0), row.get(1), row.get(2), row.get(3), row.get(4))
    };
    Ok(rows.iter().map(open).collect())
}

/// Was the event (whose id tells its time) published before what retention has emptied?
async fn past_retention(session: &Session, event: EventId) -> Result<bool> {
    let Some(at) = event.time() else { return Ok(false) };
    let sql = "SELECT EXISTS (SELECT FROM relevo.meta WHERE name = 'emptied_to_time' AND value::timestamptz >= $1)";
    Ok(session.query_one(sql, args![at]).await?.get(0))
}
