//! What is allowed in, checked before anything is written.

use crate::error::{Error, Kind, Result, quoted};
use crate::event::{NewEvent, header};

/// How many lanes the log has. Fixed in this version: the lane of a key never changes.
pub const LANES: u16 = 64;

/// Bounds on what may be published. The stores enforce the same figures for plain SQL.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Most bytes of one payload.
    pub payload_bytes: usize,
    /// Most bytes of all header names and values together.
    pub headers_bytes: usize,
    /// Most bytes of a topic, and of a key.
    pub name_bytes: usize,
    /// Relevo's own headers are allowed.
    own: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self { payload_bytes: 1 << 20, headers_bytes: 16 << 10, name_bytes: 255, own: false }
    }
}

impl Limits {
    /// For what lands in a consumer's log: Relevo's own headers travel with it.
    #[doc(hidden)]
    pub fn landing(mut self) -> Self {
        self.own = true;
        self
    }

    /// Refuses an event that is out of bounds, naming what is wrong and what would be right.
    pub fn check(&self, event: &NewEvent) -> Result<()> {
        self.check_topic(&event.topic)?;
        if let Some(key) = &event.key {
            self.check_key(key)?;
        }
        if event.payload.len() > self.payload_bytes {
            return Err(Error::new(
                Kind::PayloadTooLarge,
                format!(
                    "the payload has {} bytes, the limit is {}",
                    event.payload.len(),
                    self.payload_bytes
                ),
            ));
        }
        self.check_headers(event)
    }

    fn check_topic(&self, topic: &str) -> Result<()> {
        let bad = |why: String| Err(Error::new(Kind::InvalidTopic, why));
        if topic.is_empty() {
            return bad("the topic is empty".into());
        }
        if topic.len() > self.name_bytes {
            return bad(format!(
                "the topic has {} bytes, the limit is {}",
                topic.len(),
                self.name_bytes
            ));
        }
        if let Some(c) = topic
            .chars()
            .find(|c| c.is_control() || c.is_whitespace() || matches!(c, '*' | '#' | '>'))
        {
            return bad(format!(
                "the topic contains {c:?}; white space, control characters and the wildcards * # > are not allowed"
            ));
        }
        if topic.split('.').any(str::is_empty) {
            return bad(format!(
                "the topic {} has an empty word; write words parted by single dots",
                quoted(topic)
            ));
        }
        Ok(())
    }

    fn check_key(&self, key: &str) -> Result<()> {
        let bad = |why: String| Err(Error::new(Kind::InvalidKey, why));
        if key.is_empty() {
            return bad("the key is empty; leave it out if order does not matter".into());
        }
        if key.len() > self.name_bytes {
            return bad(format!(
                "the key has {} bytes, the limit is {}",
                key.len(),
                self.name_bytes
            ));
        }
        if key.chars().any(char::is_control) {
            return bad(format!("the key {} contains a control character", quoted(key)));
        }
        Ok(())
    }

    fn check_headers(&self, event: &NewEvent) -> Result<()> {
        let bad = |why: String| Err(Error::new(Kind::InvalidHeaders, why));
        let mut bytes = 0;
        for (name, value) in event.headers.iter() {
            if name.is_empty() || !name.bytes().all(|b| b.is_ascii_graphic() && b != b':') {
                return bad(format!(
                    "the header name {} is not made of visible ASCII characters without ':'",
                    quoted(name)
                ));
            }
            if value.chars().any(|c| c.is_control() && c != '\t') {
                return bad(format!(
                    "the header {} has a control character in its value",
                    quoted(name)
                ));
            }
            if name.starts_with(header::OWN) && !self.own {
                return bad(format!("the header name {name} is Relevo's own"));
            }
            bytes += name.len() + value.len();
        }
        if bytes > self.headers_bytes {
            return bad(format!(
                "the headers have {bytes} bytes together, the limit is {}",
                self.headers_bytes
            ));
        }
        if let Some(parent) = event.headers.get(header::TRACEPARENT)
            && !is_traceparent(parent)
        {
            return bad(format!(
                "traceparent {} is not of the W3C form 00-<32 hex>-<16 hex>-<2 hex>",
                quoted(parent)
            ));
        }
        Ok(())
    }
}

fn is_traceparent(value: &str) -> bool {
    let parts: Vec<&str> = value.split('-').collect();
    let lengths: Vec<usize> = parts.iter().map(|p| p.len()).collect();
    lengths.starts_with(&[2, 32, 16, 2])
        && parts
            .iter()
            .take(4)
            .all(|p| p.bytes().all(|b| b.is_ascii_hexdigit() && !b.is_ascii_uppercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(event: NewEvent) -> Option<Kind> {
        Limits::default().check(&event).err().map(|e| e.kind())
    }

    #[test]
    fn a_plain_event_passes() {
        assert_eq!(kind(NewEvent::bytes("ticket.created", vec![0; 1 << 20]).key("t-1")), None);
    }

    #[test]
    fn what_is_out_of_bounds_is_refused_by_name() {
        assert_eq!(kind(NewEvent::bytes("a", vec![0; (1 << 20) + 1])), Some(Kind::PayloadTooLarge));
        for topic in ["", "a..b", "a b", "a.*", "#", "x\0y", &"t".repeat(256)] {
            assert_eq!(kind(NewEvent::bytes(topic, vec![])), Some(Kind::InvalidTopic), "{topic:?}");
        }
        for key in ["", "a\nb", &"k".repeat(256)] {
            assert_eq!(
                kind(NewEvent::bytes("a", vec![]).key(key)),
                Some(Kind::InvalidKey),
                "{key:?}"
            );
        }
        assert_eq!(
            kind(NewEvent::bytes("a", vec![]).header("x y", "")),
            Some(Kind::InvalidHeaders)
        );
        assert_eq!(
            kind(NewEvent::bytes("a", vec![]).header("x", "a\r\nb")),
            Some(Kind::InvalidHeaders)
        );
        assert_eq!(
            kind(NewEvent::bytes("a", vec![]).header("x", "v".repeat(17 << 10))),
            Some(Kind::InvalidHeaders)
        );
        assert_eq!(
            kind(NewEvent::bytes("a", vec![]).header(header::INBOX, "c")),
            Some(Kind::InvalidHeaders)
        );
        assert_eq!(
            kind(NewEvent::bytes("a", vec![]).header("traceparent", "nonsense")),
            Some(Kind::InvalidHeaders)
        );
    }

    fn with_header(name: &str, value: impl Into<String>) -> NewEvent {
        NewEvent::bytes("a", vec![]).header(name, value)
    }

    #[test]
    fn what_is_just_within_bounds_passes() {
        let name = "n".repeat(255);
        assert_eq!(kind(NewEvent::bytes(name.as_str(), vec![]).key(name.as_str())), None);
        assert_eq!(kind(NewEvent::bytes("a", vec![]).key("a key * # >")), None);
        assert_eq!(kind(with_header("x", "a\tb €")), None);
        assert_eq!(kind(with_header("x", "v".repeat((16 << 10) - 1))), None);
    }

    #[test]
    fn names_and_values_of_all_headers_count_together() {
        assert_eq!(kind(with_header("x", "v".repeat(16 << 10))), Some(Kind::InvalidHeaders));
        let half = "v".repeat(8 << 10);
        let two = with_header("x", half.as_str()).header("y", half.as_str());
        assert_eq!(kind(two), Some(Kind::InvalidHeaders));
    }

    #[test]
    fn a_topic_has_no_empty_word_and_no_wildcard_of_any_broker() {
        for topic in [".a", "a.", ".", "a.>", "a\tb", "a\u{a0}b", "a.*.b", "\u{7f}"] {
            assert_eq!(kind(NewEvent::bytes(topic, vec![])), Some(Kind::InvalidTopic), "{topic:?}");
        }
    }

    #[test]
    fn a_header_name_is_visible_ascii_without_a_colon() {
        for name in ["", "a:b", "a b", "ä", "a\u{7f}"] {
            assert_eq!(kind(with_header(name, "v")), Some(Kind::InvalidHeaders), "{name:?}");
        }
        assert_eq!(kind(with_header("X_y-1!~", "")), None);
    }

    #[test]
    fn only_what_lands_has_headers_of_relevos_own() {
        let landing = Limits::default().landing();
        for name in [header::INBOX, header::INBOX_ID, header::INBOX_ANSWER] {
            assert_eq!(kind(with_header(name, "v")), Some(Kind::InvalidHeaders), "{name}");
            assert!(landing.check(&with_header(name, "v")).is_ok(), "{name}");
        }
        assert!(landing.check(&with_header("a:b", "v")).is_err());
    }

    #[test]
    fn a_trace_is_of_the_w3c_form() {
        let (trace, span) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
        let traced = |parent: String| kind(with_header(header::TRACEPARENT, parent));
        assert_eq!(traced(format!("00-{trace}-{span}-01")), None);
        assert_eq!(traced(format!("cc-{trace}-{span}-01-what a later version says")), None);
        for parent in [
            format!("00-{trace}-{span}"),
            format!("00-{span}-{trace}-01"),
            format!("00-{trace}-{span}-1"),
            format!("00-{}-{span}-01", trace.to_uppercase()),
            format!("00-{trace}-{span}-0g"),
            format!("0x-{trace}-{span}-01"),
        ] {
            assert_eq!(traced(parent.clone()), Some(Kind::InvalidHeaders), "{parent}");
        }
    }
}
