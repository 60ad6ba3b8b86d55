use super::action::{Action, Delivery, Input};
use super::batch::Batch;
use super::config::RelayConfig;
use super::lane::{DRAIN_ROWS, Lane, Wish};
use super::reader::{Readers, Reading};
use crate::clock::{Instant, Rng};
use crate::error::{Error, Kind};
use crate::flow::{Breaker, Leases, Pace};
use crate::mutant;
use crate::outbox::{
    Beat, Claim, Fleet, LaneChange, LaneId, LaneState, MemberId, MemberNote, Page, Row, Token,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The machine of one subscription in one process.
///
/// Give it inputs with [`Relay::handle`], do what [`Relay::poll`] says, come back at [`Relay::wake_at`]. It is
/// deterministic: the same inputs at the same times give the same actions.
#[derive(Debug)]
pub struct Relay {
    subscription: Arc<str>,
    member: MemberId,
    config: Arc<RelayConfig>,
    rng: Rng,
    lanes: BTreeMap<u16, Lane>,
    leases: Leases,
    readers: Readers,
    breaker: Breaker,
    beats: Beats,
    /// After an error of the store nothing new is asked of it until this pause is over.
    trouble: Pace,
    /// Takes, loads, releases, batches and records under way.
    under_way: usize,
    delivering: usize,
    /// How often the destination answered.
    answers: u64,
    /// Batches of parked events, read and ready to go.
    drained: Vec<Batch>,
    /// Where the next round of deliveries begins, so that no lane is always last.
    turn: u16,
    taking: bool,
    /// The leases were looked at since the last take.
    looked: bool,
    paused: bool,
    stopping: bool,
    removed: bool,
    released: bool,
    /// When actions were last asked for.
    polled: Instant,
    counts: Counts,
}

/// When life was signed.
#[derive(Debug)]
struct Beats {
    next: Instant,
    under_way: bool,
    /// When the last beat that succeeded was *sent*.
    last_good: Option<Instant>,
    /// The last beat, answered or not, said that the destination is down.
    told_down: bool,
}

/// What the shell shows as metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Lanes owned.
    pub lanes: usize,
    /// Lanes that need a person.
    pub stopped: usize,
    /// Parked keys of the owned lanes.
    pub parked_keys: usize,
    /// Events in memory.
    pub queued: usize,
    /// Lanes taken so far.
    pub takeovers: u64,
    /// Events the subscription did not want, so far.
    pub filtered: u64,
    /// True while the destination is taken to be down.
    pub breaker_open: bool,
    /// Grows with every cursor, park or probe that moved.
    pub moves: u64,
    /// True if something is due: events in memory or parked keys past their time.
    pub due: bool,
}

impl Relay {
    /// A machine that owns nothing yet. `doorbell` says that the store rings when something comes.
    pub fn new(
        subscription: impl Into<Arc<str>>,
        member: MemberId,
        config: RelayConfig,
        doorbell: bool,
        rng: Rng,
    ) -> Self {
        let config = Arc::new(config);
        Self {
            subscription: subscription.into(),
            leases: Leases::new(member.clone(), config.lease),
            member,
            readers: Readers::new(&config, doorbell),
            trouble: Pace::new(
                Duration::from_millis(100),
                (config.lease / 2).min(Duration::from_secs(5)),
            ),
            config,
            rng,
            lanes: BTreeMap::new(),
            breaker: Breaker::default(),
            beats: Beats {
                next: Instant::ZERO,
                under_way: false,
                last_good: None,
                told_down: false,
            },
            under_way: 0,
            delivering: 0,
            answers: 0,
            drained: Vec::new(),
            turn: 0,
            taking: false,
            looked: false,
            paused: false,
            stopping: false,
            removed: false,
            released: false,
            polled: Instant::ZERO,
            counts: Counts::default(),
        }
    }

    /// True once it has stopped and given everything back.
    pub fn is_finished(&self) -> bool {
        (self.stopping || self.removed)
            && self.released
            && self.under_way == 0
            && self.readers.is_idle()
    }

    /// True if an operator removed the subscription.
    pub fn is_removed(&self) -> bool {
        self.removed
    }

    /// The figures of this moment.
    pub fn counts(&self, now: Instant) -> Counts {
        Counts {
            lanes: self.lanes.len(),
            stopped: self.lanes.values().filter(|lane| lane.stopped.is_some()).count(),
            parked_keys: self.lanes.values().map(Lane::parked_keys).sum(),
            queued: self.lanes.values().map(Lane::queued).sum(),
            breaker_open: self.breaker.is_open(),
            due: self.lanes.values().any(|lane| lane.has_due(now) || lane.is_busy()),
            ..self.counts
        }
    }

    /// The tokens under which this process works its lanes.
    pub fn owned(&self) -> impl Iterator<Item = (u16, Token)> {
        self.lanes.iter().map(|(number, lane)| (*number, lane.token))
    }

    // ---- inputs -------------------------------------------------------------------------------------------------

    /// Takes in what happened.
    pub fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::Wake => {}
            Input::Rung => self.readers.ring(),
            Input::Stop => self.stopping = true,
            Input::Beat { sent, result } => self.beaten(now, sent, result),
            Input::Taken { claims, result } => self.taken(now, &claims, result),
            Input::Loaded { lane, token, result } => self.loaded(now, lane, token, result),
            Input::Released { claims: _, result } => {
                self.under_way -= 1;
                self.note_trouble(now, result.err());
            }
            Input::Page { reader, result } => self.page(now, reader, result),
            Input::Parked { lane, token, key, max_rows, result } => {
                self.under_way -= 1;
                self.parked(now, (lane, token), &key, max_rows, result);
            }
            Input::Delivered { lane, token, delivery } => {
                self.delivered(now, lane, token, *delivery)
            }
            Input::Recorded { changes, result } => self.recorded(now, &changes, result),
        }
    }

    fn note_trouble(&mut self, now: Instant, error: Option<Error>) {
        match error {
            Some(error) if error.kind() != Kind::Stale => self.trouble.quiet(now),
            Some(_) => {}
            None => self.trouble.busy(),
        }
    }

    fn beaten(&mut self, now: Instant, sent: Instant, result: Result<Fleet, Error>) {
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

    fn fleet(&mut self, now: Instant, sent: Instant, fleet: &Fleet) {
        self.leases.observe(now, fleet);
        self.looked = true;
        self.removed |= fleet.removed;
        self.paused = fleet.paused;
        for lease in &fleet.leases {
            let lost = |lane: &Lane| lane.token != lease.token && lane.taken < sent;
            if self.lanes.get(&lease.lane).is_some_and(lost) {
                self.lanes.remove(&lease.lane);
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

    fn taken(
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
                self.counts.takeovers += 1;
            }
        }
        // What was not got is another's by now: the next beat tells whose.
        self.beats.next = self.beats.next.min(now + self.config.lease / 10);
    }

    fn loaded(
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
            Ok(Some(state)) => lane.loaded(state, now, &self.config),
            Ok(None) => {
                self.lanes.remove(&number);
            }
            Err(error) => {
                lane.void();
                self.note_trouble(now, Some(error));
            }
        }
    }

    fn page(&mut self, now: Instant, reader: usize, result: Result<Page, Error>) {
        let Some(reading) = self.readers.end(reader) else { return };
        let page = match result {
            Ok(page) => page,
            Err(error) => return self.page_failed(now, &reading, error),
        };
        self.trouble.busy();
        let Some(to) = page.to else { return self.readers.quiet(reading.start, now) };
        self.readers.busy();
        self.counts.filtered +=
            page.rows.iter().filter(|row| !self.config.wants(&row.event)).count() as u64;
        let mut by_lane: BTreeMap<u16, Vec<Row>> = BTreeMap::new();
        for row in page.rows {
            by_lane.entry(row.lane).or_default().push(row);
        }
        for (number, token) in reading.lanes {
            if let Some(lane) = self.lanes.get_mut(&number).filter(|lane| lane.token == token) {
                lane.page(
                    reading.start,
                    by_lane.remove(&number).unwrap_or_default(),
                    to,
                    page.end,
                    &self.config,
                );
            }
        }
    }

    /// A tick that only memory knows (the server crashed before it was durable) can never be read from: what memory
    /// has of these lanes is void.
    fn page_failed(&mut self, now: Instant, reading: &Reading, error: Error) {
        if matches!(error.kind(), Kind::Stale | Kind::TickMissing) {
            for (number, token) in &reading.lanes {
                if let Some(lane) = self.lanes.get_mut(number).filter(|lane| lane.token == *token) {
                    lane.cannot_read_from(reading.start);
                }
            }
        }
        self.note_trouble(now, Some(error));
    }

    fn parked(
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

    fn delivered(&mut self, now: Instant, number: u16, token: Token, delivery: Delivery) {
        self.under_way -= 1;
        self.delivering -= 1;
        self.judge_destination(now, &delivery);
        if let Delivery::Void(error) = &delivery
            && error.kind() != Kind::Stale
        {
            self.trouble.quiet(now);
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

    fn judge_destination(&mut self, now: Instant, delivery: &Delivery) {
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

    fn recorded(&mut self, now: Instant, changes: &[LaneChange], result: Result<(), Error>) {
        self.under_way -= 1;
        let failed = result.is_err() && !mutant!(TrustMemoryAfterError);
        self.note_trouble(now, result.err());
        for change in changes {
            let lane =
                self.lanes.get_mut(&change.lane.lane).filter(|lane| lane.token == change.token);
            let Some(lane) = lane else { continue };
            self.counts.moves += u64::from(!failed);
            lane.record_ended(change, failed, now, &self.config);
        }
    }

    // ---- actions ------------------------------------------------------------------------------------------------

    /// What should be done now.
    pub fn poll(&mut self, now: Instant) -> Vec<Action> {
        self.polled = now;
        let mut actions = Vec::new();
        self.sign_life(now, &mut actions);
        self.hand_over_drained(now, &mut actions);
        if !self.trouble.is_over(now) {
            return actions;
        }
        self.record_decided(now, &mut actions);
        if !self.is_current(now) {
            return actions;
        }
        if self.stopping || self.removed {
            self.give_back_everything(&mut actions);
            return actions;
        }
        if !self.paused {
            self.take_and_give(now, &mut actions);
            self.work_lanes(now, &mut actions);
            self.read(now, &mut actions);
        }
        actions
    }

    /// Parked events that were read go out, or are left in the store if this owner is no longer current.
    fn hand_over_drained(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let current = self.is_current(now);
        for batch in std::mem::take(&mut self.drained) {
            if current {
                actions.push(Action::Deliver(Box::new(batch.lapsing(self.lapses()))));
                continue;
            }
            self.under_way -= 1;
            self.delivering -= 1;
            self.breaker.inconclusive(now);
            if let Some(lane) =
                self.lanes.get_mut(&batch.lane().lane).filter(|lane| lane.token == batch.token())
            {
                lane.void();
            }
        }
    }

    /// What is decided and not durable yet. What lanes wait for is recorded at once; confirms are gathered for a while,
    /// and when those of one lane are due, those of all go along. The fence decides whether this owner still may.
    fn record_decided(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let outcomes: Vec<LaneChange> =
            self.lanes.values_mut().filter_map(Lane::outcome_to_record).collect();
        let config = &self.config;
        let due = self.lanes.values().any(|lane| lane.flush_is_due(now, config));
        let confirms: Vec<LaneChange> = match due {
            true => self.lanes.values_mut().filter_map(Lane::flush).collect(),
            false => Vec::new(),
        };
        for changes in [outcomes, confirms].into_iter().filter(|changes| !changes.is_empty()) {
            self.under_way += 1;
            actions.push(Action::Record(changes));
        }
    }

    fn sign_life(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let over = (self.stopping || self.removed) && self.released;
        let expired = self.next_expiry().is_some_and(|expiry| expiry <= now);
        // Whoever looks at the destination's state must not have to wait for the next regular beat.
        let news = self.breaker.is_open() != self.beats.told_down;
        if self.beats.under_way || over || now < self.beats.next && !expired && !news {
            return;
        }
        self.beats.under_way = true;
        self.beats.told_down = self.breaker.is_open();
        let stopped = |lane: &Lane| lane.stopped.clone().map(|why| (lane.id.lane, why));
        let mut note = MemberNote::default();
        note.breaker = self.breaker.note(now);
        note.stopped = self.lanes.values().filter_map(stopped).collect();
        actions.push(Action::Beat(Beat {
            subscription: self.subscription.clone(),
            member: self.member.clone(),
            note: note.to_string(),
        }));
    }

    fn next_expiry(&self) -> Option<Instant> {
        self.leases.next_expiry(|lane| self.lanes.contains_key(&lane))
    }

    /// An owner hands nothing over once its last good beat was sent too long ago: others may have its lanes.
    fn is_current(&self, now: Instant) -> bool {
        self.lapses().is_some_and(|lapses| now < lapses) || mutant!(ZombieGoesOn)
    }

    /// When that is, as far as the beats that were answered tell.
    fn lapses(&self) -> Option<Instant> {
        self.beats.last_good.map(|sent| sent + (self.config.lease - self.config.margin()))
    }

    fn take_and_give(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let share = self.leases.share(now);
        self.give_back(self.lanes.len().saturating_sub(share), actions);
        if !self.taking && self.looked && self.lanes.len() < share {
            self.take(share - self.lanes.len(), actions);
        }
        self.give_back_leftovers(actions);
    }

    /// Leases in our name that we do not hold are left over from a take that seemed to fail. Our beats keep them
    /// alive, so nobody else could ever have them.
    fn give_back_leftovers(&mut self, actions: &mut Vec<Action>) {
        if self.taking || !self.looked || mutant!(IgnoreLeftovers) {
            return;
        }
        let left: Vec<(u16, Token)> =
            self.leases.mine().filter(|(lane, _)| !self.lanes.contains_key(lane)).collect();
        if left.is_empty() {
            return;
        }
        self.send_release(left, actions);
    }

    fn take(&mut self, most: usize, actions: &mut Vec<Action>) {
        let mut free: Vec<(u16, Token)> =
            self.leases.claimable().filter(|(lane, _)| !self.lanes.contains_key(lane)).collect();
        if free.is_empty() {
            return;
        }
        // From anywhere: a lane that cannot be had (a sleeper's transaction holds its row) must not stand before the
        // others for as long as that lasts.
        let first = self.rng.below(free.len() as u64) as usize;
        free.rotate_left(first);
        free.truncate(most);
        let claims = free
            .into_iter()
            .map(|(lane, seen)| Claim { lane, seen, fresh: self.fresh_token(seen) })
            .collect();
        self.taking = true;
        // Whatever becomes of it, the tokens seen are used up: the next take waits for the next look at the leases.
        self.looked = false;
        self.under_way += 1;
        actions.push(Action::Take(claims));
    }

    fn fresh_token(&mut self, seen: Token) -> Token {
        if mutant!(TokensCount) {
            return seen + 1;
        }
        // Positive and never 0, which is the token of a lane nobody ever had.
        (self.rng.next_u64() >> 1).max(1) as Token
    }

    /// Lanes that others should have hand over nothing more, and go when all they had handed over is recorded. What is
    /// queued is read again by the next owner.
    fn give_back(&mut self, most: usize, actions: &mut Vec<Action>) {
        self.choose_leaving(most);
        let ready =
            |(number, lane): (&u16, &Lane)| (lane.leaving && lane.may_leave()).then_some(*number);
        let ready: Vec<u16> = self.lanes.iter().filter_map(ready).collect();
        self.release(&ready, actions);
    }

    /// As many as are too many; those that are leaving already come first, then those with nothing under way.
    fn choose_leaving(&mut self, most: usize) {
        if most == 0 && !self.lanes.values().any(|lane| lane.leaving) {
            return;
        }
        let mut lanes: Vec<&mut Lane> = self.lanes.values_mut().collect();
        lanes.sort_by_key(|lane| (!lane.leaving, !lane.may_leave()));
        for (index, lane) in lanes.into_iter().enumerate() {
            lane.leaving = index < most;
        }
    }

    fn release(&mut self, numbers: &[u16], actions: &mut Vec<Action>) {
        let gone: Vec<(u16, Token)> = numbers
            .iter()
            .filter_map(|number| self.lanes.remove(number).map(|lane| (*number, lane.token)))
            .collect();
        if !gone.is_empty() {
            self.send_release(gone, actions);
        }
    }

    fn send_release(&mut self, lanes: Vec<(u16, Token)>, actions: &mut Vec<Action>) {
        let claims = lanes
            .into_iter()
            .map(|(lane, seen)| Claim { lane, seen, fresh: self.fresh_token(seen) })
            .collect();
        self.looked = false;
        self.under_way += 1;
        actions.push(Action::Release(claims));
    }

    /// Stopping: what is under way ends, what is decided is written down, then the lanes go back.
    fn give_back_everything(&mut self, actions: &mut Vec<Action>) {
        if self.released || self.under_way > 0 || !self.readers.is_idle() {
            return;
        }
        let lagging: Vec<LaneChange> = self
            .lanes
            .values_mut()
            .filter(|lane| !lane.is_settled() && !lane.is_void())
            .map(Lane::catch_up)
            .collect();
        if !lagging.is_empty() {
            self.record(lagging, actions);
            return;
        }
        let all: Vec<u16> = self.lanes.keys().copied().collect();
        self.release(&all, actions);
        self.released = true;
    }

    fn record(&mut self, changes: Vec<LaneChange>, actions: &mut Vec<Action>) {
        for change in &changes {
            if let Some(lane) = self.lanes.get_mut(&change.lane.lane) {
                lane.set_busy();
            }
        }
        self.under_way += 1;
        actions.push(Action::Record(changes));
    }

    fn work_lanes(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let mut records = Vec::new();
        let order: Vec<u16> = self
            .lanes
            .range(self.turn..)
            .chain(self.lanes.range(..self.turn))
            .map(|(n, _)| *n)
            .collect();
        for number in order {
            self.work_lane(now, number, actions, &mut records);
        }
        if !records.is_empty() {
            self.record(records, actions);
        }
    }

    fn work_lane(
        &mut self,
        now: Instant,
        number: u16,
        actions: &mut Vec<Action>,
        records: &mut Vec<LaneChange>,
    ) {
        let lapses = self.lapses();
        let Some(lane) = self.lanes.get_mut(&number) else { return };
        let mut admitted = None;
        if self.delivering < self.config.concurrency && lane.has_due(now) {
            admitted = self.breaker.admit(now);
        }
        let probe = admitted == Some(true);
        let wish = lane.wish(now, admitted.is_some(), probe, &self.config, &mut self.rng);
        let probed = matches!(wish, Some(Wish::Deliver(_) | Wish::ReadParked(_)));
        if probe && !probed && !mutant!(ProbeForgotten) {
            // The lane has something else to do first: the probe is still to be made.
            self.breaker.inconclusive(now);
        }
        let (id, token) = (lane.id.clone(), lane.token);
        let action = match wish {
            None => return,
            Some(Wish::Record(change)) => return records.push(change),
            Some(Wish::Load) => Action::Load(id, token),
            Some(Wish::Deliver(batch)) => {
                self.delivering += 1;
                self.turn = number + 1;
                Action::Deliver(Box::new(batch.lapsing(lapses)))
            }
            Some(Wish::ReadParked(key)) => {
                self.delivering += 1;
                self.turn = number + 1;
                Action::ReadParked {
                    lane: id,
                    token,
                    key,
                    max_rows: if probe { 1 } else { DRAIN_ROWS },
                }
            }
        };
        lane.set_busy();
        self.under_way += 1;
        actions.push(action);
    }

    fn read(&mut self, now: Instant, actions: &mut Vec<Action>) {
        // A backlog lives on disk: what is in memory is bounded in bytes whatever the payloads' size.
        if self.lanes.values().map(Lane::queued_bytes).sum::<usize>() > self.config.queue_bytes {
            return;
        }
        for (reader, request) in self.readers.begin(&self.lanes, now, &self.config) {
            actions.push(Action::ReadPage { reader, request });
        }
    }

    /// When to come back if nothing happens before.
    pub fn wake_at(&self, now: Instant) -> Option<Instant> {
        let lanes = self.lanes.values().filter_map(|lane| lane.wake_at(&self.config));
        let beat = (!self.beats.under_way).then_some(self.beats.next);
        let claims = self.next_expiry().filter(|_| !self.beats.under_way);
        let trouble = (!self.trouble.is_over(now)).then(|| self.trouble.until());
        let moments = lanes
            .chain(beat)
            .chain(claims)
            .chain(trouble)
            .chain(self.readers.wake_at())
            .chain(self.breaker.wake_at());
        // Whatever was due at the last poll is under way, or waits for an answer rather than for time.
        moments.filter(|moment| *moment > self.polled).min().map(|moment| moment.max(now))
    }
}
