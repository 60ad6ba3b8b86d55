use crate::error::{Error, Kind, Result, quoted};
use crate::mutant;
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
        match inbox.filter(|_| !mutant!(LandedForEverybody)) {
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

    /// Reads a filter; `#` only stands at the end, words are not empty. What no topic could ever match is refused,
    /// with what may have been meant.
    pub fn parse(text: &str) -> Result<Self> {
        let Some(why) = flaw(text) else { return Ok(Self(text.to_owned())) };
        let near = nearest(text).filter(|near| near != text && flaw(near).is_none());
        let near =
            near.map(|near| format!("; did you mean {}?", quoted(&near))).unwrap_or_default();
        let message = format!("the topic filter {} {why}{near}", quoted(text));
        Err(Error::new(Kind::InvalidTopic, message))
    }

    /// Does `topic` pass?
    pub fn matches(&self, topic: &str) -> bool {
        if self.0 == "#" {
            return true;
        }
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

/// Why no topic can match this, if none can.
fn flaw(text: &str) -> Option<&'static str> {
    let words: Vec<&str> = text.split('.').collect();
    let rest = |word: &&str| *word == "#";
    if text.is_empty() {
        Some("is empty; # wants every topic")
    } else if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        Some(
            "has white space or a control character, which no topic has; several filters are given one by one",
        )
    } else if words.iter().any(|word| word.is_empty()) {
        Some("has an empty word; words are parted by single dots")
    } else if text.contains('>') {
        Some("has a >, which no topic has; # stands for the rest")
    } else if words.iter().rev().skip(1).any(rest) {
        Some("has a # that is not its last word")
    } else if words.iter().any(|word| word.len() > 1 && word.contains(['*', '#'])) {
        Some("mixes a wildcard with letters; * and # stand for whole words")
    } else {
        None
    }
}

/// The filter without what no topic has, and with `#` for another system's `>`.
fn nearest(text: &str) -> Option<String> {
    let first = text.split([',', ';']).next()?;
    let plain: String = first.chars().filter(|c| !c.is_whitespace() && !c.is_control()).collect();
    let words = plain.split('.').filter(|word| !word.is_empty());
    Some(words.map(|word| if word == ">" { "#" } else { word }).collect::<Vec<_>>().join("."))
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
        for text in
            ["", "a..b", "#.a", "tick*", "a.b#", "a b", " a", "a\n", "a.\u{a0}b", "\0", "a.>"]
        {
            assert_eq!(
                TopicFilter::parse(text).unwrap_err().kind(),
                Kind::InvalidTopic,
                "{text:?}"
            );
        }
    }

    #[test]
    fn a_refused_filter_comes_with_what_may_have_been_meant() {
        for (text, meant) in [
            (" order.*", "order.*"),
            ("order. *", "order.*"),
            ("order..placed", "order.placed"),
            ("order.>", "order.#"),
            ("order.*, ticket.*", "order.*"),
        ] {
            let said = TopicFilter::parse(text).unwrap_err().to_string();
            assert!(said.contains(&format!("did you mean {meant:?}?")), "{said}");
        }
        let said = TopicFilter::parse("tick*").unwrap_err().to_string();
        assert!(!said.contains("did you mean"), "{said}");
    }

    #[test]
    fn every_word_counts() {
        let matches =
            |filter: &str, topic: &str| TopicFilter::parse(filter).unwrap().matches(topic);
        assert!(matches("ticket.created", "ticket.created"));
        assert!(!matches("ticket.created", "order.created"));
        assert!(!matches("ticket.created", "ticket.closed"));
        assert!(!matches("ticket.created", "ticket"));
        assert!(!matches("ticket.#", "order.created"));
        assert!(matches("*.*.c", "a.b.c") && !matches("*.*.c", "a.c"));
    }

    #[test]
    fn what_landed_is_wanted_by_its_consumer_alone() {
        let filters = |texts: &[&str]| -> Vec<TopicFilter> {
            texts.iter().map(|text| TopicFilter::parse(text).unwrap()).collect()
        };
        let wants = |texts: &[&str], inbox| TopicFilter::any_wants(&filters(texts), "a.b", inbox);
        assert!(wants(&["x", "a.*"], None) && !wants(&["x", "y"], None) && !wants(&[], None));
        assert!(wants(&["x", "$inbox.mailer"], Some("mailer")));
        assert!(!wants(&["#", "a.b", "mailer", "$inbox.mail"], Some("mailer")));
    }

    #[test]
    fn a_refused_filter_is_told_its_flaw() {
        for (text, why) in [
            ("", "is empty"),
            (" ", "white space"),
            (".a", "an empty word"),
            ("a.", "an empty word"),
            ("a.>", "has a >"),
            ("#.a", "not its last word"),
            ("#.#", "not its last word"),
            ("a.*b", "mixes a wildcard"),
            ("a.##", "mixes a wildcard"),
        ] {
            let said = TopicFilter::parse(text).unwrap_err().to_string();
            assert!(said.contains(why), "{text:?}: {said}");
        }
    }

    #[test]
    fn what_would_be_refused_again_is_not_proposed() {
        for text in ["x y*", "a.>.b", " ", "#.a b"] {
            let said = TopicFilter::parse(text).unwrap_err().to_string();
            assert!(!said.contains("did you mean"), "{said}");
        }
        let said = TopicFilter::parse("a.b ; c").unwrap_err().to_string();
        assert!(said.contains(r#"did you mean "a.b"?"#), "{said}");
    }

    #[test]
    fn a_filter_in_a_file_is_checked_like_any_other() {
        let filter: TopicFilter = serde_json::from_str(r#""a.#""#).unwrap();
        assert_eq!((filter.as_str(), filter.to_string().as_str()), ("a.#", "a.#"));
        assert_eq!(serde_json::to_string(&filter).unwrap(), r#""a.#""#);
        assert!(serde_json::from_str::<TopicFilter>(r##""#.a""##).is_err());
        assert_eq!(TopicFilter::all(), TopicFilter::parse("#").unwrap());
    }
}
