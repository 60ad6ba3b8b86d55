//! Topics as subjects.

/// What JetStream and its clients use themselves: an event of such a topic would be a command to the server.
const RESERVED: [&str; 2] = ["$", "_INBOX"];

/// The subject of a topic, which is the topic itself, behind the prefix if there is one.
///
/// Nothing is encoded: a consumer that filters by a subject must be able to rely on it. A topic that is no subject
/// is refused, and so is one that begins with `$` or `_INBOX`.
pub(super) fn of(topic: &str, prefix: Option<&str>) -> Result<String, String> {
    let subject = match prefix {
        Some(prefix) => format!("{prefix}.{topic}"),
        None => topic.to_owned(),
    };
    match fault(&subject) {
        Some(why) => Err(format!("{subject:?} cannot be a NATS subject: {why}")),
        None => Ok(subject),
    }
}

/// What is wrong with a subject to publish to.
fn fault(subject: &str) -> Option<&'static str> {
    if subject.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Some("it has white space or control characters");
    }
    if subject.split('.').any(str::is_empty) {
        return Some("it has an empty word");
    }
    if subject.split('.').any(|word| matches!(word, "*" | ">")) {
        return Some("it has a wildcard");
    }
    if RESERVED.iter().any(|reserved| subject.starts_with(reserved)) {
        return Some("it begins with what NATS keeps for itself ($ or _INBOX)");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_is_its_own_subject() {
        assert_eq!(of("ticket.created", None).unwrap(), "ticket.created");
        assert_eq!(of("ticket.created", Some("shop")).unwrap(), "shop.ticket.created");
        assert_eq!(of("größe.a*b", None).unwrap(), "größe.a*b");
    }

    #[test]
    fn what_is_no_subject_or_would_command_the_server_is_refused() {
        for topic in [
            "",
            "a b",
            "a\r\nPUB x",
            "a\tb",
            ".a",
            "a.",
            "a..b",
            "*",
            "a.*",
            "a.>",
            "$JS.API.STREAM.DELETE.orders",
            "$SYS.REQ",
            "_INBOX.x",
        ] {
            assert!(of(topic, None).is_err(), "{topic:?}");
        }
        assert!(of("a", Some("bad prefix")).is_err());
        assert!(of("$JS.API.STREAM.DELETE.orders", Some("shop")).is_ok());
    }
}
