//! Events that landed in their consumer's own log: what failed, and what waits behind it.
//!
//! From there they are ordinary events of an ordinary subscription, the consumer's: retried, parked, dead-lettered,
//! replayed and explained like all others. They travel with what the handler answered, so that an attempt counts once.

use crate::error::ErrorClass;
use crate::event::{Event, NewEvent, TopicFilter, header};
use crate::inbox::effect::{Effect, TxDriver};
use crate::inbox::{Answer, Handler, Outcome};
use crate::mutant;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// So much of an error's text travels: headers are bounded.
const ERROR_BYTES: usize = 1000;

/// What was answered when the event came from the broker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Told {
    Skip(String),
    Failed { class: ErrorClass, error: String, after_ms: Option<u64> },
    Dead { class: ErrorClass, error: String },
}

/// The filter of a consumer's own subscription; nothing else passes it.
pub fn filter_of(consumer: &str) -> crate::error::Result<TopicFilter> {
    TopicFilter::parse(&format!("{}{consumer}", TopicFilter::INBOX))
}

/// The event as it goes into the consumer's log, where it will get an id of its own.
pub(super) fn land(consumer: &str, mut event: NewEvent, outcome: Option<&Outcome>) -> NewEvent {
    event.headers.set(header::INBOX, consumer);
    event.headers.set(header::INBOX_ID, event.id.to_string());
    if let Some(told) = outcome.and_then(header_of) {
        event.headers.set(header::INBOX_ANSWER, told);
    }
    event
}

/// What the header of a landed event says of an answer; nothing where the work is done.
pub(super) fn header_of(outcome: &Outcome) -> Option<String> {
    Told::of(outcome).map(|told| told.to_json())
}

/// The answer that such a header tells, if it tells one.
pub(super) fn answer_of(header: &str) -> Option<Outcome> {
    serde_json::from_str::<Told>(header).ok().map(Outcome::from)
}

/// The event as its publisher knew it.
fn original(landed: &Event) -> Event {
    let mut event = landed.clone();
    event.headers.remove(header::INBOX);
    event.headers.remove(header::INBOX_ANSWER);
    let id = event.headers.remove(header::INBOX_ID).and_then(|id| id.parse().ok());
    event.id = id.filter(|_| !mutant!(LandedUnderNewId)).unwrap_or(event.id);
    event
}

impl Told {
    fn of(outcome: &Outcome) -> Option<Self> {
        Some(match outcome {
            Outcome::Done => return None,
            Outcome::Skip { reason } => Self::Skip(short(reason)),
            Outcome::Failed { class, error, after } => {
                let after_ms = after.map(|after| after.as_millis().min(u64::MAX.into()) as u64);
                Self::Failed { class: *class, error: short(error), after_ms }
            }
            Outcome::Dead { class, error } => Self::Dead { class: *class, error: short(error) },
        })
    }

    /// Escaped to one line: a header's value has no control characters, and JSON leaves some of them as they are.
    fn to_json(&self) -> String {
        let mut escaped = String::new();
        for c in serde_json::to_string(self).unwrap_or_default().chars() {
            match c.is_control() {
                true => escaped.push_str(&format!("\\u{:04x}", u32::from(c))),
                false => escaped.push(c),
            }
        }
        escaped
    }
}

impl From<Told> for Outcome {
    fn from(told: Told) -> Self {
        match told {
            Told::Skip(reason) => Self::Skip { reason },
            Told::Failed { class, error, after_ms } => {
                Self::Failed { class, error, after: after_ms.map(Duration::from_millis) }
            }
            Told::Dead { class, error } => Self::Dead { class, error },
        }
    }
}

fn short(text: &str) -> String {
    let end = (0..=ERROR_BYTES.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text[..end.unwrap_or(0)].to_owned()
}

/// The consumer's handler, given landed events as their publisher knew them.
pub struct Landed<H>(Arc<H>);

impl<H> Landed<H> {
    /// Gives them to this handler.
    pub fn of(handler: Arc<H>) -> Self {
        Self(handler)
    }
}

impl<D: TxDriver, H: Handler<D>> Handler<D> for Landed<H> {
    async fn handle(&self, event: &Event, effect: &mut Effect<'_, D>) -> Answer {
        self.0.handle(&original(event), effect).await
    }

    fn slow(&self) -> bool {
        self.0.slow()
    }

    fn limit(&self) -> Duration {
        self.0.limit()
    }

    fn answered_before(&self, event: &Event) -> Option<Outcome> {
        answer_of(event.headers.get(header::INBOX_ANSWER)?)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
    use super::*;
    use crate::event::EventId;
    use chrono::Utc;

    fn told(landed: &NewEvent) -> Option<Outcome> {
        answer_of(landed.headers.get(header::INBOX_ANSWER)?)
    }

    #[test]
    fn what_landed_comes_back_as_its_publisher_knew_it() {
        let event = NewEvent::bytes("a.b", b"x".to_vec()).key("k").header("own", "1");
        let failed = Outcome::Failed {
            class: ErrorClass::Unknown,
            error: "line\nbreak \u{1b}".into(),
            after: Some(Duration::from_secs(2)),
        };
        let landed = land("mailer", event.clone(), Some(&failed));
        assert!(crate::limits::Limits::default().landing().check(&landed).is_ok());
        assert_eq!(told(&landed), Some(failed));
        let back = original(&Event::stored(landed.id(EventId::fresh()), Utc::now()));
        assert_eq!((back.id, back.headers), (event.id, event.headers));
    }

    #[test]
    fn an_error_of_any_characters_travels() {
        let error: String = (0..=0x9f_u32).filter_map(char::from_u32).collect();
        let dead = Outcome::Dead { class: ErrorClass::Permanent, error };
        let landed = land("mailer", NewEvent::bytes("a.b", vec![]), Some(&dead));
        assert!(crate::limits::Limits::default().landing().check(&landed).is_ok());
        assert_eq!(told(&landed), Some(dead));
    }

    #[test]
    fn every_answer_travels_and_a_long_error_is_cut_at_a_character() {
        let dead = |error: String| Outcome::Dead { class: ErrorClass::Permanent, error };
        let skip = Outcome::Skip { reason: "not ours".into() };
        for outcome in [skip, dead("no".into())] {
            let landed = land("c", NewEvent::bytes("a", vec![]), Some(&outcome));
            assert_eq!(told(&landed), Some(outcome));
        }
        let landed = land("c", NewEvent::bytes("a", vec![]), Some(&dead("€".repeat(1000))));
        assert_eq!(told(&landed), Some(dead("€".repeat(ERROR_BYTES / 3))));
        assert_eq!(told(&land("c", NewEvent::bytes("a", vec![]), None)), None);
    }
}
