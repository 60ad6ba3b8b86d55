//! What this adapter reads, as plain functions for the project's fuzz targets. No part of the API.

use super::delivery::{Delivery, Place};
use super::headers;
use bytes::Bytes;
use rdkafka::message::OwnedHeaders;
use relevo_core::broker::{Incoming, Tag};

/// A record with such headers as anybody may have written it, and how much memory it is taken for. The first header is its
/// key and its time, too.
pub fn incoming(topic: &str, payload: &[u8], fields: &[(String, &[u8])]) -> (Incoming, usize) {
    let mut record = Delivery::empty(Place { topic: topic.to_owned(), partition: 3 }, i64::MAX);
    record.payload = Some(Bytes::copy_from_slice(payload));
    if let Some((name, value)) = fields.first() {
        record.key = Some(Bytes::copy_from_slice(value));
        record.timestamp = name.parse().ok();
    }
    let add = |all, (name, value): &(String, &[u8])| headers::insert(all, name, value);
    record.headers = fields.iter().fold(OwnedHeaders::new(), add);
    (record.incoming(Tag(1), 1), record.bytes())
}
