use super::BINDING;
use bytes::Bytes;
use chrono::{DateTime, SecondsFormat, Utc};
use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use relevo_core::broker::{Incoming, Tag, cloudevents, dead_header};
use relevo_core::event::{Event, header};

/// Survives a restart of the broker.
const PERSISTENT: u8 = 2;

/// An event as properties; `Err` says why it cannot be written.
pub(super) fn properties(event: &Event, source: &str) -> Result<BasicProperties, String> {
    let mut table = FieldTable::default();
    for (name, value) in cloudevents::write(event, source, &BINDING) {
        let name =
            ShortString::try_new(name).map_err(|error| format!("a header's name: {error}"))?;
        table.insert(name, text(value));
    }
    let mut properties = BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_message_id(event.id.to_string().into())
        .with_timestamp(seconds(event))
        .with_headers(table);
    // Properties hold at most 255 bytes; what is longer is whole in the headers.
    if let Ok(content_type) = ShortString::try_new(event.content_type()) {
        properties = properties.with_content_type(content_type);
    }
    if let Ok(kind) = ShortString::try_new(event.event_type()) {
        properties = properties.with_type(kind);
    }
    let correlation = event.headers.get(header::CORRELATION_ID).unwrap_or_default();
    if let (false, Ok(id)) = (correlation.is_empty(), ShortString::try_new(correlation)) {
        properties = properties.with_correlation_id(id);
    }
    Ok(properties)
}

/// When it happened, or when it was published.
fn seconds(event: &Event) -> u64 {
    let told = event.headers.get(header::TIME);
    let told = told.and_then(|time| DateTime::parse_from_rfc3339(time).ok());
    let time = told.map_or(event.created_at, |time| time.with_timezone(&Utc));
    u64::try_from(time.timestamp()).unwrap_or_default()
}

pub(super) fn text(value: impl AsRef<str>) -> AMQPValue {
    AMQPValue::LongString(LongString::from(value.as_ref()))
}

/// A delivery as it came; a retry has the topic it was published with.
pub(super) fn incoming(tag: Tag, delivery: &Delivery, payload: Bytes) -> Incoming {
    let properties = &delivery.properties;
    let mut headers = Vec::new();
    let mut topic = delivery.routing_key.to_string();
    for (name, value) in properties.headers().iter().flat_map(FieldTable::inner) {
        let Some(value) = readable(value) else { continue };
        match name.as_str() {
            dead_header::TOPIC => topic = value,
            name => headers.push((name.to_owned(), value)),
        }
    }
    let mut incoming = Incoming::new(tag, topic, payload);
    incoming.headers = headers;
    incoming.message_id = owned(properties.message_id());
    incoming.content_type = owned(properties.content_type());
    incoming.stored_at = properties
        .timestamp()
        .and_then(|seconds| i64::try_from(seconds).ok())
        .and_then(|seconds| DateTime::from_timestamp(seconds, 0));
    incoming.redelivered = delivery.redelivered;
    incoming
}

fn owned(text: &Option<ShortString>) -> Option<String> {
    text.as_ref().map(ToString::to_string).filter(|text| !text.is_empty())
}

/// Any single value as text. Lists and tables (`x-death`) are the broker's own bookkeeping; they stay with the
/// message, but are no header of an event.
fn readable(value: &AMQPValue) -> Option<String> {
    Some(match value {
        AMQPValue::LongString(text) => String::from_utf8_lossy(text.as_bytes()).into_owned(),
        AMQPValue::ShortString(text) => text.to_string(),
        AMQPValue::ByteArray(bytes) => String::from_utf8_lossy(bytes.as_slice()).into_owned(),
        AMQPValue::Boolean(value) => value.to_string(),
        AMQPValue::ShortShortInt(value) => value.to_string(),
        AMQPValue::ShortShortUInt(value) => value.to_string(),
        AMQPValue::ShortInt(value) => value.to_string(),
        AMQPValue::ShortUInt(value) => value.to_string(),
        AMQPValue::LongInt(value) => value.to_string(),
        AMQPValue::LongUInt(value) => value.to_string(),
        AMQPValue::LongLongInt(value) => value.to_string(),
        AMQPValue::Float(value) => value.to_string(),
        AMQPValue::Double(value) => value.to_string(),
        AMQPValue::Timestamp(value) => time(*value),
        _ => return None,
    })
}

/// The text that a time of AMQP stands for; one that no calendar has stays a number.
fn time(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|seconds| DateTime::from_timestamp(seconds, 0));
    let text = time.map(|time| time.to_rfc3339_opts(SecondsFormat::Secs, true));
    text.unwrap_or_else(|| seconds.to_string())
}

/// The message's own properties with further headers.
pub(super) fn with_headers(properties: &BasicProperties, more: &[(&str, &str)]) -> BasicProperties {
    let mut table = properties.headers().clone().unwrap_or_default();
    for (name, value) in more {
        table.insert(ShortString::from(*name), text(value));
    }
    properties.clone().with_delivery_mode(PERSISTENT).with_headers(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use relevo_core::event::NewEvent;

    fn event(new: NewEvent) -> Event {
        Event::stored(new, Utc::now())
    }

    #[test]
    fn the_properties_that_other_programs_look_at_are_set() {
        let event = event(
            NewEvent::bytes("ticket.created", vec![])
                .content_type("application/json")
                .event_type("Created")
                .correlation_id("c-1")
                .header("time", "2026-01-02T03:04:05Z"),
        );
        let properties = properties(&event, "shop").unwrap();
        let text = |value: &Option<ShortString>| value.as_ref().unwrap().to_string();
        assert_eq!(text(properties.message_id()), event.id.to_string());
        assert_eq!(text(properties.content_type()), "application/json");
        assert_eq!(text(properties.kind()), "Created");
        assert_eq!(text(properties.correlation_id()), "c-1");
        assert_eq!(*properties.delivery_mode(), Some(2));
        assert_eq!(*properties.timestamp(), Some(1_767_323_045));
    }

    #[test]
    fn what_is_too_long_for_a_property_is_still_in_the_headers() {
        let long = "c".repeat(300);
        let event = event(NewEvent::bytes("t", vec![]).correlation_id(long.clone()));
        let properties = properties(&event, "shop").unwrap();
        assert_eq!(*properties.correlation_id(), None);
        let headers = properties.headers().clone().unwrap();
        let found = headers.inner().get("cloudEvents_correlationid").and_then(readable);
        assert_eq!(found, Some(long));
    }

    #[test]
    fn a_header_name_that_amqp_cannot_write_is_a_reason_to_refuse() {
        let event = event(NewEvent::bytes("t", vec![]).header("n".repeat(256), "v"));
        assert!(properties(&event, "shop").unwrap_err().contains("header"));
    }
}
