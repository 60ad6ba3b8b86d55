//! What this adapter writes and reads, as plain functions for the project's fuzz targets. No part of the API.

use super::{answer, headers};
use hyper::StatusCode;
use relevo_core::broker::Confirm;
use relevo_core::event::Event;
use std::time::{Duration, SystemTime};

/// An event as headers.
pub fn headers(event: &Event, source: &str) -> Vec<(String, String)> {
    let text =
        |value: &hyper::header::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into();
    headers::of(event, source).iter().map(|(name, value)| (name.to_string(), text(value))).collect()
}

/// The confirm for a status; `None` if there is no such status.
pub fn confirm(status: u16, text: &str, retry_after: Option<&str>) -> Option<Confirm> {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
    Some(answer::confirm(StatusCode::from_u16(status).ok()?, text, retry_after, now))
}

/// The beginning of a body.
pub fn first_words(body: &[u8]) -> String {
    answer::first_words(body)
}
