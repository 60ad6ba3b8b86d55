use super::answer::{self, refused};
use super::config::NatsConfig;
use super::connect::{Connection, connect, no_jetstream};
use super::{NAME, capabilities, headers, subject};
use async_nats::client::RequestErrorKind;
use async_nats::{Request, RequestError, Subject};
use async_trait::async_trait;
use bytes::Bytes;
use futures::future::join_all;
use relevo_core::broker::{Capabilities, Confirm, Publisher};
use relevo_core::error::{ErrorClass, Result};
use relevo_core::event::Event;
use std::error::Error as _;
use std::pin::pin;
use std::time::{Duration, Instant};
use tokio::sync::oneshot::error::RecvError;
use tokio::sync::{Mutex, Semaphore, SemaphorePermit};

/// What the bytes of the window are counted in.
const BLOCK: usize = 1 << 10;

/// A publisher subscribes to nothing but its answers.
const BUFFERED: usize = 16;

/// So long an answer may be behind a complaint of the server.
const GRACE: Duration = Duration::from_millis(200);

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

    async fn send(&self, connection: &Connection, event: &Event) -> Confirm {
        let subject = match subject::of(&event.topic, self.config.subject_prefix.as_deref()) {
            Ok(subject) => Subject::from(subject),
            Err(why) => return refused(ErrorClass::Poison, why),
        };
        let _room = self.window.enter(event.payload.len()).await;
        if !connection.is_up() {
            return Confirm::Down { error: "the connection was lost before it was sent".into() };
        }
        let headers = headers::of(event, &self.config.source, self.config.stream.as_deref());
        let request = Request::new().payload(event.payload.clone()).headers(headers).timeout(None);
        let began = Instant::now();
        let sent = connection.client.send_request(subject.clone(), request);
        let mut answering = pin!(tokio::time::timeout(self.config.ack_timeout, sent));
        let answered = tokio::select! {
            biased;
            answered = &mut answering => answered,
            () = connection.publishing_is_forbidden(&subject, began) => {
                // That may have been said of another message: one that was let through has its answer under way.
                match tokio::time::timeout(GRACE, answering).await {
                    Ok(answered) => answered,
                    Err(_) => return refused(ErrorClass::Transient, forbidden(&subject)),
                }
            }
        };
        match answered {
            Ok(Ok(message)) => answer::confirm(&message.payload),
            Ok(Err(error)) if error.kind() == RequestErrorKind::NoResponders => {
                self.nobody_answers(connection, &subject).await
            }
            Ok(Err(error)) => unsent(&error),
            Err(_) => self.silence(connection, began).await,
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
            .timeout(Some(self.config.ack_timeout.min(Duration::from_secs(2))));
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
        match self.connection().await {
            Ok(connection) => {
                join_all(events.iter().map(|event| self.send(&connection, event))).await
            }
            Err(error) => events.iter().map(|_| Confirm::Down { error: error.clone() }).collect(),
        }
    }

    async fn close(&self) {
        let mut slot = self.slot.lock().await;
        slot.closed = true;
        let connection = slot.connection.take();
        drop(slot);
        let drained = tokio::time::timeout(self.config.ack_timeout, self.window.drained()).await;
        if drained.is_err() {
            tracing::warn!("closed with messages under way whose fate is unknown");
        }
        drop(connection);
    }
}

/// Bounds what is under way, over all batches together.
struct Window {
    messages: Semaphore,
    blocks: Semaphore,
    most: (u32, u32),
}

type Room<'w> = (Option<SemaphorePermit<'w>>, Option<SemaphorePermit<'w>>);

impl Window {
    fn new(messages: usize, bytes: usize) -> Self {
        let bounded =
            |count: usize| u32::try_from(count).unwrap_or(u32::MAX >> 4).min(u32::MAX >> 4);
        let most = (bounded(messages), bounded(bytes.div_ceil(BLOCK)));
        Self {
            messages: Semaphore::new(most.0 as usize),
            blocks: Semaphore::new(most.1 as usize),
            most,
        }
    }

    /// Waits for room. A message larger than the whole window travels alone.
    async fn enter(&self, bytes: usize) -> Room<'_> {
        let blocks = u32::try_from(bytes.div_ceil(BLOCK)).unwrap_or(u32::MAX);
        // The semaphores are never closed; without a permit it would still be right to send.
        let message = self.messages.acquire().await.ok();
        (message, self.blocks.acquire_many(blocks.clamp(1, self.most.1)).await.ok())
    }

    /// Waits until nothing is under way.
    async fn drained(&self) {
        drop(self.messages.acquire_many(self.most.0).await);
    }
}
