//! What commands read and show, as plain functions for the project's fuzz targets. No part of the API.

use super::dead_letters::{change::Content, edit};
use super::failure::{Failure, Outcome};
use super::{publish, show};
use crate::config::parse_start;
use relevo_core::limits::Limits;
use relevo_core::{Event, Headers, NewEvent};

fn told<T>(outcome: Outcome<T>) -> Result<T, String> {
    outcome.map_err(|failure| match failure {
        Failure::Error(error) => error.to_string(),
        Failure::NotConfirmed(what) => what,
        Failure::PipeClosed => String::new(),
    })
}

/// A dead letter as an editor gets it.
pub fn edit_written(headers: &Headers, payload: &[u8]) -> Result<String, String> {
    told(edit::for_editor(&Content { payload: payload.to_vec(), headers: headers.clone() }))
}

/// What an editor left: headers and payload.
pub fn edit_read(text: &str) -> Result<(Headers, Vec<u8>), String> {
    told(edit::parse(text)).map(|content| (content.headers, content.payload))
}

/// May an edited copy be replayed?
pub fn edit_check(topic: &str, headers: &Headers, payload: &[u8]) -> Result<(), String> {
    let after = Content { payload: payload.to_vec(), headers: headers.clone() };
    told(edit::check(topic, &after, &Limits::default()))
}

/// The event that `relevo publish` would publish.
pub fn publish_event(
    topic: &str,
    header: &str,
    content_type: Option<&str>,
    payload: &[u8],
) -> Result<NewEvent, String> {
    let header = publish::header(header)?;
    let event =
        told(publish::event(topic.to_owned(), payload.to_vec(), content_type.map(str::to_owned)))?;
    Ok(event.header(header.0, header.1))
}

/// Where a subscription begins.
pub fn start(text: &str) -> Result<(), String> {
    parse_start(text).map(|_| ())
}

/// Every way in which a terminal shows an event.
pub fn as_text(event: &Event) -> Vec<String> {
    vec![
        show::escaped(&event.topic),
        show::key(event.key.as_deref()),
        show::payload_line(event),
        show::payload_lines(event),
        show::cut(&show::payload_line(event), 40),
    ]
}

/// An event as `--json` shows it.
pub fn as_json(event: &Event) -> String {
    serde_json::to_string(&show::EventView::of(event, Some(1))).unwrap_or_default()
}

/// Would a terminal obey this character?
pub fn is_hostile(c: char) -> bool {
    show::is_hostile(c)
}
