//! A broker that stores, refuses, loses answers, repeats, and goes down; and whose receivers come and go.
//!
//! What it stores is the in-process broker's own ([`Queues`]), on the simulated clock. Its queues (partitions, queues by
//! hash; each consumer has its own) are shared out among its receivers that are connected: when one comes or goes they are shared out anew, and what
//! its former receiver has not acknowledged goes to the next, in its old place.

use super::journal::End;
use super::plan::Plan;
use super::world::World;
use relevo_brokers::memory::{ConsumerId, Message, QueueConfig, Queues};
use relevo_core::broker::{Confirm, Incoming, Received, Settle, Source, Tag};
use relevo_core::clock::Instant;
use relevo_core::event::{Event, lane_of};
use relevo_core::{Error, ErrorClass, Kind, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub(super) use relevo_brokers::memory::BINDING;

/// A connection of a receiver.
pub(super) type LineId = u64;

/// What the broker holds.
pub(super) struct Broker {
    /// It cannot be reached.
    pub(super) down: bool,
    queues: Queues,
    /// The queues of each consumer.
    names: Vec<Vec<String>>,
    pub(super) lines: BTreeMap<LineId, Line>,
    last_line: LineId,
}

/// A receiver that is connected.
#[derive(Debug, Default)]
pub(super) struct Line {
    pub(super) process: usize,
    /// Which of the consumers it receives for.
    consumer: usize,
    /// As whom it receives from which queue.
    queues: BTreeMap<String, ConsumerId>,
    /// Queues that were taken away, which it has not heard yet.
    revoked: Vec<String>,
    /// What it has not acknowledged, and which queue it is of.
    held: BTreeMap<Tag, String>,
}

fn gone(what: &str) -> Error {
    Error::new(Kind::DestinationDown, what)
}

impl Broker {
    /// With so many queues for each consumer.
    pub(super) fn new(queues: impl Iterator<Item = usize>) -> Self {
        let named = |(consumer, queues): (usize, usize)| {
            (0..queues).map(|number| format!("{consumer}q{number}")).collect()
        };
        let names: Vec<Vec<String>> = queues.enumerate().map(named).collect();
        let mut stored = Queues::default();
        let all = names.iter().flatten();
        all.for_each(|name| stored.declare(name, Vec::new(), QueueConfig::default()));
        Self { down: false, queues: stored, names, lines: BTreeMap::new(), last_line: 0 }
    }

    /// Every consumer has a copy, in its queue of the event's key.
    fn keep(&mut self, event: &Event) {
        let number = usize::from(lane_of(&event.order_key()));
        let queue = |names: &Vec<String>| names.get(number % names.len().max(1)).cloned();
        let queues: Vec<String> = self.names.iter().filter_map(queue).collect();
        self.queues.store_in(&queues, Message::of(event, "shop"));
    }

    /// A receiver comes; true if others lost a queue with something of it in hand.
    fn connect(&mut self, process: usize, consumer: usize) -> Result<(LineId, bool)> {
        if self.down {
            return Err(gone("connection refused"));
        }
        self.last_line += 1;
        self.lines.insert(self.last_line, Line { process, consumer, ..Line::default() });
        Ok((self.last_line, self.share_out(consumer)))
    }

    /// Each queue of a consumer has one receiver. True if one lost a queue that it had something of in hand.
    fn share_out(&mut self, consumer: usize) -> bool {
        let (names, mut robbed) = (&self.names[consumer], false);
        let mine = |line: &&mut Line| line.consumer == consumer;
        let lines = self.lines.values_mut().filter(mine).count();
        for (nth, line) in self.lines.values_mut().filter(mine).enumerate() {
            let share: BTreeSet<&String> = names.iter().skip(nth).step_by(lines).collect();
            let lost: Vec<String> =
                line.queues.keys().filter(|queue| !share.contains(queue)).cloned().collect();
            for queue in lost {
                robbed |= line.held.values().any(|of| *of == queue);
                line.leave(&queue, &mut self.queues);
                line.revoked.push(queue);
            }
        }
        for (nth, line) in self.lines.values_mut().filter(mine).enumerate() {
            let share = names.iter().skip(nth).step_by(lines);
            for queue in share.filter(|queue| !line.queues.contains_key(*queue)).collect::<Vec<_>>()
            {
                let consumer = self.queues.attach(queue);
                line.queues.extend(consumer.map(|consumer| (queue.clone(), consumer)));
            }
        }
        robbed
    }

    /// The connection is gone: what it had in hand goes to the next.
    fn hang_up(&mut self, line: LineId) -> bool {
        let Some(mut line) = self.lines.remove(&line) else { return false };
        let queues: Vec<String> = line.queues.keys().cloned().collect();
        queues.iter().for_each(|queue| line.leave(queue, &mut self.queues));
        self.share_out(line.consumer)
    }

    fn line(&mut self, line: LineId) -> Result<&mut Line> {
        self.lines.get_mut(&line).ok_or_else(|| gone("connection reset"))
    }

    fn receive(
        &mut self,
        line: LineId,
        max: usize,
        unsettled: usize,
        paused: &BTreeSet<Source>,
        now: Instant,
    ) -> Result<Option<Received>> {
        let at = self.lines.get_mut(&line).ok_or_else(|| gone("connection reset"))?;
        if let Some(queue) = at.revoked.pop() {
            return Ok(Some(Received::Revoked(Source::named(queue))));
        }
        let room = unsettled.saturating_sub(at.held.len()).min(max);
        let open = |queue: &&String| !paused.contains(&Source::named(queue.as_str()));
        let stored = |queue: &String| Some((self.queues.next(queue, now)?, queue.clone()));
        // Whoever has waited longest is first.
        let Some((_, queue)) = at.queues.keys().filter(open).filter_map(stored).min() else {
            return Ok(None);
        };
        let messages: Vec<Incoming> =
            std::iter::from_fn(|| at.take(&queue, &mut self.queues, now)).take(room).collect();
        let source = Source::named(queue);
        Ok((!messages.is_empty()).then_some(Received::Messages { source, messages }))
    }

    /// What is acknowledged is forgotten. A tag that is not in hand means nothing.
    fn settle(&mut self, line: LineId, settled: &[(Tag, Settle)], now: Instant) -> Result<()> {
        for (tag, settle) in settled {
            if let Some(queue) = self.line(line)?.held.remove(tag) {
                self.queues.settle(&queue, *tag, settle, now)?;
            }
        }
        self.line(line).map(drop)
    }
}

impl Line {
    fn take(&mut self, queue: &str, queues: &mut Queues, now: Instant) -> Option<Incoming> {
        let message = queues.take(queue, *self.queues.get(queue)?, usize::MAX, now)?;
        self.held.insert(message.tag, queue.to_owned());
        Some(message)
    }

    /// What it had in hand of a queue goes back.
    fn leave(&mut self, queue: &str, queues: &mut Queues) {
        if let Some(consumer) = self.queues.remove(queue) {
            queues.detach(queue, consumer);
        }
        self.held.retain(|_, of| of != queue);
    }
}

impl World {
    /// Nothing waits for a consumer.
    pub(super) fn broker_idle(&self) -> bool {
        let Broker { queues, names, .. } = &self.broker;
        names.iter().flatten().all(|queue| queues.depth(queue) == 0)
    }

    /// The simulated time, as the broker's queues have it.
    fn broker_clock(&self) -> Instant {
        Instant::at(Duration::from_micros(self.now))
    }

    pub(super) fn connect(&mut self, process: usize, consumer: usize) -> Result<LineId> {
        let (line, robbed) = self.broker.connect(process, consumer)?;
        self.sources_moved(robbed);
        Ok(line)
    }

    pub(super) fn hang_up(&mut self, line: LineId) {
        let robbed = self.broker.hang_up(line);
        self.sources_moved(robbed);
    }

    fn sources_moved(&mut self, robbed: bool) {
        if robbed {
            self.seen.sometimes("a source was taken away with messages in hand");
        }
    }

    /// What there is for this receiver, at most so many, and so many in hand.
    pub(super) fn receive(
        &mut self,
        line: LineId,
        max: usize,
        unsettled: usize,
        paused: &BTreeSet<Source>,
    ) -> Result<Option<Received>> {
        if !paused.is_empty() {
            self.seen.sometimes("a source was paused, and waited");
        }
        let now = self.broker_clock();
        self.broker.receive(line, max, unsettled, paused, now)
    }

    pub(super) fn settle(&mut self, line: LineId, settled: &[(Tag, Settle)]) -> Result<()> {
        let now = self.broker_clock();
        self.broker.settle(line, settled, now)
    }

    /// The broker goes, and every connection with it.
    pub(super) fn broker_goes_down(&mut self) {
        self.broker.down = true;
        let lines: Vec<LineId> = self.broker.lines.keys().copied().collect();
        lines.into_iter().for_each(|line| self.hang_up(line));
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
        self.broker.keep(event);
        for consumer in &self.options.clone().consumers {
            let consumer = self.journal.subscriber(consumer.name);
            self.journal.handed_on(consumer, event.id);
        }
    }
}
