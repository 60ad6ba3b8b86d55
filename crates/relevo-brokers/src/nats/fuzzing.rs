//! What this adapter reads, as plain functions for the project's fuzz targets. No part of the API.

use super::{NatsConsumer, answer, unreadable};
use relevo_core::Result;
use relevo_core::broker::{Confirm, Incoming, Tag};
use std::ops::RangeInclusive;

/// What an answer to a publish means.
pub fn confirm(bytes: &[u8]) -> Confirm {
    answer::confirm(bytes)
}

/// The stream that an answer to the question for one names; `Err` has what it says instead.
pub fn stream(bytes: &[u8]) -> Result<Option<String>, String> {
    answer::stream(bytes)
}

/// Which sequences of a stream are looked at, by what the server says of a consumer.
pub fn unsettled(bytes: &[u8]) -> Result<RangeInclusive<u64>> {
    unreadable::unsettled(bytes)
}

/// The message that an answer of the server wraps, if there is one that the client cannot read.
pub fn stored(bytes: &[u8]) -> Result<Option<Incoming>> {
    let found = unreadable::stored(bytes, &NatsConsumer::new("STREAM", "consumer"))?;
    Ok(found.map(|delivery| delivery.incoming(Tag(1), "STREAM")))
}

/// What can be read of a block of headers, and whether the client reads all of it by itself.
pub fn headers(block: &[u8]) -> (Vec<(String, String)>, bool) {
    (unreadable::what_is_readable(block), unreadable::is_readable(block))
}
