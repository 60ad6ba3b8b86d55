//! One batch of messages on its way through the inbox: decides, and does nothing else.

use super::landed::{has_room, land};
use crate::broker::cloudevents::Binding;
use crate::broker::{Arrived, Foreign, Incoming, Malformed, Settle, Tag, event_id};
use crate::error::{Error, Kind, Result};
use crate::event::{Event, EventId, NewEvent, order_key};
use crate::inbox::Outcome;
use crate::limits::Limits;
use crate::mutant;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What the inbox knows a message by.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Meet {
    /// Who published it.
    pub source: String,
    /// Its id, in its publisher's words.
    pub id: String,
    /// What it is kept in order by.
    pub key: String,
}

/// What the inbox says of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Met {
    /// It was seen before: its effect, or its landing, has happened.
    Seen,
    /// It is new, and nothing of its key waits.
    New,
    /// It is new, and earlier events of its key wait in the consumer's log.
    Behind,
}

impl Met {
    /// What it is, once it is noted: `new`, and while earlier events of its key wait?
    pub fn of(new: bool, waits: bool) -> Self {
        match (new, waits) {
            (false, _) => Self::Seen,
            (true, true) => Self::Behind,
            (true, false) => Self::New,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
enum State {
    Unmet,
    Seen,
    /// To be handed to the handler.
    New,
    /// Lands without having been handed over.
    Behind,
    Answered(Outcome),
}

#[derive(Debug, Clone)]
struct Arrival {
    tag: Tag,
    /// How often it was delivered.
    deliveries: u32,
    meet: Meet,
    event: Event,
    /// Why it is no event at all.
    malformed: Option<Malformed>,
    state: State,
}

/// A batch of one source's messages.
///
/// The order of a key is kept: after a failure, what follows in the key lands behind it.
#[derive(Debug, Clone)]
pub(super) struct Meeting {
    consumer: Arc<str>,
    arrivals: Vec<Arrival>,
    /// What is not done does not land.
    at_broker: bool,
}

impl Meeting {
    pub(super) fn of(
        consumer: Arc<str>,
        messages: &[Incoming],
        binding: &Binding,
        foreign: &Foreign,
    ) -> Self {
        let arrival = |message| arrival(&consumer, message, binding, foreign);
        let arrivals = messages.iter().map(arrival).collect();
        Self { consumer, arrivals, at_broker: false }
    }

    /// A consumer that leaves what fails to its broker: a skip does not land either, or what follows would behind it.
    pub(super) fn left_to_broker(mut self, at_broker: bool) -> Self {
        self.at_broker = at_broker;
        self
    }

    pub(super) fn len(&self) -> usize {
        self.arrivals.len()
    }

    /// Each message as a meeting of its own.
    pub(super) fn singly(self) -> impl Iterator<Item = Self> {
        let (consumer, at_broker) = (self.consumer, self.at_broker);
        let alone =
            move |arrival| Self { consumer: consumer.clone(), arrivals: vec![arrival], at_broker };
        self.arrivals.into_iter().map(alone)
    }

    /// Each key's messages as a meeting of its own.
    pub(super) fn by_key(self) -> Vec<Self> {
        let mut keys: Vec<Self> = Vec::new();
        let mut places = BTreeMap::new();
        for one in self.singly() {
            let key = one.arrivals[0].meet.key.clone();
            let place = *places.entry(key).or_insert(keys.len());
            match keys.get_mut(place) {
                Some(meeting) => meeting.arrivals.extend(one.arrivals),
                None => keys.push(one),
            }
        }
        keys
    }

    /// The next messages to ask the inbox about, at most `max`.
    pub(super) fn to_meet(&self, max: usize) -> Vec<Meet> {
        let unmet = self.arrivals.iter().filter(|arrival| arrival.state == State::Unmet);
        unmet.take(max).map(|arrival| arrival.meet.clone()).collect()
    }

    /// Takes the inbox's answer to [`Self::to_meet`].
    pub(super) fn met(&mut self, answers: Vec<Met>) {
        let mut held = self.held();
        let unmet = self.arrivals.iter_mut().filter(|arrival| arrival.state == State::Unmet);
        for (arrival, met) in unmet.zip(answers) {
            arrival.state = match met {
                Met::Seen => State::Seen,
                _ if held.contains(&arrival.meet.key) => State::Behind,
                Met::Behind if !mutant!(IgnoreLanded) => State::Behind,
                _ => match &arrival.malformed {
                    None => State::New,
                    Some(why) => State::Answered(died_of(why)),
                },
            };
            if arrival.state == State::Behind {
                held.insert(arrival.meet.key.clone());
            }
        }
    }

    /// The keys that wait because of something in this batch.
    fn held(&self) -> BTreeSet<String> {
        let holds = |arrival: &&Arrival| match &arrival.state {
            State::Behind => true,
            State::Answered(outcome) => is_failure(outcome),
            _ => false,
        };
        self.arrivals.iter().filter(holds).map(|arrival| arrival.meet.key.clone()).collect()
    }

    /// The next event to hand to the handler.
    pub(super) fn next(&self) -> Option<usize> {
        self.arrivals.iter().position(|arrival| arrival.state == State::New)
    }

    pub(super) fn event(&self, index: usize) -> &Event {
        &self.arrivals[index].event
    }

    /// Takes the handler's answer. After a failure the rest of the key lands behind it.
    pub(super) fn settle(&mut self, index: usize, outcome: Outcome) {
        let failed = is_failure(&outcome) && !mutant!(LandsAlone);
        self.arrivals[index].state = State::Answered(outcome);
        let key = self.arrivals[index].meet.key.clone();
        for arrival in self.arrivals.iter_mut().skip(index + 1) {
            if failed && arrival.meet.key == key && arrival.state == State::New {
                arrival.state = State::Behind;
            }
        }
    }

    /// True if something of it failed.
    pub(super) fn has_failures(&self) -> bool {
        let failed =
            |state: &State| matches!(state, State::Answered(outcome) if is_failure(outcome));
        self.arrivals.iter().any(|arrival| failed(&arrival.state))
    }

    /// Why the first message is no event, as an answer.
    pub(super) fn malformed(&self) -> Option<Outcome> {
        self.arrivals.first()?.malformed.as_ref().map(died_of)
    }

    /// The tag of the first message, and how often it was delivered.
    pub(super) fn delivery(&self) -> Option<(Tag, u32)> {
        self.arrivals.first().map(|arrival| (arrival.tag, arrival.deliveries))
    }

    /// True if a handler's writes are in the transaction.
    pub(super) fn has_effects(&self) -> bool {
        self.arrivals.iter().any(|arrival| arrival.state == State::Answered(Outcome::Done))
    }

    /// The same meeting before anything happened.
    pub(super) fn anew(mut self) -> Self {
        self.arrivals.iter_mut().for_each(|arrival| arrival.state = State::Unmet);
        self
    }

    /// What goes into the consumer's log, in order. Several consumers may share a log with each other and with the
    /// event's origin: each landing is a row of its own, with an id of its own.
    pub(super) fn landings(&self, fresh: &dyn Fn() -> EventId) -> Vec<NewEvent> {
        let landed = self.arrivals.iter().filter_map(|arrival| self.landing(arrival)?.ok());
        landed.map(|event| event.id(fresh())).collect()
    }

    /// What lands of a message, under its own id still; an error if it is too large even for that.
    fn landing(&self, arrival: &Arrival) -> Option<Result<NewEvent>> {
        let outcome = match &arrival.state {
            State::Behind => None,
            State::Answered(Outcome::Done) => return None,
            State::Answered(_) if self.at_broker => return None,
            State::Answered(outcome) => Some(outcome),
            State::Unmet | State::Seen | State::New => return None,
        };
        let Event { id, topic, key, payload, headers, .. } = arrival.event.clone();
        let mut event = NewEvent::bytes(topic, payload).id(id);
        (event.key, event.headers) = (key, headers);
        let landed = land(&self.consumer, event, outcome);
        Some(Limits::default().landing().check(&landed).map(|()| landed))
    }

    /// The order keys of what lands.
    pub(super) fn landed_keys(&self) -> Vec<String> {
        let lands = |arrival: &&Arrival| matches!(self.landing(arrival), Some(Ok(_)));
        let keys: BTreeSet<_> =
            self.arrivals.iter().filter(lands).map(|arrival| arrival.meet.key.clone()).collect();
        keys.into_iter().collect()
    }

    /// What to tell the broker once all of it is committed.
    pub(super) fn settled(&self) -> Vec<(Tag, Settle)> {
        let settle = |arrival: &Arrival| match self.landing(arrival) {
            Some(Err(refused)) => Settle::Dead { reason: refused.to_string() },
            _ => Settle::Done,
        };
        let decided = self
            .arrivals
            .iter()
            .filter(|arrival| !matches!(arrival.state, State::Unmet | State::New));
        decided.map(|arrival| (arrival.tag, settle(arrival))).collect()
    }

    /// What was skipped and leaves no trace in the log, with its reason.
    pub(super) fn skipped(&self) -> impl Iterator<Item = (EventId, &str)> {
        self.arrivals.iter().filter(|_| self.at_broker).filter_map(|arrival| match &arrival.state {
            State::Answered(Outcome::Skip { reason }) => Some((arrival.event.id, reason.as_str())),
            _ => None,
        })
    }

    /// How many were seen before, had their effect, and landed.
    pub(super) fn counts(&self) -> (u64, u64, u64) {
        let count = |test: fn(&State) -> bool| {
            self.arrivals.iter().filter(|arrival| test(&arrival.state)).count() as u64
        };
        let done = |state: &State| matches!(state, State::Answered(Outcome::Done));
        let landed = |state: &State| {
            matches!(state, State::Behind)
                || matches!(state, State::Answered(outcome) if *outcome != Outcome::Done)
        };
        let skipped = self.skipped().count() as u64;
        (count(|state| *state == State::Seen), count(done), count(landed) - skipped)
    }

    /// Refuses an answer of the inbox that does not fit the question.
    pub(super) fn check(asked: &[Meet], answers: &[Met]) -> Result<()> {
        if asked.len() == answers.len() {
            return Ok(());
        }
        let why = format!("asked about {} messages, answered {}", asked.len(), answers.len());
        Err(Error::new(Kind::StoreFailed, why))
    }
}

fn is_failure(outcome: &Outcome) -> bool {
    !matches!(outcome, Outcome::Done | Outcome::Skip { .. })
}

fn died_of(why: &Malformed) -> Outcome {
    Outcome::Dead { class: why.class(), error: why.to_string() }
}

fn arrival(consumer: &str, message: &Incoming, binding: &Binding, foreign: &Foreign) -> Arrival {
    let arrived = message.event(binding, foreign).and_then(|arrived| {
        let room = has_room(consumer, &arrived.event);
        room.map(|()| arrived).map_err(|error| Malformed::new(error.to_string()))
    });
    let (event, source, id, malformed) = match arrived {
        Ok(Arrived { event, source, id, .. }) => (event, source, id, None),
        Err(why) => {
            let id = message.fingerprint();
            let own = event_id(&message.topic, &id);
            let event = Event::stored(message.raw(own), chrono::DateTime::default());
            (event, message.topic.clone(), id, Some(why))
        }
    };
    let key = order_key(event.key.as_deref(), event.id);
    let meet = Meet { source, id, key };
    let (tag, deliveries) = (message.tag, message.deliveries);
    Arrival { tag, deliveries, meet, event, malformed, state: State::Unmet }
}

#[cfg(test)]
#[path = "meeting_tests.rs"]
mod tests;
