//! An event as Kafka headers, and a record's headers as text.

use rdkafka::message::{Header, Headers, OwnedHeaders};
use relevo_core::broker::cloudevents::{self, Binding};
use relevo_core::event::Event;
use std::panic::{AssertUnwindSafe, catch_unwind};

const CONTENT_TYPE: &str = "content-type";

/// All headers of an event: the media type and the CloudEvents attributes.
pub(super) fn of(event: &Event, source: &str) -> OwnedHeaders {
    let written = cloudevents::write(event, source, &Binding::KAFKA);
    let headers = OwnedHeaders::new_with_capacity(written.len() + 1);
    let headers = insert(headers, CONTENT_TYPE, event.content_type().as_bytes());
    written.iter().fold(headers, |headers, (name, value)| insert(headers, name, value.as_bytes()))
}

/// Adds a header; the client would panic on a name with a zero byte.
pub(super) fn insert(headers: OwnedHeaders, name: &str, value: &[u8]) -> OwnedHeaders {
    if name.contains('\0') {
        tracing::debug!(name, "a header cannot travel by Kafka and is left out");
        return headers;
    }
    headers.insert(Header { key: name, value: Some(value) })
}

/// The headers whose names are text. The client panics on any other and has no way to read it: it is left out.
pub(super) fn readable<H: Headers>(headers: &H) -> impl Iterator<Item = Header<'_, &[u8]>> {
    let read =
        move |index| catch_unwind(AssertUnwindSafe(|| headers.try_get(index))).ok().flatten();
    (0..headers.count()).filter_map(read)
}

/// Names and values as text; what is no text is read as much as it can be.
pub(super) fn read(headers: &impl Headers) -> Vec<(String, String)> {
    readable(headers)
        .map(|header| {
            let value = String::from_utf8_lossy(header.value.unwrap_or_default());
            (header.key.to_owned(), value.into_owned())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use relevo_core::event::NewEvent;

    #[test]
    fn an_event_is_a_cloudevent_in_binary_mode() {
        let event = NewEvent::json("ticket.created", &1).unwrap().key("k €").header("x-own", "ü 1");
        let id = event.id.to_string();
        let headers = read(&of(&Event::stored(event, chrono::Utc::now()), "shop"));
        for (name, value) in [
            ("content-type", "application/json"),
            ("ce_specversion", "1.0"),
            ("ce_id", id.as_str()),
            ("ce_source", "shop"),
            ("ce_type", "ticket.created"),
            ("ce_subject", "k €"),
            ("ce_partitionkey", "k €"),
            ("x-event-id", id.as_str()),
            ("x-own", "ü 1"),
        ] {
            let found = headers.iter().find(|(other, _)| other == name);
            assert_eq!(found.map(|(_, value)| value.as_str()), Some(value), "{name}");
        }
    }

    #[test]
    fn a_name_that_cannot_travel_is_left_out() {
        let headers = insert(OwnedHeaders::new(), "a\0b", b"x");
        let headers = insert(headers, "c", &[0xff, b'x']);
        assert_eq!(read(&headers), [("c".to_owned(), "\u{fffd}x".to_owned())]);
    }

    /// What the client does with the bytes of a name that is no text, which only another client can write.
    struct Unreadable(OwnedHeaders);

    impl Headers for Unreadable {
        fn count(&self) -> usize {
            self.0.count() + 1
        }

        fn try_get(&self, index: usize) -> Option<Header<'_, &[u8]>> {
            let index = index
                .checked_sub(1)
                .unwrap_or_else(|| std::panic::resume_unwind(Box::new("no text")));
            self.0.try_get(index)
        }
    }

    #[test]
    fn a_header_whose_name_is_no_text_is_left_out_and_the_others_are_read() {
        let headers = Unreadable(insert(OwnedHeaders::new(), "c", b"x"));
        assert_eq!(read(&headers), [("c".to_owned(), "x".to_owned())]);
    }
}
