//! Puts away what failed for good: a message in the dead letters' stream, confirmed before the original is ended.

use super::answer;
use super::config::NatsConfig;
use super::connect::{Connection, error};
use super::delivery::Delivery;
use super::headers::insert;
use super::subscriber::NatsConsumer;
use async_nats::client::RequestErrorKind;
use async_nats::header::NATS_MESSAGE_ID;
use async_nats::{HeaderMap, Message, Request, RequestError};
use relevo_core::broker::{Confirm, dead_header};
use relevo_core::error::{Kind, Result};
use std::time::Instant;

/// So much of a reason is kept.
const REASON_CHARS: usize = 1000;

/// How often it had been delivered.
const ATTEMPTS: &str = "x-relevo-attempts";

/// Stores a copy with its bytes, headers and the reason.
pub(super) async fn store(
    connection: &Connection,
    config: &NatsConfig,
    consumer: &NatsConsumer,
    delivery: &Delivery,
    reason: &str,
) -> Result<()> {
    let subject = format!("{}.{}.{}", consumer.dead_letters, consumer.name, delivery.subject);
    let full = with_reason(delivery, consumer, reason);
    let began = Instant::now();
    let sent = match send(connection, config, &subject, delivery, full).await {
        Err(cause) if cause.kind() == RequestErrorKind::MaxPayloadExceeded => {
            // A message at the limit has no room for a reason. Better without than never put away.
            tracing::warn!(subject, reason, "a dead letter is too large for its reason");
            send(connection, config, &subject, delivery, delivery.own_headers()).await
        }
        sent => sent,
    };
    let refused = |why: String| {
        let why = format!("the dead letter could not be stored as {subject}: {why}");
        Err(error(Kind::DestinationRefused, why))
    };
    match sent {
        Ok(message) => match answer::confirm(&message.payload) {
            Confirm::Stored => Ok(()),
            Confirm::Refused { error, .. }
            | Confirm::Down { error }
            | Confirm::Unknown { error } => refused(error),
            other => refused(format!("{other:?}")),
        },
        Err(cause) if cause.kind() == RequestErrorKind::NoResponders => {
            refused("no stream stores that subject".into())
        }
        Err(cause) => refused(connection.explained(cause.to_string(), began)),
    }
}

fn with_reason(delivery: &Delivery, consumer: &NatsConsumer, reason: &str) -> HeaderMap {
    let mut headers = delivery.own_headers();
    let reason: String =
        reason.chars().map(|c| if c.is_control() { ' ' } else { c }).take(REASON_CHARS).collect();
    let from = format!("{}/{}", consumer.stream, consumer.name);
    for (name, value) in [
        (dead_header::REASON, reason),
        (dead_header::FROM, from.clone()),
        (dead_header::TOPIC, delivery.subject.clone()),
        (ATTEMPTS, delivery.times.to_string()),
    ] {
        insert(&mut headers, name.to_owned(), value);
    }
    // Put away twice, it is one letter.
    let id = format!("{from}@{}", delivery.sequence);
    headers.insert(NATS_MESSAGE_ID, id);
    headers
}

async fn send(
    connection: &Connection,
    config: &NatsConfig,
    subject: &str,
    delivery: &Delivery,
    headers: HeaderMap,
) -> Result<Message, RequestError> {
    let request = Request::new()
        .payload(delivery.payload.clone())
        .headers(headers)
        .timeout(Some(config.ack_timeout));
    connection.client.send_request(subject.to_owned(), request).await
}
