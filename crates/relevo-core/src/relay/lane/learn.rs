//! What became of a batch or a record, taken in: the lane goes on from there, or its memory is void.

use super::{Lane, Parked, Work};
use crate::clock::Instant;
use crate::outbox::LaneChange;
use crate::relay::batch::Item;
use crate::relay::config::RelayConfig;

impl Lane {
    /// A parked key turned out to have nothing behind it.
    pub(in crate::relay) fn nothing_waits_behind(&mut self, key: &str) {
        let mut change = self.cursor.staying();
        change.unparked.push(key.to_owned());
        self.decided(change, Vec::new());
    }

    /// A batch was confirmed, every event of its beginning: the lane goes on, and that is recorded later.
    pub(in crate::relay) fn confirmed(
        &mut self,
        change: LaneChange,
        rest: Vec<Item>,
        now: Instant,
    ) {
        self.put_back(rest);
        self.cursor.confirm(change, now);
        self.decide_nothing_waits();
    }

    /// What became of a batch is more than confirms: it must be recorded before the lane goes on.
    pub(in crate::relay) fn decided(&mut self, change: LaneChange, rest: Vec<Item>) {
        self.cursor.keep(change, rest);
    }

    /// A record of this lane came to its end. Whatever else is under way goes on, unless memory is void now.
    pub(in crate::relay) fn record_ended(
        &mut self,
        change: &LaneChange,
        failed: bool,
        now: Instant,
        config: &RelayConfig,
    ) {
        self.told = now;
        match (self.cursor.end_move(change, failed), failed) {
            (true, true) => self.doom(),
            (true, false) => {}
            (false, true) => self.void(),
            (false, false) => {
                let rest = self.cursor.take_outcome();
                self.recorded_with_rest(change, rest, now, config);
            }
        }
    }

    /// A change of this lane is durable; `rest` was not decided.
    pub(in crate::relay) fn recorded_with_rest(
        &mut self,
        change: &LaneChange,
        rest: Vec<Item>,
        now: Instant,
        config: &RelayConfig,
    ) {
        self.put_back(rest);
        self.recorded(change, now, config);
    }

    /// A change of this lane is durable.
    pub(in crate::relay) fn recorded(
        &mut self,
        change: &LaneChange,
        now: Instant,
        config: &RelayConfig,
    ) {
        self.work = Work::Idle;
        self.told = now;
        self.cursor.recorded(change.after, self.queue.is_empty());
        for key in &change.parked {
            let due = key.retry_in.map(|delay| now + delay);
            self.parked.insert(
                key.key.clone(),
                Parked { attempts: key.attempts, deaths: key.deaths, due },
            );
        }
        for key in &change.unparked {
            self.parked.remove(key);
        }
        self.requests.retain(|request| !change.replayed.contains(&request.id));
        self.check_parked(config);
        self.decide_nothing_waits();
        if !change.replayed.is_empty() {
            // What became of a request (it may have been cancelled meanwhile) only the store knows.
            self.void();
        }
    }
}
