//! What the machine learns from each answer.

use super::Relay;
use crate::clock::Instant;
use crate::error::{Error, Kind};
use crate::mutant;
use crate::outbox::{
    Claim, Fleet, LaneChange, LaneId, LaneState, Page, Position, Row, TickRef, Token,
};
use crate::relay::action::Delivery;
use crate::relay::lane::Lane;
use crate::relay::reader::Reading;
use std::collections::BTreeMap;

impl Relay {
    pub(super) fn note_trouble(&mut self, now: Instant, error: Option<Error>) {
        match error {
            Some(error) if error.kind() != Kind::Stale => self.trouble.quiet(now),
            Some(_) => {}
            None => self.trouble.busy(),
        }
    }

    pub(super) fn beaten(&mut self, now: Instant, sent: Instant, result: Result<Fleet, Error>) {
        self.beats.under_way = false;
        match result {
            Ok(fleet) => {
                self.beats.last_good = Some(sent);
                self.fleet(now, sent, &fleet);
                // A request in hand is often one of many, due at a rate: the next ones are looked for soon.
                let pause = match fleet.requests.is_empty() {
                    true => self.config.beat_every(self.leases.alone(now)),
                    false => self.config.beat_for_requests(),
                };
                self.beats.next = sent + pause;
            }
            Err(error) => {
                self.beats.next = now + self.config.lease / 10;
                self.note_trouble(now, Some(error));
            }
        }
    }

    pub(super) fn fleet(&mut self, now: Instant, sent: Instant, fleet: &Fleet) {
        self.leases.observe(now, fleet);
        self.looked = true;
        self.removed |= fleet.removed;
        self.paused = fleet.paused;
        for lease in &fleet.leases {
            let lost = |lane: &Lane| lane.token != lease.token && lane.taken < sent;
            if self.lanes.get(&lease.lane).is_some_and(lost) {
                self.lanes.remove(&lease.lane);
            }
            if let Some(lane) = self.lanes.get_mut(&lease.lane) {
                lane.compare(sent, lease.position);
            }
        }
        if self.removed || self.paused {
            // Their tokens are void already: the operator's transaction swapped them.
            self.lanes.clear();
        }
        for request in &fleet.requests {
            if let Some(lane) = self.lanes.get_mut(&request.lane) {
                lane.ask(request.clone());
            }
        }
    }

    pub(super) fn taken(
        &mut self,
        now: Instant,
        claims: &[Claim],
        result: Result<Vec<(u16, LaneState)>, Error>,
    ) {
        self.under_way -= 1;
        self.taking = false;
        let lanes = match result {
            Ok(lanes) => lanes,
            // If it happened all the same, the leases are in our name with tokens we forget: they run out.
            Err(error) => return self.note_trouble(now, Some(error)),
        };
        for (number, state) in lanes {
            if let Some(claim) = claims.iter().find(|claim| claim.lane == number) {
                let id = LaneId { subscription: self.subscription.clone(), lane: number };
                let lane = Lane::taken(id, claim.fresh, state, now, &self.config);
                self.lanes.insert(number, lane);
                self.unrecorded.remove(&number);
                self.counts.takeovers += 1;
            }
        }
        // What was not got is another's by now: the next beat tells whose.
        self.beats.next = self.beats.next.min(now + self.config.lease / 10);
    }

    pub(super) fn loaded(
        &mut self,
        now: Instant,
        number: u16,
        token: Token,
        result: Result<Option<LaneState>, Error>,
    ) {
        self.under_way -= 1;
        let Some(lane) = self.lanes.get_mut(&number).filter(|lane| lane.token == token) else {
            return;
        };
        match result {
            Ok(Some(state)) => {
                lane.loaded(state, now, &self.config);
                self.unrecorded.remove(&number);
            }
            Ok(None) => {
                self.lanes.remove(&number);
            }
            Err(error) => {
                lane.void();
                self.note_trouble(now, Some(error));
            }
        }
    }

    pub(super) fn page(&mut self, now: Instant, reader: usize, result: Result<Page, Error>) {
        let Some(reading) = self.readers.end(reader) else { return };
        let page = match result {
            Ok(page) => page,
            Err(error) => return self.page_failed(now, &reading, error),
        };
        self.trouble.busy();
        let Some(to) = page.to else { return self.readers.quiet(reading.start, now) };
        let bytes = page.rows.iter().map(|row| row.event.payload.len()).sum();
        self.readers.busy(page.rows.len(), bytes);
        let (end, cut) = self.in_step(&reading, to, page.end);
        let mut by_lane: BTreeMap<u16, Vec<Row>> = BTreeMap::new();
        for row in page.rows.into_iter().filter(|row| cut.is_none_or(|cut| row.seq <= cut)) {
            by_lane.entry(row.lane).or_default().push(row);
        }
        for (number, token) in reading.lanes {
            if let Some(lane) = self.lanes.get_mut(&number).filter(|lane| lane.token == token) {
                let rows = by_lane.remove(&number).unwrap_or_default();
                self.counts.filtered += lane.page(reading.start, rows, to, end, &self.config);
            }
        }
    }

    /// Where a page ends, and behind which row it is cut, if it is: at the first place in its window where other lanes
    /// stand. From there on all of them are read together, instead of the same rows once for each.
    fn in_step(&self, reading: &Reading, to: TickRef, end: Position) -> (Position, Option<i64>) {
        if reading.lanes.len() == self.lanes.len() {
            return (end, None);
        }
        let start = reading.start;
        let ahead = |at: &Position| {
            let in_page = end.to.is_none() || at.seq < end.seq;
            at.to == Some(to) && at.from == start.from && at.seq > start.seq && in_page
        };
        let others = self.lanes.iter().filter_map(|(lane, it)| Some((lane, it.reads_from()?)));
        let waiting = others.filter(|(lane, at)| ahead(at) && !self.readers.is_read(**lane));
        match waiting.map(|(_, at)| at).min() {
            Some(place) if mutant!(CutIsForgotten) => (end, Some(place.seq)),
            Some(place) => (place, Some(place.seq)),
            None => (end, None),
        }
    }

    /// A tick that only memory knows (the server crashed before it was durable) can never be read from: what memory
    /// has of these lanes is void.
    pub(super) fn page_failed(&mut self, now: Instant, reading: &Reading, error: Error) {
        if matches!(error.kind(), Kind::Stale | Kind::TickMissing) {
            for (number, token) in &reading.lanes {
                if let Some(lane) = self.lanes.get_mut(number).filter(|lane| lane.token == *token) {
                    lane.cannot_read_from(reading.start);
                }
            }
        }
        self.note_trouble(now, Some(error));
    }

    pub(super) fn parked(
        &mut self,
        now: Instant,
        (number, token): (u16, Token),
        key: &str,
        max_rows: usize,
        result: Result<Vec<crate::outbox::ParkedEvent>, Error>,
    ) {
        self.delivering -= 1;
        let Some(lane) = self.lanes.get_mut(&number).filter(|lane| lane.token == token) else {
            return self.breaker.inconclusive(now);
        };
        match result {
            Ok(_) if lane.ends_doomed() => self.breaker.inconclusive(now),
            Ok(events) if events.is_empty() => {
                lane.nothing_waits_behind(key);
                self.breaker.inconclusive(now);
            }
            Ok(events) => {
                let batch = lane.drain(key, events, max_rows, &self.config, &mut self.rng);
                self.under_way += 1;
                self.delivering += 1;
                self.drained.push(batch);
            }
            Err(error) => {
                lane.void();
                self.breaker.inconclusive(now);
                self.note_trouble(now, Some(error));
            }
        }
    }

    pub(super) fn delivered(
        &mut self,
        now: Instant,
        number: u16,
        token: Token,
        delivery: Delivery,
    ) {
        self.under_way -= 1;
        self.delivering -= 1;
        self.at_stake -= 1;
        self.judge_destination(now, &delivery);
        if let Delivery::Void(error) = &delivery
            && error.kind() != Kind::Stale
        {
            self.trouble.quiet(now);
            self.unrecorded.insert(number);
        }
        let Some(lane) = self.lanes.get_mut(&number).filter(|lane| lane.token == token) else {
            return;
        };
        if lane.ends_doomed() {
            return;
        }
        match &delivery {
            Delivery::Recorded { down: None, .. } | Delivery::Decided { down: None, .. } => {
                lane.was_up();
            }
            Delivery::Recorded { .. } | Delivery::Decided { .. } | Delivery::Down { .. } => {
                lane.was_down(self.answers);
            }
            Delivery::Aborted { .. } | Delivery::Void(_) => {}
        }
        match delivery {
            Delivery::Recorded { change, rest, down: _ } => {
                self.counts.moves += 1;
                lane.recorded_with_rest(&change, rest, now, &self.config);
                self.trouble.busy();
            }
            Delivery::Decided { change, rest, down: _ } => {
                self.counts.moves += 1;
                match change.only_moves() {
                    true => lane.confirmed(change, rest, now),
                    false => lane.decided(change, rest),
                }
            }
            Delivery::Down { items, reason: _ } => lane.put_back(items),
            Delivery::Aborted { items, reason: _ } => lane.redo_alone(items),
            Delivery::Void(_) if mutant!(TrustMemoryAfterError) => lane.put_back(Vec::new()),
            Delivery::Void(_) => lane.void(),
        }
    }

    pub(super) fn judge_destination(&mut self, now: Instant, delivery: &Delivery) {
        match delivery {
            Delivery::Recorded { down: Some(reason), .. }
            | Delivery::Decided { down: Some(reason), .. }
            | Delivery::Down { reason, .. } => {
                self.breaker.down(now, reason.clone());
                self.counts.moves += 1;
            }
            Delivery::Recorded { down: None, .. } | Delivery::Decided { down: None, .. } => {
                self.answers += 1;
                self.breaker.up();
            }
            Delivery::Aborted { .. } | Delivery::Void(_) => self.breaker.inconclusive(now),
        }
    }

    pub(super) fn recorded(
        &mut self,
        now: Instant,
        changes: &[LaneChange],
        result: Result<(), Error>,
    ) {
        self.under_way -= 1;
        self.at_stake -= usize::from(super::is_at_stake(changes));
        let failed = result.is_err() && !mutant!(TrustMemoryAfterError);
        if result.as_ref().is_err_and(|error| error.kind() != Kind::Stale) {
            let at_stake = changes.iter().filter(|change| change.is_at_stake());
            self.unrecorded.extend(at_stake.map(|change| change.lane.lane));
        }
        self.note_trouble(now, result.err());
        for change in changes {
            let lane =
                self.lanes.get_mut(&change.lane.lane).filter(|lane| lane.token == change.token);
            let Some(lane) = lane else { continue };
            self.counts.moves += u64::from(!failed);
            lane.record_ended(change, failed, now, &self.config);
        }
    }
}
