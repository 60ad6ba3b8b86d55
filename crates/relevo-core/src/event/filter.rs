use crate::error::{Error, Kind, Result, quoted};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Which topics a subscription wants: words parted by dots, `*` is one word, `#` is the rest (also none).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TopicFilter(String);

impl TopicFilter {
    /// What the filter of a consumer's own log begins with.
    pub const INBOX: &'static str = "$inbox.";

    /// Do any of `filters` want an event of this topic? What landed in a consumer's log (`inbox` names it) is for that
    /// consumer alone.
    pub fn any_wants(filters: &[Self], topic: &str, inbox: Option<&str>) -> bool {
        match inbox {
            None => filters.iter().any(|filter| filter.matches(topic)),
            Some(consumer) => {
                filters.iter().any(|filter| filter.0.strip_prefix(Self::INBOX) == Some(consumer))
            }
        }
    }

    /// Every topic.
    pub fn all() -> Self {
        Self("#".into())
    }

    /// Reads a filter; `#` only stands at the end, words are not empty.
    pub fn parse(text: &str) -> Result<Self> {
        let words: Vec<&str> = text.split('.').collect();
        let bad = |why: &str| {
            Err(Error::new(Kind::InvalidTopic, format!("the topic filter {} {why}", quoted(text))))
        };
        if words.iter().any(|w| w.is_empty()) {
            return bad("has an empty word");
        }
        if words.iter().rev().skip(1).any(|w| *w == "#") {
            return bad("has a # that is not its last word");
        }
        if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return bad("has white space or a control character, which no topic has");
        }
        if words.iter().any(|w| w.len() > 1 && w.contains(['*', '#'])) {
            return bad("mixes a wildcard with letters; * and # stand for whole words");
        }
        Ok(Self(text.to_owned()))
    }

    /// Does `topic` pass?
    pub fn matches(&self, topic: &str) -> bool {
        let mut topic_words = topic.split('.');
        for word in self.0.split('.') {
            match (word, topic_words.next()) {
                ("#", _) => return true,
                ("*", Some(_)) => {}
                (word, Some(other)) if word == other => {}
                _ => return false,
            }
        }
        topic_words.next().is_none()
    }

    /// The filter as written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TopicFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for TopicFilter {
    type Error = Error;
    fn try_from(text: String) -> Result<Self> {
        Self::parse(&text)
    }
}

impl From<TopicFilter> for String {
    fn from(filter: TopicFilter) -> Self {
        filter.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_one_word_and_a_hash_is_the_rest() {
        let matches =
            |filter: &str, topic: &str| TopicFilter::parse(filter).unwrap().matches(topic);
        assert!(matches("#", "a.b.c"));
        assert!(matches("ticket.*", "ticket.created"));
        assert!(!matches("ticket.*", "ticket.status.changed"));
        assert!(!matches("ticket.*", "ticket"));
        assert!(matches("ticket.#", "ticket"));
        assert!(matches("ticket.#", "ticket.status.changed"));
        assert!(matches("*.created", "ticket.created"));
        assert!(!matches("ticket.created", "ticket.created.twice"));
    }

    #[test]
    fn a_filter_that_cannot_mean_anything_is_refused() {
        for text in ["", "a..b", "#.a", "tick*", "a.b#"] {
            assert!(TopicFilter::parse(text).is_err(), "{text}");
        }
    }
}
