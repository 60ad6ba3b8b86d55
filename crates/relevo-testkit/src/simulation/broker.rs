//! A broker that stores, refuses, loses answers, repeats, and goes down.

use super::journal::End;
use super::plan::Plan;
use super::world::World;
use relevo_core::ErrorClass;
use relevo_core::broker::Confirm;
use relevo_core::event::Event;
use std::collections::VecDeque;

/// What the broker holds.
#[derive(Debug, Default)]
pub(super) struct Broker {
    /// It cannot be reached.
    pub(super) down: bool,
    /// What a consumer has not acknowledged yet.
    pub(super) queue: VecDeque<Event>,
}

impl World {
    /// Nothing waits for a consumer.
    pub(super) fn broker_idle(&self) -> bool {
        self.broker.queue.is_empty()
    }

    /// A message arrives.
    pub(super) fn arrives(&mut self, subscriber: usize, event: &Event, zombie: bool) -> Confirm {
        if self.broker.down {
            self.seen.sometimes("the broker went down with events waiting");
            // Where everything else was tried, a destination that is down counts against the event.
            self.journal.failed(subscriber, event.id, false);
            return Confirm::Down { error: "connection refused".into() };
        }
        let attempt = self.journal.attempted(subscriber, event);
        if zombie {
            self.seen.sometimes("a zombie's publish reached the broker");
        }
        if let Some(refusal) = self.refuses(subscriber, event, attempt) {
            return refusal;
        }
        let (nack, lost, twice) = {
            let rates = self.options.rates.clone();
            let storm = self.storm;
            let mut draw = self.draw();
            let mut strikes = |rate| storm && draw.chance(rate);
            (strikes(rates.nack), strikes(rates.confirm_lost), strikes(rates.duplicate))
        };
        if nack {
            self.struck("broker refuses");
            self.journal.failed(subscriber, event.id, false);
            return Confirm::Refused {
                class: ErrorClass::Transient,
                error: "try later".into(),
                after: None,
            };
        }
        self.store(subscriber, event);
        if twice {
            self.struck("broker stores twice");
            self.seen.sometimes("a message was stored twice");
            self.store(subscriber, event);
        }
        if lost {
            self.struck("confirm lost");
            self.seen.sometimes("a message was stored and its confirm lost");
            self.journal.failed(subscriber, event.id, false);
            return Confirm::Unknown { error: "connection reset".into() };
        }
        Confirm::Stored
    }

    fn struck(&mut self, what: &'static str) {
        let state = self.state();
        self.seen.fault(what, "publish", state);
    }

    fn refuses(&mut self, subscriber: usize, event: &Event, attempt: u32) -> Option<Confirm> {
        let mended = self
            .journal
            .delivered(subscriber, event.id)
            .is_some_and(|delivered| delivered.replays > 0);
        let (class, error) = match Plan::of(self.options.seed, event.id, subscriber) {
            Plan::Fatal { mended_by_replay } if !(mended && mended_by_replay) => {
                (ErrorClass::Permanent, "refused")
            }
            Plan::Fails(n) if attempt <= n => (ErrorClass::Transient, "try later"),
            _ => return None,
        };
        self.journal.failed(subscriber, event.id, class == ErrorClass::Permanent);
        Some(Confirm::Refused { class, error: error.into(), after: None })
    }

    fn store(&mut self, subscriber: usize, event: &Event) {
        let parked = self.journal.delivered(subscriber, event.id).map(|d| (d.failures > 0, d.end));
        self.journal.stored(subscriber, event);
        self.seen.delivered += 1;
        if parked == Some((true, End::None)) {
            self.seen.sometimes("a key was parked and drained");
        }
        if self.options.consumer {
            self.broker.queue.push_back(event.clone());
            let consumer = self.journal.subscriber("consumer");
            self.journal.awaited_behind(consumer, event.id);
        }
    }
}
