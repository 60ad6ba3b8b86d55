use super::answer::{self, Blame, refused, too_large};
use super::config::RabbitMqConfig;
use super::connect::{Link, confirming, connect, reason};
use super::round::{Answer, Outgoing, Round, send_one};
use super::{NAME, capabilities, headers};
use crate::patience::{NO_TURN, by, longer_than, over_in};
use crate::window::Window;
use async_trait::async_trait;
use futures::stream::{FuturesUnordered, StreamExt};
use lapin::Channel;
use lapin::types::ShortString;
use relevo_core::ErrorClass;
use relevo_core::broker::{Capabilities, Confirm, Publisher};
use relevo_core::event::Event;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, interval};

/// So long a close waits for confirms that are still missing.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);
/// So often a waiting batch looks whether the broker has blocked the connection.
const LOOK: Duration = Duration::from_millis(100);

/// Publishes with confirms, `mandatory`, persistent.
///
/// Every batch has a channel for itself while it is on its way: what the broker returns, and a channel that it
/// closes, belong to that batch and to no other.
pub struct RabbitMqPublisher {
    config: RabbitMqConfig,
    window: Window,
    slot: tokio::sync::Mutex<Slot>,
    state: watch::Sender<State>,
    /// What the broker was found to take, if less than the configuration says.
    max_bytes: AtomicUsize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
enum State {
    Open,
    /// Nothing new is taken; what is on its way may end.
    Closing,
    /// What is still on its way is given up.
    Closed,
}

#[derive(Default)]
struct Slot {
    live: Option<Arc<Live>>,
    /// Why the last attempt to connect failed; empty after one that worked.
    last_failure: String,
}

struct Live {
    connection: Link,
    idle: Mutex<Vec<Channel>>,
    /// No more batches are under way than there may be channels.
    turns: Semaphore,
}

impl Live {
    fn idle(&self) -> MutexGuard<'_, Vec<Channel>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn channel(&self, limit: Duration) -> Result<Channel, String> {
        let idle = self.idle().pop();
        match idle.filter(|channel| channel.status().connected()) {
            Some(channel) => Ok(channel),
            None => confirming(&self.connection, limit).await,
        }
    }

    fn give_back(&self, channel: Channel) {
        if channel.status().connected() {
            self.idle().push(channel);
        }
    }
}

impl RabbitMqPublisher {
    /// Publishes as `config` says; connects with the first message.
    pub fn new(config: RabbitMqConfig) -> Self {
        Self {
            window: Window::new(config.window, config.window_bytes),
            slot: tokio::sync::Mutex::default(),
            state: watch::Sender::new(State::Open),
            max_bytes: AtomicUsize::new(config.max_message_bytes),
            config,
        }
    }

    /// The address without anything secret.
    pub fn address(&self) -> String {
        self.config.address()
    }

    /// The connection, made anew if it was lost. Who waited while another one tried in vain does not try again.
    async fn live(&self) -> Result<Arc<Live>, String> {
        let waited = self.slot.try_lock().is_err();
        let mut slot = self.slot.lock().await;
        if let Some(live) = &slot.live {
            if live.connection.status().connected() {
                return Ok(live.clone());
            }
            // It has ended; batches that hold it still would keep its socket until they do.
            live.connection.cut();
        }
        if *self.state.borrow() != State::Open {
            return Err("the publisher is closed".into());
        }
        if waited && !slot.last_failure.is_empty() {
            return Err(slot.last_failure.clone());
        }
        slot.live = None;
        match connect(&self.config, "publishes").await {
            Ok(connection) => {
                let channels = usize::from(connection.configuration().channel_max());
                let turns = Semaphore::new(channels.saturating_sub(1).max(1));
                let live = Arc::new(Live { connection, idle: Mutex::default(), turns });
                slot.live = Some(live.clone());
                slot.last_failure.clear();
                Ok(live)
            }
            Err(why) => {
                slot.last_failure.clone_from(&why);
                Err(why)
            }
        }
    }

    /// Ready to go, or refused before it goes.
    fn prepare<'e>(&'e self, event: &'e Event) -> Result<Outgoing<'e>, Confirm> {
        let (bytes, limit) = (event.payload.len(), self.max_bytes.load(Ordering::Relaxed));
        if bytes > limit {
            return Err(too_large(bytes, limit));
        }
        if ShortString::try_new(event.topic.as_str()).is_err() {
            return Err(refused(ErrorClass::Poison, "a routing key has at most 255 bytes"));
        }
        let properties = headers::properties(event, &self.config.source);
        let properties = properties.map_err(|why| refused(ErrorClass::Poison, why))?;
        Ok(Outgoing { event, exchange: self.config.exchange_of(&event.topic), properties })
    }

    /// What fits the window at once; answers in the order of `chunk`. Nothing goes again after `latest`.
    async fn send(&self, chunk: &[&Event], latest: Instant) -> Vec<Confirm> {
        let mut answers: Vec<Option<Confirm>> = vec![None; chunk.len()];
        let mut went_before = false;
        loop {
            let mut left: Vec<(usize, Outgoing)> = Vec::new();
            for (at, answer) in answers.iter_mut().enumerate().filter(|(_, a)| a.is_none()) {
                match self.prepare(chunk[at]) {
                    Ok(outgoing) => left.push((at, outgoing)),
                    Err(confirm) => *answer = Some(confirm),
                }
            }
            if left.is_empty() {
                break;
            }
            let (places, outgoing): (Vec<usize>, Vec<Outgoing>) = left.into_iter().unzip();
            for (at, answer) in places.into_iter().zip(self.attempt(&outgoing, latest).await) {
                answers[at] = if went_before { answer.map(may_be_there) } else { answer };
            }
            went_before = true;
        }
        answers.into_iter().flatten().collect()
    }

    /// One round over one channel. `None` means: innocent, go again; then at least one other got its answer, and there is
    /// time.
    async fn attempt(&self, outgoing: &[Outgoing<'_>], latest: Instant) -> Vec<Option<Confirm>> {
        let down = |error: String| vec![Some(Confirm::Down { error }); outgoing.len()];
        let live = match self.live().await {
            Ok(live) => live,
            Err(error) => return down(error),
        };
        if let Err(error) = self.wait_unblocked(&live).await {
            return down(error);
        }
        // The semaphore is never closed; without a turn the broker would say that there are too many channels.
        let Some(_turn) = by(latest, live.turns.acquire()).await else {
            return down(format!("{}: {NO_TURN}", self.address()));
        };
        let channel = match by(latest, live.channel(self.config.connect_timeout)).await {
            Some(Ok(channel)) => channel,
            Some(Err(error)) => return down(format!("{}: {error}", self.address())),
            None => return down(format!("{}: {NO_TURN}", self.address())),
        };
        let round = self.round(&live, &channel, outgoing).await;
        let mut answers = self.judge(&round, outgoing);
        if Instant::now() >= latest {
            for (at, answer) in answers.iter_mut().enumerate() {
                answer.get_or_insert_with(|| self.too_late_to_go_again(&round, at));
            }
        }
        // A channel that was told no can stay deaf to a quorum queue's new leader: it goes on refusing while a fresh one
        // of the same connection is served.
        if round.is_complete(outgoing.len()) && !round.has_refusal() {
            live.give_back(channel);
        }
        answers
    }

    /// What is known of a message that went together with what spoilt its channel.
    fn too_late_to_go_again(&self, round: &Round, at: usize) -> Confirm {
        match round.unsent.contains_key(&at) {
            true => Confirm::Down { error: format!("{}: {NO_TURN}", self.address()) },
            false => unknown("the broker closed the channel because of another message"),
        }
    }

    /// A blocked connection takes nothing; what is put in meanwhile would only pile up.
    async fn wait_unblocked(&self, live: &Live) -> Result<(), String> {
        let since = Instant::now();
        while live.connection.status().blocked() {
            if since.elapsed() >= self.config.blocked_limit {
                return Err(self.blocked());
            }
            self.still_open()?;
            tokio::time::sleep(LOOK).await;
        }
        self.still_open()
    }

    fn still_open(&self) -> Result<(), String> {
        match *self.state.borrow() {
            State::Open => Ok(()),
            _ => Err("the publisher is closed".into()),
        }
    }

    fn blocked(&self) -> String {
        format!("{}: the broker has blocked the connection (memory or disk alarm)", self.address())
    }

    /// Sends all and waits for the answers, until they are there, or the limit is reached, or it is closed.
    async fn round(&self, live: &Live, channel: &Channel, outgoing: &[Outgoing<'_>]) -> Round {
        let mut round = Round::default();
        let sending =
            outgoing.iter().enumerate().map(async |(at, one)| (at, send_one(channel, one).await));
        let mut waiting: FuturesUnordered<_> = sending.collect();
        let deadline = over_in(self.config.confirm_timeout);
        let mut state = self.state.subscribe();
        let mut look = interval(LOOK);
        let mut blocked_since = None;
        loop {
            tokio::select! {
                answer = waiting.next() => match answer {
                    Some((at, answer)) => round.take(at, answer),
                    None => return round,
                },
                // The sender lives as long as `self`.
                _ = state.wait_for(|state| *state == State::Closed) => {
                    let error = "closed before the confirm came".to_owned();
                    round.gave_up = Some(Confirm::Unknown { error });
                    return round;
                }
                now = look.tick() => {
                    let is_blocked = live.connection.status().blocked();
                    let since = *blocked_since.get_or_insert(now);
                    if !is_blocked {
                        blocked_since = None;
                    } else if now - since >= self.config.blocked_limit {
                        // The broker may have it, or get it from the client as soon as the alarm is over.
                        round.gave_up = Some(unknown(&self.blocked()));
                        return round;
                    }
                    if now >= deadline {
                        let error = format!("no confirm within {:?}", self.config.confirm_timeout);
                        round.gave_up = Some(Confirm::Unknown { error });
                        return round;
                    }
                }
            }
        }
    }

    fn judge(&self, round: &Round, outgoing: &[Outgoing<'_>]) -> Vec<Option<Confirm>> {
        let blame = round.error.as_ref().map_or(Blame::Nobody, answer::blame);
        if let Blame::Larger(limit) = blame {
            self.max_bytes.fetch_min(limit, Ordering::Relaxed);
        }
        let complete = round.is_complete(outgoing.len());
        let judged = |(at, one): (usize, &Outgoing)| {
            if let Some(why) = round.returned.get(&one.event.id.to_string()) {
                return Some(refused(ErrorClass::Permanent, why.clone()));
            }
            match round.confirmed.get(&at) {
                Some(Answer::Nack) => {
                    let why =
                        "the broker did not take it (a full queue, or one without its leader)";
                    Some(refused(ErrorClass::Transient, why))
                }
                // A returned message comes along with any later confirm: only a complete round, or one where
                // nothing was returned, tells who was stored.
                Some(Answer::Ack) if complete || round.returned.is_empty() => Some(Confirm::Stored),
                // Whoever is to blame for the rest has an answer: this one goes again, and tells.
                Some(Answer::Ack) if blame != Blame::Nobody => None,
                Some(Answer::Ack) => Some(unknown("another message of its batch was lost")),
                None => self.unanswered(round, &blame, at, one),
            }
        };
        let mut answers: Vec<Option<Confirm>> = outgoing.iter().enumerate().map(judged).collect();
        if answers.iter().all(Option::is_none) {
            // Nobody is to blame, so going again would end the same way.
            answers.fill(Some(unknown("the broker closed the channel")));
        }
        answers
    }

    fn unanswered(
        &self,
        round: &Round,
        blame: &Blame,
        at: usize,
        one: &Outgoing,
    ) -> Option<Confirm> {
        let why = round.error.as_ref().map(reason).unwrap_or_default();
        if *blame == Blame::Nobody {
            return Some(match (round.unsent.get(&at), &round.gave_up) {
                (Some(why), _) => Confirm::Down { error: format!("{}: {why}", self.address()) },
                (None, Some(gave_up)) => gave_up.clone(),
                (None, None) => unknown(&why),
            });
        }
        let (topic, bytes) = (one.event.topic.as_str(), one.event.payload.len());
        if !blame.falls_on(topic, one.exchange, bytes) {
            return None;
        }
        match (blame, blame.refusal(topic, one.exchange, bytes, &why)) {
            // Without its main exchange the destination refuses everything: nothing is parked, it waits.
            (
                Blame::Exchange(name) | Blame::ForbiddenExchange(name),
                Confirm::Refused { error, .. },
            ) if *name == self.config.exchange => {
                Some(Confirm::Down { error: format!("{}: {error}", self.address()) })
            }
            (_, confirm) => Some(confirm),
        }
    }
}

/// What is said of a message that went once and goes again.
fn may_be_there(confirm: Confirm) -> Confirm {
    match confirm {
        Confirm::Down { error } => unknown(&error),
        other => other,
    }
}

fn unknown(why: &str) -> Confirm {
    Confirm::Unknown { error: format!("sent, and no confirm: {why}") }
}

#[async_trait]
impl Publisher for RabbitMqPublisher {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        capabilities()
    }

    async fn publish(&self, events: &[&Event]) -> Vec<Confirm> {
        let mut answers = Vec::with_capacity(events.len());
        let mut rest = events;
        let latest = over_in(self.config.confirm_timeout);
        while !rest.is_empty() {
            let (chunk, after) =
                rest.split_at(self.window.fit(rest.iter().map(|event| event.payload.len())));
            rest = after;
            let bytes = chunk.iter().map(|event| event.payload.len()).sum();
            let room = match self.still_open() {
                Ok(()) => self.window.room_by(latest, chunk.len(), bytes).await,
                Err(error) => Err(error),
            };
            match room {
                Ok(_room) => answers.extend(self.send(chunk, latest).await),
                Err(error) => {
                    answers.extend(chunk.iter().map(|_| Confirm::Down { error: error.clone() }));
                }
            }
        }
        answers
    }

    /// Its turn, connecting (behind another batch that tries, by itself, and for a channel), an alarm and the confirms:
    /// each of these ends by itself.
    fn publish_limit(&self) -> Option<Duration> {
        let RabbitMqConfig { confirm_timeout, connect_timeout, blocked_limit, .. } = self.config;
        let connecting = connect_timeout.saturating_mul(3);
        Some(longer_than([confirm_timeout.saturating_mul(2), connecting, blocked_limit]))
    }

    /// More would wait for room that these have.
    fn largest_wave(&self) -> usize {
        self.config.window
    }

    fn window(&self) -> Option<usize> {
        Some(self.config.window)
    }

    async fn close(&self) {
        self.state.send_if_modified(|state| {
            let opened = *state == State::Open;
            if opened {
                *state = State::Closing;
            }
            opened
        });
        if tokio::time::timeout(CLOSE_PATIENCE, self.window.empty()).await.is_err() {
            tracing::warn!(adapter = NAME, "closed before every confirm came");
        }
        self.state.send_replace(State::Closed);
        let live = tokio::time::timeout(CLOSE_PATIENCE, self.slot.lock()).await;
        let Some(live) = live.ok().and_then(|mut slot| slot.live.take()) else { return };
        if let Err(why) = live.connection.hang_up(CLOSE_PATIENCE).await {
            tracing::debug!(adapter = NAME, why, "the connection did not end in good order");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_message_that_went_once_nobody_says_that_it_never_left() {
        let down = Confirm::Down { error: "gone".into() };
        assert_eq!(may_be_there(down), unknown("gone"));
        for told in [Confirm::Stored, refused(ErrorClass::Poison, "too large")] {
            assert_eq!(may_be_there(told.clone()), told);
        }
    }
}
