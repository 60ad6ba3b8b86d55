//! An event as HTTP headers: CloudEvents 1.0 in binary mode, and what webhooks and services read besides.

use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use relevo_core::broker::cloudevents::{self, Binding, TAKEN_PREFIX};
use relevo_core::event::Event;

/// Names that belong to the transport: an application's header of such a name travels prefixed.
const TRANSPORT: &[&str] = &[
    "accept-encoding",
    "authorization",
    "connection",
    "content-encoding",
    "content-length",
    "cookie",
    "expect",
    "forwarded",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "via",
];

/// All headers of an event but the signature. `source` stands in where the event names none.
pub(super) fn of(event: &Event, source: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    insert(&mut headers, CONTENT_TYPE, &cloudevents::encode(event.content_type(), false));
    for (name, value) in cloudevents::write(event, source, &Binding::HTTP) {
        let name = own_name(name.into_owned());
        match HeaderName::from_bytes(name.as_bytes()) {
            Ok(name) => insert(&mut headers, name, &value),
            Err(_) => {
                tracing::debug!(event = %event.id, name, "a header's name cannot travel by HTTP and is left out")
            }
        }
    }
    headers
}

/// The name as HTTP compares it, prefixed where it is the transport's or a signature's.
fn own_name(mut name: String) -> String {
    name.make_ascii_lowercase();
    let taken = TRANSPORT.contains(&name.as_str()) || name.starts_with("webhook-");
    if taken { format!("{TAKEN_PREFIX}{name}") } else { name }
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    // Encoded values are printable ASCII: this cannot fail.
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use relevo_core::event::NewEvent;

    fn headers(event: NewEvent) -> HeaderMap {
        of(&Event::stored(event, chrono::Utc::now()), "shop")
    }

    fn get<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
        headers.get(name).map(|value| value.to_str().unwrap())
    }

    #[test]
    fn an_event_is_a_cloudevent_in_binary_mode() {
        let event = NewEvent::json("ticket.created", &1)
            .unwrap()
            .key("t-1")
            .tenant("acme")
            .correlation_id("c 1");
        let id = event.id.to_string();
        let headers = headers(
            event.header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        );
        for (name, value) in [
            ("ce-specversion", "1.0"),
            ("ce-id", id.as_str()),
            ("ce-source", "shop"),
            ("ce-type", "ticket.created"),
            ("ce-subject", "t-1"),
            ("ce-tenant", "acme"),
            ("ce-correlationid", "c%201"),
            ("content-type", "application/json"),
            ("x-event-id", id.as_str()),
            ("x-correlation-id", "c 1"),
            ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ] {
            assert_eq!(get(&headers, name), Some(value), "{name}");
        }
        assert!(get(&headers, "ce-time").unwrap().ends_with('Z'));
    }

    #[test]
    fn attributes_are_encoded_as_the_binding_says() {
        // The example of the CloudEvents HTTP binding, and hostile neighbours.
        assert_eq!(cloudevents::encode("Euro € 😀", true), "Euro%20%E2%82%AC%20%F0%9F%98%80");
        assert_eq!(cloudevents::encode("a\"b%c", true), "a%22b%25c");
        assert_eq!(cloudevents::encode("a\r\nHost: x", false), "a%0D%0AHost: x");
    }

    #[test]
    fn an_applications_header_can_forge_nothing_and_is_not_lost() {
        let headers = headers(
            NewEvent::bytes("a.b", vec![])
                .header("x-shop", "7")
                .header("Host", "evil")
                .header("content-length", "0")
                .header("webhook-signature", "v1,x")
                .header("Content-Type", "text/html"),
        );
        assert_eq!(get(&headers, "x-shop"), Some("7"));
        for name in ["host", "content-length", "webhook-signature"] {
            assert_eq!(get(&headers, name), None, "{name}");
            assert!(get(&headers, &format!("{TAKEN_PREFIX}{name}")).is_some(), "{name}");
        }
        assert_eq!(get(&headers, "content-type"), Some("application/octet-stream"));
    }
}
