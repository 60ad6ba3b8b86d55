use crate::{Input, expect};
use relevo_core::broker::cloudevents::Binding;
use relevo_core::broker::{Foreign, Incoming, Tag, Take};
use relevo_core::limits::Limits;

/// Whatever a mapping names, a foreign message is an event within the limits, always the same one, or is told why not.
pub(crate) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let mut foreign = Foreign::default();
    foreign.id = takes(&mut input);
    foreign.source = takes(&mut input);
    foreign.topic = takes(&mut input);
    foreign.key = takes(&mut input);
    let mut message =
        Incoming::new(Tag(1), input.text(), input.field().unwrap_or_default().to_vec());
    (message.key, message.message_id) = (input.some_text(), input.some_text());
    message.headers = input.pairs();
    match message.event(&Binding::AMQP, &foreign) {
        Err(malformed) => expect::one_line(&malformed.to_string()),
        Ok(arrived) => {
            assert!(!arrived.id.is_empty());
            let again = message.event(&Binding::AMQP, &foreign).map(|again| again.event);
            assert_eq!(again.as_ref(), Ok(&arrived.event));
            let raw = message.raw(arrived.event.id);
            assert!(Limits::default().landing().check(&raw).is_ok(), "{raw:?}");
        }
    }
}

/// Two places to look at: a letter for which, then its name.
fn takes(input: &mut Input<'_>) -> Vec<Take> {
    (0..2).filter_map(|_| take(&input.text())).collect()
}

fn take(text: &str) -> Option<Take> {
    let kind = text.chars().next()?;
    let name = text[kind.len_utf8()..].to_owned();
    Some(match kind {
        'h' => Take::Header(name),
        'j' => Take::Json(name),
        'm' => Take::MessageId,
        'k' => Take::Key,
        'p' => Take::Position,
        't' => Take::Topic,
        _ => Take::Fixed(name),
    })
}
