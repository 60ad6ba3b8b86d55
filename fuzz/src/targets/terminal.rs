use super::{event, stored};
use crate::Input;
use relevo_daemon::cli::fuzzing::{as_json, as_text, is_hostile};

/// An event on a terminal obeys nobody, and as JSON it is one line that has everything in it.
pub(crate) fn run(input: &[u8]) {
    let event = stored(event(&mut Input::new(input)));
    for shown in as_text(&event) {
        let hostile = shown.chars().find(|c| is_hostile(*c) && *c != '\n');
        assert_eq!(hostile, None, "{shown:?}");
    }
    let json = as_json(&event);
    assert!(!json.contains(['\n', '\r']), "{json:?}");
    let read: serde_json::Value = match serde_json::from_str(&json) {
        Ok(read) => read,
        // A payload's number may be larger than any that this reader knows; it stays as it was written.
        Err(_) => {
            return assert!(serde_json::from_slice::<serde_json::Value>(&event.payload).is_err());
        }
    };
    assert_eq!(read["topic"], event.topic.as_str());
    assert_eq!(read["key"].as_str(), event.key.as_deref());
    for (name, value) in event.headers.iter() {
        assert_eq!(read["headers"][name], value);
    }
    let forms = ["payload", "payload_text", "payload_base64"];
    assert_eq!(forms.iter().filter(|form| read.get(*form).is_some()).count(), 1, "{json}");
    if let Some(text) = read.get("payload_text").and_then(|text| text.as_str()) {
        assert_eq!(text.as_bytes(), &event.payload[..]);
    }
}
