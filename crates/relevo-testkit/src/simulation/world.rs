//! Everything outside the programs: database, broker, time, chance, journal, and what was seen on the way.

use super::broker::Broker;
use super::haste::BeforeCommit;
use super::invariant::Invariant;
use super::journal::Journal;
use super::options::{Draw, Micros, Options};
use super::seen::Seen;
use super::told::Told;
use super::trace::Trace;
use chrono::{DateTime, Duration, Utc};
use relevo_core::clock::Rng;
use relevo_core::event::{EventId, NewEvent};
use relevo_core::outbox::{LaneChange, LaneId, MemberId, Position, Token};
use relevo_core::{ErrorClass, Result};
use relevo_stores::memory::{Db, Refusal, Statement, TxId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Whose session a transaction belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Session {
    /// The process; `None` for writers and operators.
    pub(super) process: Option<usize>,
    /// The server ends it when it idles for longer inside the transaction.
    pub(super) idle_limit: Micros,
    pub(super) last_active: Micros,
    /// The client lost an answer: it cannot use the connection any more.
    pub(super) broken: bool,
    /// A handler was asked, and what came of it is not recorded yet.
    pub(super) handler_at_work: bool,
}

/// A commit that a crash of the server may still lose.
#[derive(Debug, Clone)]
enum Unflushed {
    Xid(i64),
    /// Its number, and the newest id given out when its row was written.
    Tick(i64, i64),
    Cursor(LaneId, Position),
    /// What a lane's token and owner were before. (Only a wrong store commits a take-over asynchronously.)
    Owner(LaneId, Token, Option<MemberId>),
    /// A handler's effect with its record.
    Handled(Box<BeforeCommit>),
}

/// The world.
pub(super) struct World {
    pub(super) db: Db,
    pub(super) broker: Broker,
    pub(super) journal: Journal,
    pub(super) now: Micros,
    pub(super) rng: Rng,
    pub(super) options: Arc<Options>,
    pub(super) sessions: BTreeMap<TxId, Session>,
    /// A commit brought something: the doorbell rings.
    pub(super) rang: bool,
    /// Faults happen.
    pub(super) storm: bool,
    pub(super) seen: Seen,
    pub(super) trace: Trace,
    /// How far the database's clock is from the simulation's.
    pub(super) clock_skew: i64,
    /// Processes that came back from a long pause and have not signed life since.
    pub(super) zombies: BTreeSet<usize>,
    /// Lanes with a batch under way, by the token it was cut under.
    pub(super) in_flight: BTreeMap<LaneId, i64>,
    /// Lanes whose last commit has an outcome only the world knows.
    pub(super) unknown: BTreeMap<LaneId, bool>,
    /// What publishers heard.
    told: Told,
    unflushed: Vec<Unflushed>,
    /// Every transaction id below is durable.
    flushed_xid: i64,
    ids: Ids,
}

/// Event ids that a seed repeats, each only once, whoever draws them.
#[derive(Debug, Clone)]
pub(super) struct Ids {
    seed: u64,
    last: Arc<AtomicU64>,
}

impl Ids {
    pub(super) fn of(seed: u64) -> Self {
        Self { seed, last: Arc::default() }
    }

    pub(super) fn fresh(&self) -> EventId {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        EventId(uuid::Uuid::from_u64_pair(number, self.seed))
    }
}

impl World {
    pub(super) fn new(
        options: Arc<Options>,
        ids: Ids,
        journal: Journal,
        told: Told,
        trace: Trace,
    ) -> Self {
        let rng = Rng::seeded(options.seed);
        Self {
            db: Db::new(start()),
            broker: Broker::new(options.consumers.iter().map(|consumer| consumer.sources)),
            journal,
            now: 0,
            rng,
            options,
            sessions: BTreeMap::new(),
            rang: false,
            storm: true,
            seen: Seen::default(),
            trace,
            clock_skew: 0,
            zombies: BTreeSet::new(),
            in_flight: BTreeMap::new(),
            unknown: BTreeMap::new(),
            told,
            unflushed: Vec::new(),
            flushed_xid: 0,
            ids,
        }
    }

    pub(super) fn draw(&mut self) -> Draw<'_> {
        Draw(&mut self.rng)
    }

    pub(super) fn token(&mut self) -> i64 {
        (self.rng.next_u64() >> 1).max(1) as i64
    }

    /// Time goes on.
    pub(super) fn set_now(&mut self, now: Micros) {
        self.now = now;
        self.db.set_now(start() + Duration::microseconds(now as i64 + self.clock_skew));
    }

    /// An id that a seed repeats.
    pub(super) fn fresh_id(&mut self) -> EventId {
        self.ids.fresh()
    }

    // ---- transactions ----

    pub(super) fn begin(&mut self, process: Option<usize>, idle_limit: Micros) -> TxId {
        let tx = self.db.begin();
        let session = Session {
            process,
            idle_limit,
            last_active: self.now,
            broken: false,
            handler_at_work: false,
        };
        self.sessions.insert(tx, session);
        tx
    }

    /// The client of this session lost an answer.
    pub(super) fn break_session(&mut self, tx: TxId) {
        if let Some(session) = self.sessions.get_mut(&tx) {
            session.broken = true;
        }
    }

    /// A handler works in this transaction, or no longer does.
    pub(super) fn handlers_at_work(&mut self, tx: TxId, at_work: bool) {
        if let Some(session) = self.sessions.get_mut(&tx) {
            session.handler_at_work = at_work;
        }
    }

    /// A handler may hang for as long as its limit says. Whoever needs a cursor's row meanwhile (to take the lane over, to
    /// pause or rewind it) must not have to wait for that: such a row is locked by records, right before their commit.
    pub(super) fn waits_for_no_handler<T>(
        &mut self,
        what: &str,
        answer: Statement<T>,
    ) -> Statement<T> {
        if let Err(Refusal::Locked { by }) = &answer
            && self.sessions.get(by).is_some_and(|session| session.handler_at_work)
        {
            let text = format!(
                "{what} waits for a cursor's row, which a transaction holds whose handler is still at work"
            );
            self.journal.broken(Invariant::Recovery, text);
        }
        answer
    }

    pub(super) fn is_broken(&self, tx: TxId) -> bool {
        self.sessions.get(&tx).is_some_and(|session| session.broken)
    }

    /// The session showed a sign of life.
    pub(super) fn active(&mut self, tx: TxId) {
        if let Some(session) = self.sessions.get_mut(&tx) {
            session.last_active = self.now;
        }
    }

    /// Inserts an event under a sequence number that was drawn when the journal's clock stood at `drawn.1`.
    pub(super) fn publish(&mut self, tx: TxId, drawn: (i64, u64), event: NewEvent) -> Result<()> {
        self.journal.published(tx, &event, drawn.1);
        self.db.insert_event(tx, drawn.0, event).map(drop)
    }

    /// Draws a sequence number: from here on the event counts as being published.
    pub(super) fn draw_seq(&mut self) -> (i64, u64) {
        (self.db.draw_seq(), self.journal.publishing())
    }

    /// Writes a lane's change inside a transaction.
    pub(super) fn record_in(&mut self, tx: TxId, change: &LaneChange) -> Statement<()> {
        self.db.record_in(tx, change)?;
        self.journal.change(tx, change.clone());
        Ok(())
    }

    /// Commits, and tells the journal what the database did.
    pub(super) fn commit(&mut self, tx: TxId) -> Result<()> {
        let replayed = self.put_back_by(tx);
        let rings = self.journal.has_published(tx);
        let asynchronous = self.moves_of(tx).or_else(|| self.handled_in_haste(tx));
        let process = self.sessions.remove(&tx).and_then(|session| session.process);
        if let Err(error) = self.db.commit(tx) {
            self.journal.rolled_back(tx);
            return Err(error);
        }
        match asynchronous {
            Some(commits) => {
                self.unflushed.push(Unflushed::Xid(self.db.last_completed()));
                self.unflushed.extend(commits);
            }
            None => self.flush(),
        }
        for change in self.journal.changes_of(tx) {
            if !change.deaths.is_empty() {
                self.seen.sometimes("an event died");
            }
            if !change.skips.is_empty() {
                self.seen.sometimes("an event was skipped");
            }
        }
        self.check_classes(tx, process);
        self.journal.committed(tx, &replayed);
        self.rang |= rings;
        Ok(())
    }

    /// What a broker did not take waits with the reason that its confirm gave.
    fn check_classes(&mut self, tx: TxId, process: Option<usize>) {
        let Some(process) = process else { return };
        let wrong = self.journal.changes_of(tx).find_map(|change| {
            let subscriber = self.journal.subscriber(&change.lane.subscription);
            let failed = change.failed.iter().filter_map(|event| {
                let key = change.parked.iter().find(|parked| parked.key == event.key)?;
                Some((event.id, key.class))
            });
            let untold = |(event, class): &(EventId, ErrorClass)| {
                !self.told.was_told((process, subscriber, *event), *class)
            };
            let (event, class) = failed.into_iter().find(untold)?;
            let about = &self.journal.subscribers[subscriber];
            let text = format!(
                "{event} waits at {} as {class}, and no confirm said that to process {process}",
                about.name
            );
            (!about.once).then_some(text)
        });
        if let Some(text) = wrong {
            self.journal.broken(Invariant::NoSilentSkip, text);
        }
    }

    pub(super) fn rollback(&mut self, tx: TxId) {
        self.sessions.remove(&tx);
        self.db.rollback(tx);
        self.journal.rolled_back(tx);
    }

    /// The dead letters that this transaction's requests put back.
    fn put_back_by(&self, tx: TxId) -> Vec<(usize, EventId)> {
        let wanted: Vec<i64> =
            self.journal.changes_of(tx).flat_map(|change| change.replayed.clone()).collect();
        if wanted.is_empty() {
            return Vec::new();
        }
        let due = self
            .db
            .requests()
            .filter(|(id, row)| wanted.contains(id) && !row.done && !row.cancelled);
        let letters = due.filter_map(|(_, row)| row.dead_letter);
        let letters: Vec<i64> = letters.collect();
        let rows = self.db.dead().filter(|(id, _)| letters.contains(id));
        rows.map(|(_, row)| (self.journal.subscriber(&row.lane.subscription), row.event.id))
            .collect()
    }

    /// The cursors a transaction only moves, if that is all it does and a broker is behind it: such a commit may be
    /// asynchronous.
    fn moves_of(&self, tx: TxId) -> Option<Vec<Unflushed>> {
        let changes: Vec<&LaneChange> = self.journal.changes_of(tx).collect();
        let lazy = |change: &&LaneChange| {
            let subscriber = self.journal.subscriber(&change.lane.subscription);
            change.only_moves() && !self.journal.subscribers[subscriber].once
        };
        let all_lazy =
            !changes.is_empty() && changes.iter().all(lazy) && self.journal.only_changes(tx);
        all_lazy.then(|| {
            changes
                .iter()
                .map(|change| Unflushed::Cursor(change.lane.clone(), change.before))
                .collect()
        })
    }

    fn handled_in_haste(&self, tx: TxId) -> Option<Vec<Unflushed>> {
        self.before_hasty_commit(tx).map(|before| vec![Unflushed::Handled(Box::new(before))])
    }

    /// A synchronous commit makes everything before it durable too.
    pub(super) fn flush(&mut self) {
        self.unflushed.clear();
        self.flushed_xid = self.db.last_completed() + 1;
    }

    /// A lane got a new owner, which is written down before anybody hears of it.
    pub(super) fn owner_changed(&mut self, lane: LaneId, before: Token, owner: Option<MemberId>) {
        if mutant!(TokensCount) {
            self.unflushed.push(Unflushed::Owner(lane, before, owner));
        } else {
            self.flush();
        }
    }

    /// A transaction id was burnt, asynchronously.
    pub(super) fn xid_burnt(&mut self) {
        self.unflushed.push(Unflushed::Xid(self.db.last_completed()));
    }

    /// A tick was inserted, asynchronously. Its row has a transaction id after all that were given out before: if the
    /// row survives a crash, none of them is given out again.
    pub(super) fn tick_made(&mut self, number: i64) {
        self.unflushed.push(Unflushed::Tick(number, self.db.last_given()));
    }

    /// The database dies and comes back: open transactions are gone, and of the commits since the last
    /// synchronous one a random rest is lost.
    pub(super) fn database_crash(&mut self) {
        let open: Vec<TxId> = self.sessions.keys().copied().collect();
        open.into_iter().for_each(|tx| self.rollback(tx));
        let keep = self.rng.below(self.unflushed.len() as u64 + 1) as usize;
        let lost = self.unflushed.split_off(keep);
        let kept = self.unflushed.iter().filter_map(|kept| match kept {
            Unflushed::Xid(xid) | Unflushed::Tick(_, xid) => Some(xid + 1),
            _ => None,
        });
        let next = kept.chain([self.flushed_xid]).max().unwrap_or(3).max(3);
        for lost in lost.into_iter().rev() {
            match lost {
                Unflushed::Xid(_) => continue,
                Unflushed::Tick(number, _) => self.db.lose_tick(number),
                Unflushed::Owner(lane, token, owner) => self.db.lose_owner(&lane, token, owner),
                Unflushed::Handled(before) => self.take_back(*before),
                Unflushed::Cursor(lane, position) => {
                    self.db.lose_move(&lane, position);
                    let token = self.db.cursor(&lane).map_or(0, |row| row.token);
                    self.journal.lane_reset(lane, token, position);
                }
            }
            self.seen.sometimes("an asynchronous commit was lost in a crash of the database");
        }
        let skipped = self.rng.below(33) as i64;
        self.db.restart(next, skipped);
        self.flush();
    }
}

impl World {
    /// The database is stopped, dumped, and restored in another cluster, whose transaction ids begin anywhere.
    pub(super) fn database_move(&mut self) {
        let open: Vec<TxId> = self.sessions.keys().copied().collect();
        open.into_iter().for_each(|tx| self.rollback(tx));
        let far =
            if self.options.fresh_clusters { 10 } else { 2 * self.db.last_completed() as u64 };
        let next = 3 + self.rng.below(far) as i64;
        let nonce = self.token();
        self.db.move_to_another_cluster(next, nonce);
        self.flush();
        self.seen.sometimes("the database was moved to another cluster");
    }
}

fn start() -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + Duration::days(20_000)
}
