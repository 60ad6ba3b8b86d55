use relevo_core::Headers;

/// Whatever a writer put there is read, and what was read is written and read again without a change.
pub(crate) fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let headers = Headers::from_json_text(&text);
    let written = headers.to_json();
    assert_eq!(Headers::from_json_text(&written), headers, "{written}");
    // A text that is no JSON at all is kept: nothing is lost silently.
    if serde_json::from_str::<serde_json::Value>(&text).is_err() {
        assert!(headers.iter().any(|(_, value)| value == text), "{text:?} was lost");
    }
    for (name, value) in headers.iter() {
        assert_eq!(headers.get(name), Some(value));
    }
}
