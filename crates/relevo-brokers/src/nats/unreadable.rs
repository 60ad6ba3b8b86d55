//! Messages whose headers the client cannot read: it ends the connection when one arrives, every time.
//!
//! Any program may store such a message (headers that are no UTF-8, a line without a colon). It must not stop the
//! others: it is fetched by JetStream's own interface, which wraps it in JSON, and handed out with what is readable.

use super::config::NatsConfig;
use super::connect::{Connection, error};
use super::delivery::Delivery;
use super::subscriber::NatsConsumer;
use async_nats::{HeaderName, Request};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::stream::{self, StreamExt};
use relevo_core::error::{Kind, Result, quoted};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// So many messages, the newest, are looked at.
const LOOKED_AT: u64 = 1000;
const AT_ONCE: usize = 16;

#[derive(Deserialize)]
struct Info {
    delivered: Place,
    ack_floor: Place,
}

#[derive(Deserialize)]
struct Place {
    stream_seq: u64,
}

#[derive(Deserialize)]
struct Answer {
    message: Option<Stored>,
}

#[derive(Deserialize)]
struct Stored {
    subject: String,
    seq: u64,
    #[serde(default)]
    hdrs: String,
    #[serde(default)]
    data: String,
    time: Option<DateTime<Utc>>,
}

/// Those among the consumer's unsettled messages that the client cannot read and that are not `known`.
pub(super) async fn find(
    connection: &Connection,
    config: &NatsConfig,
    consumer: &NatsConsumer,
    known: &BTreeSet<u64>,
) -> Result<Vec<Delivery>> {
    let api = config.api_prefix();
    let about = format!("{api}.CONSUMER.INFO.{}.{}", consumer.stream, consumer.name);
    let looked_at = unsettled(&ask(connection, config, about, Bytes::new()).await?)?;
    let get = format!("{api}.STREAM.MSG.GET.{}", consumer.stream);
    let looked = stream::iter(looked_at.filter(|sequence| !known.contains(sequence)))
        .map(|seq| {
            let get = get.clone();
            async move {
                let wanted = Bytes::from(serde_json::json!({ "seq": seq }).to_string());
                ask(connection, config, get, wanted).await
            }
        })
        .buffered(AT_ONCE)
        .collect::<Vec<_>>()
        .await;
    let mut found = Vec::new();
    for answer in looked {
        found.extend(stored(&answer?, consumer)?);
    }
    Ok(found)
}

async fn ask(
    connection: &Connection,
    config: &NatsConfig,
    subject: String,
    question: Bytes,
) -> Result<Bytes> {
    let request = Request::new().payload(question).timeout(Some(config.ack_timeout));
    let answer = connection.client.send_request(subject, request).await;
    answer
        .map(|answer| answer.payload)
        .map_err(|cause| error(Kind::DestinationDown, cause.to_string()))
}

/// An answer of JetStream's interface. What is wrong with one may repeat any length of it.
fn read<T: DeserializeOwned>(answer: &[u8]) -> Result<T> {
    serde_json::from_slice(answer).map_err(|cause| {
        let why = format!("JetStream's answer is not understood: {}", quoted(&cause.to_string()));
        error(Kind::DestinationDown, why)
    })
}

/// The newest of what was handed out and is not settled, by what the server says of the consumer.
pub(super) fn unsettled(answer: &[u8]) -> Result<RangeInclusive<u64>> {
    let info: Info = read(answer)?;
    let newest = info.delivered.stream_seq;
    let oldest = info.ack_floor.stream_seq.saturating_add(1);
    Ok(oldest.max(newest.saturating_sub(LOOKED_AT))..=newest)
}

/// The message of an answer, if the client cannot read it. A sequence without a message was deleted meanwhile.
pub(super) fn stored(answer: &[u8], consumer: &NatsConsumer) -> Result<Option<Delivery>> {
    let answer: Answer = read(answer)?;
    Ok(answer.message.and_then(|stored| unreadable(stored, consumer)))
}

fn unreadable(stored: Stored, consumer: &NatsConsumer) -> Option<Delivery> {
    let block = STANDARD.decode(&stored.hdrs).ok()?;
    if is_readable(&block) {
        return None;
    }
    let nanos = stored.time.and_then(|time| time.timestamp_nanos_opt()).unwrap_or_default();
    let (stream, name, seq) = (&consumer.stream, &consumer.name, stored.seq);
    Some(Delivery {
        // The server looks a message up by its sequence in the stream alone.
        reply: format!("$JS.ACK.{stream}.{name}.1.{seq}.{seq}.{nanos}.0").into(),
        subject: stored.subject,
        sequence: seq,
        times: 1,
        stored_at: stored.time,
        headers: what_is_readable(&block),
        payload: STANDARD.decode(&stored.data).unwrap_or_default().into(),
    })
}

/// As the client sees it: text, and lines of a name and a value.
pub(super) fn is_readable(block: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(block) else { return false };
    text.lines().skip(1).filter(|line| !line.is_empty()).all(|line| {
        line.starts_with(char::is_whitespace)
            || line.split_once(':').is_some_and(|(name, _)| HeaderName::from_str(name).is_ok())
    })
}

pub(super) fn what_is_readable(block: &[u8]) -> Vec<(String, String)> {
    let text = String::from_utf8_lossy(block);
    let lines = text.lines().skip(1).filter_map(|line| line.split_once(':'));
    lines
        .filter(|(name, _)| !name.is_empty() && HeaderName::from_str(name).is_ok())
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_client_would_stumble_over_is_found() {
        for good in ["", "NATS/1.0\r\n\r\n", "NATS/1.0\r\na: b\r\n c\r\nd:\r\n\r\n"] {
            assert!(is_readable(good.as_bytes()), "{good:?}");
        }
        for bad in [&b"NATS/1.0\r\na: \xff\r\n\r\n"[..], b"NATS/1.0\r\nno colon\r\n\r\n"] {
            assert!(!is_readable(bad), "{bad:?}");
        }
        let read = what_is_readable(b"NATS/1.0\r\nx-event-id: 7\r\nodd\r\nb: \xff\r\n: c\r\n\r\n");
        assert_eq!(read, [("x-event-id".into(), "7".into()), ("b".into(), "\u{fffd}".into())]);
    }

    #[test]
    fn only_the_newest_of_what_is_not_settled_is_looked_at() {
        let looked_at = |settled: u64, newest: u64| {
            let place = |seq: u64| serde_json::json!({ "stream_seq": seq });
            let info =
                serde_json::json!({ "delivered": place(newest), "ack_floor": place(settled) });
            unsettled(info.to_string().as_bytes()).unwrap()
        };
        assert_eq!(looked_at(3, 7), 4..=7);
        assert_eq!(looked_at(0, 5000), 4000..=5000);
        assert!(looked_at(7, 7).is_empty());
        assert!(looked_at(u64::MAX, 7).is_empty());
    }

    #[test]
    fn an_answer_that_is_none_of_jetstreams_is_not_repeated_at_length() {
        let answer = format!(r#"{{"delivered":"{}"}}"#, "x".repeat(10_000));
        let error = unsettled(answer.as_bytes()).unwrap_err();
        assert!(error.message().len() < 200, "{error}");
    }
}
