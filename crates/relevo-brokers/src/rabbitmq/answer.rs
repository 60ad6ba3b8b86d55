use lapin::ErrorKind;
use relevo_core::ErrorClass;
use relevo_core::broker::Confirm;

/// Who is to blame for a channel that the broker closed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Blame {
    /// Every message to this exchange: it is not there, or takes nothing from clients.
    Exchange(String),
    /// Every message to this exchange: the user may not write to it.
    ForbiddenExchange(String),
    /// Every message of one topic: the user may not write it. The broker's words from its name on.
    ForbiddenTopic(String),
    /// Every message of more bytes.
    Larger(usize),
    /// Nobody in particular.
    Nobody,
}

impl Blame {
    /// Does it fall on this message?
    pub(super) fn falls_on(&self, topic: &str, exchange: &str, bytes: usize) -> bool {
        match self {
            Self::Exchange(name) | Self::ForbiddenExchange(name) => name == exchange,
            Self::ForbiddenTopic(said) => begins_with_topic(said, topic),
            Self::Larger(limit) => bytes > *limit,
            Self::Nobody => false,
        }
    }

    /// What a message that it falls on is told; `why` is what the broker said.
    pub(super) fn refusal(&self, topic: &str, exchange: &str, bytes: usize, why: &str) -> Confirm {
        match self {
            // Somebody may permit it.
            Self::ForbiddenExchange(_) => refused(
                ErrorClass::Transient,
                format!(
                    "the user may not write to the exchange {exchange:?}: it needs that permission"
                ),
            ),
            Self::ForbiddenTopic(_) => refused(
                ErrorClass::Transient,
                format!(
                    "the user may not write the topic {topic} to the exchange {exchange:?}: it needs that topic \
                     permission"
                ),
            ),
            Self::Larger(limit) => too_large(bytes, *limit),
            Self::Exchange(_) | Self::Nobody => refused(ErrorClass::Permanent, why),
        }
    }
}

const ACCESS_REFUSED: u16 = 403;
const NOT_FOUND: u16 = 404;
const PRECONDITION_FAILED: u16 = 406;
/// What follows is the topic, the exchange, the virtual host, and the user.
const FORBIDDEN_TOPIC: &str = "ACCESS_REFUSED - access to topic '";
const FORBIDDEN_EXCHANGE: &str = "ACCESS_REFUSED - access to exchange '";
/// The name of the exchange without a name, where permissions are concerned.
const DEFAULT_EXCHANGE: &str = "amq.default";
/// Ends what the broker had to cut: its words have no more than 255 bytes.
const CUT: &str = "...";

/// What the broker's last words on a channel say of the messages that it did not answer.
pub(super) fn blame(error: &lapin::Error) -> Blame {
    let ErrorKind::ProtocolError(said) = error.kind() else { return Blame::Nobody };
    blame_for(said.get_id(), said.get_message().as_str())
}

fn blame_for(code: u16, text: &str) -> Blame {
    match code {
        ACCESS_REFUSED => match text.strip_prefix(FORBIDDEN_TOPIC) {
            Some(said) => Blame::ForbiddenTopic(said.to_owned()),
            None => forbidden_exchange(text),
        },
        // "no exchange 'orders' in vhost '/'"
        NOT_FOUND => quoted_after(text, "exchange '").map_or(Blame::Nobody, Blame::Exchange),
        // "message size 70000 is larger than configured max size 65536", the older "message size 7 larger than max size 6"
        PRECONDITION_FAILED if text.contains("larger than") => {
            text.rsplit(' ').find_map(|word| word.parse().ok()).map_or(Blame::Nobody, Blame::Larger)
        }
        _ => Blame::Nobody,
    }
}

/// "access to exchange 'orders' in vhost '/' refused for user 'app'", "cannot publish to internal exchange 'orders' in ..."
fn forbidden_exchange(text: &str) -> Blame {
    match quoted_after(text, FORBIDDEN_EXCHANGE) {
        Some(name) if name == DEFAULT_EXCHANGE => Blame::ForbiddenExchange(String::new()),
        Some(name) => Blame::ForbiddenExchange(name),
        None => quoted_after(text, "exchange '").map_or(Blame::Nobody, Blame::Exchange),
    }
}

/// "TOPIC' in exchange 'orders' in vhost '/' refused for user 'app'", as far as it was not cut. A topic may have quotation
/// marks of its own.
fn begins_with_topic(said: &str, topic: &str) -> bool {
    let wanted = format!("{topic}' in exchange '");
    let is_cut = |said: &str| wanted.starts_with(said);
    said.starts_with(&wanted) || said.strip_suffix(CUT).is_some_and(is_cut)
}

fn quoted_after(text: &str, marker: &str) -> Option<String> {
    let (_, rest) = text.split_once(marker)?;
    rest.split_once('\'').map(|(name, _)| name.to_owned())
}

pub(super) fn refused(class: ErrorClass, error: impl Into<String>) -> Confirm {
    Confirm::Refused { class, error: error.into(), after: None }
}

pub(super) fn too_large(bytes: usize, limit: usize) -> Confirm {
    refused(ErrorClass::Poison, format!("{bytes} bytes, the broker takes {limit} in one message"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_channel_is_the_fault_of_whom_the_broker_names() {
        let missing = "NOT_FOUND - no exchange 'orders' in vhost '/'";
        assert_eq!(blame_for(404, missing), Blame::Exchange("orders".into()));
        let refused =
            "ACCESS_REFUSED - access to exchange 'x y' in vhost '/' refused for user 'app'";
        assert_eq!(blame_for(403, refused), Blame::ForbiddenExchange("x y".into()));
        let default = refused.replace("x y", DEFAULT_EXCHANGE);
        assert_eq!(blame_for(403, &default), Blame::ForbiddenExchange(String::new()));
        let internal = "ACCESS_REFUSED - cannot publish to internal exchange 'x' in vhost '/'";
        assert_eq!(blame_for(403, internal), Blame::Exchange("x".into()));
        for text in [
            "PRECONDITION_FAILED - message size 70000 is larger than configured max size 65536",
            "PRECONDITION_FAILED - message size 70000 larger than max size 65536",
        ] {
            assert_eq!(blame_for(406, text), Blame::Larger(65536));
        }
        for (code, text) in [(406, "unknown delivery tag 7"), (404, "no queue 'q'"), (541, "boom")]
        {
            assert_eq!(blame_for(code, text), Blame::Nobody, "{text}");
        }
    }

    #[test]
    fn a_forbidden_topic_is_the_fault_of_its_own_messages_only() {
        let said = |topic: &str| {
            let said = format!(
                "ACCESS_REFUSED - access to topic '{topic}' in exchange 'events' in vhost '/' refused for user 'app'"
            );
            match said.get(..252) {
                Some(beginning) if said.len() > 255 => format!("{beginning}{CUT}"),
                _ => said,
            }
        };
        let long = "a".repeat(190);
        for topic in ["a.b", "it's", "a' in exchange", &long, &"a".repeat(250)] {
            let blame = blame_for(403, &said(topic));
            assert!(blame.falls_on(topic, "events", 1), "{topic}: {blame:?}");
            for other in ["a", "a.b.c", "it", "a' in", "events", &"a".repeat(100)] {
                assert!(!blame.falls_on(other, "events", 1), "{other} of {blame:?}");
            }
        }
        let cut = blame_for(403, &said(&long));
        assert!(!cut.falls_on(&"a".repeat(191), "events", 1), "the end of the topic was told");
    }

    #[test]
    fn what_somebody_may_permit_is_refused_for_now_and_says_which_permission_it_needs() {
        let refusal = |blame: Blame| match blame.refusal("a.b", "events", 7, "broken") {
            Confirm::Refused { class, error, after: None } => (class, error),
            other => panic!("{other:?}"),
        };
        let (class, error) = refusal(Blame::ForbiddenTopic("a.b".into()));
        assert_eq!(class, ErrorClass::Transient);
        let told = "may not write the topic a.b to the exchange \"events\": it needs that topic permission";
        assert!(error.ends_with(told), "{error}");
        let (class, error) = refusal(Blame::ForbiddenExchange("events".into()));
        assert_eq!(class, ErrorClass::Transient);
        assert!(error.contains("exchange \"events\": it needs that permission"), "{error}");
        assert_eq!(
            refusal(Blame::Exchange("events".into())),
            (ErrorClass::Permanent, "broken".into())
        );
        assert_eq!(refusal(Blame::Larger(6)).0, ErrorClass::Poison);
    }
}
