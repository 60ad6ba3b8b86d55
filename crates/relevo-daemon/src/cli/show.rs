//! How things look to people. Topics, keys, payloads, headers and errors are hostile text: whatever could move the
//! cursor, recolour the screen or reverse the line is written out.

use base64::Engine as _;
use chrono::{DateTime, SecondsFormat, Utc};
use relevo_core::Event;
pub(crate) use relevo_core::clock::age;
use relevo_core::dead_letters::DeadLetter;
use serde::Serialize;
use serde_json::value::RawValue;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Characters that a terminal obeys instead of showing, or that make one text look like another.
pub(crate) fn is_hostile(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// The text with every hostile character written out (`\n`, `\u{202e}`).
pub(crate) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match is_hostile(c) {
            true => safe.extend(c.escape_default()),
            false => safe.push(c),
        }
    }
    safe
}

/// [`escaped`], but line breaks stay.
pub(crate) fn escaped_lines(text: &str) -> String {
    text.split('\n').map(escaped).collect::<Vec<_>>().join("\n")
}

/// Cut to `width` columns of a terminal, with a sign that something is missing.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut shown = String::new();
    let mut used = 1;
    for c in text.chars() {
        used += c.width().unwrap_or(0);
        if used > width {
            break;
        }
        shown.push(c);
    }
    shown + "…"
}

/// A time, in UTC.
pub(crate) fn time(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// From now until `due`, or since.
pub(crate) fn until(due: DateTime<Utc>) -> String {
    let seconds = (due - Utc::now()).num_milliseconds() as f64 / 1000.0;
    match seconds > 0.0 {
        true => format!("in {}", age(seconds)),
        false => "now".into(),
    }
}

/// Bytes, with a unit.
pub(crate) fn bytes(n: i64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{n} B") } else { format!("{value:.1} {}", units[unit]) }
}

/// `1 event`, `2 events`.
pub(crate) fn counted(n: i64, one: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {one}s") }
}

/// A key, or a dash where there is none.
pub(crate) fn key(key: Option<&str>) -> String {
    key.map_or_else(|| "-".into(), escaped)
}

/// A payload on one line.
pub(crate) fn payload_line(event: &Event) -> String {
    match std::str::from_utf8(&event.payload) {
        Ok(text) => escaped(text.trim_end_matches('\n')),
        Err(_) => {
            let start: String =
                event.payload.iter().take(24).map(|byte| format!("{byte:02x}")).collect();
            let dots = if event.payload.len() > 24 { "…" } else { "" };
            format!("<{} bytes> {start}{dots}", event.payload.len())
        }
    }
}

/// A payload on as many lines as it needs: JSON indented, other text as it is, bytes in hexadecimal.
pub(crate) fn payload_lines(event: &Event) -> String {
    match std::str::from_utf8(&event.payload) {
        Ok(text) => escaped_lines(&pretty(text)),
        Err(_) => event
            .payload
            .chunks(16)
            .map(|line| line.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" "))
            .collect::<Vec<_>>()
            .join("\n"),
    }
}

/// JSON indented; anything else as it is.
pub(crate) fn pretty(text: &str) -> String {
    let value: Result<serde_json::Value, _> = serde_json::from_str(text);
    value
        .ok()
        .and_then(|value| serde_json::to_string_pretty(&value).ok())
        .unwrap_or_else(|| text.to_owned())
}

/// An event for `--json`. The payload is JSON as it was published, or text, or base64.
#[derive(Serialize)]
pub(crate) struct EventView<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    seq: Option<i64>,
    id: String,
    topic: &'a str,
    key: Option<&'a str>,
    created_at: String,
    content_type: &'a str,
    headers: &'a relevo_core::Headers,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
}

impl<'a> EventView<'a> {
    pub(crate) fn of(event: &'a Event, seq: Option<i64>) -> Self {
        let text = std::str::from_utf8(&event.payload).ok();
        let payload = text.and_then(raw_json);
        let payload_text = if payload.is_none() { text } else { None };
        let encode = || base64::engine::general_purpose::STANDARD.encode(&event.payload);
        Self {
            seq,
            id: event.id.to_string(),
            topic: &event.topic,
            key: event.key.as_deref(),
            created_at: time(event.created_at),
            content_type: event.content_type(),
            headers: &event.headers,
            payload_base64: text.is_none().then(encode),
            payload,
            payload_text,
        }
    }
}

/// The JSON exactly as written (numbers of any size survive), on one line: outside of strings a line break is only
/// white space, and inside there can be none.
fn raw_json(text: &str) -> Option<Box<RawValue>> {
    serde_json::from_str::<&RawValue>(text).ok()?;
    RawValue::from_string(text.replace(['\n', '\r'], " ")).ok()
}

/// A dead letter for `--json`.
#[derive(Serialize)]
pub(crate) struct DeadLetterView<'a> {
    id: i64,
    subscription: &'a str,
    lane: u16,
    state: &'static str,
    class: &'static str,
    error: &'a str,
    attempts: u32,
    first_failed_at: String,
    died_at: String,
    copy_of: Option<i64>,
    event: EventView<'a>,
}

impl<'a> From<&'a DeadLetter> for DeadLetterView<'a> {
    fn from(dead: &'a DeadLetter) -> Self {
        Self {
            id: dead.id,
            subscription: &dead.subscription,
            lane: dead.lane,
            state: dead.state.as_str(),
            class: dead.class.as_str(),
            error: &dead.error,
            attempts: dead.attempts,
            first_failed_at: time(dead.first_failed_at),
            died_at: time(dead.died_at),
            copy_of: dead.copy_of,
            event: EventView::of(&dead.event, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use relevo_core::NewEvent;

    #[test]
    fn hostile_text_is_written_out() {
        assert_eq!(escaped("a\x1b[31m\n\u{202e}b\u{9b}ñ漢"), "a\\u{1b}[31m\\n\\u{202e}b\\u{9b}ñ漢");
        assert_eq!(escaped_lines("a\r\nb"), "a\\r\nb");
    }

    #[test]
    fn a_long_text_is_cut_by_columns_not_by_bytes() {
        assert_eq!(cut("漢字漢字", 5), "漢字…");
        assert_eq!(cut("short", 5), "short");
    }

    #[test]
    fn a_payload_keeps_its_digits_in_json_and_its_bytes_in_base64() {
        let view = |payload: &[u8]| {
            let event = Event::stored(NewEvent::bytes("a", payload.to_vec()), Utc::now());
            serde_json::to_string(&EventView::of(&event, Some(7))).unwrap()
        };
        assert!(
            view(b"{\n\"n\": 123456789012345678901234567890.10}")
                .contains(r#""payload":{ "n": 123456789012345678901234567890.10}"#)
        );
        assert!(view(b"plain").contains(r#""payload_text":"plain""#));
        assert!(view(&[0xff, 0x00]).contains(r#""payload_base64":"/wA=""#));
    }
}
