//! What this adapter reads, as plain functions for the project's fuzz targets. No part of the API.

use super::{answer, unreadable};
use relevo_core::broker::Confirm;

/// What an answer to a publish means.
pub fn confirm(bytes: &[u8]) -> Confirm {
    answer::confirm(bytes)
}

/// What can be read of a block of headers, and whether the client reads all of it by itself.
pub fn headers(block: &[u8]) -> (Vec<(String, String)>, bool) {
    (unreadable::what_is_readable(block), unreadable::is_readable(block))
}
