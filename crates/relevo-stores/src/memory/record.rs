//! One lane transaction: parked keys, dead letters, skips and the cursor change together, fenced by the token.

use super::db::{Db, Lock, Statement, TxId};
use super::mutant;
use super::transaction::Write;
use chrono::{DateTime, Utc};
use relevo_core::dead_letters::{DeadLetterId, DeadState};
use relevo_core::event::{Event, EventId};
use relevo_core::outbox::{Death, EventRef, LaneChange, LaneId, ParkKey, ParkedEvent, TickRef};
use relevo_core::{Error, ErrorClass, Kind, Result};
use uuid::Uuid;

/// A key that waits.
#[derive(Debug, Clone, PartialEq)]
pub struct ParkedRow {
    /// Attempts its first event has had.
    pub attempts: u32,
    /// Dead letters in a row, just before.
    pub deaths: u32,
    /// When it is due; `None` while it is held for an operator.
    pub due: Option<DateTime<Utc>>,
    /// Class of the last error.
    pub class: ErrorClass,
    /// Text of the last error.
    pub error: String,
    /// When its first event first failed.
    pub since: DateTime<Utc>,
}

/// An event that waits behind a parked key.
#[derive(Debug, Clone, PartialEq)]
pub struct RefRow {
    /// Its identity.
    pub id: EventId,
    /// What it carries, where the log no longer has it or has something else.
    pub event: Option<Event>,
}

/// A dead letter with its place.
#[derive(Debug, Clone, PartialEq)]
pub struct DeadRow {
    /// Whose delivery failed, in which lane.
    pub lane: LaneId,
    /// Where it stood.
    pub at: EventRef,
    /// The event, byte for byte.
    pub event: Event,
    /// Class of the last error.
    pub class: ErrorClass,
    /// Text of the last error.
    pub error: String,
    /// Attempts it had.
    pub attempts: u32,
    /// When it first failed.
    pub first_failed_at: DateTime<Utc>,
    /// When it was given up.
    pub died_at: DateTime<Utc>,
    /// What became of it.
    pub state: DeadState,
    /// The dead letter this is an edited copy of.
    pub copy_of: Option<DeadLetterId>,
}

impl DeadRow {
    pub(super) fn is_requested(&self) -> bool {
        self.state == DeadState::Requested
    }
}

/// An event that was skipped.
#[derive(Debug, Clone, PartialEq)]
pub struct SkipRow {
    /// Whose.
    pub lane: LaneId,
    /// Which.
    pub event: EventId,
    /// Why.
    pub reason: String,
    /// When.
    pub at: DateTime<Utc>,
}

impl Db {
    /// Writes a lane's change inside a transaction; its last act is the fence, which locks the cursor's row. Fails
    /// as stale, and the transaction with it, if the token or the position is no longer in force.
    pub fn record_in(&mut self, tx: TxId, change: &LaneChange) -> Statement<()> {
        self.working(tx)?;
        if mutant!(NoFence) || mutant!(DrainOutsideFence) && !change.settled.is_empty() {
            self.assign_xid(tx)?;
            self.working(tx)?.writes.push(Write::Lane(Box::new(change.clone())));
            return Ok(());
        }
        self.in_transaction(tx, |db| {
            db.take_lock(tx, Lock::Cursor(change.lane.clone()))?;
            db.fence(change)?;
            db.refuse_what_is_there(change)?;
            db.assign_xid(tx)?;
            db.working(tx)?.writes.push(Write::Lane(Box::new(change.clone())));
            Ok(())
        })
    }

    fn fence(&self, change: &LaneChange) -> Result<()> {
        let row = self.cursors.get(&change.lane);
        let matches =
            row.is_some_and(|row| row.token == change.token && row.position == change.before);
        // A tick that was lost in a crash must not become a cursor's: nobody could read on from it.
        let there = |tick: &TickRef| self.tick(*tick).is_ok();
        let known = there(&change.after.from) && change.after.to.as_ref().is_none_or(there);
        if matches && known || mutant!(FenceIgnored) {
            return Ok(());
        }
        let LaneId { subscription, lane } = &change.lane;
        Err(Error::new(
            Kind::Stale,
            format!("lane {lane} of {subscription} is no longer under token {}", change.token),
        )
        .from_adapter("memory"))
    }

    /// A ref that is there already means that somebody else was here.
    fn refuse_what_is_there(&self, change: &LaneChange) -> Result<()> {
        let there = |at: &&EventRef| self.parked_refs.contains_key(&ref_key(&change.lane, at));
        if let Some(at) = change.waiting.iter().find(there).filter(|_| !mutant!(FenceIgnored)) {
            let message = format!("event {} waits behind its key already", at.id);
            return Err(Error::new(Kind::Stale, message).from_adapter("memory"));
        }
        for death in &change.deaths {
            self.bytes_of(&change.lane, &death.event)?;
        }
        Ok(())
    }

    /// Applies changes of different lanes in a transaction of their own.
    pub fn record(&mut self, changes: &[LaneChange]) -> Statement<()> {
        let tx = self.begin();
        for change in changes {
            if let Err(refusal) = self.record_in(tx, change) {
                self.rollback(tx);
                return Err(refusal);
            }
        }
        Ok(self.commit(tx)?)
    }

    pub(super) fn apply_change(&mut self, change: &LaneChange) {
        for death in &change.deaths {
            self.bury(&change.lane, death);
        }
        let (lane, at) = (&change.lane, self.now);
        let skip = |skip: &relevo_core::outbox::Skip| SkipRow {
            lane: lane.clone(),
            event: skip.event.id,
            reason: skip.reason.clone(),
            at,
        };
        self.skips.extend(change.skips.iter().map(skip));
        for settled in &change.settled {
            let dead = change.deaths.iter().any(|death| death.event == *settled);
            if mutant!(DeadStaysParked) && dead {
                continue;
            }
            self.parked_refs.remove(&ref_key(lane, settled));
        }
        for waiting in &change.waiting {
            let row = RefRow { id: waiting.id, event: None };
            self.parked_refs.entry(ref_key(lane, waiting)).or_insert(row);
        }
        for parked in &change.parked {
            self.park(lane, parked);
        }
        for key in &change.unparked {
            self.parked_keys.remove(&(lane.clone(), key.clone()));
        }
        for request in &change.replayed {
            self.carry_out(*request);
        }
        self.move_cursor(change);
    }

    fn move_cursor(&mut self, change: &LaneChange) {
        let now = self.now;
        // Without the fence, this is the statement that matched no row.
        let Some(row) = self
            .cursors
            .get_mut(&change.lane)
            .filter(|row| row.token == change.token || mutant!(NoFence))
        else {
            return;
        };
        if row.position != change.after {
            row.moved_at = Some(now);
        }
        row.position = change.after;
    }

    fn bury(&mut self, lane: &LaneId, death: &Death) {
        let Ok(event) = self.bytes_of(lane, &death.event) else { return };
        let since = self
            .parked_keys
            .get(&(lane.clone(), death.event.key.clone()))
            .map_or(self.now, |row| row.since);
        let copy_of = self.copied_from(death.event.id);
        let row = DeadRow {
            lane: lane.clone(),
            at: death.event.clone(),
            event,
            class: death.class,
            error: death.error.clone(),
            attempts: death.attempts,
            first_failed_at: since,
            died_at: self.now,
            state: DeadState::Dead,
            copy_of,
        };
        self.insert_dead(row);
    }

    pub(super) fn insert_dead(&mut self, row: DeadRow) -> DeadLetterId {
        let id = self.dead_letters.last_key_value().map_or(1, |(id, _)| id + 1);
        self.dead_letters.insert(id, row);
        id
    }

    /// An edited copy that dies again is still a copy.
    fn copied_from(&self, event: EventId) -> Option<DeadLetterId> {
        self.dead_letters
            .values()
            .rev()
            .find(|row| row.event.id == event)
            .and_then(|row| row.copy_of)
    }

    fn park(&mut self, lane: &LaneId, parked: &ParkKey) {
        let due = parked.retry_in.map(|delay| {
            self.now + chrono::Duration::from_std(delay).unwrap_or(chrono::Duration::MAX)
        });
        let at = (lane.clone(), parked.key.clone());
        let known = self.parked_keys.get(&at).filter(|row| row.attempts > 0 && parked.attempts > 0);
        let since = known.map_or(self.now, |row| row.since);
        let ParkKey { attempts, deaths, class, error, .. } = parked.clone();
        self.parked_keys.insert(at, ParkedRow { attempts, deaths, due, class, error, since });
    }

    /// The bytes of an event that waits or stands in the log.
    fn bytes_of(&self, lane: &LaneId, at: &EventRef) -> Result<Event> {
        let own = self.parked_refs.get(&ref_key(lane, at)).and_then(|row| row.event.clone());
        let event = own.or_else(|| self.row(at.seq).map(|row| row.event.clone()));
        event.ok_or_else(|| {
            Error::new(
                Kind::EventNotFound,
                format!("event {} is neither parked nor in the log", at.id),
            )
            .from_adapter("memory")
        })
    }

    /// The first events that wait behind a key, in delivery order.
    pub fn read_parked(
        &self,
        lane: &LaneId,
        key: &str,
        max_rows: usize,
    ) -> Result<Vec<ParkedEvent>> {
        let refs = self.refs(lane, key).take(max_rows);
        refs.map(|(to, seq, row)| {
            let at = EventRef { key: key.to_owned(), to, seq, id: row.id };
            self.bytes_of(lane, &at).map(|event| ParkedEvent { at, event })
        })
        .collect()
    }

    /// What waits behind a key, in delivery order.
    pub fn refs<'a>(
        &'a self,
        lane: &LaneId,
        key: &str,
    ) -> impl Iterator<Item = (TickRef, i64, &'a RefRow)> {
        let tick = |number| TickRef { number, nonce: number };
        let (nil, max) = (EventId(Uuid::nil()), EventId(Uuid::max()));
        let first = (lane.clone(), key.to_owned(), tick(i64::MIN), i64::MIN, nil);
        let last = (lane.clone(), key.to_owned(), tick(i64::MAX), i64::MAX, max);
        self.parked_refs.range(first..=last).map(|((_, _, to, seq, _), row)| (*to, *seq, row))
    }

    /// Every parked key of a subscription.
    pub fn parked<'a>(
        &'a self,
        subscription: &'a str,
    ) -> impl Iterator<Item = (&'a LaneId, &'a str, &'a ParkedRow)> {
        let mine = self
            .parked_keys
            .iter()
            .filter(move |((lane, _), _)| &*lane.subscription == subscription);
        mine.map(|((lane, key), row)| (lane, key.as_str(), row))
    }

    /// Every event of a subscription that waits behind a parked key.
    pub fn waiting<'a>(
        &'a self,
        subscription: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a RefRow)> {
        let mine = self
            .parked_refs
            .iter()
            .filter(move |((lane, ..), _)| &*lane.subscription == subscription);
        mine.map(|((_, key, ..), row)| (key.as_str(), row))
    }

    /// Every dead letter.
    pub fn dead(&self) -> impl Iterator<Item = (DeadLetterId, &DeadRow)> {
        self.dead_letters.iter().map(|(id, row)| (*id, row))
    }

    /// Every noted skip.
    pub fn skips(&self) -> &[SkipRow] {
        &self.skips
    }
}

/// Where a ref stands: its lane and key, then its place in the order of delivery. An edited copy may stand at its
/// original's place.
pub(super) type RefKey = (LaneId, String, TickRef, i64, EventId);

pub(super) fn ref_key(lane: &LaneId, at: &EventRef) -> RefKey {
    (lane.clone(), at.key.clone(), at.to, at.seq, at.id)
}
