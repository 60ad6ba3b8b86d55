//! What travels: an id, a topic, a key that is kept in order, bytes, and headers.

mod filter;
mod headers;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use std::fmt;
use uuid::Uuid;

pub use filter::TopicFilter;
pub use headers::{Headers, header};

use crate::error::{Error, Kind, Result, quoted};
use crate::limits::LANES;

/// An event's identity, a UUIDv7: unique, and in time order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EventId(pub Uuid);

impl EventId {
    /// A fresh id.
    pub fn fresh() -> Self {
        Self(Uuid::now_v7())
    }

    /// When it was made, if it is of version 7.
    pub fn time(self) -> Option<DateTime<Utc>> {
        let of_version_7 = self.0.get_timestamp().filter(|_| self.0.get_version_num() == 7);
        let (seconds, nanos) = of_version_7?.to_unix();
        DateTime::from_timestamp(i64::try_from(seconds).ok()?, nanos)
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::str::FromStr for EventId {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        Uuid::parse_str(text).map(Self).map_err(|e| {
            let why = e.to_string().replace('\n', "\\n");
            let why = format!("{} is not an event id (a UUID): {why}", quoted(text));
            Error::new(Kind::InvalidArgument, why)
        })
    }
}

/// An event about to be published.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct NewEvent {
    /// Its identity, also the id to deduplicate by everywhere.
    pub id: EventId,
    /// Routing key or subject, words parted by dots: `ticket.created`.
    pub topic: String,
    /// What is kept in order: the aggregate, tenant or installation. Without one the event has an order of its own.
    pub key: Option<String>,
    /// The bytes that travel.
    pub payload: Bytes,
    /// The event's other attributes ([`header`] lists the reserved names) and the application's own.
    pub headers: Headers,
}

impl NewEvent {
    /// The lane that it will lie in: that of its key, or of its own id.
    pub fn lane(&self) -> u16 {
        self.key.as_deref().map_or_else(|| lane_of(&self.id.to_string()), lane_of)
    }

    /// An event of raw bytes (`application/octet-stream` unless told otherwise).
    pub fn bytes(topic: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        Self::with_id(EventId::fresh(), topic, payload)
    }

    /// [`Self::bytes`] with an id that is known: making a fresh one costs a call to the system.
    pub fn with_id(id: EventId, topic: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        Self {
            id,
            topic: topic.into(),
            key: None,
            payload: payload.into(),
            headers: Headers::default(),
        }
    }

    /// An event whose payload is `value` as JSON.
    pub fn json<T: Serialize + ?Sized>(topic: impl Into<String>, value: &T) -> Result<Self> {
        let payload = serde_json::to_vec(value).map_err(|e| {
            Error::new(Kind::InvalidPayload, format!("the payload cannot be written as JSON: {e}"))
        })?;
        Ok(Self::bytes(topic, payload).content_type("application/json"))
    }

    /// Sets what is kept in order.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets the id, where the caller has one of its own.
    pub fn id(mut self, id: EventId) -> Self {
        self.id = id;
        self
    }

    /// Sets a header.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.set(name, value);
        self
    }

    /// Sets the content type.
    pub fn content_type(self, value: impl Into<String>) -> Self {
        self.header(header::CONTENT_TYPE, value)
    }

    /// Sets the event type, where it is not the topic.
    pub fn event_type(self, value: impl Into<String>) -> Self {
        self.header(header::TYPE, value)
    }

    /// Sets the tenant.
    pub fn tenant(self, value: impl Into<String>) -> Self {
        self.header(header::TENANT, value)
    }

    /// Sets the correlation id.
    pub fn correlation_id(self, value: impl Into<String>) -> Self {
        self.header(header::CORRELATION_ID, value)
    }

    /// Marks this event as caused by `cause`, carrying on its correlation and trace.
    pub fn caused_by(mut self, cause: &Event) -> Self {
        self.headers.set(header::CAUSATION_ID, cause.id.to_string());
        for name in
            [header::CORRELATION_ID, header::TRACEPARENT, header::TRACESTATE, header::TENANT]
        {
            if let (Some(value), None) = (cause.headers.get(name), self.headers.get(name)) {
                let value = value.to_owned();
                self.headers.set(name, value);
            }
        }
        self
    }
}

/// An event read from the log.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Event {
    /// Its identity.
    pub id: EventId,
    /// Its topic.
    pub topic: String,
    /// Its key, if it was published with one.
    pub key: Option<String>,
    /// The bytes, exactly as published.
    pub payload: Bytes,
    /// Its headers.
    pub headers: Headers,
    /// When it was published, by the database's clock.
    pub created_at: DateTime<Utc>,
}

impl Event {
    /// Puts an event together from what a store read.
    pub fn stored(event: NewEvent, created_at: DateTime<Utc>) -> Self {
        let NewEvent { id, topic, key, payload, headers } = event;
        Self { id, topic, key, payload, headers, created_at }
    }

    /// What this event is kept in order by: its key, or its own id.
    pub fn order_key(&self) -> String {
        order_key(self.key.as_deref(), self.id)
    }

    /// The payload read as JSON.
    pub fn json<'a, T: Deserialize<'a>>(&'a self) -> Result<T> {
        serde_json::from_slice(&self.payload).map_err(|e| {
            Error::new(
                Kind::InvalidPayload,
                format!("the payload of {} is not the JSON expected: {e}", self.id),
            )
        })
    }

    /// The event type; the topic, if none was given.
    pub fn event_type(&self) -> &str {
        self.headers.get(header::TYPE).unwrap_or(&self.topic)
    }

    /// The payload's content type.
    pub fn content_type(&self) -> &str {
        self.headers.get(header::CONTENT_TYPE).unwrap_or("application/octet-stream")
    }
}

/// What an event is kept in order by: its key, or its own id where it has none.
pub fn order_key(key: Option<&str>, id: EventId) -> String {
    key.map_or_else(|| id.to_string(), str::to_owned)
}

/// The lane of an order key: the first 16 bits of its MD5 (as plain SQL computes it too) modulo the lanes.
pub fn lane_of(order_key: &str) -> u16 {
    use md5::{Digest, Md5};
    let digest = Md5::digest(order_key.as_bytes());
    u16::from_be_bytes([digest[0], digest[1]]) % LANES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_is_a_stable_function_of_the_key() {
        // md5('order-1') begins with these digits on every system: the lane must never change.
        assert_eq!(lane_of("order-1"), lane_of("order-1"));
        assert_eq!(lane_of(""), 0xd41d % LANES);
        assert_eq!(lane_of("a"), 0x0cc1 % LANES);
    }

    #[test]
    fn an_id_of_version_7_tells_its_time() {
        let before = Utc::now() - chrono::Duration::seconds(5);
        assert!(EventId::fresh().time().is_some_and(|at| at > before));
        assert_eq!(EventId(Uuid::new_v4()).time(), None);
    }

    #[test]
    fn an_effect_carries_on_correlation_and_trace_of_its_cause() {
        let cause = Event::stored(
            NewEvent::bytes("a", vec![]).correlation_id("c1").tenant("t1"),
            Utc::now(),
        );
        let effect = NewEvent::bytes("b", vec![]).tenant("t2").caused_by(&cause);
        assert_eq!(effect.headers.get(header::CORRELATION_ID), Some("c1"));
        assert_eq!(effect.headers.get(header::TENANT), Some("t2"));
        assert_eq!(effect.headers.get(header::CAUSATION_ID), Some(cause.id.to_string().as_str()));
    }

    #[test]
    fn only_version_7_is_asked_for_its_time() {
        let id = |text: &str| text.parse::<EventId>().unwrap();
        let known = id("017f22e2-79b0-7cc3-98c4-dc0c0c07398f").time().unwrap();
        assert_eq!(known.to_rfc3339(), "2022-02-22T19:22:22+00:00");
        let of_version_1 = id("c232ab00-9414-11ec-b3c8-9f6bdeced846");
        assert!(of_version_1.0.get_timestamp().is_some());
        assert_eq!(of_version_1.time(), None);
    }

    #[test]
    fn an_id_is_read_as_it_is_written_and_anything_else_is_refused() {
        let id = EventId::fresh();
        assert_eq!(id.to_string().parse::<EventId>().unwrap(), id);
        let refused = "not\nan id".parse::<EventId>().unwrap_err();
        assert_eq!(refused.kind(), Kind::InvalidArgument);
        assert!(refused.message().starts_with(r#""not\nan id" is not an event id"#), "{refused}");
        assert!(!refused.message().contains('\n'), "{refused}");
    }

    #[test]
    fn an_event_without_a_key_has_an_order_of_its_own() {
        let event = |new: NewEvent| Event::stored(new, Utc::now());
        let alone = event(NewEvent::bytes("a", vec![]));
        assert_eq!(alone.order_key(), alone.id.to_string());
        assert_eq!(event(NewEvent::bytes("a", vec![]).key("k")).order_key(), "k");
    }

    #[test]
    fn type_and_content_type_are_what_was_said_or_what_goes_without_saying() {
        let plain = Event::stored(NewEvent::bytes("a.b", vec![]), Utc::now());
        assert_eq!((plain.event_type(), plain.content_type()), ("a.b", "application/octet-stream"));
        let told = NewEvent::bytes("a.b", vec![]).event_type("t").content_type("text/plain");
        let told = Event::stored(told, Utc::now());
        assert_eq!((told.event_type(), told.content_type()), ("t", "text/plain"));
    }

    #[test]
    fn json_says_that_it_is_json_and_what_is_none_is_invalid() {
        let event = Event::stored(NewEvent::json("a", &[1, 2]).unwrap(), Utc::now());
        assert_eq!(event.content_type(), "application/json");
        assert_eq!(event.json::<Vec<u8>>().unwrap(), [1, 2]);
        let refused = event.json::<String>().unwrap_err();
        assert_eq!(refused.kind(), Kind::InvalidPayload);
        assert!(refused.message().contains(&event.id.to_string()), "{refused}");
        let by_pair = std::collections::BTreeMap::from([((1, 2), 3)]);
        let refused = NewEvent::json("a", &by_pair).unwrap_err();
        assert_eq!(refused.kind(), Kind::InvalidPayload);
    }

    #[test]
    fn an_effect_takes_of_its_cause_what_it_does_not_say_itself_and_nothing_else() {
        let cause = NewEvent::bytes("a", vec![]).tenant("t1").event_type("x").header("own", "1");
        let cause = cause.header(header::TRACEPARENT, "p").header(header::TRACESTATE, "s");
        let cause = Event::stored(cause.header(header::CAUSATION_ID, "older"), Utc::now());
        let effect = NewEvent::bytes("b", vec![]).header(header::TRACESTATE, "mine");
        let effect = effect.caused_by(&cause).headers;
        let id = cause.id.to_string();
        let taken = [
            (header::CAUSATION_ID, id.as_str()),
            (header::TENANT, "t1"),
            (header::TRACEPARENT, "p"),
            (header::TRACESTATE, "mine"),
        ];
        assert_eq!(effect.iter().collect::<Vec<_>>(), taken);
    }
}
