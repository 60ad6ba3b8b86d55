//! What is missing where the brokers do not let us in, and what is to be done.

use rdkafka::error::RDKafkaErrorCode as Code;
use relevo_core::error::Kind;

/// What is to be done where a login fails. The brokers do not tell a wrong user from a wrong password.
pub(super) const CHECK_LOGIN: &str = "check user, password and mechanism";

/// Whether it means that the login failed. The client says so, too, when the connection breaks while it logs in.
pub(super) fn is_login(code: Code, said: &str) -> bool {
    let broke = ["Broker transport failure", "Timed out"].iter().any(|why| said.contains(why));
    matches!(code, Code::Authentication | Code::SaslAuthenticationFailed) && !broke
}

/// Why publishing to a topic is not permitted.
pub(super) fn unwritten(topic: &str) -> String {
    format!(
        "the user may not write to the topic {topic}: it needs Write on it (and before Kafka 2.8 IdempotentWrite on the \
         cluster)"
    )
}

/// Why reading a topic is not permitted, or one of several.
pub(super) fn unread(topics: &str) -> String {
    match topics.contains(',') {
        true => format!("the user may not read one of the topics {topics}: it needs Read on each"),
        false => format!("the user may not read the topic {topics}: it needs Read on it"),
    }
}

/// Why consuming does not go on.
pub(super) fn consuming(
    code: Option<Code>,
    said: String,
    topic: &str,
    group: &str,
) -> (Kind, String) {
    match code {
        Some(Code::TopicAuthorizationFailed) => (Kind::MissingPrivilege, unread(topic)),
        Some(Code::GroupAuthorizationFailed) => {
            let why = format!("the user may not be in the group {group}: it needs Read on it");
            (Kind::MissingPrivilege, why)
        }
        Some(code) if is_login(code, &said) => {
            (Kind::AuthenticationFailed, format!("{said}; {CHECK_LOGIN}"))
        }
        _ => (Kind::DestinationDown, said),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_breaks_while_it_logs_in_is_no_wrong_password() {
        let said = "sasl_ssl://h:1/bootstrap: SASL PLAIN mechanism handshake failed: Local: Broker transport failure: \
                    broker's supported mechanisms: ";
        assert!(!is_login(Code::Authentication, said));
        assert!(!is_login(Code::Authentication, "mechanism handshake failed: Local: Timed out"));
        assert!(is_login(Code::Authentication, "Invalid username or password"));
    }

    #[test]
    fn of_several_topics_none_is_named_alone() {
        let said = || String::from("Broker: Topic authorization failed");
        let why = |topics| consuming(Some(Code::TopicAuthorizationFailed), said(), topics, "g").1;
        assert!(why("a, b").contains("one of the topics a, b"), "{}", why("a, b"));
        assert!(why("a").contains("the topic a:"), "{}", why("a"));
    }
}
