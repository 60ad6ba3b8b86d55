//! What JetStream's answer to a publish means for the event.

use async_nats::jetstream::ErrorCode;
use relevo_core::broker::Confirm;
use relevo_core::error::{ErrorClass, quoted};
use serde::Deserialize;

/// The headers are larger than the server takes.
const HEADERS_TOO_LARGE: ErrorCode = ErrorCode(10097);

#[derive(Deserialize)]
struct Answer {
    error: Option<Refusal>,
    stream: Option<String>,
    #[serde(rename = "seq")]
    sequence: Option<u64>,
}

#[derive(Deserialize)]
struct Refusal {
    #[serde(default)]
    code: u16,
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    description: String,
}

/// The confirm for an answer. A copy that the server dropped as a duplicate is stored already.
pub(super) fn confirm(answer: &[u8]) -> Confirm {
    match serde_json::from_slice(answer) {
        Ok(Answer { error: Some(refusal), .. }) => refusal.confirm(),
        Ok(Answer { stream: Some(_), sequence: Some(1..), .. }) => Confirm::Stored,
        // Somebody subscribed to the subject and answers in the stream's place, or before it.
        _ => Confirm::Unknown {
            error: "the answer is not JetStream's: another subscriber of the subject answers"
                .into(),
        },
    }
}

/// The stream that takes a subject, as JetStream answers the question for its name; `Err` has what it says instead.
pub(super) fn stream(answer: &[u8]) -> Result<Option<String>, String> {
    let names: serde_json::Value = serde_json::from_slice(answer)
        .map_err(|error| format!("JetStream's answer cannot be read: {error}"))?;
    match names["error"]["description"].as_str() {
        Some(error) => Err(format!("JetStream says: {}", quoted(error))),
        None => Ok(names["streams"][0].as_str().map(str::to_owned)),
    }
}

impl Refusal {
    fn confirm(self) -> Confirm {
        // Whoever answers may say anything, at any length.
        let description = quoted(&self.description);
        let error = format!("JetStream refused it: {description} ({})", self.err_code);
        match ErrorCode(self.err_code) {
            ErrorCode::JETSTREAM_NOT_ENABLED
            | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT
            | ErrorCode::CLUSTER_NOT_AVAILABLE => Confirm::Down { error },
            ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM | HEADERS_TOO_LARGE => {
                refused(ErrorClass::Poison, error)
            }
            // A full stream that discards what is new, a full disk, a full account.
            ErrorCode::STREAM_STORE_FAILED
            | ErrorCode::STORAGE_RESOURCES_EXCEEDED
            | ErrorCode::INSUFFICIENT_RESOURCES
            | ErrorCode::ACCOUNT_RESOURCES_EXCEEDED
            | ErrorCode::STREAM_MAX_STREAM_BYTES_EXCEEDED => refused(ErrorClass::Transient, error),
            _ if self.code >= 500 => refused(ErrorClass::Transient, error),
            _ => refused(ErrorClass::Permanent, error),
        }
    }
}

pub(super) fn refused(class: ErrorClass, error: String) -> Confirm {
    Confirm::Refused { class, error, after: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(code: u16, err_code: u64) -> Option<ErrorClass> {
        let text = format!(
            r#"{{"type":"x","error":{{"code":{code},"err_code":{err_code},"description":"d"}},"stream":"S"}}"#
        );
        match confirm(text.as_bytes()) {
            Confirm::Refused { class, .. } => Some(class),
            _ => None,
        }
    }

    #[test]
    fn a_confirm_names_stream_and_sequence() {
        assert_eq!(confirm(br#"{"stream":"S","seq":1}"#), Confirm::Stored);
        assert_eq!(confirm(br#"{"stream":"S","seq":7,"duplicate":true}"#), Confirm::Stored);
        for odd in [&b""[..], b"ok", b"{}", br#"{"stream":"S"}"#, br#"{"stream":"S","seq":0}"#] {
            assert!(matches!(confirm(odd), Confirm::Unknown { .. }), "{odd:?}");
        }
    }

    #[test]
    fn what_is_repeated_of_an_answer_is_one_line_and_short() {
        let hostile = serde_json::json!("\u{1b}[2J\n".repeat(10_000));
        let answer = format!(r#"{{"error":{{"code":400,"description":{hostile}}}}}"#);
        let Confirm::Refused { error, .. } = confirm(answer.as_bytes()) else { panic!("refused") };
        for said in [error, stream(answer.as_bytes()).unwrap_err()] {
            assert!(said.len() < 1000 && !said.contains(char::is_control), "{said}");
        }
    }

    #[test]
    fn every_refusal_has_its_class() {
        for full in [10077, 10047, 10023, 10002] {
            assert_eq!(class(503, full), Some(ErrorClass::Transient), "{full}");
        }
        assert_eq!(class(400, 10054), Some(ErrorClass::Poison));
        assert_eq!(class(400, 10060), Some(ErrorClass::Permanent), "another stream");
        assert_eq!(class(500, 99), Some(ErrorClass::Transient));
        assert_eq!(class(503, 10076), None, "JetStream is off: down");
    }
}
