use super::{event, stored};
use crate::Input;
use relevo_brokers::http::fuzzing::headers;

/// An event's headers are valid HTTP, and none of them can forge what belongs to the transport.
pub(crate) fn run(input: &[u8]) {
    let event = stored(event(&mut Input::new(input)));
    let headers = headers(&event, "shop");
    for (name, value) in &headers {
        assert!(value.bytes().all(|b| b == b' ' || b.is_ascii_graphic()), "{name}: {value:?}");
        assert!(name.bytes().all(|b| b.is_ascii_graphic() && !b.is_ascii_uppercase() && b != b':'));
    }
    let transport = ["host", "content-length", "transfer-encoding", "authorization", "connection"];
    assert!(!headers.iter().any(|(name, _)| transport.contains(&name.as_str())), "{headers:?}");
    assert!(!headers.iter().any(|(name, _)| name.starts_with("webhook-")), "{headers:?}");
    let get = |wanted: &str| {
        let all: Vec<&String> =
            headers.iter().filter(|(name, _)| name == wanted).map(|(_, value)| value).collect();
        assert!(all.len() < 2, "{wanted} twice");
        all.first().map(|value| value.as_str())
    };
    assert_eq!(get("ce-id"), Some(event.id.to_string().as_str()));
    assert_eq!(get("x-event-id"), get("ce-id"));
    assert_eq!(get("ce-specversion"), Some("1.0"));
}
