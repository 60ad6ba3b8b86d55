use super::{event, stored};
use crate::{Input, expect};
use relevo_core::Event;
use relevo_core::broker::cloudevents::{Binding, decode, encode, owned, write};
use relevo_core::broker::{Foreign, Incoming, Tag};
use relevo_core::event::header;
use relevo_core::limits::Limits;

const BINDINGS: [Binding; 4] = [Binding::HTTP, Binding::NATS, Binding::KAFKA, Binding::AMQP];

/// Any message is an event within the limits or is told why not; and an event comes back as it was sent.
pub(crate) fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    assert_eq!(decode(&encode(&text, true)), text);
    assert!(encode(&text, true).chars().all(|c| c.is_ascii_graphic()));
    for binding in &BINDINGS {
        any_message(&mut Input::new(input), binding);
    }
    let mut event = event(&mut Input::new(input));
    event.headers.set(header::SOURCE, "shop");
    if Limits::default().check(&event).is_ok() {
        let event = stored(event);
        BINDINGS.iter().for_each(|binding| comes_back(&event, binding));
    }
}

fn any_message(input: &mut Input<'_>, binding: &Binding) {
    let mut message =
        Incoming::new(Tag(1), input.text(), input.field().unwrap_or_default().to_vec());
    message.message_id = input.some_text();
    message.headers = input.pairs();
    match message.event(binding, &Foreign::default()) {
        Err(malformed) => expect::one_line(&malformed.to_string()),
        Ok(arrived) => {
            let again = message.event(binding, &Foreign::default());
            assert_eq!(again.map(|again| again.event.id), Ok(arrived.event.id));
        }
    }
}

fn comes_back(event: &Event, binding: &Binding) {
    let mut message = Incoming::new(Tag(1), "queue", event.payload.clone());
    message.content_type = event.headers.get(header::CONTENT_TYPE).map(str::to_owned);
    message.headers = owned(write(event, "other", binding));
    for (name, value) in &message.headers {
        assert!(!value.chars().any(char::is_control), "{name}: {value:?}");
        assert!(!binding.ascii || value.is_ascii(), "{name}: {value:?}");
    }
    let arrived = match message.event(binding, &Foreign::default()) {
        Ok(arrived) => arrived.event,
        // Encoded it may be longer than a header may be.
        Err(malformed) => return expect::one_line(&malformed.to_string()),
    };
    assert_eq!((arrived.id, &arrived.payload), (event.id, &event.payload));
    assert_eq!((&arrived.topic, &arrived.key), (&event.topic, &event.key), "{binding:?}");
    for (name, value) in event.headers.iter().filter(|(name, _)| header::is_reserved(name)) {
        let attribute =
            !matches!(name, header::CONTENT_TYPE | header::TRACEPARENT | header::TRACESTATE);
        let plain = !value.chars().any(char::is_control);
        if binding.encoded && attribute || plain && !binding.ascii {
            assert_eq!(arrived.headers.get(name), Some(value), "{name} by {binding:?}");
        }
    }
}
