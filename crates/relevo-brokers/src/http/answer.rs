//! What an endpoint's answer means for the event.

use hyper::StatusCode;
use relevo_core::broker::Confirm;
use relevo_core::error::ErrorClass;
use std::time::{Duration, SystemTime};

/// No endpoint may hold an event back for longer by `Retry-After`.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);

/// The confirm for a status; `text` is the beginning of the body, `retry_after` the header of that name.
pub(super) fn confirm(
    status: StatusCode,
    text: &str,
    retry_after: Option<&str>,
    now: SystemTime,
) -> Confirm {
    if status.is_success() {
        return Confirm::Stored;
    }
    if matches!(status.as_u16(), 502..=504) {
        return Confirm::Down { error: describe(status, text) };
    }
    let class = class(status);
    let after =
        retry_after.filter(|_| class == ErrorClass::Transient).and_then(|value| wait(value, now));
    Confirm::Refused { class, error: describe(status, text), after }
}

fn class(status: StatusCode) -> ErrorClass {
    match status.as_u16() {
        // A wrong credential or route is mended by people, within the retries: a stream must not die of it.
        401 | 403 | 404 | 408 | 425 | 429 | 500..=599 => ErrorClass::Transient,
        400 | 413 | 422 => ErrorClass::Poison,
        // Redirects are not followed: where events go is decided by the configuration alone.
        _ => ErrorClass::Permanent,
    }
}

fn describe(status: StatusCode, text: &str) -> String {
    let mut error = format!("the endpoint answered {status}");
    if status.is_redirection() {
        error.push_str(" (redirects are not followed)");
    }
    if !text.is_empty() {
        error.push_str(": ");
        error.push_str(text);
    }
    error
}

/// `Retry-After` in seconds or as a date.
fn wait(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    let wait = match value.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => httpdate::parse_http_date(value).ok()?.duration_since(now).unwrap_or_default(),
    };
    Some(wait.min(LONGEST_WAIT))
}

/// The beginning of a body as one harmless line.
pub(super) fn first_words(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let clean: String =
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect();
    clean.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(status: u16, retry_after: Option<&str>) -> Confirm {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        confirm(StatusCode::from_u16(status).unwrap(), "because", retry_after, now)
    }

    fn class_of(status: u16) -> Option<ErrorClass> {
        match of(status, None) {
            Confirm::Refused { class, .. } => Some(class),
            _ => None,
        }
    }

    #[test]
    fn every_status_has_its_class() {
        for status in [200, 201, 202, 204] {
            assert_eq!(of(status, None), Confirm::Stored, "{status}");
        }
        for status in [502, 503, 504] {
            assert!(matches!(of(status, None), Confirm::Down { .. }), "{status}");
        }
        for status in [401, 403, 404, 408, 425, 429, 500] {
            assert_eq!(class_of(status), Some(ErrorClass::Transient), "{status}");
        }
        for status in [301, 307, 405, 409, 410] {
            assert_eq!(class_of(status), Some(ErrorClass::Permanent), "{status}");
        }
        for status in [400, 413, 422] {
            assert_eq!(class_of(status), Some(ErrorClass::Poison), "{status}");
        }
    }

    #[test]
    fn retry_after_is_honoured_in_both_forms_and_bounded() {
        let after = |value| match of(429, Some(value)) {
            Confirm::Refused { after, .. } => after,
            _ => None,
        };
        assert_eq!(after("7"), Some(Duration::from_secs(7)));
        assert_eq!(after("Sun, 06 Nov 1994 08:49:47 GMT"), Some(Duration::from_secs(10)));
        assert_eq!(after("Sun, 06 Nov 1994 08:49:00 GMT"), Some(Duration::ZERO));
        assert_eq!(after("99999999999"), Some(LONGEST_WAIT));
        assert_eq!(after("soon"), None);
    }

    #[test]
    fn a_body_is_shown_as_one_harmless_line() {
        assert_eq!(first_words(b"no\r\n  \x1b[31m such\xff thing"), "no [31m such\u{fffd} thing");
        assert!(first_words(&[b'x'; 5000]).len() <= 300);
    }
}
