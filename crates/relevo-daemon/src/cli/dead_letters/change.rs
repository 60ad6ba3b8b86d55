//! What an edit changes, line by line.

use crate::cli::show::{escaped, pretty};
use relevo_core::Headers;
use similar::{ChangeTag, TextDiff};

/// Payload and headers of an event, before or after an edit.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::cli) struct Content {
    pub(in crate::cli) payload: Vec<u8>,
    pub(in crate::cli) headers: Headers,
}

/// The lines that change, `-` before and `+` after; nothing if nothing does.
pub(super) fn changes(before: &Content, after: &Content) -> Vec<String> {
    let mut lines = changed_lines(&header_lines(&before.headers), &header_lines(&after.headers));
    if before.payload != after.payload {
        lines.extend(payload_changes(&before.payload, &after.payload));
    }
    lines
}

fn header_lines(headers: &Headers) -> String {
    headers.iter().map(|(name, value)| format!("{}: {}\n", escaped(name), escaped(value))).collect()
}

fn payload_changes(before: &[u8], after: &[u8]) -> Vec<String> {
    let (Ok(before), Ok(after)) = (std::str::from_utf8(before), std::str::from_utf8(after)) else {
        return vec![format!("- <{} bytes>", before.len()), format!("+ <{} bytes>", after.len())];
    };
    let indented = changed_lines(&pretty(before), &pretty(after));
    // Only white space changed: indented alike, both would look the same.
    if indented.is_empty() { changed_lines(before, after) } else { indented }
}

fn changed_lines(before: &str, after: &str) -> Vec<String> {
    let sign = |tag| match tag {
        ChangeTag::Delete => Some('-'),
        ChangeTag::Insert => Some('+'),
        ChangeTag::Equal => None,
    };
    TextDiff::from_lines(before, after)
        .iter_all_changes()
        .filter_map(|change| {
            Some(format!(
                "{} {}",
                sign(change.tag())?,
                escaped(change.value().trim_end_matches('\n'))
            ))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(payload: &str, headers: &[(&str, &str)]) -> Content {
        Content { payload: payload.into(), headers: headers.iter().copied().collect() }
    }

    #[test]
    fn only_what_changes_is_shown() {
        let before = content(r#"{"a": 1, "b": 2}"#, &[("tenant", "x")]);
        let after = content(r#"{"a": 1, "b": 3}"#, &[("tenant", "y")]);
        assert_eq!(
            changes(&before, &after),
            ["- tenant: x", "+ tenant: y", "-   \"b\": 2", "+   \"b\": 3"]
        );
        assert!(changes(&before, &before).is_empty());
    }

    #[test]
    fn bytes_and_white_space_are_changes_too() {
        assert_eq!(payload_changes(&[0xff], &[0xff, 0xfe]), ["- <1 bytes>", "+ <2 bytes>"]);
        assert_eq!(payload_changes(b"{}", b"{ }"), ["- {}", "+ { }"]);
    }
}
