//! The log: rows, and pages of the window between two ticks.

use super::db::{Db, TxId};
use super::mutant;
use relevo_core::event::{Event, NewEvent, lane_of, order_key};
use relevo_core::outbox::{
    Page, PageRequest, Position, Row, Tick, TickMaker, TickStep, Window, Xid,
};
use relevo_core::{EventId, Result};
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

    /// How many rows of the log, committed or not, lie above `after` and up to `to`.
    pub fn count_rows(&self, after: i64, to: i64) -> usize {
        self.log.range(after + 1..to.max(after) + 1).count()
    }

    /// Rows of a window, from where the request stands; and how many rows below `low` of its start were looked at.
    pub fn read_window(
        &self,
        from: &Tick,
        to: &Tick,
        request: &PageRequest,
    ) -> Result<(Page, usize)> {
        let window = Window::between(from, to)?;
        let open = request.position.to.is_some() || mutant!(CarriesSeqOver);
        let inside = if open { request.position.seq } else { 0 };
        let start = window.late_above.max(inside);
        let lanes: BTreeSet<u16> = request.lanes.iter().copied().collect();
        let mut page = Page { rows: Vec::new(), to: Some(to.tick), end: Position::at(to.tick) };
        let (mut bytes, mut looked_at) = (0, 0);
        for (seq, row) in self.log.range(start + 1..window.main_to.max(start) + 1) {
            looked_at += usize::from(*seq <= from.low);
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
        Ok((page, looked_at))
    }
}

/// Reads a page, one statement per call: other transactions may run in between.
#[derive(Debug)]
pub struct PageStep {
    request: PageRequest,
    state: State,
    looked_at: usize,
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
        Self { request, state: State::Look, looked_at: 0 }
    }

    /// Where it reads on from.
    pub fn position(&self) -> Position {
        self.request.position
    }

    /// How many rows below `low` of the window's start it went through to find those that committed late.
    pub fn looked_at(&self) -> usize {
        self.looked_at
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
            State::Read(ticks) => {
                let (page, looked_at) = db.read_window(&ticks.0, &ticks.1, &self.request)?;
                self.looked_at = looked_at;
                Ok(Next::End(page))
            }
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
pub(super) mod tests {
    use super::*;
    use relevo_core::outbox::{Tick, TickRef, TickStep};

    pub(in super::super) fn db() -> Db {
        Db::new(chrono::DateTime::UNIX_EPOCH)
    }

    fn all(position: Position) -> PageRequest {
        PageRequest {
            position,
            lanes: (0..relevo_core::limits::LANES).collect(),
            max_rows: 100,
            max_bytes: 1 << 20,
        }
    }

    fn page(db: &mut Db, request: PageRequest) -> Page {
        let mut step = PageStep::new(request);
        loop {
            if let Some(page) = step.run(db, 7).unwrap() {
                return page;
            }
        }
    }

    pub(in super::super) fn read(db: &mut Db, position: Position) -> Page {
        page(db, all(position))
    }

    pub(in super::super) fn event(key: &str) -> NewEvent {
        NewEvent::bytes("t", "x").key(key)
    }

    fn seqs(page: &Page) -> Vec<i64> {
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
        assert_eq!(seqs(&first), [2]);
        assert_eq!(read(&mut db, first.end), Page::nothing(first.end));
        db.commit(late).unwrap();
        let second = read(&mut db, first.end);
        assert_eq!(seqs(&second), [1]);
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
        assert_eq!(seqs(&read(&mut db, Position::default())), [1, 3]);
    }

    #[test]
    fn a_page_ends_where_its_limit_says_and_the_window_stays() {
        let mut db = db();
        let tx = db.begin();
        for _ in 0..3 {
            db.publish(tx, event("a")).unwrap();
        }
        db.commit(tx).unwrap();
        let first = page(&mut db, PageRequest { max_rows: 2, ..all(Position::default()) });
        assert_eq!(first.end.to, first.to);
        let more = db.begin();
        db.publish(more, event("a")).unwrap();
        db.commit(more).unwrap();
        let second = read(&mut db, first.end);
        assert_eq!((seqs(&second), second.to), (vec![3], first.to));
        assert_eq!(seqs(&read(&mut db, second.end)), [4]);
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

    #[test]
    fn a_tick_maker_that_slept_until_its_number_was_pruned_throws_its_tick_away() {
        let mut db = db();
        let tick = |number, low| Tick {
            tick: TickRef { number, nonce: number },
            low,
            top: low,
            ..Tick::zero()
        };
        for number in 1..=3 {
            db.tick_statement(&TickStep::Insert(tick(number, 10 * number)));
        }
        db.ticks.retain(|number, _| [0, 3].contains(number));
        db.tick_statement(&TickStep::Insert(tick(2, 5)));
        assert_eq!(db.ticks().map(|tick| tick.tick.number).collect::<Vec<_>>(), [0, 3]);
        db.tick_statement(&TickStep::Insert(tick(4, 30)));
        assert_eq!(db.newest_tick().tick.number, 4);
    }
}
