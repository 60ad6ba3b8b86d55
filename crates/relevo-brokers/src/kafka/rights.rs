//! What is missing where the brokers do not let us in, and what is to be done.

use rdkafka::error::RDKafkaErrorCode as Code;
use relevo_core::error::Kind;

/// What is to be done where a login fails. The brokers do not tell a wrong user from a wrong password.
pub(super) const CHECK_LOGIN: &str = "check user, password and mechanism";

/// Whether it means that the login failed.
pub(super) fn is_login(code: Code) -> bool {
    matches!(code, Code::Authentication | Code::SaslAuthenticationFailed)
}

/// Why publishing to a topic is not permitted.
pub(super) fn unwritten(topic: &str) -> String {
    format!("the user may not write to the topic {topic}: it needs Write on it")
}

/// Why reading a topic is not permitted.
pub(super) fn unread(topic: &str) -> String {
    format!("the user may not read the topic {topic}: it needs Read on it")
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
        Some(code) if is_login(code) => {
            (Kind::AuthenticationFailed, format!("{said}; {CHECK_LOGIN}"))
        }
        _ => (Kind::DestinationDown, said),
    }
}
