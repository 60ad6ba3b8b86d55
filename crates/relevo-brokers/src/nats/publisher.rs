use super::answer::{self, refused};
use super::config::NatsConfig;
use super::connect::{Connection, connect, no_jetstream};
use super::wave::{Answer, Wave};
use super::{NAME, capabilities, headers, subject};
use crate::patience::{longer_than, over_in};
use crate::window::Window;
use async_nats::client::RequestErrorKind;
use async_nats::{Request, RequestError, Subject};
use async_trait::async_trait;
use bytes::Bytes;
use futures::future::join_all;
use futures::stream::{FuturesUnordered, StreamExt};
use relevo_core::broker::{Capabilities, Confirm, Publisher};
use relevo_core::error::{ErrorClass, Result};
use relevo_core::event::Event;
use std::error::Error as _;
use std::pin::pin;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use tokio::sync::oneshot::error::RecvError;
use tokio::time::sleep_until;

/// A publisher subscribes to nothing but its answers.
const BUFFERED: usize = 16;

/// So long an answer may be behind a complaint of the server.
const GRACE: Duration = Duration::from_millis(200);

/// So long JetStream may take to say whether it has a stream for a subject.
const WHY_LIMIT: Duration = Duration::from_secs(2);

/// Publishes to JetStream: subject = topic, one confirm per message, a bounded window of messages without theirs.
///
/// Stored means that the stream's leader (and a majority of its replicas) has it; whether it is on the disk then is
/// the server's `sync_interval`.
pub struct NatsPublisher {
    config: NatsConfig,
    slot: Mutex<Slot>,
    window: Window,
}

/// The connection, if there is one.
#[derive(Default)]
struct Slot {
    connection: Option<Connection>,
    /// When connecting failed last, and why: who waited for that attempt need not try again.
    failed: Option<(Instant, String)>,
    closed: bool,
}

impl NatsPublisher {
    /// Publishes as `config` says; connects at the first event.
    pub fn new(config: NatsConfig) -> Self {
        let window = Window::new(config.max_in_flight, config.max_in_flight_bytes);
        Self { config, slot: Mutex::default(), window }
    }

    /// The servers without anything secret.
    pub fn address(&self) -> String {
        self.config.address()
    }

    async fn connection(&self) -> Result<Connection, String> {
        let asked = Instant::now();
        let mut slot = self.slot.lock().await;
        if slot.closed {
            return Err("the publisher is closed".into());
        }
        if let Some(connection) = slot.connection.as_ref().filter(|open| open.is_up()) {
            return Ok(connection.clone());
        }
        slot.connection = None;
        if let Some((when, why)) = &slot.failed
            && *when >= asked
        {
            return Err(why.clone());
        }
        match connect(&self.config, BUFFERED).await {
            Ok(connection) => {
                slot.failed = None;
                slot.connection = Some(connection.clone());
                Ok(connection)
            }
            Err(error) => {
                let why = error.to_string();
                slot.failed = Some((Instant::now(), why.clone()));
                Err(why)
            }
        }
    }

    /// A connection that stays silent, or leads nowhere, is not used again; what is under way on it may still end well.
    async fn forget(&self, silent: &Connection) {
        let mut slot = self.slot.lock().await;
        if slot.connection.as_ref().is_some_and(|open| open.is(silent)) {
            slot.connection = None;
        }
    }

    /// All of it is sent, then heard together. What has no answer within the limit is unknown, whatever others are told.
    async fn send(&self, connection: &Connection, events: &[&Event]) -> Vec<Confirm> {
        if !connection.is_up() {
            return unsent_all(events, "the connection was lost before it was sent");
        }
        let prefix = self.config.subject_prefix.as_deref();
        let subject = |event: &&Event| subject::of(&event.topic, prefix).map(Subject::from);
        let mut wave = Wave::of(events.iter().map(subject));
        let all_heard = self.hear(connection, events, &mut wave).await;
        let deserted = wave.deserted();
        let reasons = deserted.iter().map(|subject| self.nobody_answers(connection, subject));
        for (subject, reason) in deserted.iter().zip(join_all(reasons).await) {
            wave.explain(subject, &reason);
        }
        let silence = match all_heard {
            true => Confirm::Unknown { error: "no answer was kept for it".into() },
            false => self.silence(connection, wave.began).await,
        };
        wave.confirms(&silence)
    }

    /// Takes in the answers until all are there, or the limit is reached: false then.
    async fn hear(&self, connection: &Connection, events: &[&Event], wave: &mut Wave) -> bool {
        let requests = wave.open().map(|(at, subject)| {
            let (subject, event) = (subject.clone(), events[at]);
            async move { (at, self.request(connection, subject, event).await) }
        });
        let mut answers: FuturesUnordered<_> = requests.collect();
        let (began, limit) = (wave.began, wave.began + self.config.ack_timeout);
        let mut pause = pin!(sleep_until(limit.into()));
        let mut in_grace = false;
        loop {
            let waiting = || wave.open().map(|(_, subject)| subject.as_str());
            tokio::select! {
                biased;
                answer = answers.next() => match answer {
                    Some((at, answer)) => {
                        wave.take(at, answer);
                        // What was refused meanwhile has no answer to wait for.
                        if wave.open().next().is_none() {
                            return true;
                        }
                    }
                    None => return true,
                },
                () = connection.publishing_is_forbidden(waiting, began), if !in_grace => {
                    // That may have been said of another message: one that was let through has its answer under way.
                    in_grace = true;
                    pause.as_mut().reset((Instant::now() + GRACE).min(limit).into());
                }
                () = &mut pause => {
                    if in_grace {
                        refuse_forbidden(connection, wave);
                    }
                    if wave.open().next().is_none() {
                        return true;
                    }
                    if Instant::now() >= limit {
                        return false;
                    }
                    in_grace = false;
                    pause.as_mut().reset(limit.into());
                }
            }
        }
    }

    async fn request(&self, connection: &Connection, subject: Subject, event: &Event) -> Answer {
        let headers = headers::of(event, &self.config.source, self.config.stream.as_deref());
        let request = Request::new().payload(event.payload.clone()).headers(headers).timeout(None);
        match connection.client.send_request(subject, request).await {
            Ok(message) => Answer::Told(answer::confirm(&message.payload)),
            Err(error) if error.kind() == RequestErrorKind::NoResponders => Answer::Nobody,
            Err(error) => Answer::Told(unsent(&error)),
        }
    }

    /// Nobody listens: there is no stream for the subject, or its leader is being elected. An election is over in
    /// seconds: were it a refusal of each event, every key that comes meanwhile would be parked.
    async fn nobody_answers(&self, connection: &Connection, subject: &str) -> Confirm {
        let error = match self.stream_of(connection, subject).await {
            Ok(None) => {
                let why = format!("no stream stores the subject {subject}");
                return refused(ErrorClass::Permanent, why);
            }
            Ok(Some(stream)) => format!("stream {stream} has no leader at the moment"),
            Err(error) => error,
        };
        // A server that was cut off from the others would say so for ever: the next attempt asks another one.
        self.forget(connection).await;
        Confirm::Down { error }
    }

    /// Which stream stores the subject, if JetStream can say so.
    async fn stream_of(
        &self,
        connection: &Connection,
        subject: &str,
    ) -> Result<Option<String>, String> {
        let ask = serde_json::json!({ "subject": subject }).to_string();
        let request = Request::new()
            .payload(Bytes::from(ask))
            .timeout(Some(self.config.ack_timeout.min(WHY_LIMIT)));
        let api = format!("{}.STREAM.NAMES", self.config.api_prefix());
        let began = Instant::now();
        let answer = connection.client.send_request(api, request).await;
        let answer = answer.map_err(|error| match error.kind() {
            RequestErrorKind::NoResponders => no_jetstream(&self.config),
            _ => {
                let why = format!("nobody listens to {subject}, and JetStream does not say why");
                connection.explained(format!("{why}: {error}"), began)
            }
        })?;
        answer::stream(&answer.payload)
    }

    /// It may be stored: also who may publish, and may not hear the answer, is told nothing.
    async fn silence(&self, connection: &Connection, since: Instant) -> Confirm {
        self.forget(connection).await;
        let why = format!("sent, and no answer within {:?}", self.config.ack_timeout);
        Confirm::Unknown { error: connection.explained(why, since) }
    }
}

/// What waits for an answer that will not come is refused.
fn refuse_forbidden(connection: &Connection, wave: &mut Wave) {
    let is_forbidden = |subject: &&Subject| connection.has_forbidden(subject, wave.began);
    let waiting = wave.open().map(|(_, subject)| subject).filter(is_forbidden).cloned();
    for subject in waiting.collect::<Vec<_>>() {
        let refusal = refused(ErrorClass::Transient, forbidden(&subject));
        wave.refuse(&subject, &refusal);
    }
}

fn unsent_all(events: &[&Event], why: &str) -> Vec<Confirm> {
    vec![Confirm::Down { error: why.to_owned() }; events.len()]
}

fn forbidden(subject: &str) -> String {
    format!("the user may not publish to {subject}: it needs that permission")
}

/// A request that came back without an answer.
fn unsent(error: &RequestError) -> Confirm {
    match error.kind() {
        RequestErrorKind::MaxPayloadExceeded => {
            let why = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            refused(ErrorClass::Poison, why)
        }
        RequestErrorKind::InvalidSubject => refused(ErrorClass::Poison, error.to_string()),
        _ if error.source().is_some_and(|cause| cause.is::<RecvError>()) => {
            Confirm::Unknown { error: "sent, and the connection was lost before the answer".into() }
        }
        _ => Confirm::Down { error: "the connection was lost before it was sent".into() },
    }
}

#[async_trait]
impl Publisher for NatsPublisher {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        capabilities(usize::MAX)
    }

    async fn publish(&self, events: &[&Event]) -> Vec<Confirm> {
        let connection = match self.connection().await {
            Ok(connection) => connection,
            Err(error) => return unsent_all(events, &error),
        };
        let mut confirms = Vec::with_capacity(events.len());
        let mut rest = events;
        let latest = over_in(self.config.ack_timeout);
        while !rest.is_empty() {
            let sizes = rest.iter().map(|event| event.payload.len());
            let (wave, after) = rest.split_at(self.window.fit(sizes));
            rest = after;
            let bytes = wave.iter().map(|event| event.payload.len()).sum();
            match self.window.room_by(latest, wave.len(), bytes).await {
                Ok(_room) => confirms.extend(self.send(&connection, wave).await),
                Err(error) => confirms.extend(unsent_all(wave, &error)),
            }
        }
        confirms
    }

    /// Its turn, connecting (behind another batch that tries, and by itself), the answers, and connections that others
    /// make while it leaves its own: each of these ends by itself.
    fn publish_limit(&self) -> Option<Duration> {
        let NatsConfig { ack_timeout, connect_timeout, .. } = self.config;
        let connecting = connect_timeout.saturating_mul(4);
        Some(longer_than([ack_timeout.saturating_mul(2), connecting, WHY_LIMIT]))
    }

    /// More would wait for room that these have.
    fn largest_wave(&self) -> usize {
        self.config.max_in_flight
    }

    fn window(&self) -> Option<usize> {
        Some(self.config.max_in_flight)
    }

    async fn close(&self) {
        let mut slot = self.slot.lock().await;
        slot.closed = true;
        let connection = slot.connection.take();
        drop(slot);
        let drained = tokio::time::timeout(self.config.ack_timeout, self.window.empty()).await;
        if drained.is_err() {
            tracing::warn!("closed with messages under way whose fate is unknown");
        }
        drop(connection);
    }
}
