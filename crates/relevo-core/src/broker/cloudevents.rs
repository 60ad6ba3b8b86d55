//! CloudEvents 1.0 in binary mode: an event's attributes as headers and back, for every broker and for HTTP.
//!
//! A [`Binding`] says how a protocol writes them. Beside the attributes travel `x-event-id`, `x-correlation-id`,
//! `traceparent`, `tracestate`, and the application's own headers.

use super::incoming::Incoming;
use crate::event::{Event, Headers, header};
use chrono::SecondsFormat;
use std::borrow::Cow;
use std::fmt::Write;

/// The name an application's header travels by when its own name is taken, so that nothing gets lost and nothing
/// gets forged.
pub const TAKEN_PREFIX: &str = "x-event-header-";

const EVENT_ID: &str = "x-event-id";
const CORRELATION_ID: &str = "x-correlation-id";

/// The attributes that are reserved headers of ours, by their CloudEvents names.
const EXTENSIONS: [(&str, &str); 5] = [
    ("type", header::TYPE),
    ("time", header::TIME),
    ("tenant", header::TENANT),
    ("correlationid", header::CORRELATION_ID),
    ("causationid", header::CAUSATION_ID),
];

/// How a protocol writes CloudEvents attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Binding {
    /// What stands before an attribute's name.
    pub prefix: &'static str,
    /// Other prefixes that are read.
    pub also_read: &'static [&'static str],
    /// Attributes are percent-encoded, as the binding's specification says.
    pub encoded: bool,
    /// Headers are printable ASCII; elsewhere they are any text of one line.
    pub ascii: bool,
    /// The attributes that Relevo writes, by their whole names.
    names: Names,
}

/// Whole names, so that none is put together for each event; in the order in which [`attributes`] has their values.
type Names = [&'static str; 11];

macro_rules! names {
    ($prefix:literal) => {
        [
            concat!($prefix, "specversion"),
            concat!($prefix, "id"),
            concat!($prefix, "source"),
            concat!($prefix, "type"),
            concat!($prefix, "time"),
            concat!($prefix, "subject"),
            concat!($prefix, "partitionkey"),
            concat!($prefix, "topic"),
            concat!($prefix, "tenant"),
            concat!($prefix, "correlationid"),
            concat!($prefix, "causationid"),
        ]
    };
}

/// A header's name, which is mostly one of a few, and its value.
pub type Header = (Cow<'static, str>, String);

impl Binding {
    /// HTTP: `ce-id`, percent-encoded.
    pub const HTTP: Self =
        Self { prefix: "ce-", also_read: &[], encoded: true, ascii: true, names: names!("ce-") };
    /// NATS: attributes as HTTP; other headers may be any text.
    pub const NATS: Self = Self { ascii: false, ..Self::HTTP };
    /// Kafka: `ce_id`, UTF-8.
    pub const KAFKA: Self = Self {
        prefix: "ce_",
        also_read: &["ce-"],
        encoded: false,
        ascii: false,
        names: names!("ce_"),
    };
    /// AMQP: `cloudEvents_id`, UTF-8; the older form with a colon is read too.
    pub const AMQP: Self = Self {
        prefix: "cloudEvents_",
        also_read: &["cloudEvents:"],
        encoded: false,
        ascii: false,
        names: names!("cloudEvents_"),
    };

    /// The attribute's bare name, if `name` is one.
    fn attribute<'n>(&self, name: &'n str) -> Option<&'n str> {
        let prefixes = std::iter::once(&self.prefix).chain(self.also_read);
        prefixes.into_iter().find_map(|prefix| {
            let (head, rest) = name.split_at_checked(prefix.len())?;
            head.eq_ignore_ascii_case(prefix).then_some(rest)
        })
    }

    fn is_taken(&self, name: &str) -> bool {
        let known = [EVENT_ID, CORRELATION_ID];
        self.attribute(name).is_some() || known.iter().any(|taken| taken.eq_ignore_ascii_case(name))
    }

    fn value<'v>(&self, value: &'v str, attribute: bool) -> Cow<'v, str> {
        match attribute {
            true if self.encoded => encode(value, true),
            false if self.ascii => encode(value, false),
            _ => one_line(value),
        }
    }
}

/// All headers of an event; the content type is the caller's, who knows its place. `source` stands in where the
/// event names none.
pub fn write(event: &Event, source: &str, binding: &Binding) -> Vec<Header> {
    let mut headers = Vec::with_capacity(16);
    let id = event.id.to_string();
    attributes(event, &id, source, binding, &mut headers);
    headers.push((EVENT_ID.into(), id));
    well_known(event, binding, &mut headers);
    for (name, value) in event.headers.iter().filter(|(name, _)| !header::is_reserved(name)) {
        let taken = binding.is_taken(name) || header::is_reserved(&name.to_ascii_lowercase());
        let name = if taken { format!("{TAKEN_PREFIX}{name}") } else { name.to_owned() };
        headers.push((name.into(), binding.value(value, false).into_owned()));
    }
    headers
}

fn attributes(event: &Event, id: &str, source: &str, binding: &Binding, headers: &mut Vec<Header>) {
    let get = |name| event.headers.get(name);
    let time = get(header::TIME).map_or_else(
        || Cow::Owned(event.created_at.to_rfc3339_opts(SecondsFormat::Millis, true)),
        Cow::Borrowed,
    );
    let values: [Option<&str>; 11] = [
        Some("1.0"),
        Some(id),
        get(header::SOURCE).or(Some(source)),
        Some(event.event_type()),
        Some(&time),
        event.key.as_deref(),
        // The documented extension "partitioning": what is kept in order.
        event.key.as_deref(),
        Some(event.topic.as_str()),
        get(header::TENANT),
        get(header::CORRELATION_ID),
        get(header::CAUSATION_ID),
    ];
    for (name, value) in binding.names.into_iter().zip(values) {
        if let Some(value) = value {
            headers.push((name.into(), binding.value(value, true).into_owned()));
        }
    }
}

fn well_known(event: &Event, binding: &Binding, headers: &mut Vec<Header>) {
    let plain = [
        (CORRELATION_ID, header::CORRELATION_ID),
        (header::TRACEPARENT, header::TRACEPARENT),
        (header::TRACESTATE, header::TRACESTATE),
    ];
    for (name, reserved) in plain {
        if let Some(value) = event.headers.get(reserved) {
            headers.push((name.into(), binding.value(value, false).into_owned()));
        }
    }
}

/// Headers as a message carries them in memory.
pub fn owned(headers: Vec<Header>) -> Vec<(String, String)> {
    headers.into_iter().map(|(name, value)| (name.into_owned(), value)).collect()
}

/// What a message says of its event; what it does not say is `None`.
#[derive(Debug, Default)]
pub(super) struct Read {
    pub(super) id: Option<String>,
    pub(super) source: Option<String>,
    pub(super) topic: Option<String>,
    pub(super) key: Option<String>,
    pub(super) headers: Headers,
}

/// Reads CloudEvents attributes where they are, and all other headers as the application's own.
pub(super) fn read(message: &Incoming, binding: &Binding) -> Read {
    let mut read = Read::default();
    let is_version = |name: &str| name.eq_ignore_ascii_case("specversion");
    let is_cloudevent =
        message.headers.iter().any(|(name, _)| binding.attribute(name).is_some_and(is_version));
    for (name, value) in &message.headers {
        match binding.attribute(name) {
            Some(attribute) if is_cloudevent => {
                read.attribute(&lower(attribute), binding.decoded(value, true));
            }
            _ => read.plain(name, binding.decoded(value, false)),
        }
    }
    if let Some(content_type) = &message.content_type {
        read.headers.set(header::CONTENT_TYPE, content_type);
    }
    read
}

impl Binding {
    fn decoded(&self, value: &str, attribute: bool) -> String {
        if self.encoded && attribute { decode(&unquoted(value)) } else { value.to_owned() }
    }
}

/// Attributes have lower-case names, which headers may come in any case.
fn lower(name: &str) -> Cow<'_, str> {
    match name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        true => Cow::Owned(name.to_ascii_lowercase()),
        false => Cow::Borrowed(name),
    }
}

/// What the text in double quotes means: older versions of the specification quoted what is encoded now.
fn unquoted(value: &str) -> Cow<'_, str> {
    let quoted = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let Some(quoted) = quoted else { return Cow::Borrowed(value) };
    let mut chars = quoted.chars();
    let mut plain = String::with_capacity(quoted.len());
    while let Some(c) = chars.next() {
        plain.extend(if c == '\\' { chars.next() } else { Some(c) });
    }
    Cow::Owned(plain)
}

impl Read {
    fn attribute(&mut self, name: &str, value: String) {
        match name {
            "specversion" => {}
            // The specification wants these to say something; what says nothing is not there.
            "id" | "source" if value.is_empty() => {}
            "id" => self.id = Some(value),
            "source" => self.source = Some(value),
            "topic" => self.topic = Some(value),
            "partitionkey" => self.key = Some(value),
            "subject" => self.key = self.key.take().or(Some(value)),
            "datacontenttype" => self.headers.set(header::CONTENT_TYPE, value),
            other => {
                let reserved = EXTENSIONS.iter().find(|(attribute, _)| *attribute == other);
                let name =
                    reserved.map_or_else(|| format!("ce-{other}"), |(_, own)| (*own).to_owned());
                self.headers.set(name, value);
            }
        }
    }

    fn plain(&mut self, name: &str, value: String) {
        let lower = name.to_ascii_lowercase();
        match lower.as_str() {
            EVENT_ID => {}
            // What only Relevo may write inside a database means nothing when it comes from outside.
            own if own.starts_with(header::OWN) => {}
            CORRELATION_ID => {
                if self.headers.get(header::CORRELATION_ID).is_none() {
                    self.headers.set(header::CORRELATION_ID, value);
                }
            }
            // The attribute has said it already, and without loss.
            header::CONTENT_TYPE if self.headers.get(header::CONTENT_TYPE).is_some() => {}
            header::CONTENT_TYPE | header::TRACEPARENT | header::TRACESTATE => {
                self.headers.set(lower, value);
            }
            _ => {
                let own = lower.strip_prefix(TAKEN_PREFIX).map(|_| &name[TAKEN_PREFIX.len()..]);
                let own = own.filter(|own| !header::is_reserved(&own.to_ascii_lowercase()));
                self.headers.set(own.unwrap_or(name), value);
            }
        }
    }
}

/// Percent-encodes what may not stand in a header of printable ASCII. CloudEvents attributes encode spaces, quotes
/// and `%` too.
pub fn encode(value: &str, attribute: bool) -> Cow<'_, str> {
    let plain = |c: char| match c {
        ' ' | '"' | '%' => !attribute,
        c => c.is_ascii_graphic(),
    };
    if value.bytes().all(|byte| plain(char::from(byte))) {
        return Cow::Borrowed(value);
    }
    let mut encoded = String::with_capacity(value.len() + 16);
    let mut bytes = [0; 4];
    for c in value.chars() {
        if plain(c) {
            encoded.push(c);
            continue;
        }
        for byte in c.encode_utf8(&mut bytes).bytes() {
            // Writing to a String cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    Cow::Owned(encoded)
}

/// Line breaks and other control characters would end a header or hide in it.
fn one_line(value: &str) -> Cow<'_, str> {
    let plain = value.bytes().all(|byte| (b' '..0x7F).contains(&byte));
    let control = !plain && value.chars().any(char::is_control);
    if control { encode(value, false) } else { Cow::Borrowed(value) }
}

/// Undoes [`encode`]; what is no valid encoding stays as it is.
pub fn decode(value: &str) -> String {
    let bytes = value.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = bytes.get(at + 1..at + 3).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = hex
            .filter(|digits| bytes[at] == b'%' && digits.bytes().all(|b| b.is_ascii_hexdigit()))
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        decoded.push(byte.unwrap_or(bytes[at]));
        at += if byte.is_some() { 3 } else { 1 };
    }
    String::from_utf8(decoded).unwrap_or_else(|_| value.to_owned())
}

#[cfg(test)]
#[path = "cloudevents_tests.rs"]
mod tests;
