//! One file for each decoder; `run` panics if a promise is broken.

pub(crate) mod adopted_row;
pub(crate) mod broker_messages;
pub(crate) mod broker_urls;
pub(crate) mod cloudevents;
pub(crate) mod config;
pub(crate) mod dead_letter_edit;
pub(crate) mod doorbell;
pub(crate) mod duration;
pub(crate) mod event_limits;
pub(crate) mod foreign;
pub(crate) mod headers;
pub(crate) mod http_answer;
pub(crate) mod http_headers;
pub(crate) mod publish_arguments;
pub(crate) mod snapshot;
pub(crate) mod sqlite_row;
pub(crate) mod stored_json;
pub(crate) mod terminal;
pub(crate) mod topic_filter;
pub(crate) mod urls;

use crate::Input;
use relevo_core::event::EventId;
use relevo_core::{Event, NewEvent};

/// Topic, key, payload and headers from the fields of an input; the id and the time are always the same.
fn event(input: &mut Input<'_>) -> NewEvent {
    let (topic, key) = (input.text(), input.some_text());
    let payload = input.field().unwrap_or_default().to_vec();
    let mut event = NewEvent::bytes(topic, payload).id(EventId(uuid::Uuid::from_u128(7)));
    event.key = key;
    event.headers = input.pairs().into_iter().collect();
    event
}

fn stored(event: NewEvent) -> Event {
    Event::stored(event, chrono::DateTime::UNIX_EPOCH)
}
