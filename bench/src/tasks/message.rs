//! An event as the bare clients write it: the same headers and properties as Relevo's adapters, by straightforward
//! code. `cargo xtask bench fair` reads one of each back and compares them.

use crate::judge;
use async_nats::HeaderMap;
use bytes::Bytes;
use chrono::{DateTime, SecondsFormat, Utc};
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use rdkafka::message::{Header, OwnedHeaders};
use uuid::Uuid;

/// What every event of the bench is about.
pub(crate) const TOPIC: &str = "bench.made";

const CONTENT_TYPE: &str = "application/octet-stream";
const SOURCE: &str = "relevo";

/// An event that a bare client sends. Its key and topic are plain ASCII, so nothing of it needs to be encoded.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub(crate) id: Uuid,
    pub(crate) topic: String,
    pub(crate) key: String,
    pub(crate) payload: Bytes,
    pub(crate) created_at: DateTime<Utc>,
}

impl Message {
    /// The n-th of a plan, made now.
    pub(crate) fn nth(n: u64, keys: u32, bytes: usize) -> Message {
        let (key, number) = judge::nth(n, keys);
        Message {
            id: Uuid::now_v7(),
            topic: TOPIC.to_owned(),
            key: format!("key-{key}"),
            payload: judge::payload(key, number, bytes),
            created_at: Utc::now(),
        }
    }

    fn time(&self) -> String {
        self.created_at.to_rfc3339_opts(SecondsFormat::Millis, true)
    }

    /// The CloudEvents attributes of an event that has nothing beside id, topic, key and payload.
    fn attributes<'m>(&'m self, id: &'m str, time: &'m str) -> [(&'static str, &'m str); 8] {
        [
            ("specversion", "1.0"),
            ("id", id),
            ("source", SOURCE),
            ("type", &self.topic),
            ("time", time),
            ("subject", &self.key),
            ("partitionkey", &self.key),
            ("topic", &self.topic),
        ]
    }

    pub(crate) fn nats(&self) -> HeaderMap {
        let (id, time) = (self.id.to_string(), self.time());
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", id.as_str());
        headers.insert("content-type", CONTENT_TYPE);
        headers.insert("ce-datacontenttype", CONTENT_TYPE);
        for (name, value) in self.attributes(&id, &time) {
            headers.insert(format!("ce-{name}"), value);
        }
        headers.insert("x-event-id", id.as_str());
        headers
    }

    pub(crate) fn rabbitmq(&self) -> BasicProperties {
        let (id, time) = (self.id.to_string(), self.time());
        let text = |value: &str| AMQPValue::LongString(LongString::from(value));
        let mut headers = FieldTable::default();
        for (name, value) in self.attributes(&id, &time) {
            headers.insert(ShortString::from(format!("cloudEvents_{name}")), text(value));
        }
        headers.insert("x-event-id".into(), text(&id));
        BasicProperties::default()
            .with_delivery_mode(2)
            .with_message_id(id.into())
            .with_timestamp(self.created_at.timestamp().cast_unsigned())
            .with_content_type(CONTENT_TYPE.into())
            .with_type(self.topic.as_str().into())
            .with_headers(headers)
    }

    pub(crate) fn kafka(&self) -> OwnedHeaders {
        let (id, time) = (self.id.to_string(), self.time());
        let header = |headers: OwnedHeaders, name: &str, value: &str| {
            headers.insert(Header { key: name, value: Some(value) })
        };
        let mut headers = header(OwnedHeaders::new_with_capacity(10), "content-type", CONTENT_TYPE);
        for (name, value) in self.attributes(&id, &time) {
            headers = header(headers, &format!("ce_{name}"), value);
        }
        header(headers, "x-event-id", &id)
    }
}
