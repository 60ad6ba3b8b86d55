//! What operators ask for and a lane's owner carries out: replays, and keys that may go on.

use super::db::{Db, Statement};
use super::mutant;
use super::record::{DeadRow, ParkedRow, RefRow, ref_key};
use bytes::Bytes;
use chrono::{DateTime, Utc};
use relevo_core::dead_letters::{DeadFilter, DeadLetterId, DeadState, ReplayProgress};
use relevo_core::event::{EventId, Headers};
use relevo_core::outbox::{EventRef, LaneId, Request, RequestId};
use relevo_core::{Error, ErrorClass, Kind, Result};

/// A wish that only a lane's owner may carry out.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestRow {
    /// The lane it concerns.
    pub lane: LaneId,
    /// The key it concerns.
    pub key: String,
    /// The dead letter to put back; without one the key is only let go on.
    pub dead_letter: Option<DeadLetterId>,
    /// The operation it belongs to.
    pub operation: i64,
    /// Not before.
    pub due: DateTime<Utc>,
    /// Carried out.
    pub done: bool,
    /// Taken back.
    pub cancelled: bool,
}

impl RequestRow {
    fn is_waiting(&self) -> bool {
        !self.done && !self.cancelled
    }
}

impl Db {
    pub(super) fn due_requests<'a>(
        &'a self,
        subscription: &'a str,
    ) -> impl Iterator<Item = Request> + 'a {
        let due = |row: &RequestRow| row.is_waiting() && row.due <= self.now;
        let mine = self
            .requests
            .iter()
            .filter(move |(_, row)| &*row.lane.subscription == subscription && due(row));
        mine.map(|(id, row)| Request { id: *id, lane: row.lane.lane, key: row.key.clone() })
    }

    pub(super) fn drop_requests_of(&mut self, subscription: &str) {
        let gone = |row: &RequestRow| &*row.lane.subscription == subscription;
        let letters: Vec<DeadLetterId> = self
            .requests
            .values()
            .filter(|row| gone(row) && row.is_waiting())
            .filter_map(|row| row.dead_letter)
            .collect();
        letters.into_iter().for_each(|id| self.set_state(id, DeadState::Dead));
        self.requests.retain(|_, row| !gone(row));
    }

    fn set_state(&mut self, id: DeadLetterId, state: DeadState) {
        if let Some(letter) = self.dead_letters.get_mut(&id) {
            letter.state = state;
        }
    }

    /// Carries a request out, inside the lane's transaction. One that is done or taken back changes nothing.
    pub(super) fn carry_out(&mut self, id: RequestId) {
        let Some(row) =
            self.requests.get_mut(&id).filter(|row| row.is_waiting() || mutant!(ReplayTwice))
        else {
            return;
        };
        row.done = true;
        let row = row.clone();
        if let Some(letter) = row.dead_letter {
            self.put_back(letter);
        }
        let now = self.now;
        let due = ParkedRow {
            attempts: 0,
            deaths: 0,
            due: Some(now),
            class: ErrorClass::Transient,
            error: "asked for by an operator".into(),
            since: now,
        };
        self.parked_keys.insert((row.lane, row.key), due);
    }

    fn put_back(&mut self, letter: DeadLetterId) {
        let Some(row) = self.dead_letters.get_mut(&letter) else { return };
        row.state = DeadState::Replayed;
        if mutant!(ReplayStripsHeaders) {
            row.event.headers = Headers::default();
        }
        let at = EventRef { id: row.event.id, ..row.at.clone() };
        let (key, parked) =
            (ref_key(&row.lane, &at), RefRow { id: row.event.id, event: Some(row.event.clone()) });
        self.parked_refs.entry(key).or_insert(parked);
    }

    /// Dead letters that match, newest first.
    pub fn find_dead<'a>(
        &'a self,
        filter: &'a DeadFilter,
        before: Option<DeadLetterId>,
    ) -> impl Iterator<Item = (DeadLetterId, &'a DeadRow)> {
        let below = before.unwrap_or(DeadLetterId::MAX);
        self.dead_letters
            .range(..below)
            .rev()
            .map(|(id, row)| (*id, row))
            .filter(move |(id, row)| matches(filter, *id, row))
    }

    /// Freezes the dead letters that match and asks for their replay, oldest place first, so many a second.
    pub fn replay(&mut self, filter: &DeadFilter, rate: Option<f64>) -> Result<ReplayProgress> {
        let mut filter = filter.clone();
        filter.state = Some(DeadState::Dead);
        let mut chosen: Vec<DeadLetterId> =
            self.find_dead(&filter, None).map(|(id, _)| id).collect();
        if let Some(id) = filter.ids.iter().find(|id| !chosen.contains(id)) {
            return Err(refused(format!("dead letter {id} is not there, or is not dead any more")));
        }
        chosen.sort_by_key(|id| self.dead_letters.get(id).map(|row| (row.at.to, row.at.seq)));
        chosen.retain(|id| {
            self.dead_letters
                .get(id)
                .is_some_and(|row| self.subscriptions.contains_key(&row.lane.subscription))
        });
        let operation = self.next_operation();
        for (nth, id) in chosen.iter().enumerate() {
            let wait = rate.filter(|rate| *rate > 0.0).map_or(0.0, |rate| nth as f64 / rate);
            self.request_replay(
                *id,
                operation,
                self.now + chrono::Duration::milliseconds((wait * 1000.0) as i64),
            );
        }
        self.replay_progress(operation)
    }

    fn next_operation(&mut self) -> i64 {
        self.next_operation += 1;
        self.next_operation - 1
    }

    fn request_replay(&mut self, id: DeadLetterId, operation: i64, due: DateTime<Utc>) {
        let Some(letter) = self.dead_letters.get_mut(&id) else { return };
        letter.state = DeadState::Requested;
        let (lane, key) = (letter.lane.clone(), letter.at.key.clone());
        self.ask(RequestRow {
            lane,
            key,
            dead_letter: Some(id),
            operation,
            due,
            done: false,
            cancelled: false,
        });
    }

    fn ask(&mut self, row: RequestRow) {
        let id = self.requests.last_key_value().map_or(1, |(id, _)| id + 1);
        self.requests.insert(id, row);
    }

    /// How far a replay is.
    pub fn replay_progress(&self, operation: i64) -> Result<ReplayProgress> {
        if operation <= 0 || operation >= self.next_operation {
            return Err(Error::new(
                Kind::InvalidArgument,
                format!("there is no replay {operation}"),
            )
            .from_adapter("memory"));
        }
        let count = |wanted: &dyn Fn(&RequestRow) -> bool| {
            self.requests.values().filter(|row| row.operation == operation && wanted(row)).count()
                as i64
        };
        let (waiting, done) = (count(&|row| row.is_waiting()), count(&|row| row.done));
        Ok(ReplayProgress::new(
            operation,
            count(&|_| true),
            waiting,
            done,
            count(&|row| row.cancelled),
        ))
    }

    /// Takes out of a replay what was not put back yet.
    pub fn cancel_replay(&mut self, operation: i64) -> Result<ReplayProgress> {
        self.replay_progress(operation)?;
        let waiting = |row: &&mut RequestRow| row.operation == operation && row.is_waiting();
        let mut letters = Vec::new();
        for row in self.requests.values_mut().filter(waiting) {
            row.cancelled = true;
            letters.extend(row.dead_letter);
        }
        letters.into_iter().for_each(|id| self.set_state(id, DeadState::Dead));
        self.replay_progress(operation)
    }

    /// Archives a dead letter and asks for the replay of an edited copy of it under `fresh`.
    pub fn replay_edited(
        &mut self,
        id: DeadLetterId,
        fresh: EventId,
        payload: Bytes,
        headers: Headers,
    ) -> Result<EventId> {
        let letter = self.dead_letters.get(&id).filter(|row| row.state == DeadState::Dead);
        let letter = letter.ok_or_else(|| {
            refused(format!("dead letter {id} is not there, or is not dead any more"))
        })?;
        let mut copy = letter.clone();
        copy.event.id = fresh;
        copy.event.payload = payload;
        copy.event.headers = headers;
        copy.at = EventRef { id: fresh, ..copy.at };
        copy.copy_of = Some(id);
        self.set_state(id, DeadState::Archived);
        let copy = self.insert_dead(copy);
        let operation = self.next_operation();
        self.request_replay(copy, operation, self.now);
        Ok(fresh)
    }

    /// Sets dead letters aside; a key that is held for them may go on.
    pub fn archive(&mut self, filter: &DeadFilter) -> Statement<u64> {
        let chosen: Vec<DeadLetterId> = self.find_dead(filter, None).map(|(id, _)| id).collect();
        for id in &chosen {
            self.set_state(*id, DeadState::Archived);
            let Some(row) = self.dead_letters.get(id) else { continue };
            let at = (row.lane.clone(), row.at.key.clone());
            let release = |other: &RequestRow| other.is_waiting() && other.dead_letter.is_none();
            let asked = self
                .requests
                .values()
                .any(|other| release(other) && other.lane == at.0 && other.key == at.1);
            if self.parked_keys.get(&at).is_some_and(|row| row.due.is_none()) && !asked {
                let due = self.now;
                let (lane, key) = at;
                // No operation that a cancel could name: a held key that nobody lets go would be held for ever.
                self.ask(RequestRow {
                    lane,
                    key,
                    dead_letter: None,
                    operation: 0,
                    due,
                    done: false,
                    cancelled: false,
                });
            }
        }
        Ok(chosen.len() as u64)
    }

    /// Every request, for those who check.
    pub fn requests(&self) -> impl Iterator<Item = (RequestId, &RequestRow)> {
        self.requests.iter().map(|(id, row)| (*id, row))
    }
}

fn refused(message: String) -> Error {
    Error::new(Kind::ReplayRefused, message).from_adapter("memory")
}

fn matches(filter: &DeadFilter, id: DeadLetterId, row: &DeadRow) -> bool {
    (filter.ids.is_empty() || filter.ids.contains(&id))
        && filter.subscription.as_deref().is_none_or(|name| *row.lane.subscription == *name)
        && filter.topic.as_deref().is_none_or(|topic| row.event.topic == topic)
        && filter.key.as_deref().is_none_or(|key| row.event.key.as_deref() == Some(key))
        && filter.class.is_none_or(|class| row.class == class)
        && row.state == filter.state.unwrap_or(DeadState::Dead)
        && filter.text.as_deref().is_none_or(|text| row.error.contains(text))
        && filter.event.is_none_or(|event| row.event.id == event)
        && filter.up_to.is_none_or(|last| id <= last)
}
