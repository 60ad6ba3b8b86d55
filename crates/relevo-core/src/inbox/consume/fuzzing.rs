//! What a consumer reads of events in its log, as plain functions for the project's fuzz targets. No part of the API.

use super::landed;
use crate::inbox::Outcome;
use crate::limits::Limits;

/// The answer that the header of a landed event tells, if it tells one.
pub fn answer(header: &str) -> Option<Outcome> {
    landed::answer_of(header)
}

/// What the header of a landed event without others says of an answer; nothing where the work is done.
pub fn header(answer: &Outcome) -> Option<String> {
    landed::header_of(answer, Limits::default().headers_bytes)
}
