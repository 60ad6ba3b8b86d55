//! Events that landed in their consumer's own log: what failed, and what waits behind it.
//!
//! From there they are ordinary events of an ordinary subscription, the consumer's: retried, parked, dead-lettered,
//! replayed and explained like all others. They travel with what the handler answered, so that an attempt counts once.

use crate::error::{Error, ErrorClass, Kind, Result};
use crate::event::{Event, Headers, NewEvent, TopicFilter, header};
use crate::inbox::effect::{Effect, TxDriver};
use crate::inbox::{Answer, Handler, Outcome};
use crate::limits::Limits;
use crate::mutant;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use uuid::fmt::Hyphenated;

/// So much of an error's text travels, where the event's own headers leave room for it.
const ERROR_BYTES: usize = 1000;

/// No answer takes more without its text.
const BARE: &str = r#"{"failed":{"class":"permanent","error":"","after_ms":18446744073709551615}}"#;

/// What landing adds to an event's headers at least, beside its consumer's name.
const LANDING_BYTES: usize = header::INBOX.len()
    + header::INBOX_ID.len()
    + Hyphenated::LENGTH
    + header::INBOX_ANSWER.len()
    + BARE.len();

/// What was answered when the event came from the broker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Told {
    Skip(String),
    Failed { class: ErrorClass, error: String, after_ms: Option<u64> },
    Dead { class: ErrorClass, error: String },
}

/// The filter of a consumer's own subscription; nothing else passes it.
pub fn filter_of(consumer: &str) -> Result<TopicFilter> {
    TopicFilter::parse(&format!("{}{consumer}", TopicFilter::INBOX))
}

/// Refuses an event whose headers leave no room to land. That is decided before anybody works on it: an event that was
/// handed over and then could not land would lose its retries, and what follows in its key would overtake it.
pub(super) fn has_room(consumer: &str, event: &Event) -> Result<()> {
    let bytes = bytes_of(&event.headers);
    let most = Limits::default().headers_bytes.saturating_sub(consumer.len() + LANDING_BYTES);
    if bytes <= most {
        return Ok(());
    }
    let why = format!(
        "the headers have {bytes} bytes together, the limit is {most} for what may have to wait in the log of a consumer"
    );
    Err(Error::new(Kind::InvalidHeaders, why))
}

fn bytes_of(headers: &Headers) -> usize {
    headers.iter().map(|(name, value)| name.len() + value.len()).sum()
}

/// The event as it goes into the consumer's log, where it will get an id of its own.
pub(super) fn land(consumer: &str, mut event: NewEvent, outcome: Option<&Outcome>) -> NewEvent {
    event.headers.set(header::INBOX, consumer);
    event.headers.set(header::INBOX_ID, event.id.to_string());
    let taken = bytes_of(&event.headers) + header::INBOX_ANSWER.len();
    let room = Limits::default().headers_bytes.saturating_sub(taken);
    if let Some(told) = outcome.and_then(|outcome| header_of(outcome, room)) {
        event.headers.set(header::INBOX_ANSWER, told);
    }
    event
}

/// What the header of a landed event says of an answer, with as much of its text as there is room for in bytes; nothing
/// where the work is done.
pub(super) fn header_of(outcome: &Outcome, room: usize) -> Option<String> {
    let bare = Told::of(outcome, 0)?.to_json();
    let told = Told::of(outcome, room.saturating_sub(bare.len()))?;
    Some(told.to_json())
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
    /// The answer; its text takes at most so many bytes as [`Self::to_json`] writes it.
    fn of(outcome: &Outcome, room: usize) -> Option<Self> {
        Some(match outcome {
            Outcome::Done => return None,
            Outcome::Skip { reason } => Self::Skip(short(reason, room)),
            Outcome::Failed { class, error, after } => {
                let after_ms = after.map(|after| after.as_millis().min(u64::MAX.into()) as u64);
                Self::Failed { class: *class, error: short(error, room), after_ms }
            }
            Outcome::Dead { class, error } => {
                Self::Dead { class: *class, error: short(error, room) }
            }
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

/// The beginning of a text, at most so many bytes when it is written.
fn short(text: &str, room: usize) -> String {
    let mut left = room;
    let fits = |(start, c): &(usize, char)| {
        let after = left.checked_sub(written(*c));
        left = after.unwrap_or_default();
        after.is_some() && start + c.len_utf8() <= ERROR_BYTES
    };
    text.char_indices().take_while(fits).map(|(_, c)| c).collect()
}

/// How many bytes [`Told::to_json`] makes of a character.
fn written(c: char) -> usize {
    match c {
        '"' | '\\' | '\u{8}' | '\t' | '\n' | '\u{c}' | '\r' => 2,
        c if c.is_control() => 6,
        c => c.len_utf8(),
    }
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
        assert!(Limits::default().landing().check(&landed).is_ok());
        assert_eq!(told(&landed), Some(failed));
        let back = original(&Event::stored(landed.id(EventId::fresh()), Utc::now()));
        assert_eq!((back.id, back.headers), (event.id, event.headers));
    }

    #[test]
    fn an_error_of_any_characters_travels() {
        let error: String = (0..=0x9f_u32).filter_map(char::from_u32).collect();
        let dead = Outcome::Dead { class: ErrorClass::Permanent, error };
        let landed = land("mailer", NewEvent::bytes("a.b", vec![]), Some(&dead));
        assert!(Limits::default().landing().check(&landed).is_ok());
        assert_eq!(told(&landed), Some(dead));
    }

    /// With so many bytes of headers.
    fn laden(bytes: usize) -> NewEvent {
        NewEvent::bytes("a.b", vec![]).header("x", "v".repeat(bytes - 1))
    }

    #[test]
    fn of_an_error_as_much_travels_as_the_events_own_headers_leave_room_for() {
        let limits = Limits::default().landing();
        let most = limits.headers_bytes - "mailer".len() - LANDING_BYTES;
        let mixed: String = (0..=0x9f_u32).filter_map(char::from_u32).chain(['€']).collect();
        for error in ["\u{1b}".repeat(1000), mixed.repeat(5)] {
            for bytes in [12 << 10, 13 << 10, 15 << 10, most - 500, most - 1, most] {
                let (class, after) = (ErrorClass::Transient, Some(Duration::from_secs(1)));
                let failed = Outcome::Failed { class, error: error.clone(), after };
                let landed = land("mailer", laden(bytes), Some(&failed));
                assert!(limits.check(&landed).is_ok(), "{bytes}");
                let Some(Outcome::Failed { error: told, after: Some(_), .. }) = told(&landed)
                else {
                    panic!("{landed:?}")
                };
                assert!(error.starts_with(&told), "{told:?}");
                let left = limits.headers_bytes - bytes_of(&landed.headers);
                assert!(told == error || left < 6, "{left} of {bytes} are left after {told:?}");
            }
        }
    }

    #[test]
    fn what_has_no_room_for_the_longest_answer_without_its_text_does_not_begin() {
        let most = Limits::default().headers_bytes - "mailer".len() - LANDING_BYTES;
        let room = |bytes| has_room("mailer", &Event::stored(laden(bytes), Utc::now()));
        assert!(room(most).is_ok());
        assert_eq!(room(most + 1).unwrap_err().kind(), Kind::InvalidHeaders);
        let mut longest = 0;
        for class in ErrorClass::ALL {
            let error = "no".to_owned();
            let after = Some(Duration::MAX);
            let failed = Outcome::Failed { class, error: error.clone(), after };
            let skip = Outcome::Skip { reason: error.clone() };
            for outcome in [failed, Outcome::Dead { class, error }, skip] {
                longest = longest.max(header_of(&outcome, 0).unwrap().len());
                let landed = land("mailer", laden(most), Some(&outcome));
                assert!(Limits::default().landing().check(&landed).is_ok(), "{outcome:?}");
            }
        }
        assert_eq!(longest, BARE.len());
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
