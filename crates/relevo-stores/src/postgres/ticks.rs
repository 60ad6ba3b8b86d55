//! Ticks: frozen points of the log. Each statement that makes one is a transaction of its own.

use super::errors::error;
use super::session::{Session, args};
use super::{PostgresStore, random};
use relevo_core::outbox::{
    Position, Snapshot, Tick, TickMaker, TickRef, TickReply, TickStep, tick_is_due,
};
use relevo_core::{Kind, Result};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio_postgres::Row;

/// At most one tick in this time.
const PACE: Duration = Duration::from_millis(5);
/// Ticks that memory keeps.
const REMEMBERED: usize = 4096;
/// Pages of the log are summarised for the search for late commits this often while ticks are made.
const SUMMARIZE_EVERY: Duration = Duration::from_secs(10);
/// A maker that loses its number so often stands against something else than other makers.
const MOST_TRIES: usize = 50;

const COLUMNS: &str = "number, nonce, generation, snapshot, low, top, floor";

/// What a process remembers of ticks: they never change, and one is made at a time.
#[derive(Default)]
pub(crate) struct Memory {
    known: Mutex<HashMap<TickRef, Arc<Tick>>>,
    making: tokio::sync::Mutex<Made>,
}

#[derive(Default)]
struct Made {
    last: Option<Instant>,
    summarized: Option<Instant>,
}

impl Memory {
    fn get(&self, tick: TickRef) -> Option<Arc<Tick>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&tick).cloned()
    }

    fn forget(&self, tick: TickRef) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(&tick);
    }

    fn keep(&self, tick: Tick) -> Arc<Tick> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REMEMBERED {
            known.clear();
        }
        let tick = Arc::new(tick);
        known.insert(tick.tick, tick.clone());
        tick
    }
}

/// The log's end as one look shows it.
struct Look {
    newest: Tick,
    last_seq: i64,
    now: Snapshot,
}

impl PostgresStore {
    /// The tick of this number and nonce.
    pub(crate) async fn tick(&self, session: &Session, wanted: TickRef) -> Result<Arc<Tick>> {
        if let Some(tick) = self.inner.ticks.get(wanted) {
            return Ok(tick);
        }
        let sql = format!("SELECT {COLUMNS} FROM relevo.tick WHERE number = $1 AND nonce = $2");
        match session.query_opt(&sql, args![wanted.number, wanted.nonce]).await? {
            Some(row) => Ok(self.inner.ticks.keep(read(&row)?)),
            None => Err(self.missing(session, wanted).await?),
        }
    }

    /// Refuses, as stale, a position whose ticks the server does not have (any more).
    pub(crate) async fn still_there(&self, session: &Session, position: Position) -> Result<()> {
        let Position { from, to, .. } = position;
        let ticks: Vec<TickRef> = std::iter::once(from).chain(to).collect();
        let numbers: Vec<i64> = ticks.iter().map(|tick| tick.number).collect();
        let nonces: Vec<i64> = ticks.iter().map(|tick| tick.nonce).collect();
        let sql = "SELECT w.number, w.nonce FROM unnest($1::bigint[], $2::bigint[]) AS w (number, nonce)
                    WHERE NOT EXISTS (SELECT FROM relevo.tick t WHERE t.number = w.number AND t.nonce = w.nonce)";
        match session.query_opt(sql, args![numbers, nonces]).await? {
            None => Ok(()),
            Some(row) => {
                let gone = TickRef { number: row.get(0), nonce: row.get(1) };
                self.inner.ticks.forget(gone);
                Err(self.missing(session, gone).await?)
            }
        }
    }

    /// A tick that was lost in a crash is stale memory; one that was pruned is a fault.
    async fn missing(&self, session: &Session, wanted: TickRef) -> Result<relevo_core::Error> {
        let sql =
            "SELECT EXISTS (SELECT FROM relevo.cursor WHERE from_number = $1 AND from_nonce = $2
                                     OR to_number = $1 AND to_nonce = $2)";
        let needed: bool = session.query_one(sql, args![wanted.number, wanted.nonce]).await?.get(0);
        let TickRef { number, .. } = wanted;
        Ok(if needed {
            error(
                Kind::TickMissing,
                format!("a cursor stands at tick {number}, which is gone; rewind the subscription"),
            )
        } else {
            error(
                Kind::Stale,
                format!("tick {number} is not the one remembered: the lane must be read again"),
            )
        })
    }

    /// The tick that a window from `from` leads to, making one if due; `None` if there is nothing beyond `from`.
    pub(crate) async fn tick_after(
        &self,
        session: &Session,
        from: &Tick,
    ) -> Result<Option<Arc<Tick>>> {
        let mut look = self.look(session).await?;
        if is_due(session, &look).await? {
            look = self.make_if_due(session, from).await?;
        }
        let newest = look.newest;
        if newest.tick.number <= from.tick.number {
            return if newest.tick == from.tick {
                Ok(None)
            } else {
                Err(self.missing(session, from.tick).await?)
            };
        }
        if newest.generation == from.generation {
            return Ok(Some(self.inner.ticks.keep(newest)));
        }
        // Transaction ids do not compare across clusters: the first tick of this one is as far as the window may go.
        self.first_of(session, newest.generation).await.map(Some)
    }

    async fn first_of(&self, session: &Session, generation: i64) -> Result<Arc<Tick>> {
        let sql = format!(
            "SELECT {COLUMNS} FROM relevo.tick WHERE generation = $1 ORDER BY number LIMIT 1"
        );
        let row = session.query_one(&sql, args![generation]).await?;
        Ok(self.inner.ticks.keep(read(&row)?))
    }

    async fn look(&self, session: &Session) -> Result<Look> {
        let sql = format!(
            "SELECT {COLUMNS}, relevo.last_seq(), txid_current_snapshot()::text FROM relevo.tick ORDER BY number DESC LIMIT 1"
        );
        let row = session.query_one(&sql, args![]).await?;
        Ok(Look { newest: read(&row)?, last_seq: row.get(7), now: row.get::<_, &str>(8).parse()? })
    }

    /// One maker at a time in a process; whoever waited for another's tick looks again first.
    async fn make_if_due(&self, session: &Session, from: &Tick) -> Result<Look> {
        let mut made = self.inner.ticks.making.lock().await;
        let mut look = self.look(session).await?;
        for _ in 0..MOST_TRIES {
            let wait = made.last.and_then(|last| PACE.checked_sub(last.elapsed()));
            let something_new = look.newest.tick.number > from.tick.number;
            if (something_new && wait.is_some()) || !is_due(session, &look).await? {
                break;
            }
            tokio::time::sleep(wait.unwrap_or_default()).await;
            let own = self.make(session).await?;
            made.last = Some(Instant::now());
            look = self.look(session).await?;
            // A tick of somebody else's may have begun before what makes this one due.
            if own.is_some() {
                break;
            }
        }
        self.summarize_now_and_then(session, &mut made, from.floor).await?;
        Ok(look)
    }

    async fn summarize_now_and_then(
        &self,
        session: &Session,
        made: &mut Made,
        floor: i64,
    ) -> Result<()> {
        if made.summarized.is_none_or(|at| at.elapsed() > SUMMARIZE_EVERY) {
            made.summarized = Some(Instant::now());
            self.summarize(session, floor).await?;
        }
        Ok(())
    }

    /// A tick begun after this call.
    pub(crate) async fn fresh_tick(&self, session: &Session) -> Result<Tick> {
        let mut made = self.inner.ticks.making.lock().await;
        for _ in 0..MOST_TRIES {
            if let Some(tick) = self.make(session).await? {
                made.last = Some(Instant::now());
                return Ok(tick);
            }
        }
        Err(error(Kind::TransactionConflict, "other processes made every tick first; try again"))
    }

    /// Makes a tick; `None` if somebody else took its number, or one beyond it: its own may be pruned already.
    async fn make(&self, session: &Session) -> Result<Option<Tick>> {
        let mut maker = TickMaker::new(random());
        loop {
            match maker.step() {
                TickStep::Insert(tick) => return self.insert(session, tick).await,
                step => maker.reply(answer(session, step).await?)?,
            }
        }
    }

    async fn insert(&self, session: &Session, tick: Tick) -> Result<Option<Tick>> {
        // Asynchronously: a tick that is lost in a crash takes its nonce with it, so that nobody mistakes the next
        // of that number for it. Only in the cluster that the log's transaction ids belong to, and only behind the
        // newest: a number that was pruned is free a second time.
        let sql = "WITH asynchronously AS MATERIALIZED (SELECT relevo.durable(false))
            INSERT INTO relevo.tick (number, nonce, generation, snapshot, xmax_, low, top, floor, at)
            SELECT $1, $2, $3, $4, $5, $6, $7, $8, greatest(clock_timestamp(), newest.at)
              FROM asynchronously, relevo.meta m, pg_control_system() c,
                   (SELECT number, at FROM relevo.tick ORDER BY number DESC LIMIT 1) newest
             WHERE newest.number = $1 - 1 AND m.name = 'system' AND m.value = c.system_identifier::text
            ON CONFLICT (number) DO NOTHING";
        let Tick { tick: at, generation, snapshot, low, top, floor } = &tick;
        let text = snapshot.to_string();
        let args = args![at.number, at.nonce, *generation, text, snapshot.xmax, *low, *top, *floor];
        if session.execute(sql, args).await? == 1 {
            return Ok(Some(tick));
        }
        self.rebase(session).await?;
        Ok(None)
    }

    /// Begins a new generation if the log was moved to another cluster; answers with its first tick's number.
    pub(crate) async fn rebase(&self, session: &Session) -> Result<Option<i64>> {
        let row = session.query_one("SELECT relevo.rebase($1)", args![random()]).await?;
        let number: Option<i64> = row.get(0);
        if let Some(number) = number {
            tracing::warn!(
                tick = number,
                "the log was moved to another cluster: a new generation of ticks begins"
            );
        }
        Ok(number)
    }
}

/// Is there a committed row that the newest tick does not see? Where the sequence stands still, transactions that ended
/// (most of which have nothing to do with the log) are a reason only if they left a row.
async fn is_due(session: &Session, look: &Look) -> Result<bool> {
    let Look { newest, last_seq, now } = look;
    // Below what a tick has seen it must never be: making the next one says so.
    if *last_seq != newest.top {
        return Ok(true);
    }
    if !tick_is_due(newest, *last_seq, now) {
        return Ok(false);
    }
    let sql = "SELECT EXISTS (SELECT FROM relevo.outbox WHERE seq > $2 AND seq <= $3
                              AND NOT txid_visible_in_snapshot(xid, $4::text::txid_snapshot))
                   OR EXISTS (SELECT FROM relevo.outbox WHERE seq > $1 AND seq <= $2 AND xid = ANY($5))";
    let (seen, finished) = (newest.snapshot.to_string(), newest.snapshot.finished_by(now));
    let args = args![newest.floor, newest.low, newest.top, seen, finished];
    Ok(session.query_one(sql, args).await?.get(0))
}

async fn answer(session: &Session, step: TickStep) -> Result<TickReply> {
    Ok(match step {
        TickStep::ReadNewest => {
            let sql = format!("SELECT {COLUMNS} FROM relevo.tick ORDER BY number DESC LIMIT 1");
            TickReply::Newest(read(&session.query_one(&sql, args![]).await?)?)
        }
        TickStep::ReadLow | TickStep::ReadTop => {
            TickReply::Value(session.query_one("SELECT relevo.last_seq()", args![]).await?.get(0))
        }
        TickStep::BurnXid => {
            session.query("SELECT txid_current()", args![]).await?;
            TickReply::Done
        }
        TickStep::ReadSnapshot => {
            let row = session.query_one("SELECT txid_current_snapshot()::text", args![]).await?;
            TickReply::Snapshot(row.get::<_, &str>(0).parse()?)
        }
        TickStep::FindFloor { generation, xmin } => {
            let sql = "SELECT low FROM relevo.tick WHERE generation = $1 AND xmax_ <= $2
                       ORDER BY generation DESC, xmax_ DESC, number DESC LIMIT 1";
            let row = session.query_opt(sql, args![generation, xmin]).await?;
            TickReply::Value(row.map_or(0, |row| row.get(0)))
        }
        TickStep::Insert(_) => {
            return Err(error(Kind::StoreFailed, "inserting a tick is not a question"));
        }
    })
}

/// Reads a tick whose columns come first.
pub(crate) fn read(row: &Row) -> Result<Tick> {
    Ok(Tick {
        tick: TickRef { number: row.get(0), nonce: row.get(1) },
        generation: row.get(2),
        snapshot: row.get::<_, &str>(3).parse()?,
        low: row.get(4),
        top: row.get(5),
        floor: row.get(6),
    })
}

/// Reads a tick that was kept as a row in JSON.
pub(crate) fn from_json(text: &str) -> Result<Tick> {
    let unreadable = |what: &str| error(Kind::StoreFailed, format!("a kept tick has no {what}"));
    let json: serde_json::Value =
        serde_json::from_str(text).map_err(|cause| unreadable(&cause.to_string()))?;
    let number = |name: &str| json[name].as_i64().ok_or_else(|| unreadable(name));
    let snapshot = json["snapshot"].as_str().ok_or_else(|| unreadable("snapshot"))?;
    Ok(Tick {
        tick: TickRef { number: number("number")?, nonce: number("nonce")? },
        generation: number("generation")?,
        snapshot: snapshot.parse()?,
        low: number("low")?,
        top: number("top")?,
        floor: number("floor")?,
    })
}

/// The columns that [`read`] expects, in its order.
pub(crate) fn columns() -> &'static str {
    COLUMNS
}
