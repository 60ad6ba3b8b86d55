use super::cloudevents::{self, Binding};
use super::subscriber::Tag;
use crate::error::{ErrorClass, Kind};
use crate::event::{Event, EventId, Headers, NewEvent, header};
use crate::limits::Limits;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use std::fmt;
use std::sync::Arc;
use uuid::Uuid;

/// What messages come from in order: a queue, a partition, a consumer of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Source(pub Arc<str>);

impl Source {
    /// A source of this name.
    pub fn named(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A message as it arrived, before anybody knows whether it is an event.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Incoming {
    /// To settle it by.
    pub tag: Tag,
    /// Routing key, subject or topic.
    pub topic: String,
    /// The broker's own key of it (Kafka).
    pub key: Option<String>,
    /// The broker's own id of it (a message id property).
    pub message_id: Option<String>,
    /// Its media type, where the broker has a place for that beside the headers.
    pub content_type: Option<String>,
    /// Its headers, text.
    pub headers: Vec<(String, String)>,
    /// The bytes.
    pub payload: Bytes,
    /// When it was stored, if the broker says so.
    pub stored_at: Option<DateTime<Utc>>,
    /// Where it is stored, where that stays the same with every delivery (`orders/3@17`).
    pub position: Option<String>,
    /// It was delivered before.
    pub redelivered: bool,
    /// How often it was delivered, this time included, as far as the broker or its adapter knows.
    pub deliveries: u32,
}

impl Incoming {
    /// A message of bytes; the adapter fills in the rest.
    pub fn new(tag: Tag, topic: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        Self {
            tag,
            topic: topic.into(),
            key: None,
            message_id: None,
            content_type: None,
            headers: Vec::new(),
            payload: payload.into(),
            stored_at: None,
            position: None,
            redelivered: false,
            deliveries: 1,
        }
    }

    /// The value of a header, its name in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let same = |(other, _): &&(String, String)| other.eq_ignore_ascii_case(name);
        self.headers.iter().find(same).map(|(_, value)| value.as_str())
    }

    /// The event this message carries: CloudEvents attributes first, then what `foreign` says.
    pub fn event(&self, binding: &Binding, foreign: &Foreign) -> Result<Arrived, Malformed> {
        let read = cloudevents::read(self, binding);
        let take = |from: &[Take]| from.iter().find_map(|take| take.from(self));
        let id = read.id.clone().or_else(|| take(&foreign.id)).ok_or_else(|| {
            Malformed::new("it has no id: neither a CloudEvents id nor what the mapping names")
        })?;
        let source = read.source.clone().or_else(|| take(&foreign.source));
        let source = source.unwrap_or_else(|| self.topic.clone());
        let topic = read
            .topic
            .clone()
            .or_else(|| take(&foreign.topic))
            .unwrap_or_else(|| self.topic.clone());
        let mut event = NewEvent::with_id(event_id(&source, &id), topic, self.payload.clone());
        event.key = read.key.clone().or_else(|| take(&foreign.key)).or_else(|| self.key.clone());
        event.headers = read.headers;
        if event.headers.get(header::TYPE).is_none()
            && let Some(kind) = take(&foreign.event_type)
        {
            event.headers.set(header::TYPE, kind);
        }
        event.headers.set(header::SOURCE, source.clone());
        Limits::default().check(&event).map_err(|e| Malformed::new(e.to_string()))?;
        let event = Event::stored(event, self.stored_at.unwrap_or_default());
        Ok(Arrived { event, source, id })
    }

    /// The message as it came, for a dead letter: nothing understood, as much kept as an event can carry.
    pub fn raw(&self, id: EventId) -> NewEvent {
        let limits = Limits::default();
        let fits = |event: NewEvent| limits.check(&event).is_ok();
        let empty = |topic: &str| NewEvent::bytes(topic, Bytes::new());
        let topic = if fits(empty(&self.topic)) { &self.topic } else { UNNAMED };
        let mut event = NewEvent::with_id(id, topic, self.payload.clone());
        event.key = self.key.clone().filter(|key| fits(empty(UNNAMED).key(key)));
        let (kept, odd): (Vec<_>, Vec<_>) = self
            .headers
            .iter()
            .cloned()
            .partition(|(name, value)| fits(empty(UNNAMED).header(name, value)));
        event.headers = kept.into_iter().collect::<Headers>();
        if !odd.is_empty() {
            let odd = serde_json::to_string(&odd).unwrap_or_default();
            event.headers.set(header::RAW_HEADERS, odd.chars().take(RAW_CHARS).collect::<String>());
        }
        event
    }

    /// What a message without an id is known by: the same bytes and headers are the same message.
    pub(crate) fn fingerprint(&self) -> String {
        use md5::{Digest, Md5};
        let mut digest = Md5::new();
        digest.update(self.topic.as_bytes());
        for (name, value) in &self.headers {
            digest.update(format!("\0{name}\0{value}"));
        }
        digest.update(&self.payload);
        digest
            .finalize()
            .iter()
            .fold("no-id:".to_owned(), |text, byte| text + &format!("{byte:02x}"))
    }
}

/// The topic of a message whose own cannot be one.
const UNNAMED: &str = "malformed";

/// So much is kept of headers that an event cannot carry.
const RAW_CHARS: usize = 2000;

/// An event with what the inbox knows it by.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Arrived {
    /// The event.
    pub event: Event,
    /// Who published it, in its own words.
    pub source: String,
    /// Its id in its source's own words.
    pub id: String,
}

/// Why a message is no event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    reason: String,
}

impl Malformed {
    /// No event, for this reason.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into() }
    }

    /// Nobody can work on it.
    pub fn class(&self) -> ErrorClass {
        Kind::InvalidPayload.class()
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not an event: {}", self.reason)
    }
}

impl std::error::Error for Malformed {}

/// Where a foreign message has one of an event's attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Take {
    /// In a header.
    Header(String),
    /// In the JSON payload, at this pointer (`/order/id`).
    Json(String),
    /// It is the broker's own message id.
    MessageId,
    /// It is the broker's own key.
    Key,
    /// It is the place where it is stored.
    Position,
    /// It is the routing key, subject or topic.
    Topic,
    /// It is always this.
    Fixed(String),
}

impl Take {
    fn from(&self, message: &Incoming) -> Option<String> {
        let found = match self {
            Self::Header(name) => message.header(name).map(str::to_owned),
            Self::Json(pointer) => json_text(&message.payload, pointer),
            Self::MessageId => message.message_id.clone(),
            Self::Key => message.key.clone(),
            Self::Position => message.position.clone(),
            Self::Topic => Some(message.topic.clone()),
            Self::Fixed(text) => Some(text.clone()),
        };
        found.filter(|text| !text.is_empty())
    }
}

fn json_text(payload: &[u8], pointer: &str) -> Option<String> {
    let value: serde_json::Value = serde_json::from_slice(payload).ok()?;
    match value.pointer(pointer)? {
        serde_json::Value::String(text) => Some(text.clone()),
        serde_json::Value::Null => None,
        other => Some(other.to_string()),
    }
}

/// How messages that are no CloudEvents become events: for each attribute the first that is there counts.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Foreign {
    /// What the message is known by; without any it cannot be an event.
    pub id: Vec<Take>,
    /// Who published it; the topic if nothing is found.
    pub source: Vec<Take>,
    /// The event's topic; the broker's if nothing is found.
    pub topic: Vec<Take>,
    /// What is kept in order; the broker's own key if nothing is found.
    pub key: Vec<Take>,
    /// The event's type; its topic if nothing is found.
    pub event_type: Vec<Take>,
}

impl Default for Foreign {
    /// What most systems write: `x-event-id`, the broker's message id, Debezium's `id` header, the place.
    fn default() -> Self {
        let header = |name: &str| Take::Header(name.to_owned());
        Self {
            id: vec![header("x-event-id"), Take::MessageId, header("id"), Take::Position],
            source: Vec::new(),
            topic: Vec::new(),
            key: Vec::new(),
            event_type: vec![header("eventType"), header("type")],
        }
    }
}

/// The id itself where it is a UUID; otherwise one made of source and id, always the same.
pub(crate) fn event_id(source: &str, id: &str) -> EventId {
    use md5::{Digest, Md5};
    let made = || {
        let mut digest = Md5::new();
        for part in [source, "\0", id] {
            digest.update(part.as_bytes());
        }
        uuid::Builder::from_md5_bytes(digest.finalize().into()).into_uuid()
    };
    EventId(Uuid::parse_str(id).unwrap_or_else(|_| made()))
}

#[cfg(test)]
#[path = "incoming_tests.rs"]
mod tests;
