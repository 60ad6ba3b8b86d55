use crate::{Input, expect};
use relevo_brokers::{kafka, nats, rabbitmq};
use relevo_core::broker::cloudevents::Binding;
use relevo_core::broker::{Confirm, Foreign, Incoming, Tag};

/// Whatever a broker hands over is an event within the limits, or is told why not; whatever it answers is an answer.
pub(crate) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let (topic, payload) = (input.text(), input.field().unwrap_or_default());
    of_nats(&topic, payload);
    of_jetstream(payload);
    of_management(payload);
    of_kafka(&topic, payload, input);
    if let Some(message) = rabbitmq::fuzzing::incoming(&topic, payload, &input.pairs()) {
        judged(&message, &Binding::AMQP);
    }
}

/// The bytes as an answer, and as the headers of a message.
fn of_nats(topic: &str, bytes: &[u8]) {
    match nats::fuzzing::confirm(bytes) {
        Confirm::Stored => assert!(bytes.starts_with(b"{") || bytes[0].is_ascii_whitespace()),
        Confirm::Refused { error, .. } | Confirm::Unknown { error } | Confirm::Down { error } => {
            expect::one_line(&error);
        }
        other => panic!("{other:?}"),
    }
    let (headers, is_readable) = nats::fuzzing::headers(bytes);
    can_travel(&headers);
    assert!(is_readable || !bytes.is_empty());
    let mut message = Incoming::new(Tag(1), topic, bytes.to_vec());
    message.headers = headers;
    judged(&message, &Binding::NATS);
}

fn can_travel(headers: &[(String, String)]) {
    for (name, value) in headers {
        let graphic = name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':');
        assert!(graphic && !name.is_empty(), "{name:?}");
        assert!(!value.contains('\n'), "{name}: {value:?}");
    }
}

/// The bytes as what JetStream's interface answers: a stored message, a consumer's place, the name of a stream.
fn of_jetstream(bytes: &[u8]) {
    match nats::fuzzing::stored(bytes) {
        Ok(Some(message)) => {
            can_travel(&message.headers);
            judged(&message, &Binding::NATS);
        }
        Ok(None) => {}
        Err(error) => expect::error(&error),
    }
    match nats::fuzzing::unsettled(bytes) {
        Ok(looked_at) => {
            let (oldest, newest) = looked_at.into_inner();
            assert!(newest.saturating_sub(oldest) <= 1000, "from {oldest} to {newest}");
        }
        Err(error) => expect::error(&error),
    }
    if let Err(why) = nats::fuzzing::stream(bytes) {
        expect::one_line(&why);
    }
}

/// The bytes as what RabbitMQ's management API answers.
fn of_management(bytes: &[u8]) {
    match rabbitmq::fuzzing::bindings(bytes) {
        Ok(bindings) => assert!(bindings <= bytes.len() / 10, "{bindings} bindings"),
        Err(why) => expect::one_line(&why),
    }
}

/// Every header whose name can travel arrives, in its place.
fn of_kafka(topic: &str, payload: &[u8], mut input: Input<'_>) {
    let mut fields = Vec::new();
    while let Some(name) = input.field() {
        let name = String::from_utf8_lossy(name).into_owned();
        fields.push((name, input.field().unwrap_or_default()));
    }
    let (message, bytes) = kafka::fuzzing::incoming(topic, payload, &fields);
    let sent = fields.iter().map(|(name, _)| name).filter(|name| !name.contains('\0'));
    assert!(message.headers.iter().map(|(name, _)| name).eq(sent), "{:?}", message.headers);
    assert!(bytes >= payload.len() + topic.len());
    judged(&message, &Binding::KAFKA);
}

fn judged(message: &Incoming, binding: &Binding) {
    if let Err(malformed) = message.event(binding, &Foreign::default()) {
        expect::one_line(&malformed.to_string());
    }
}
