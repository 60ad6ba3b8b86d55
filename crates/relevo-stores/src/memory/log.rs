//! The log: rows, ticks, and pages of the window between two ticks.

use super::db::{Db, Lock, Statement, TxId};
use super::mutant;
use chrono::{DateTime, Utc};
use relevo_core::event::{Event, NewEvent, lane_of, order_key};
use relevo_core::outbox::{
    Page, PageRequest, Position, Retention, Row, Tick, TickMaker, TickRef, TickReply, TickStep,
    Upkeep, Window, Xid, tick_is_due,
};
use relevo_core::{Error, EventId, Kind, Result};
use std::collections::BTreeSet;

/// A row of the log.
#[derive(Debug, Clone, PartialEq)]
pub struct LogRow {
    /// Its writer's transaction id.
    pub xid: Xid,
    /// Its lane.
    pub lane: u16,
    /// The event.
    pub event: Event,
    /// Its transaction has committed.
    pub committed: bool,
}

#[derive(Debug, Clone)]
pub(super) struct TickRow {
    pub(super) tick: Tick,
    /// Never decreasing from tick to tick.
    pub(super) at: DateTime<Utc>,
}

impl TickRow {
    pub(super) fn zero(now: DateTime<Utc>) -> Self {
        Self { tick: Tick::zero(), at: now }
    }
}

impl Db {
    /// Draws the next sequence number; a rollback does not give it back.
    pub fn draw_seq(&mut self) -> i64 {
        self.sequence += 1;
        self.sequence
    }

    /// Inserts a row under a sequence number drawn before. The transaction must have its id already.
    pub fn insert_event(&mut self, tx: TxId, seq: i64, event: NewEvent) -> Result<EventId> {
        let xid = self.assign_xid(tx)?;
        let id = event.id;
        let key = event.key.as_deref().filter(|_| !mutant!(LaneByEvent));
        let lane = lane_of(&order_key(key, id));
        let event = Event::stored(event, self.now);
        self.log.insert(seq, LogRow { xid, lane, event, committed: false });
        self.working(tx)?.rows.push(seq);
        Ok(id)
    }

    /// Publishes: the transaction's id first, then the sequence number.
    pub fn publish(&mut self, tx: TxId, event: NewEvent) -> Result<EventId> {
        self.assign_xid(tx)?;
        let seq = self.draw_seq();
        self.insert_event(tx, seq, event)
    }

    /// The committed row at `seq`.
    pub fn row(&self, seq: i64) -> Option<&LogRow> {
        self.log.get(&seq).filter(|row| row.committed)
    }

    /// Committed rows above `after`, in the order of their sequence numbers.
    pub fn rows_after(&self, after: i64) -> impl Iterator<Item = (i64, &LogRow)> {
        self.log.range(after + 1..).filter(|(_, row)| row.committed).map(|(seq, row)| (*seq, row))
    }

    /// The newest tick.
    pub fn newest_tick(&self) -> Tick {
        self.ticks.last_key_value().map_or_else(Tick::zero, |(_, row)| row.tick.clone())
    }

    /// The tick a cursor names; one of the same number and another nonce is not it. One that no cursor stands at is
    /// stale memory; one that a cursor needs is a fault.
    pub fn tick(&self, wanted: TickRef) -> Result<Tick> {
        let found = self
            .ticks
            .get(&wanted.number)
            .filter(|row| row.tick.tick == wanted || mutant!(NoTickSwap) || mutant!(NoNonce));
        if let Some(row) = found {
            return Ok(row.tick.clone());
        }
        if let Some(lost) = self.lost_ticks.get(&wanted).filter(|_| mutant!(RemembersLostTicks)) {
            return Ok(lost.clone());
        }
        if mutant!(LostTickIsNewest) {
            return Ok(Tick { tick: wanted, ..self.newest_tick() });
        }
        let stands =
            |row: &super::CursorRow| row.position.from == wanted || row.position.to == Some(wanted);
        let kind = if self.cursors.values().any(stands) { Kind::TickMissing } else { Kind::Stale };
        Err(Error::new(kind, format!("tick {} ({}) is not there", wanted.number, wanted.nonce))
            .from_adapter("memory"))
    }

    /// Is a tick beyond the newest worth making?
    pub fn tick_is_due(&self) -> bool {
        tick_is_due(&self.newest_tick(), self.sequence, &self.snapshot())
    }

    /// Runs the statement that a tick maker asks for.
    pub fn tick_statement(&mut self, step: &TickStep) -> TickReply {
        match step {
            TickStep::ReadNewest => TickReply::Newest(self.newest_tick()),
            TickStep::ReadLow if mutant!(LowStartsAtOne) => TickReply::Value(self.sequence.max(1)),
            TickStep::ReadLow | TickStep::ReadTop => TickReply::Value(self.sequence),
            TickStep::BurnXid if mutant!(TickInOneTransaction) => {
                self.open_burns.push(self.next_xid);
                self.next_xid += 1;
                TickReply::Done
            }
            TickStep::BurnXid => {
                self.burn_xid();
                TickReply::Done
            }
            TickStep::ReadSnapshot => TickReply::Snapshot(self.snapshot()),
            TickStep::FindFloor { generation, xmin } => {
                TickReply::Value(self.find_floor(*generation, *xmin))
            }
            TickStep::Insert(tick) => {
                self.insert_tick(tick);
                std::mem::take(&mut self.open_burns).into_iter().for_each(|xid| self.complete(xid));
                TickReply::Done
            }
        }
    }

    fn find_floor(&self, generation: i64, xmin: Xid) -> i64 {
        let below =
            |row: &&TickRow| row.tick.generation == generation && row.tick.snapshot.xmax <= xmin;
        self.ticks.values().rev().find(below).map_or(0, |row| row.tick.low)
    }

    fn insert_tick(&mut self, tick: &Tick) -> bool {
        let free = !self.ticks.contains_key(&tick.tick.number);
        if free || mutant!(NoTickSwap) {
            let at =
                self.ticks.last_key_value().map_or(self.now, |(_, newest)| newest.at.max(self.now));
            self.ticks.insert(tick.tick.number, TickRow { tick: tick.clone(), at });
        }
        free
    }

    /// The database was dumped and restored in another cluster. Rows keep the transaction ids they had, new ones begin
    /// at `next`, and a new generation of ticks begins. Every transaction must have been rolled back.
    pub fn move_to_another_cluster(&mut self, next: Xid, nonce: i64) {
        let newest = self.newest_tick();
        self.next_xid = next;
        self.last_completed = next - 1;
        let number = newest.tick.number + 1;
        self.insert_tick(&Tick {
            tick: TickRef { number, nonce },
            generation: newest.generation + 1,
            snapshot: self.snapshot(),
            low: self.sequence,
            top: self.sequence,
            floor: self.sequence,
        });
    }

    /// The tick that a window from `from` leads to: the newest, but never past the first one of another cluster.
    fn newest_from(&self, from: &Tick) -> Option<Tick> {
        let newest = self.newest_tick();
        let beyond = newest.tick.number > from.tick.number;
        if newest.generation == from.generation || mutant!(RebaseComparesXids) {
            return beyond.then_some(newest);
        }
        let first = self.ticks.values().find(|row| row.tick.generation == newest.generation);
        first.map(|row| row.tick.clone()).filter(|_| beyond)
    }

    /// A crash of the server lost this tick, which had been committed asynchronously.
    pub fn lose_tick(&mut self, number: i64) {
        if let Some(row) = self.ticks.remove(&number) {
            self.lost_ticks.insert(row.tick.tick, row.tick);
        }
    }

    /// Makes a tick, all statements in a row.
    pub fn make_tick(&mut self, nonce: i64) -> Result<Tick> {
        let mut maker = TickMaker::new(nonce);
        loop {
            let step = maker.step();
            let reply = self.tick_statement(&step);
            if matches!(step, TickStep::Insert(_)) {
                return Ok(self.newest_tick());
            }
            maker.reply(reply)?;
        }
    }

    /// The newest tick made at or before `time`.
    pub(super) fn tick_at(&self, time: DateTime<Utc>) -> Tick {
        let found =
            self.ticks.values().rev().find(|row| row.at <= time).or(self.ticks.values().next());
        found.map_or_else(Tick::zero, |row| row.tick.clone())
    }

    /// Rows of a window, from where the request stands.
    pub fn read_window(&self, from: &Tick, to: &Tick, request: &PageRequest) -> Result<Page> {
        let window = Window::between(from, to)?;
        let open = request.position.to.is_some() || mutant!(CarriesSeqOver);
        let inside = if open { request.position.seq } else { 0 };
        let start = window.late_above.max(inside);
        let lanes: BTreeSet<u16> = request.lanes.iter().copied().collect();
        let mut page = Page { rows: Vec::new(), to: Some(to.tick), end: Position::at(to.tick) };
        let mut bytes = 0;
        for (seq, row) in self.log.range(start + 1..window.main_to.max(start) + 1) {
            let contained = if mutant!(NaiveSequence) {
                *seq > from.top
            } else {
                window.contains(*seq, row.xid)
            };
            if !row.committed || !contained || !lanes.contains(&row.lane) {
                continue;
            }
            if page.rows.len() >= request.max_rows
                || (bytes >= request.max_bytes && !page.rows.is_empty())
            {
                if mutant!(DropsRestOfWindow) {
                    break;
                }
                let seq = page.rows.last().map_or(start, |row: &Row| row.seq);
                page.end = Position { from: from.tick, to: Some(to.tick), seq };
                break;
            }
            bytes += row.event.payload.len();
            page.rows.push(Row { lane: row.lane, seq: *seq, event: row.event.clone() });
        }
        if mutant!(CarriesSeqOver) && page.end.to.is_none() {
            page.end.seq = page.rows.last().map_or(start, |row| row.seq);
        }
        if mutant!(OrderByXid) {
            page.rows.sort_by_key(|row| (self.log.get(&row.seq).map(|row| row.xid), row.seq));
        }
        Ok(page)
    }

    /// Drops what every cursor is past and what is old enough; thins ticks out below the oldest cursor.
    pub fn upkeep(&mut self, retention: &Retention) -> Statement<Upkeep> {
        let mut upkeep = Upkeep::default();
        let Some(oldest) = self.oldest_cursor() else { return Ok(upkeep) };
        let bound = self
            .tick(oldest)
            .map(|tick| if mutant!(RetentionByCursor) { tick.top } else { tick.floor })?;
        self.drop_rows(bound, retention, &mut upkeep)?;
        self.thin_ticks(oldest.number, &mut upkeep);
        upkeep.dead_letters_dropped = self.drop_dead_letters(retention.dead_letters);
        self.forget_inbox(retention.inbox);
        Ok(upkeep)
    }

    /// Those past their time; the one that a held key waits for is what releases it.
    fn drop_dead_letters(&mut self, keep: std::time::Duration) -> u64 {
        let keep = chrono::Duration::from_std(keep).unwrap_or(chrono::Duration::MAX);
        let (now, before, parked) = (self.now, self.dead_letters.len(), &self.parked_keys);
        self.dead_letters.retain(|_, letter| {
            let key = (letter.lane.clone(), letter.at.key.clone());
            let held = parked.get(&key).is_some_and(|row| row.due.is_none());
            held || letter.is_requested() || now - letter.died_at < keep
        });
        (before - self.dead_letters.len()) as u64
    }

    /// The oldest tick any cursor stands at.
    pub(super) fn oldest_cursor(&self) -> Option<TickRef> {
        self.cursors.values().map(|cursor| cursor.position.from).min()
    }

    fn drop_rows(
        &mut self,
        bound: i64,
        retention: &Retention,
        upkeep: &mut Upkeep,
    ) -> Statement<()> {
        let age = chrono::Duration::from_std(retention.events).unwrap_or(chrono::Duration::MAX);
        let old = |row: &LogRow| self.now - row.event.created_at >= age;
        let gone: Vec<i64> = self
            .log
            .range(..=bound)
            .filter(|(_, row)| row.committed && old(row))
            .map(|(seq, _)| *seq)
            .collect();
        for lane in self.cursors.keys() {
            self.must_be_free(&Lock::Cursor(lane.clone()))?;
        }
        self.copy_bytes_of_refs(&gone);
        for seq in &gone {
            if let Some(row) = self.log.remove(seq) {
                self.dropped_up_to = self.dropped_up_to.max(Some(row.event.id));
            }
        }
        upkeep.rows_dropped = gone.len() as u64;
        upkeep.segments_dropped = u64::from(!gone.is_empty());
        Ok(())
    }

    fn copy_bytes_of_refs(&mut self, gone: &[i64]) {
        if mutant!(RefsLoseTheirBytes) {
            return;
        }
        for ((_, _, _, seq, _), parked) in &mut self.parked_refs {
            if parked.event.is_none() && gone.binary_search(seq).is_ok() {
                parked.event = self.log.get(seq).map(|row| row.event.clone());
            }
        }
    }

    /// Below the oldest cursor one tick a second is enough to rewind by time.
    fn thin_ticks(&mut self, below: i64, upkeep: &mut Upkeep) {
        let mut kept: Option<DateTime<Utc>> = None;
        let before = self.ticks.len();
        self.ticks.retain(|number, row| {
            let needed = *number >= below && !mutant!(PrunesNeededTicks);
            let keep = *number == 0
                || needed
                || kept.is_none_or(|at| row.at - at >= chrono::Duration::seconds(1));
            if keep {
                kept = Some(row.at);
            }
            keep
        });
        upkeep.ticks_pruned = (before - self.ticks.len()) as u64;
    }
}

/// Reads a page, one statement per call: other transactions may run in between.
#[derive(Debug)]
pub struct PageStep {
    request: PageRequest,
    state: State,
}

#[derive(Debug)]
enum State {
    Look,
    Making(TickMaker),
    PickNewest,
    Read(Box<(Tick, Tick)>),
}

/// What a step came to.
#[derive(Debug)]
enum Next {
    Go(State),
    End(Page),
}

impl PageStep {
    /// A reader of this page; `nonce` is for the tick it may make.
    pub fn new(request: PageRequest) -> Self {
        Self { request, state: State::Look }
    }

    /// Where it reads on from.
    pub fn position(&self) -> Position {
        self.request.position
    }

    /// What the next statement is, in a word.
    pub fn name(&self) -> &'static str {
        match &self.state {
            State::Look => "look for a tick",
            State::Making(maker) => match maker.step() {
                TickStep::ReadNewest => "read newest tick",
                TickStep::ReadLow => "read low",
                TickStep::BurnXid => "burn xid",
                TickStep::ReadSnapshot => "read snapshot",
                TickStep::ReadTop => "read top",
                TickStep::FindFloor { .. } => "find floor",
                TickStep::Insert(_) => "insert tick",
            },
            State::PickNewest => "pick newest tick",
            State::Read(_) => "read window",
        }
    }

    /// Runs the next statement; the page, if that was the last. `nonce` names the tick that may be made.
    pub fn run(&mut self, db: &mut Db, nonce: i64) -> Result<Option<Page>> {
        match self.next(db, nonce)? {
            Next::Go(state) => {
                self.state = state;
                Ok(None)
            }
            Next::End(page) => Ok(Some(page)),
        }
    }

    fn next(&mut self, db: &mut Db, nonce: i64) -> Result<Next> {
        let position = self.request.position;
        match &mut self.state {
            State::Look => Self::look(db, position, nonce),
            State::Making(maker) => {
                let step = maker.step();
                let reply = db.tick_statement(&step);
                if matches!(step, TickStep::Insert(_)) {
                    return Ok(Next::Go(State::PickNewest));
                }
                maker.reply(reply)?;
                let maker = std::mem::replace(maker, TickMaker::new(0));
                Ok(Next::Go(State::Making(maker)))
            }
            State::PickNewest => {
                let from = db.tick(position.from)?;
                Ok(match db.newest_from(&from) {
                    Some(to) => Next::Go(State::Read(Box::new((from, to)))),
                    None => Next::End(Page::nothing(position)),
                })
            }
            State::Read(ticks) => db.read_window(&ticks.0, &ticks.1, &self.request).map(Next::End),
        }
    }

    fn look(db: &Db, position: Position, nonce: i64) -> Result<Next> {
        let from = db.tick(position.from)?;
        let to = match position.to {
            Some(to) if !mutant!(WindowEndsElsewhere) => Some(db.tick(to)?),
            _ => db.newest_from(&from),
        };
        Ok(match to {
            Some(to) => Next::Go(State::Read(Box::new((from, to)))),
            None if db.tick_is_due() => Next::Go(State::Making(TickMaker::new(nonce))),
            None => Next::End(Page::nothing(position)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn db() -> Db {
        Db::new(DateTime::UNIX_EPOCH)
    }

    fn all(position: Position) -> PageRequest {
        PageRequest {
            position,
            lanes: (0..relevo_core::limits::LANES).collect(),
            max_rows: 100,
            max_bytes: 1 << 20,
        }
    }

    fn read(db: &mut Db, position: Position) -> Page {
        let mut page = PageStep::new(all(position));
        loop {
            if let Some(page) = page.run(db, 7).unwrap() {
                return page;
            }
        }
    }

    fn event(key: &str) -> NewEvent {
        NewEvent::bytes("t", "x").key(key)
    }

    fn topics(page: &Page) -> Vec<i64> {
        page.rows.iter().map(|row| row.seq).collect()
    }

    #[test]
    fn a_late_commit_comes_in_the_next_window_and_nothing_comes_twice() {
        let mut db = db();
        let (late, early) = (db.begin(), db.begin());
        db.publish(late, event("a")).unwrap();
        db.publish(early, event("b")).unwrap();
        db.commit(early).unwrap();
        let first = read(&mut db, Position::default());
        assert_eq!(topics(&first), [2]);
        assert_eq!(read(&mut db, first.end), Page::nothing(first.end));
        db.commit(late).unwrap();
        let second = read(&mut db, first.end);
        assert_eq!(topics(&second), [1]);
        assert_eq!(read(&mut db, second.end), Page::nothing(second.end));
    }

    #[test]
    fn what_was_rolled_back_is_never_read() {
        let mut db = db();
        let tx = db.begin();
        db.publish(tx, event("a")).unwrap();
        db.savepoint(tx, "s").unwrap();
        db.publish(tx, event("b")).unwrap();
        db.rollback_to(tx, "s").unwrap();
        db.publish(tx, event("c")).unwrap();
        db.commit(tx).unwrap();
        assert_eq!(topics(&read(&mut db, Position::default())), [1, 3]);
    }

    #[test]
    fn a_page_ends_where_its_limit_says_and_the_window_stays() {
        let mut db = db();
        let tx = db.begin();
        for _ in 0..3 {
            db.publish(tx, event("a")).unwrap();
        }
        db.commit(tx).unwrap();
        let two = PageRequest { max_rows: 2, ..all(Position::default()) };
        let mut step = PageStep::new(two);
        let first = loop {
            if let Some(page) = step.run(&mut db, 7).unwrap() {
                break page;
            }
        };
        assert_eq!(first.end.to, first.to);
        let more = db.begin();
        db.publish(more, event("a")).unwrap();
        db.commit(more).unwrap();
        let second = read(&mut db, first.end);
        assert_eq!((topics(&second), second.to), (vec![3], first.to));
        assert_eq!(topics(&read(&mut db, second.end)), [4]);
    }

    #[test]
    fn of_two_tick_makers_one_throws_its_tick_away() {
        let mut db = db();
        let tx = db.begin();
        db.publish(tx, event("a")).unwrap();
        db.commit(tx).unwrap();
        let mut pages =
            [PageStep::new(all(Position::default())), PageStep::new(all(Position::default()))];
        let mut ends = Vec::new();
        while ends.len() < 2 {
            for (nonce, page) in (1..).zip(&mut pages) {
                if let Some(page) = page.run(&mut db, nonce).unwrap() {
                    ends.push(page.end);
                }
            }
        }
        assert_eq!(ends[0], ends[1]);
    }

    fn catch_up(db: &mut Db) {
        let position = db.cursors.values().next().unwrap().position;
        let end = read(db, position).end;
        db.cursors.values_mut().for_each(|cursor| cursor.position = end);
    }

    fn publish(db: &mut Db) {
        let tx = db.begin();
        db.publish(tx, event("c")).unwrap();
        db.commit(tx).unwrap();
    }

    #[test]
    fn retention_waits_for_every_cursor_and_for_late_commits() {
        let mut db = db();
        let late = db.begin();
        db.publish(late, event("a")).unwrap();
        publish(&mut db);
        db.subscribe(&relevo_core::outbox::Subscription::new("s"), 1).unwrap();
        let mut retention = Retention::default();
        retention.events = std::time::Duration::ZERO;
        catch_up(&mut db);
        assert_eq!(db.upkeep(&retention).unwrap().rows_dropped, 0);
        db.commit(late).unwrap();
        assert_eq!(db.upkeep(&retention).unwrap().rows_dropped, 0);
        for _ in 0..2 {
            catch_up(&mut db);
            publish(&mut db);
        }
        catch_up(&mut db);
        assert!(db.upkeep(&retention).unwrap().rows_dropped >= 2);
    }
}
