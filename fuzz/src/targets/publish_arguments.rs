use crate::{Input, expect};
use relevo_core::event::EventId;
use relevo_daemon::cli::fuzzing::{publish_event, start};

/// Whatever is typed after `relevo publish`: an event, or a reason.
pub(crate) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let (topic, header, content_type) = (input.text(), input.text(), input.some_text());
    let payload = input.rest();
    match publish_event(&topic, &header, content_type.as_deref(), payload) {
        Err(message) => expect::one_line(&message),
        Ok(event) => {
            assert_eq!((event.topic.as_str(), &event.payload[..]), (topic.as_str(), payload));
            let (name, value) = header.split_once('=').expect("NAME=VALUE was asked for");
            assert_eq!(event.headers.get(name), Some(value));
            let is_text = std::str::from_utf8(payload).is_ok();
            assert!(content_type.is_some() || is_text, "JSON is text");
        }
    }
    if let Err(error) = topic.parse::<EventId>() {
        expect::error(&error);
    }
    if let Err(message) = start(&header) {
        expect::one_line(&message);
    }
}
