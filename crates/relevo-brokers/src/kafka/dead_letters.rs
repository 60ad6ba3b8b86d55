//! Puts away what failed for good: a record in the dead letters' topic, confirmed before the original is settled.

use super::answer;
use super::config::KafkaConfig;
use super::connect::{Asked, Connection, failed};
use super::delivery::Delivery;
use super::watch::Ticket;
use super::{headers, rights};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::OwnedHeaders;
use rdkafka::producer::BaseRecord;
use relevo_core::broker::{Confirm, dead_header};
use relevo_core::error::{ErrorClass, Kind, Result};
use std::sync::Arc;
use tokio::sync::oneshot;

/// So much of a reason is kept.
const REASON_CHARS: usize = 1000;

/// The way to the dead letters, made when the first one goes there.
pub(super) struct DeadLetters {
    config: KafkaConfig,
    topic: String,
    connection: Option<Arc<Connection>>,
}

impl DeadLetters {
    pub(super) fn new(config: KafkaConfig, topic: String) -> Self {
        Self { config, topic, connection: None }
    }

    /// Stores a copy with its key, bytes, headers and the reason.
    pub(super) async fn store(
        &mut self,
        delivery: &Delivery,
        times: u32,
        reason: &str,
    ) -> Result<()> {
        let connection = self.connection().await?;
        let full = with_reason(delivery, times, reason);
        let confirm = match send(&connection, &self.topic, delivery, full).await {
            Confirm::Refused { class: ErrorClass::Poison, .. } => {
                // A record at the limit has no room for a reason. Better without than never put away.
                tracing::warn!(
                    topic = self.topic,
                    reason,
                    "a dead letter is too large for its reason"
                );
                send(&connection, &self.topic, delivery, delivery.headers.clone()).await
            }
            confirm => confirm,
        };
        match confirm {
            Confirm::Stored => Ok(()),
            Confirm::Refused { error, .. }
            | Confirm::Down { error }
            | Confirm::Unknown { error } => Err(self.refused(&error)),
            other => Err(self.refused(&format!("{other:?}"))),
        }
    }

    fn refused(&self, why: &str) -> relevo_core::Error {
        let why = format!("the dead letter could not be stored in the topic {}: {why}", self.topic);
        failed(Kind::DestinationRefused, why)
    }

    /// A producer to a topic that is there: the client would wait a long time for one that is not.
    async fn connection(&mut self) -> Result<Arc<Connection>> {
        if let Some(open) = self.connection.as_ref().filter(|open| open.is_usable()) {
            return Ok(open.clone());
        }
        let opened = Arc::new(Connection::open(&self.config.producer())?);
        let (asking, topic) = (opened.clone(), self.topic.clone());
        let limit = self.config.connect_timeout;
        let asked = tokio::task::spawn_blocking(move || asking.ask(&topic, limit)).await;
        match asked.unwrap_or_else(|error| Asked::NoAnswer(error.to_string())) {
            Asked::There(_) => Ok(self.connection.insert(opened).clone()),
            Asked::Missing => Err(self.refused("it is not there")),
            Asked::Forbidden(_) => Err(self.refused(&rights::unwritten(&self.topic))),
            Asked::NoAnswer(why) => Err(self.refused(&why)),
        }
    }
}

fn with_reason(delivery: &Delivery, times: u32, reason: &str) -> OwnedHeaders {
    let reason: String =
        reason.chars().map(|c| if c.is_control() { ' ' } else { c }).take(REASON_CHARS).collect();
    [
        (dead_header::REASON, reason),
        (dead_header::FROM, delivery.position()),
        (dead_header::TOPIC, delivery.place.topic.clone()),
        (dead_header::ATTEMPTS, times.to_string()),
    ]
    .into_iter()
    .fold(delivery.headers.clone(), |all, (name, value)| {
        headers::insert(all, name, value.as_bytes())
    })
}

async fn send(
    connection: &Connection,
    topic: &str,
    delivery: &Delivery,
    headers: OwnedHeaders,
) -> Confirm {
    let Some(producer) = connection.producer() else {
        return Confirm::Down { error: "the producer has ended".into() };
    };
    let (answer, answered) = oneshot::channel();
    let ticket = Box::new(Ticket { answer, _room: None });
    let mut record: BaseRecord<'_, [u8], [u8], Box<Ticket>> =
        BaseRecord::with_opaque_to(topic, ticket).headers(headers);
    record.key = delivery.key.as_deref();
    record.payload = delivery.payload.as_deref();
    match producer.send(record) {
        Ok(()) => {
            let report = answered.await.unwrap_or(Err(RDKafkaErrorCode::PurgeInflight));
            match report {
                Err(code) if answer::is_forbidden(code, connection.could_never_write()) => {
                    answer::refused(ErrorClass::Transient, rights::unwritten(topic))
                }
                report => answer::meaning(report).alone(),
            }
        }
        Err((error, _)) => {
            let code = match &error {
                KafkaError::MessageProduction(code) => Some(*code),
                _ => None,
            };
            answer::untaken(code, error.to_string())
        }
    }
}
