//! A producer of librdkafka, and questions that are asked through a client.
//!
//! The client mends its connections by itself, and that is right here: an idempotent producer sends again what nobody
//! confirmed, and the brokers drop what they have already. What it could not do within the time limit it reports as
//! such, and never sends later.

use super::NAME;
use super::watch::Watch;
use rdkafka::ClientConfig;
use rdkafka::client::{Client, ClientContext};
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{Producer, PurgeConfig, ThreadedProducer};
use relevo_core::error::{Error, Kind, Result};
use std::time::Duration;

/// A producer that ends in a thread of its own: its end blocks.
pub(super) struct Connection {
    producer: Option<ThreadedProducer<Watch>>,
}

impl Connection {
    /// Nothing is sent yet: the first question or message connects.
    pub(super) fn open(config: &ClientConfig) -> Result<Self> {
        let opened = ThreadedProducer::from_config_and_context(config, Watch::default());
        Ok(Self { producer: Some(opened.map_err(unusable)?) })
    }

    /// The producer, until it ends.
    pub(super) fn producer(&self) -> Option<&ThreadedProducer<Watch>> {
        self.producer.as_ref()
    }

    pub(super) fn watch(&self) -> Option<&Watch> {
        self.producer().map(|producer| &**producer.client().context())
    }

    /// After a fatal error every message is refused: another producer must take over.
    pub(super) fn is_usable(&self) -> bool {
        self.producer().is_some_and(|producer| producer.client().fatal_error().is_none())
    }

    /// The user may write to no topic: the brokers do not even let it begin, and that ends a producer.
    pub(super) fn may_not_write(&self) -> bool {
        let fatal = self.producer().and_then(|producer| producer.client().fatal_error());
        fatal.is_some_and(|(code, _)| code == RDKafkaErrorCode::ClusterAuthorizationFailed)
    }

    /// The same, and nothing it was given can have been stored. A producer that once could write ends with messages that
    /// may have been sent before.
    pub(super) fn could_never_write(&self) -> bool {
        self.may_not_write() && !self.watch().is_some_and(Watch::has_stored)
    }

    /// Asks the brokers for a topic. Blocks.
    pub(super) fn ask(&self, topic: &str, limit: Duration) -> Asked {
        let Some(producer) = self.producer() else {
            return Asked::NoAnswer("the producer has ended".into());
        };
        let asked = ask(producer.client(), topic, limit);
        if !matches!(asked, Asked::NoAnswer(_)) {
            producer.client().context().answered();
        }
        asked
    }

    /// Why nobody answered, with what the client complained about; the next batch looks again.
    pub(super) fn explained(&self, why: String) -> String {
        let Some(watch) = self.watch() else { return why };
        watch.note_trouble();
        watch.complaint().map_or_else(|| why.clone(), |said| format!("{why}: {}", said.reason))
    }

    /// Gives up what is under way: everybody who waits is told.
    pub(super) fn purge(&self) {
        if let Some(producer) = self.producer() {
            producer.purge(PurgeConfig::default().queue().inflight());
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(producer) = self.producer.take() {
            std::thread::spawn(move || drop(producer));
        }
    }
}

/// What the brokers say of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Asked {
    /// It has so many partitions.
    There(usize),
    Missing,
    /// It is there or not: we may not know, or not use it.
    Forbidden(String),
    NoAnswer(String),
}

/// Asks for a topic. Blocks.
pub(super) fn ask<C: ClientContext>(client: &Client<C>, topic: &str, limit: Duration) -> Asked {
    let metadata = match client.fetch_metadata(Some(topic), limit) {
        Ok(metadata) => metadata,
        Err(error) => return Asked::NoAnswer(error.to_string()),
    };
    let Some(found) = metadata.topics().iter().find(|found| found.name() == topic) else {
        return Asked::NoAnswer("an answer without the topic".into());
    };
    match found.error().map(RDKafkaErrorCode::from) {
        None => Asked::There(found.partitions().len()),
        Some(
            RDKafkaErrorCode::UnknownTopicOrPartition
            | RDKafkaErrorCode::UnknownTopic
            | RDKafkaErrorCode::UnknownTopicId,
        ) => Asked::Missing,
        Some(code @ RDKafkaErrorCode::TopicAuthorizationFailed) => {
            Asked::Forbidden(code.to_string())
        }
        // Its leaders are being elected: the client waits for them.
        Some(RDKafkaErrorCode::LeaderNotAvailable) => Asked::There(found.partitions().len()),
        Some(code) => Asked::NoAnswer(code.to_string()),
    }
}

/// A client that cannot be made. The value of a setting may be secret and is not repeated.
pub(super) fn unusable(error: KafkaError) -> Error {
    let why = match &error {
        KafkaError::ClientConfig(_, why, name, _) => format!("{name}: {why}"),
        other => other.to_string(),
    };
    failed(Kind::InvalidConfig, why)
}

pub(super) fn failed(kind: Kind, why: impl Into<String>) -> Error {
    Error::new(kind, why).from_adapter(NAME)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kafka::KafkaConfig;

    #[test]
    fn what_the_client_would_refuse_is_refused_before_it_is_made() {
        let config = || KafkaConfig::to("kafka://h").unwrap();
        let seconds = Duration::from_secs;
        for (config, key) in [
            (config().max_message_bytes(999), "max_message_bytes: "),
            (config().max_message_bytes(1_000_000_001), "max_message_bytes: "),
            (config().linger(seconds(30)), "linger: 30s is no less than confirm_timeout, 30s"),
            (config().linger(seconds(2)).ack_timeout(seconds(1)), "linger: 2s is no less"),
            (config().setting("socket.timeout.ms", "never").unwrap(), "socket.timeout.ms: "),
            (config().setting("no.such.setting", "1").unwrap(), "no.such.setting: "),
        ] {
            let refused = config.check().unwrap_err();
            assert_eq!(refused.kind(), Kind::InvalidConfig);
            assert!(refused.message().starts_with(key), "{refused}");
        }
        for config in [
            config(),
            config().max_message_bytes(1000),
            config().max_message_bytes(1_000_000_000),
            config().linger(seconds(59)).ack_timeout(seconds(60)),
            config().window(u32::MAX as usize, u32::MAX as usize),
        ] {
            config.check().unwrap();
            Connection::open(&config.producer()).expect("the client takes it as well");
        }
    }
}
