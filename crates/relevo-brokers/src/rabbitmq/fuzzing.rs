//! What this adapter reads, as plain functions for the project's fuzz targets. No part of the API.

use super::headers;
use super::topology::management;
use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldArray, FieldTable, LongString, ShortString};
use relevo_core::broker::{Incoming, Tag};

/// A message with headers of any type: the first letter of a value says which.
pub fn incoming(topic: &str, payload: &[u8], fields: &[(String, String)]) -> Option<Incoming> {
    let mut table = FieldTable::default();
    for (name, value) in fields {
        table.insert(ShortString::try_new(name.as_str()).ok()?, typed(value));
    }
    let topic = ShortString::try_new(topic).ok()?;
    let mut delivery = Delivery::mock(1, "events".into(), topic, false, payload.to_vec());
    let first = fields.first().and_then(|(_, value)| ShortString::try_new(value.as_str()).ok());
    let properties = BasicProperties::default().with_headers(table).with_timestamp(u64::MAX);
    delivery.properties = match first {
        Some(id) => properties.with_message_id(id.clone()).with_content_type(id),
        None => properties,
    };
    Some(headers::incoming(Tag(1), &delivery, payload.to_vec().into()))
}

/// How many bindings an answer of the management API has.
pub fn bindings(answer: &[u8]) -> Result<usize, String> {
    management::read(answer).map(|bindings| bindings.len())
}

fn typed(value: &str) -> AMQPValue {
    let Some(kind) = value.chars().next() else { return AMQPValue::Void };
    let rest = &value[kind.len_utf8()..];
    let number = || rest.trim().parse::<i64>().unwrap_or_default();
    match kind {
        's' => AMQPValue::LongString(LongString::from(rest)),
        'x' => AMQPValue::ByteArray(rest.bytes().rev().collect::<Vec<u8>>().into()),
        'b' => AMQPValue::Boolean(!rest.is_empty()),
        'i' => AMQPValue::LongLongInt(number()),
        'u' => AMQPValue::LongUInt(number() as u32),
        'd' => AMQPValue::Double(rest.trim().parse().unwrap_or(f64::NAN)),
        't' => AMQPValue::Timestamp(number() as u64),
        'a' => AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::Void])),
        _ => AMQPValue::LongString(LongString::from(value)),
    }
}
