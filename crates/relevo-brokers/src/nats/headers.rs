//! An event as NATS headers, and a message's headers as text.

use async_nats::HeaderMap;
use async_nats::header::{HeaderName, HeaderValue, NATS_EXPECTED_STREAM, NATS_MESSAGE_ID};
use relevo_core::broker::cloudevents::{self, Binding, TAKEN_PREFIX};
use relevo_core::event::Event;
use std::borrow::Cow;
use std::str::FromStr;

/// Headers of such names are commands to the server: they deduplicate, expire, roll up.
const COMMANDS: &str = "nats-";

const CONTENT_TYPE: &str = "content-type";

/// The same as an attribute: unlike other protocols, the binding of NATS has it beside the others.
const DATA_CONTENT_TYPE: &str = "ce-datacontenttype";

/// All headers of an event: CloudEvents attributes, the id the server deduplicates by, and the stream it must be
/// stored in.
pub(super) fn of(event: &Event, source: &str, stream: Option<&str>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(NATS_MESSAGE_ID, event.id.to_string());
    if let Some(stream) = stream.and_then(|stream| HeaderValue::from_str(stream).ok()) {
        headers.insert(NATS_EXPECTED_STREAM, stream);
    }
    for (name, attribute) in [(CONTENT_TYPE, false), (DATA_CONTENT_TYPE, true)] {
        let content_type = cloudevents::encode(event.content_type(), attribute).into_owned();
        headers.insert(HeaderName::from_static(name), content_type);
    }
    for (name, value) in cloudevents::write(event, source, &Binding::NATS) {
        match name {
            Cow::Borrowed(name) => headers.insert(HeaderName::from_static(name), value),
            Cow::Owned(name) if is_command(&name) => {
                insert(&mut headers, format!("{TAKEN_PREFIX}{name}"), value);
            }
            Cow::Owned(name) => insert(&mut headers, name, value),
        }
    }
    headers
}

/// True for names by which a message commands the server.
pub(super) fn is_command(name: &str) -> bool {
    name.get(..COMMANDS.len()).is_some_and(|head| head.eq_ignore_ascii_case(COMMANDS))
}

/// Sets a header; the client would panic on one that is none, which a hostile message may have.
pub(super) fn insert(headers: &mut HeaderMap, name: String, value: String) {
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':')
    };
    if is_name(&name) && !value.contains(['\r', '\n']) {
        headers.insert(name, value);
    } else {
        tracing::debug!(name, "a header cannot travel by NATS and is left out");
    }
}

/// Names and values as text. The client's map has no order: by name, so that equal messages read equally.
pub(super) fn read(headers: &HeaderMap) -> Vec<(String, String)> {
    let pairs = headers.iter().flat_map(|(name, values)| {
        values
            .iter()
            .map(|value| (AsRef::<str>::as_ref(name).to_owned(), value.as_str().to_owned()))
    });
    // The client takes a header without a name for one; no event can carry it.
    let mut read: Vec<(String, String)> = pairs.filter(|(name, _)| !name.is_empty()).collect();
    read.sort();
    read
}

#[cfg(test)]
mod tests {
    use super::*;
    use relevo_core::event::NewEvent;

    fn get<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
        headers.get(name).map(HeaderValue::as_str)
    }

    #[test]
    fn an_event_is_a_cloudevent_with_the_id_the_server_deduplicates_by() {
        let event = NewEvent::json("ticket.created", &1).unwrap().key("k €").header("x-own", "ü 1");
        let id = event.id.to_string();
        let headers = of(&Event::stored(event, chrono::Utc::now()), "shop", Some("TICKETS"));
        for (name, value) in [
            ("Nats-Msg-Id", id.as_str()),
            ("Nats-Expected-Stream", "TICKETS"),
            ("content-type", "application/json"),
            ("ce-datacontenttype", "application/json"),
            ("ce-specversion", "1.0"),
            ("ce-id", id.as_str()),
            ("ce-source", "shop"),
            ("ce-type", "ticket.created"),
            ("ce-subject", "k%20%E2%82%AC"),
            ("ce-partitionkey", "k%20%E2%82%AC"),
            ("x-event-id", id.as_str()),
            ("x-own", "ü 1"),
        ] {
            assert_eq!(get(&headers, name), Some(value), "{name}");
        }
    }

    #[test]
    fn an_applications_header_commands_nothing_and_is_not_lost() {
        let event = NewEvent::bytes("a.b", vec![])
            .header("Nats-Rollup", "all")
            .header("nats-msg-id", "forged")
            .header("Nats-TTL", "1s")
            .header("bad:name", "x")
            .header("größe", "x");
        let id = event.id.to_string();
        let headers = of(&Event::stored(event, chrono::Utc::now()), "shop", None);
        assert_eq!(get(&headers, "Nats-Msg-Id"), Some(id.as_str()));
        for name in ["Nats-Rollup", "nats-msg-id", "Nats-TTL"] {
            assert_eq!(get(&headers, name), None, "{name}");
            assert!(get(&headers, &format!("{TAKEN_PREFIX}{name}")).is_some(), "{name}");
        }
    }
}
