//! Topics as data, and what the brokers have of them.
//!
//! - [`KafkaTopology`]: what is wanted, as it is written in a configuration
//! - `differ`: how what is there differs
//! - `admin`: asks the brokers and changes them

mod admin;
mod differ;

pub use admin::KafkaAdmin;

use crate::span;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Replicas on a cluster, unless told otherwise: one may be lost.
const REPLICAS: usize = 3;

/// How long dead letters are kept, unless told otherwise.
const DEAD_LETTERS_AGE: Duration = Duration::from_secs(90 * 86_400);

/// What must be there. What is not named is left alone: a cluster is often shared.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct KafkaTopology {
    /// Topics by name.
    pub topics: BTreeMap<String, Topic>,
    /// The topic for what consumers give up.
    pub dead_letters: Option<String>,
}

/// A topic.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Topic {
    /// How many partitions; 1 unless told otherwise.
    pub partitions: Option<usize>,
    /// On how many brokers; 3 on a cluster of three or more, otherwise on all there are.
    pub replicas: Option<usize>,
    /// Messages go when they are older; "forever" keeps them.
    #[serde(deserialize_with = "age::maybe")]
    pub retention: Option<Age>,
    /// The oldest messages of a partition go when it has more bytes.
    pub retention_bytes: Option<u64>,
    /// What makes a message go.
    pub cleanup: Option<Cleanup>,
    /// The largest batch of messages.
    pub max_message_bytes: Option<usize>,
    /// A confirm needs so many replicas that are in step.
    pub min_in_sync_replicas: Option<usize>,
    /// Other settings of the topic, by Kafka's own names.
    pub config: BTreeMap<String, String>,
}

/// What makes a message go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Cleanup {
    /// Its age, or the partition's size.
    Delete,
    /// A later message of its key.
    Compact,
    /// Either.
    Both,
}

/// How old messages become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Age {
    /// They are kept.
    Forever,
    /// They go then.
    Of(Duration),
}

mod age {
    use super::{Age, span};
    use serde::Deserialize;
    use serde::de::{Deserializer, IntoDeserializer, value::StringDeserializer};

    pub(super) fn maybe<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Age>, D::Error> {
        let Some(text) = Option::<String>::deserialize(from)? else { return Ok(None) };
        if text == "forever" {
            return Ok(Some(Age::Forever));
        }
        let text: StringDeserializer<D::Error> = text.into_deserializer();
        span::one(text).map(Age::Of).map(Some)
    }
}

impl Age {
    fn millis(self) -> String {
        match self {
            Self::Forever => "-1".into(),
            Self::Of(time) => time.as_millis().to_string(),
        }
    }
}

impl Cleanup {
    fn told(self) -> &'static str {
        match self {
            Self::Delete => "delete",
            Self::Compact => "compact",
            Self::Both => "compact,delete",
        }
    }
}

impl KafkaTopology {
    /// Every topic, the dead letters' among them.
    fn topics(&self) -> BTreeMap<String, Topic> {
        let mut topics = self.topics.clone();
        if let Some(name) = &self.dead_letters {
            let kept = Some(Age::Of(DEAD_LETTERS_AGE));
            topics
                .entry(name.clone())
                .or_insert_with(|| Topic { retention: kept, ..Topic::default() });
        }
        topics
    }
}

impl Topic {
    fn partitions(&self) -> usize {
        self.partitions.unwrap_or(1).max(1)
    }

    fn replicas(&self, brokers: usize) -> usize {
        self.replicas.unwrap_or_else(|| brokers.clamp(1, REPLICAS))
    }

    /// Settings by Kafka's names: only those that are wanted, the others stay as they are.
    fn settings(&self) -> BTreeMap<String, String> {
        let own = [
            ("retention.ms", self.retention.map(Age::millis)),
            ("retention.bytes", self.retention_bytes.map(|bytes| bytes.to_string())),
            ("cleanup.policy", self.cleanup.map(|cleanup| cleanup.told().to_owned())),
            ("max.message.bytes", self.max_message_bytes.map(|bytes| bytes.to_string())),
            ("min.insync.replicas", self.min_in_sync_replicas.map(|count| count.to_string())),
        ];
        let mut settings = self.config.clone();
        settings
            .extend(own.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_read_and_its_mistakes_are_refused() {
        let json = serde_json::json!({
            "dead_letters": "dead-letters",
            "topics": {"orders": {
                "partitions": 12, "replicas": 3, "retention": "7d", "cleanup": "both",
                "min_in_sync_replicas": 2, "config": {"segment.bytes": "1048576"},
            }, "audit": {"retention": "forever"}},
        });
        let topology: KafkaTopology = serde_json::from_value(json).unwrap();
        let names: Vec<String> = topology.topics().into_keys().collect();
        assert_eq!(names, ["audit", "dead-letters", "orders"]);
        let orders = topology.topics["orders"].settings();
        for (name, value) in [
            ("retention.ms", "604800000"),
            ("cleanup.policy", "compact,delete"),
            ("min.insync.replicas", "2"),
            ("segment.bytes", "1048576"),
        ] {
            assert_eq!(orders.get(name).map(String::as_str), Some(value), "{name}");
        }
        assert_eq!(orders.len(), 4);
        assert_eq!(topology.topics["audit"].settings()["retention.ms"], "-1");
        for wrong in [
            serde_json::json!({"topic": {}}),
            serde_json::json!({"topics": {"a": {"partition": 1}}}),
            serde_json::json!({"topics": {"a": {"retention": "soon"}}}),
            serde_json::json!({"topics": {"a": {"cleanup": "never"}}}),
        ] {
            assert!(serde_json::from_value::<KafkaTopology>(wrong).is_err());
        }
    }

    #[test]
    fn replicas_are_as_many_as_there_are_brokers_up_to_three() {
        let topic = Topic::default();
        assert_eq!([1, 2, 3, 9].map(|brokers| topic.replicas(brokers)), [1, 2, 3, 3]);
        assert_eq!(Topic { replicas: Some(5), ..topic }.replicas(9), 5);
    }
}
