use super::config::{AfterDead, RelayConfig};
use crate::clock::{Clock, Instant, Rng};
use crate::error::ErrorClass;
use crate::event::Event;
use crate::inbox::Outcome;
use crate::mutant;
use crate::outbox::{Death, EventRef, LaneChange, LaneId, ParkKey, Position, Skip, TickRef, Token};
use crate::retry::{LONGEST_DELAY, Verdict};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// An event on its way through a lane.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    /// The tick its window starts from.
    pub from: TickRef,
    /// Where it stands.
    pub at: EventRef,
    /// What it carries.
    pub event: Event,
}

impl Item {
    fn position(&self) -> Position {
        Position { from: self.from, to: Some(self.at.to), seq: self.at.seq }
    }
}

#[derive(Debug, Clone, PartialEq)]
enum State {
    /// Not handed over yet.
    Waiting,
    /// Handed over, no answer yet.
    UnderWay,
    Done,
    Skipped(String),
    /// Its key is parked: it becomes a ref.
    Behind,
    /// Failed, to be tried again: its key is parked by this batch.
    Failed,
    Dead(Death),
}

#[derive(Debug, Clone, PartialEq)]
enum Kind {
    /// Rows fresh from the log.
    Page {
        /// Where the lane stands when every item is decided.
        end: Position,
    },
    /// Refs of one parked key.
    Drain {
        key: String,
        /// Nothing waits behind these.
        all: bool,
    },
}

/// A piece of one lane's work: what to hand over, in which order, and the change to record afterwards.
///
/// The same rules for every destination: within a key an event is handed over only when the one before it
/// is decided, unless several may be under way at once ([`super::Order`]); after a failure the rest of the key waits.
#[derive(Debug, Clone)]
pub struct Batch {
    lane: LaneId,
    token: Token,
    before: Position,
    kind: Kind,
    config: Arc<RelayConfig>,
    rng: Rng,
    /// Shared with the copy that is tried again if the first try came to nothing.
    items: Arc<Vec<Item>>,
    states: Vec<State>,
    links: Vec<Link>,
    /// Nothing before this item may go now.
    scan: usize,
    /// Attempts and deaths in a row of the key's first event, and the verdict of this batch, by key.
    keys: BTreeMap<String, KeyState>,
    single: bool,
    blamed: bool,
    /// From then on others may have the lane.
    lapses: Option<Instant>,
    /// The clock that this moment is of.
    clock: Option<Clock>,
}

/// The items of the same key that stand next to an item.
#[derive(Debug, Clone, Copy, Default)]
struct Link {
    before: Option<usize>,
    after: Option<usize>,
}

fn links(items: &[Item]) -> Vec<Link> {
    let mut links = vec![Link::default(); items.len()];
    let mut last: HashMap<&str, usize> = HashMap::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        if let Some(before) = last.insert(&item.at.key, index) {
            links[index].before = Some(before);
            links[before].after = Some(index);
        }
    }
    links
}

#[derive(Debug, Clone, Default, PartialEq)]
struct KeyState {
    attempts: u32,
    deaths: u32,
    /// The item that parked the key, and how.
    park: Option<(usize, ParkKey)>,
}

impl Batch {
    pub(crate) fn page(
        lane: (LaneId, Token),
        before: Position,
        end: Position,
        items: Vec<Item>,
        parked: impl Fn(&str) -> bool,
        config: Arc<RelayConfig>,
        rng: Rng,
    ) -> Self {
        let state = |item: &Item| {
            if parked(&item.at.key) { State::Behind } else { State::Waiting }
        };
        let states = items.iter().map(state).collect();
        let kind = Kind::Page { end };
        Self {
            lane: lane.0,
            token: lane.1,
            before,
            kind,
            config,
            rng,
            links: links(&items),
            scan: 0,
            items: Arc::new(items),
            states,
            keys: BTreeMap::new(),
            single: false,
            blamed: false,
            lapses: None,
            clock: None,
        }
    }

    pub(crate) fn drain(
        lane: (LaneId, Token),
        before: Position,
        key: (String, u32, u32),
        items: Vec<Item>,
        all: bool,
        config: Arc<RelayConfig>,
        rng: Rng,
    ) -> Self {
        let (key, attempts, deaths) = key;
        let states = vec![State::Waiting; items.len()];
        let keys = BTreeMap::from([(key.clone(), KeyState { attempts, deaths, park: None })]);
        let kind = Kind::Drain { key, all };
        Self {
            lane: lane.0,
            token: lane.1,
            before,
            kind,
            config,
            rng,
            links: links(&items),
            scan: 0,
            items: Arc::new(items),
            states,
            keys,
            single: false,
            blamed: false,
            lapses: None,
            clock: None,
        }
    }

    pub(crate) fn alone(mut self) -> Self {
        self.single = true;
        self
    }

    pub(crate) fn blamed(mut self) -> Self {
        self.blamed = true;
        self
    }

    /// Nothing of it is to be handed over from this moment on: others may have the lane then.
    pub(crate) fn lapsing(mut self, at: Option<Instant>) -> Self {
        self.lapses = at;
        self
    }

    /// Tells the batch which clock the machine's moments are of; a shell does, before it hands anything over.
    pub fn timed_by(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// True if at this moment nothing more is to be handed over.
    pub fn lapses_by(&self, now: Instant) -> bool {
        self.lapses.is_some_and(|lapses| now >= lapses)
    }

    /// True if nothing more is to be handed over: the last sign of life was sent so long ago that others may have the
    /// lane. What was decided is still recorded, if the lane is still this owner's.
    pub fn has_lapsed(&self) -> bool {
        let lapsed = self.clock.as_ref().is_some_and(|clock| self.lapses_by(clock.now()));
        lapsed && !mutant!(ZombieSendsOn)
    }

    /// True if the destination was down for these events again and again while it answered others: then it is
    /// they that fail.
    pub fn is_blamed(&self) -> bool {
        self.blamed
    }

    /// The subscription and lane.
    pub fn lane(&self) -> &LaneId {
        &self.lane
    }

    /// The owner's token.
    pub fn token(&self) -> Token {
        self.token
    }

    /// A change that moves nothing, under the batch's fence.
    pub(crate) fn staying(&self) -> LaneChange {
        LaneChange::moving(self.lane.clone(), self.token, self.before, self.before)
    }

    /// How long a session may idle inside its transaction where nothing else is said.
    pub(crate) fn idle_limit(&self) -> Duration {
        self.config.idle_limit()
    }

    /// True if this batch must not share a transaction: an earlier one with these events was rolled back whole.
    pub fn is_single(&self) -> bool {
        self.single
    }

    /// How many events it has.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// How many of them are to be handed over (the others wait behind their key).
    pub fn to_hand_over(&self) -> usize {
        self.states.iter().filter(|state| **state == State::Waiting).count()
    }

    /// True without events.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The event at `index`.
    pub fn event(&self, index: usize) -> &Event {
        &self.items[index].event
    }

    /// The next event to hand over, if one may go now. Call again until `None`; settle what was handed over,
    /// then ask again: settling releases the next of the key.
    #[expect(clippy::should_implement_trait, reason = "not an iterator: settling releases more")]
    pub fn next(&mut self) -> Option<usize> {
        let may_go = |i: &usize| self.states[*i] == State::Waiting && !self.waits_for_another(*i);
        let found = (self.scan..self.items.len()).find(may_go);
        self.scan = found.unwrap_or(self.items.len());
        self.states[found?] = State::UnderWay;
        found
    }

    /// Is the one before it of its key still to be decided?
    fn waits_for_another(&self, index: usize) -> bool {
        if self.config.several_per_key() || mutant!(SeveralInFlightPerKey) {
            return false;
        }
        let undecided = |i: usize| matches!(self.states[i], State::Waiting | State::UnderWay);
        self.links[index].before.is_some_and(undecided)
    }

    /// Takes the outcome of an event that was handed over. Outcomes of one key are taken in its order.
    pub fn settle(&mut self, index: usize, outcome: Outcome) {
        // The next of its key may go now.
        self.scan = self.scan.min(self.links[index].after.unwrap_or(self.scan));
        if outcome == Outcome::Done && self.keys.is_empty() {
            self.states[index] = State::Done;
            return;
        }
        let key = self.items[index].at.key.clone();
        let state = match outcome {
            // It was under way together with one before it that failed.
            Outcome::Done if self.is_behind(&key) => State::Done,
            _ if self.is_behind(&key) => State::Behind,
            Outcome::Done => {
                self.keys.insert(key, KeyState::default());
                State::Done
            }
            Outcome::Skip { reason } => {
                self.keys.insert(key.clone(), KeyState::default());
                self.wait_until_recorded(index, &key);
                State::Skipped(reason)
            }
            Outcome::Failed { class, error, after } => self.failed(index, key, class, error, after),
            Outcome::Dead { class, error } => {
                let attempts = self.keys.entry(key.clone()).or_default().attempts + 1;
                self.died(index, key, attempts, class, error)
            }
        };
        self.states[index] = state;
    }

    /// Did an event before it park the key in this batch?
    fn is_behind(&self, key: &str) -> bool {
        self.config.several_per_key() && self.keys.get(key).is_some_and(|key| key.park.is_some())
    }

    fn failed(
        &mut self,
        index: usize,
        key: String,
        class: ErrorClass,
        error: String,
        after: Option<Duration>,
    ) -> State {
        let attempts = self.keys.entry(key.clone()).or_default().attempts + 1;
        match self.config.retry.verdict(attempts, class, &mut self.rng) {
            Verdict::Dead => self.died(index, key, attempts, class, error),
            Verdict::RetryIn(delay) => {
                let retry_in = Some(after.unwrap_or(delay).min(LONGEST_DELAY));
                let state = self.keys.entry(key.clone()).or_default();
                state.park = Some((
                    index,
                    ParkKey {
                        key: key.clone(),
                        attempts,
                        deaths: state.deaths,
                        retry_in,
                        class,
                        error,
                    },
                ));
                self.rest_of_key_waits(index);
                State::Failed
            }
        }
    }

    fn died(
        &mut self,
        index: usize,
        key: String,
        attempts: u32,
        class: ErrorClass,
        error: String,
    ) -> State {
        let state = self.keys.entry(key.clone()).or_default();
        let deaths = state.deaths + 1;
        *state = KeyState { attempts: 0, deaths, park: None };
        let hold =
            self.config.after_dead == AfterDead::Hold || deaths >= self.config.max_deaths_in_a_row;
        if hold {
            state.park = Some((
                index,
                ParkKey {
                    key: key.clone(),
                    attempts: 0,
                    deaths: 0,
                    retry_in: None,
                    class,
                    error: error.clone(),
                },
            ));
            self.rest_of_key_waits(index);
        } else {
            self.wait_until_recorded(index, &key);
        }
        State::Dead(Death { event: self.items[index].at.clone(), attempts, class, error })
    }

    /// Where recording is a transaction of its own, what follows a dead letter or a skip may only be handed
    /// over once that is recorded: it is parked, due at once.
    fn wait_until_recorded(&mut self, index: usize, key: &str) {
        let follows = self.waiting_after(index).next().is_some();
        if self.config.one_transaction || !follows || mutant!(ReleaseBeforeRecorded) {
            return;
        }
        let state = self.keys.entry(key.to_owned()).or_default();
        state.park = Some((
            index,
            ParkKey {
                key: key.to_owned(),
                attempts: 0,
                deaths: state.deaths,
                retry_in: Some(Duration::ZERO),
                class: ErrorClass::Transient,
                error: "waits until the event before it is recorded".into(),
            },
        ));
        self.rest_of_key_waits(index);
    }

    fn rest_of_key_waits(&mut self, index: usize) {
        if mutant!(SkipFailedRow) {
            return;
        }
        for follower in self.waiting_after(index).collect::<Vec<_>>() {
            self.states[follower] = State::Behind;
        }
    }

    /// What follows it of its key and is not handed over yet.
    fn waiting_after(&self, index: usize) -> impl Iterator<Item = usize> {
        let of_key = std::iter::successors(self.links[index].after, |i| self.links[*i].after);
        of_key.filter(|i| self.states[*i] == State::Waiting)
    }

    /// Ends the batch: the change that records every decided event of its beginning, and the undecided rest.
    pub fn finish(mut self) -> (Option<LaneChange>, Vec<Item>) {
        let undecided = |state: &State| matches!(state, State::Waiting | State::UnderWay);
        let decided = self.states.iter().position(undecided).unwrap_or(self.states.len());
        let rest = self.items[decided..].to_vec();
        if decided == 0 {
            return (None, rest);
        }
        let after = match &self.kind {
            Kind::Page { end } if rest.is_empty() => *end,
            Kind::Page { .. } => self.items[decided - 1].position(),
            Kind::Drain { .. } => self.before,
        };
        for key in self.keys.values_mut() {
            // What an undecided item decided is not recorded: it will be decided again.
            key.park.take_if(|(index, _)| *index >= decided);
        }
        let mut change = LaneChange::moving(self.lane.clone(), self.token, self.before, after);
        self.describe(&mut change, decided);
        (Some(change), rest)
    }

    /// The undecided whole of it, nothing recorded.
    pub fn into_items(self) -> Vec<Item> {
        Arc::unwrap_or_clone(self.items)
    }

    /// True if these are refs of a parked key rather than rows fresh from the log.
    pub fn is_drain(&self) -> bool {
        matches!(self.kind, Kind::Drain { .. })
    }

    /// What a wrong batch takes a skipped event for: its neighbour.
    fn another(&self, item: &Item) -> EventRef {
        let others = self.items.iter().filter(|other| other.at.id != item.at.id);
        others.last().unwrap_or(item).at.clone()
    }

    fn describe(&self, change: &mut LaneChange, decided: usize) {
        let (drain, complete) = (self.is_drain(), decided == self.items.len());
        for (item, state) in self.items.iter().zip(&self.states).take(decided) {
            let at = || item.at.clone();
            match state {
                State::Done => {
                    change.delivered += 1;
                    change.done.push(item.at.id);
                }
                State::Skipped(reason) if !mutant!(SkipNotNoted) => {
                    let event = if mutant!(SkipOfAnother) { self.another(item) } else { at() };
                    change.skips.push(Skip { event, reason: reason.clone() })
                }
                State::Dead(death) if !mutant!(DeadLetterDropped) => {
                    change.deaths.push(death.clone())
                }
                State::Behind | State::Failed if !drain && !mutant!(ForgetParked) => {
                    change.waiting.push(at())
                }
                _ => {}
            }
            if *state == State::Failed {
                change.failed.push(at());
            }
            let gone = matches!(state, State::Done | State::Skipped(_) | State::Dead(_));
            if drain && gone {
                change.settled.push(at());
            }
        }
        change
            .parked
            .extend(self.keys.values().filter_map(|key| key.park.clone().map(|(_, park)| park)));
        if let Kind::Drain { key, all } = &self.kind {
            let still = !change.parked.is_empty();
            if (complete && *all || mutant!(UnparkTooEarly)) && !still {
                change.unparked.push(key.clone());
            } else if !still {
                // More waits behind what was drained: the key is due again at once.
                let deaths = self.keys.get(key).map_or(0, |key| key.deaths);
                change.parked.push(ParkKey {
                    key: key.clone(),
                    attempts: 0,
                    deaths,
                    retry_in: Some(Duration::ZERO),
                    class: ErrorClass::Transient,
                    error: "more events of this key follow".into(),
                });
            }
        }
    }
}
