use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The reserved header names: the event's attributes beside id, topic, key and payload.
pub mod header {
    /// Media type of the payload.
    pub const CONTENT_TYPE: &str = "content-type";
    /// Event type, where it is not the topic.
    pub const TYPE: &str = "type";
    /// The service the event comes from (CloudEvents `source`).
    pub const SOURCE: &str = "source";
    /// The tenant it belongs to.
    pub const TENANT: &str = "tenant";
    /// When it happened, RFC 3339, where that is not when it was published.
    pub const TIME: &str = "time";
    /// What the whole conversation is known by.
    pub const CORRELATION_ID: &str = "correlation-id";
    /// The event that caused this one.
    pub const CAUSATION_ID: &str = "causation-id";
    /// W3C trace context.
    pub const TRACEPARENT: &str = "traceparent";
    /// W3C trace context of the vendor.
    pub const TRACESTATE: &str = "tracestate";
    /// The consumer whose log this event landed in; it is for no other subscription. Relevo's own.
    pub const INBOX: &str = "relevo-inbox";
    /// The id by which its publisher knew an event that landed. Relevo's own.
    pub const INBOX_ID: &str = "relevo-inbox-id";
    /// What the handler answered before the event landed. Relevo's own.
    pub const INBOX_ANSWER: &str = "relevo-inbox-answer";
    /// Headers of a malformed message that no event can carry. Relevo's own.
    pub const RAW_HEADERS: &str = "relevo-raw-headers";
    /// What the names of Relevo's own begin with; nobody else may publish them.
    pub const OWN: &str = "relevo-inbox";
    /// All reserved names with what they mean, for the documentation and its test.
    pub const RESERVED: [(&str, &str); 9] = [
        (CONTENT_TYPE, "media type of the payload"),
        (TYPE, "event type, where it is not the topic"),
        (SOURCE, "the service the event comes from"),
        (TENANT, "the tenant it belongs to"),
        (TIME, "when it happened, RFC 3339, where that is not when it was published"),
        (CORRELATION_ID, "what the whole conversation is known by"),
        (CAUSATION_ID, "the event that caused this one"),
        (TRACEPARENT, "W3C trace context"),
        (TRACESTATE, "W3C trace context of the vendor"),
    ];

    /// Is `name` one of them?
    pub fn is_reserved(name: &str) -> bool {
        RESERVED.iter().any(|(reserved, _)| *reserved == name)
    }
}

/// Header names and values, text both; names are compared as written, lower case by convention.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Headers(BTreeMap<String, String>);

impl Headers {
    /// The value of `name`.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Sets `name`, replacing an older value.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.insert(name.into(), value.into());
    }

    /// Removes `name` and returns its value.
    pub fn remove(&mut self, name: &str) -> Option<String> {
        self.0.remove(name)
    }

    /// All names and values, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// True without any header.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As a JSON object, the form every store keeps.
    pub fn to_json(&self) -> String {
        serde_json::to_string(&self.0).unwrap_or_else(|_| "{}".to_owned())
    }

    /// Reads what a store or a user wrote. Numbers and booleans become text, null is left out; nested
    /// values keep their JSON text: a header written by hand never makes its event unreadable.
    pub fn from_json(value: &serde_json::Value) -> Self {
        let mut headers = Self::default();
        if let serde_json::Value::Object(map) = value {
            for (name, value) in map {
                match value {
                    serde_json::Value::Null => {}
                    serde_json::Value::String(text) => headers.set(name, text),
                    other => headers.set(name, other.to_string()),
                }
            }
        }
        headers
    }

    /// [`Self::from_json`] of a text; an unreadable text is kept under `relevo-unreadable-headers`.
    pub fn from_json_text(text: &str) -> Self {
        // As most events of most services are stored: nothing to look at.
        if text == "{}" {
            return Self::default();
        }
        match serde_json::from_str(text) {
            Ok(value) => Self::from_json(&value),
            Err(_) => {
                let mut headers = Self::default();
                headers.set("relevo-unreadable-headers", text);
                headers
            }
        }
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Headers {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_has_the_value_that_was_set_last() {
        let mut headers = Headers::default();
        assert!(headers.is_empty());
        headers.set("b", "1");
        headers.set("a", "2");
        headers.set("b", "3");
        assert!(!headers.is_empty());
        assert_eq!(headers.iter().collect::<Vec<_>>(), [("a", "2"), ("b", "3")]);
        assert_eq!(headers.get("B"), None);
        assert_eq!(headers.remove("b").as_deref(), Some("3"));
        assert_eq!(headers.remove("b"), None);
    }

    #[test]
    fn headers_written_by_hand_become_text_and_what_is_null_is_not_there() {
        let text = r#"{"t":"x","n":7,"b":false,"nothing":null,"deep":{"a":[1,"y"]}}"#;
        let headers = Headers::from_json_text(text);
        let read = [("b", "false"), ("deep", r#"{"a":[1,"y"]}"#), ("n", "7"), ("t", "x")];
        assert_eq!(headers.iter().collect::<Vec<_>>(), read);
        assert_eq!(Headers::from_json_text(&headers.to_json()), headers);
        assert!(Headers::from_json_text("[1]").is_empty());
    }

    #[test]
    fn headers_that_cannot_be_read_are_kept_as_they_are() {
        let headers = Headers::from_json_text("{oops");
        assert_eq!(headers.iter().collect::<Vec<_>>(), [("relevo-unreadable-headers", "{oops")]);
    }

    #[test]
    fn only_names_as_they_are_written_are_reserved() {
        assert!(header::RESERVED.iter().all(|(name, _)| header::is_reserved(name)));
        assert!(!["Tenant", "tenants", "", header::INBOX].into_iter().any(header::is_reserved));
    }
}
