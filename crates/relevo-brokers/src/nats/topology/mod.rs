//! Streams and consumers as data, and what the server has of them.
//!
//! - [`NatsTopology`]: what is wanted, as it is written in a configuration
//! - `differ`: how what is there differs
//! - `admin`: asks the server and changes it
//! - `rehearsal`: tries a stream before another is deleted for it

mod admin;
mod differ;
mod rehearsal;

pub use admin::NatsAdmin;

use super::subscriber::NatsConsumer;
use crate::span;
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Replicas on a cluster, unless told otherwise: one may be lost.
const REPLICAS: usize = 3;

/// How long dead letters are kept, unless told otherwise.
const DEAD_LETTERS_AGE: Duration = Duration::from_secs(90 * 86_400);

/// What must be there. What is not named is left alone: an account is often shared.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct NatsTopology {
    /// Streams by name.
    pub streams: BTreeMap<String, Stream>,
    /// The stream for what consumers give up: its name, and what its subjects begin with.
    pub dead_letters: Option<String>,
}

/// A stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Stream {
    /// What it stores; `*` is one word, `>` the rest.
    pub subjects: Vec<String>,
    /// On how many servers; if nothing is said, a new one is on 3 of a cluster or on the single server, and stays so.
    pub replicas: Option<usize>,
    /// What makes a message go.
    pub retention: Retention,
    /// Where it is kept.
    pub storage: Storage,
    /// Most messages.
    pub max_messages: Option<i64>,
    /// Most bytes.
    pub max_bytes: Option<i64>,
    /// Largest message.
    pub max_message_bytes: Option<i32>,
    /// Messages go when they are older.
    #[serde(deserialize_with = "span::maybe")]
    pub max_age: Option<Duration>,
    /// What happens at the limits.
    pub discard: Discard,
    /// So long a second copy of an id is dropped; 2 minutes by default.
    #[serde(deserialize_with = "span::maybe")]
    pub duplicate_window: Option<Duration>,
    /// Durable pull consumers by name.
    pub consumers: BTreeMap<String, Consumer>,
}

/// What makes a message go.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Retention {
    /// The limits.
    #[default]
    Limits,
    /// Every consumer has acknowledged it.
    Interest,
    /// Its one consumer has acknowledged it.
    WorkQueue,
}

/// Where messages are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Storage {
    /// In files.
    #[default]
    File,
    /// In memory: gone with the servers.
    Memory,
}

/// What happens when a stream is full.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Discard {
    /// New messages are refused and wait in the outbox.
    #[default]
    New,
    /// The oldest messages go, consumed or not.
    Old,
}

/// A durable pull consumer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Consumer {
    /// Only these subjects; all if empty.
    pub filters: Vec<String>,
    /// Most unsettled messages of all its receivers together.
    pub max_ack_pending: Option<usize>,
    /// How long after its receiver died a message goes to another.
    #[serde(deserialize_with = "span::maybe")]
    pub ack_wait: Option<Duration>,
}

impl NatsTopology {
    /// A consumer as this topology has it, for its [`super::NatsSubscriber`].
    pub fn consumer(&self, stream: &str, name: &str) -> Option<NatsConsumer> {
        let found = self.streams.get(stream)?.consumers.get(name)?;
        let consumer = found.named(stream, name);
        Some(match &self.dead_letters {
            Some(subject) => consumer.dead_letters(subject),
            None => consumer,
        })
    }

    /// Every stream, the dead letters' among them.
    fn streams(&self) -> BTreeMap<String, Stream> {
        let mut streams = self.streams.clone();
        if let Some(name) = &self.dead_letters {
            streams.entry(name.clone()).or_insert_with(|| Stream {
                subjects: vec![format!("{name}.>")],
                max_age: Some(DEAD_LETTERS_AGE),
                ..Stream::default()
            });
        }
        streams
    }
}

impl Consumer {
    fn named(&self, stream: &str, name: &str) -> NatsConsumer {
        let mut consumer = NatsConsumer::new(stream, name);
        consumer.filters = self.filters.clone();
        if let Some(most) = self.max_ack_pending {
            consumer.max_ack_pending = most.max(1);
            consumer.max_unsettled = consumer.max_unsettled.min(consumer.max_ack_pending);
        }
        consumer.ack_wait = self.ack_wait.unwrap_or(consumer.ack_wait);
        consumer
    }
}

impl Stream {
    /// As the server is told, over what it has: settings that are not ours stay.
    fn over(&self, found: Option<Config>, name: &str, clustered: bool) -> Config {
        let usual = if clustered { REPLICAS } else { 1 };
        let replicas = found.as_ref().map_or(usual, |found| found.num_replicas);
        let unlimited = |limit: Option<i64>| limit.unwrap_or(-1);
        let window = self.duplicate_window.unwrap_or(Duration::from_secs(120));
        Config {
            name: name.to_owned(),
            subjects: self.subjects.clone(),
            num_replicas: self.replicas.unwrap_or(replicas),
            retention: self.retention.told(),
            storage: self.storage.told(),
            max_messages: unlimited(self.max_messages),
            max_bytes: unlimited(self.max_bytes),
            max_message_size: self.max_message_bytes.unwrap_or(-1),
            max_age: self.max_age.unwrap_or_default(),
            discard: self.discard.told(),
            // It cannot be longer than messages live.
            duplicate_window: self.max_age.map_or(window, |age| window.min(age)),
            ..found.unwrap_or_default()
        }
    }
}

impl Retention {
    fn told(self) -> RetentionPolicy {
        match self {
            Self::Limits => RetentionPolicy::Limits,
            Self::Interest => RetentionPolicy::Interest,
            Self::WorkQueue => RetentionPolicy::WorkQueue,
        }
    }
}

impl Storage {
    fn told(self) -> StorageType {
        match self {
            Self::File => StorageType::File,
            Self::Memory => StorageType::Memory,
        }
    }
}

impl Discard {
    fn told(self) -> DiscardPolicy {
        match self {
            Self::New => DiscardPolicy::New,
            Self::Old => DiscardPolicy::Old,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_read_and_its_mistakes_are_refused() {
        let json = serde_json::json!({
            "dead_letters": "dead-letters",
            "streams": {"ORDERS": {
                "subjects": ["order.>"], "max_age": "7d", "discard": "old", "retention": "interest",
                "consumers": {"billing": {"filters": ["order.paid"], "ack_wait": "1m", "max_ack_pending": 1}},
            }},
        });
        let topology: NatsTopology = serde_json::from_value(json).unwrap();
        let names: Vec<String> = topology.streams().into_keys().collect();
        assert_eq!(names, ["ORDERS", "dead-letters"]);
        let billing = topology.consumer("ORDERS", "billing").unwrap();
        assert_eq!((billing.max_unsettled, billing.ack_wait), (1, Duration::from_secs(60)));
        assert_eq!(billing.filters, ["order.paid"]);
        assert_eq!(topology.consumer("ORDERS", "other"), None);
        for wrong in [
            serde_json::json!({"stream": {}}),
            serde_json::json!({"streams": {"A": {"subject": ["a"]}}}),
            serde_json::json!({"streams": {"A": {"max_age": "soon"}}}),
            serde_json::json!({"streams": {"A": {"discard": "none"}}}),
        ] {
            assert!(serde_json::from_value::<NatsTopology>(wrong).is_err());
        }
    }
}
