//! Pages of the log in commit order.

use super::PostgresStore;
use super::session::{Session, args};
use bytes::Bytes;
use relevo_core::limits::LANES;
use relevo_core::outbox::{Page, PageRequest, Position, Row as LogRow, Tick, Window};
use relevo_core::{Event, EventId, Headers, NewEvent, Result};
use std::sync::Arc;
use tokio_postgres::Row;

/// One statement looks at no more of the log than this, so that a lane with few events never makes it a long one.
const SPAN: i64 = 250_000;

/// The columns of an event, as [`event_at`] reads them.
pub(crate) const EVENT: &str = "id, topic, key, headers::text, payload, created_at";

/// The lane that a row lies in: what its publisher told, or, of a row that came without one, that of its key or id. A
/// number that is no lane must not hide its row.
pub(super) const LANE: &str =
    "coalesce(in_lane & 63::smallint, relevo.lane_of(coalesce(key, id::text)))";

/// Which rows of a stretch of the log belong to the window.
enum Belongs {
    /// Those of transactions that were open at its start.
    Late(Vec<i64>),
    /// Those that its end sees and its start did not.
    Main {
        seen_by: String,
        not_seen_by: String,
    },
    /// Those that its start, in another cluster, did not see.
    NotSeenBy(String),
    All,
}

/// A stretch of the log, `above < seq <= to`.
struct Stretch {
    above: i64,
    to: i64,
    belongs: Belongs,
}

/// The stretches of a window, in the order of `seq`.
fn stretches(window: Window) -> [Stretch; 2] {
    let Window { late_above, late_to, main_to, late_xids, seen_by, not_seen_by, rebase } = window;
    let (early, main) = if rebase {
        (Belongs::NotSeenBy(not_seen_by.to_string()), Belongs::All)
    } else {
        let main =
            Belongs::Main { seen_by: seen_by.to_string(), not_seen_by: not_seen_by.to_string() };
        (Belongs::Late(late_xids), main)
    };
    [
        Stretch { above: late_above, to: late_to, belongs: early },
        Stretch { above: late_to, to: main_to, belongs: main },
    ]
}

/// What is still wanted.
struct Room {
    rows: usize,
    bytes: i64,
}

impl PostgresStore {
    /// Reads on from where the asked lanes stand.
    pub(crate) async fn page(&self, request: &PageRequest) -> Result<Page> {
        let session = self.session().await?;
        // A tick may be lost in a crash of the server; memory of it must never lead a window.
        self.still_there(&session, request.position).await?;
        let from = self.tick(&session, request.position.from).await?;
        let to = match request.position.to {
            Some(to) => Some(self.tick(&session, to).await?),
            None => self.tick_after(&session, &from).await?,
        };
        match to {
            Some(to) => self.read_window(&session, request, &from, to).await,
            None => Ok(Page::nothing(request.position)),
        }
    }

    async fn read_window(
        &self,
        session: &Session,
        request: &PageRequest,
        from: &Tick,
        to: Arc<Tick>,
    ) -> Result<Page> {
        let mut page = Page { rows: Vec::new(), to: Some(to.tick), end: Position::at(to.tick) };
        let mut room =
            Room { rows: request.max_rows.max(1), bytes: request.max_bytes.max(1) as i64 };
        for stretch in stretches(Window::between(from, &to)?) {
            let above = stretch.above.max(request.position.seq);
            if let Some(stop) =
                read_stretch(session, &stretch, above, &request.lanes, &mut room, &mut page.rows)
                    .await?
            {
                page.end = Position { from: from.tick, to: Some(to.tick), seq: stop };
                break;
            }
        }
        Ok(page)
    }
}

/// Reads a stretch from `above` on; answers where it stopped if it did not reach the end.
async fn read_stretch(
    session: &Session,
    stretch: &Stretch,
    above: i64,
    lanes: &[u16],
    room: &mut Room,
    rows: &mut Vec<LogRow>,
) -> Result<Option<i64>> {
    let late = matches!(stretch.belongs, Belongs::Late(_));
    if matches!(&stretch.belongs, Belongs::Late(xids) if xids.is_empty()) {
        return Ok(None);
    }
    let mut at = above;
    while at < stretch.to {
        // Late rows are few and found by their transactions, however long the stretch is.
        let end = if late { stretch.to } else { stretch.to.min(at + SPAN) };
        let found = read_span(session, stretch, at, end, lanes, room).await?;
        let last = found.last().map(|row| row.seq);
        let end = if last.is_none() && end < stretch.to {
            before_next_row(session, end, stretch.to).await?
        } else {
            end
        };
        let full = take(found, room, rows);
        match last {
            Some(last) if full => return Ok(Some(last)),
            // Also without any row: a call that looks at a bounded part of the log always ends in time.
            _ if end < stretch.to => return Ok(Some(end)),
            _ => at = end,
        }
    }
    Ok(None)
}

/// The last number before the next row, at most `to`: the log may have jumped. Rows that are not visible yet are none
/// of a window that is frozen already.
async fn before_next_row(session: &Session, above: i64, to: i64) -> Result<i64> {
    let sql = "SELECT seq - 1 FROM relevo.outbox WHERE seq > $1 AND seq <= $2 ORDER BY seq LIMIT 1";
    Ok(session.query_opt(sql, args![above, to]).await?.map_or(to, |row| row.get(0)))
}

/// Moves rows over; true if there is room for no more.
fn take(found: Vec<LogRow>, room: &mut Room, rows: &mut Vec<LogRow>) -> bool {
    let bytes: usize = found.iter().map(|row| row.event.payload.len()).sum();
    room.rows = room.rows.saturating_sub(found.len());
    room.bytes -= bytes as i64;
    rows.extend(found);
    room.rows == 0 || room.bytes <= 0
}

async fn read_span(
    session: &Session,
    stretch: &Stretch,
    above: i64,
    to: i64,
    lanes: &[u16],
    room: &Room,
) -> Result<Vec<LogRow>> {
    let some = format!("AND {LANE} = ANY($5)");
    let lane_filter = if lanes.len() >= usize::from(LANES) { "" } else { &some };
    let lanes: Vec<i16> = lanes.iter().map(|lane| *lane as i16).collect();
    let limit = room.rows as i64;
    match &stretch.belongs {
        Belongs::Late(xids) => {
            // The inner query has neither order nor limit, or the planner would walk the whole stretch by seq.
            let inner = format!(
                "WITH late AS MATERIALIZED (
                   SELECT seq FROM relevo.outbox WHERE seq > $1 AND seq <= $2 AND xid = ANY($6) {lane_filter})
                 SELECT o.* FROM (SELECT seq FROM late ORDER BY seq LIMIT $3) l
                   JOIN relevo.outbox o ON o.seq = l.seq AND o.seq > $1 AND o.seq <= $2"
            );
            let args = args![above, to, limit, room.bytes, lanes, *xids];
            session.query_each(&bounded(&inner), args, log_row).await
        }
        Belongs::Main { seen_by, not_seen_by } => {
            let sees = "AND txid_visible_in_snapshot(xid, $6::text::txid_snapshot)
                        AND NOT txid_visible_in_snapshot(xid, $7::text::txid_snapshot)";
            let args = args![above, to, limit, room.bytes, lanes, *seen_by, *not_seen_by];
            session.query_each(&in_order(lane_filter, sees), args, log_row).await
        }
        Belongs::NotSeenBy(snapshot) => {
            let sees = "AND NOT txid_visible_in_snapshot(xid, $6::text::txid_snapshot)";
            let args = args![above, to, limit, room.bytes, lanes, *snapshot];
            session.query_each(&in_order(lane_filter, sees), args, log_row).await
        }
        Belongs::All => {
            let args = args![above, to, limit, room.bytes, lanes];
            session.query_each(&in_order(lane_filter, ""), args, log_row).await
        }
    }
}

/// Rows by seq. Where all lanes are read, nearly always all of them fit, which a sum over their lengths tells at a fraction
/// of what it costs to take the rows themselves through a window function; to look for those of a few lanes twice would
/// cost more.
fn in_order(lane_filter: &str, sees: &str) -> String {
    let found = |columns: &str| {
        format!(
            "SELECT {columns} FROM relevo.outbox WHERE seq > $1 AND seq <= $2 {lane_filter} {sees} ORDER BY seq LIMIT $3"
        )
    };
    if !lane_filter.is_empty() {
        return bounded(&found("*"));
    }
    let sizes = found("seq, octet_length(payload) AS size");
    let cut = format!(
        "SELECT min(seq) FROM (
           SELECT seq, sum(size) OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING) - size AS before FROM ({sizes}) sized) summed
          WHERE before >= $4"
    );
    let rows = found(&format!("seq, {LANE}, {EVENT}"));
    format!(
        "SELECT * FROM ({rows}) page
          WHERE CASE WHEN (SELECT sum(size) FROM ({sizes}) sized) > $4 THEN coalesce(seq < ({cut}), true) ELSE true END
            AND ($5::smallint[] IS NOT NULL) ORDER BY seq"
    )
}

/// Cuts what `inner` finds when the payloads before a row are $4 bytes or more. (A payload's length is known without
/// reading it.) $5 is named for the sake of statements that have no use for it.
fn bounded(inner: &str) -> String {
    format!(
        "SELECT seq, {LANE}, {EVENT} FROM (
           SELECT *, sum(octet_length(payload)) OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING) - octet_length(payload) AS before
             FROM ({inner}) found) page
          WHERE before < $4 AND ($5::smallint[] IS NOT NULL) ORDER BY seq"
    )
}

fn log_row(row: &Row) -> LogRow {
    LogRow { lane: row.get::<_, i16>(1) as u16, seq: row.get(0), event: event_at(row, 2) }
}

/// Reads the columns of [`EVENT`] from `first` on.
pub(crate) fn event_at(row: &Row, first: usize) -> Event {
    let payload = Bytes::copy_from_slice(row.get::<_, &[u8]>(first + 4));
    let id = EventId(row.get(first));
    let mut event = NewEvent::with_id(id, row.get::<_, String>(first + 1), payload);
    event.key = row.get(first + 2);
    event.headers = Headers::from_json_text(row.get(first + 3));
    Event::stored(event, row.get(first + 5))
}
