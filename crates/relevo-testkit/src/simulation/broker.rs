//! A broker that stores, refuses, loses answers, repeats, and goes down; and whose receivers come and go.
//!
//! What it stores stays until it is acknowledged. Sources (partitions, queues by hash) are shared out among the
//! receivers that are connected: when one comes or goes they are shared out anew, and what its former receiver has not
//! acknowledged goes to the next, in its old place.

use super::journal::End;
use super::plan::Plan;
use super::world::World;
use relevo_core::broker::cloudevents::{self, Binding};
use relevo_core::broker::{Confirm, Incoming, Received, Settle, Source, Tag};
use relevo_core::event::{Event, lane_of};
use relevo_core::{Error, ErrorClass, Kind, Result};
use std::collections::{BTreeMap, BTreeSet};

/// How its messages carry an event's attributes.
pub(super) const BINDING: Binding = Binding::AMQP;

/// A connection of a receiver.
pub(super) type LineId = u64;

/// Where a message is stored: its source, and its place there.
type Place = (usize, u64);

/// What the broker holds.
#[derive(Debug, Default)]
pub(super) struct Broker {
    /// It cannot be reached.
    pub(super) down: bool,
    /// What nobody has in hand.
    ready: BTreeMap<Place, Incoming>,
    places: u64,
    tags: u64,
    pub(super) lines: BTreeMap<LineId, Line>,
    last_line: LineId,
}

/// A receiver that is connected.
#[derive(Debug, Default)]
pub(super) struct Line {
    pub(super) process: usize,
    sources: BTreeSet<usize>,
    /// Sources that were taken away, which it has not heard yet.
    revoked: Vec<usize>,
    /// What it has not acknowledged.
    held: BTreeMap<Tag, (Place, Incoming)>,
}

fn source_named(number: usize) -> Source {
    Source::named(format!("q{number}"))
}

fn gone(what: &str) -> Error {
    Error::new(Kind::DestinationDown, what)
}

impl Broker {
    fn keep(&mut self, source: usize, event: &Event) {
        self.places += 1;
        let mut message = Incoming::new(Tag(0), event.topic.clone(), event.payload.clone());
        message.headers = cloudevents::owned(cloudevents::write(event, "shop", &BINDING));
        self.ready.insert((source, self.places), message);
    }

    /// A receiver comes; true if others lost a source with something of it in hand.
    fn connect(&mut self, process: usize, sources: usize) -> Result<(LineId, bool)> {
        if self.down {
            return Err(gone("connection refused"));
        }
        self.last_line += 1;
        self.lines.insert(self.last_line, Line { process, ..Line::default() });
        Ok((self.last_line, self.share_out(sources)))
    }

    /// Each source has one receiver. True if one lost a source that it had something of in hand.
    fn share_out(&mut self, sources: usize) -> bool {
        let (lines, mut robbed) = (self.lines.len(), false);
        for (nth, line) in self.lines.values_mut().enumerate() {
            let mine: BTreeSet<usize> = (0..sources).filter(|s| s % lines == nth).collect();
            let lost: Vec<usize> = line.sources.difference(&mine).copied().collect();
            let (back, held) = std::mem::take(&mut line.held)
                .into_iter()
                .partition(|(_, ((source, _), _))| lost.contains(source));
            let back: BTreeMap<Tag, (Place, Incoming)> = back;
            robbed |= !back.is_empty();
            self.ready.extend(back.into_values());
            (line.held, line.sources) = (held, mine);
            line.revoked.extend(lost);
        }
        robbed
    }

    /// The connection is gone: what it had in hand goes to the next.
    fn hang_up(&mut self, line: LineId, sources: usize) -> bool {
        let Some(line) = self.lines.remove(&line) else { return false };
        self.ready.extend(line.held.into_values());
        self.share_out(sources)
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
    ) -> Result<Option<Received>> {
        let at = self.line(line)?;
        if let Some(source) = at.revoked.pop() {
            return Ok(Some(Received::Revoked(source_named(source))));
        }
        let room = unsettled.saturating_sub(at.held.len()).min(max);
        let open = |source: &usize| !paused.contains(&source_named(*source));
        let sources: Vec<usize> = at.sources.iter().copied().filter(open).collect();
        // Whoever has waited longest is first.
        let first = |source: &usize| self.ready.range((*source, 0)..(*source + 1, 0)).next();
        let oldest = sources.iter().filter_map(first).map(|(place, _)| *place);
        let Some((source, _)) = oldest.min_by_key(|(_, place)| *place).filter(|_| room > 0) else {
            return Ok(None);
        };
        let places: Vec<Place> =
            self.ready.range((source, 0)..(source + 1, 0)).take(room).map(|(at, _)| *at).collect();
        let messages = places.into_iter().filter_map(|place| self.hand(line, place)).collect();
        Ok(Some(Received::Messages { source: source_named(source), messages }))
    }

    fn hand(&mut self, line: LineId, place: Place) -> Option<Incoming> {
        let mut message = self.ready.remove(&place)?;
        self.tags += 1;
        message.tag = Tag(self.tags);
        let copy = message.clone();
        message.redelivered = true;
        self.lines.get_mut(&line)?.held.insert(copy.tag, (place, message));
        Some(copy)
    }

    /// What is acknowledged is forgotten. A tag that is not in hand means nothing.
    fn settle(&mut self, line: LineId, settled: &[(Tag, Settle)]) -> Result<()> {
        let at = self.line(line)?;
        let mut back = Vec::new();
        for (tag, settle) in settled {
            let held = at.held.remove(tag);
            back.extend(held.filter(|_| *settle != Settle::Done));
        }
        self.ready.extend(back);
        Ok(())
    }
}

impl World {
    /// Nothing waits for a consumer.
    pub(super) fn broker_idle(&self) -> bool {
        let held = |line: &Line| line.held.is_empty();
        self.broker.ready.is_empty() && self.broker.lines.values().all(held)
    }

    fn sources(&self) -> usize {
        self.options.consumer.as_ref().map_or(0, |consumer| consumer.sources)
    }

    pub(super) fn connect(&mut self, process: usize) -> Result<LineId> {
        let sources = self.sources();
        let (line, robbed) = self.broker.connect(process, sources)?;
        self.sources_moved(robbed);
        Ok(line)
    }

    pub(super) fn hang_up(&mut self, line: LineId) {
        let sources = self.sources();
        let robbed = self.broker.hang_up(line, sources);
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
        self.broker.receive(line, max, unsettled, paused)
    }

    pub(super) fn settle(&mut self, line: LineId, settled: &[(Tag, Settle)]) -> Result<()> {
        self.broker.settle(line, settled)
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
        if self.options.consumer.is_some() {
            let source = usize::from(lane_of(&event.order_key())) % self.sources();
            self.broker.keep(source, event);
            let consumer = self.journal.subscriber(super::inbox::CONSUMER);
            self.journal.handed_on(consumer, event.id);
        }
    }
}
