//! Where the inbox's proof is gone, nothing is brought again unasked.
//!
//! What a subscription hands outside (to a broker, to an endpoint) may arrive twice; the consumer's inbox row says that
//! it was done. Retention deletes such rows in the end and notes up to when: the inbox's *horizon*. An event published
//! up to there may have been done without a trace, so a rewind or a replay that brings it again is refused.
//!
//! Not concerned:
//! - direct handlers. Their cursor is the inbox: a rewind repeats effects on purpose, a dead letter had none;
//! - edited copies. They have an id of their own, which no inbox ever met.
//!
//! The other half is retention's: inbox rows stay as long as anything published before is still on its way outside. So
//! what was allowed once does not lose its proof while it waits for its turn.

use super::DeadLetterId;
use crate::error::{Error, Kind};
use crate::event::EventId;
use chrono::{DateTime, SecondsFormat, Utc};

/// What becomes of a rewind or replay that reaches behind the inbox's horizon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unproven {
    /// It is refused, with [`Kind::ProofGone`].
    #[default]
    Refuse,
    /// It is carried out: whoever asks knows that effects may happen twice, or that consumers can bear it.
    Repeat,
}

/// The time by which a dead letter's event may have been met first. An edited copy has the time of its original, but an
/// id that nobody knew before it was made.
pub fn known_since(
    event: EventId,
    published_at: DateTime<Utc>,
    copy_of: Option<DeadLetterId>,
) -> DateTime<Utc> {
    copy_of.and_then(|_| event.time()).map_or(published_at, |made| made.max(published_at))
}

/// The refusal of a rewind that would bring `event` again.
pub fn no_rewind(event: EventId, published_at: DateTime<Utc>, horizon: DateTime<Utc>) -> Error {
    let (published, gone) = (second(published_at), second(horizon));
    let message = format!(
        "event {event}, published at {published}, would come again, but inbox rows up to {gone} are gone: a consumer that \
         did it before would do it twice. Rewind to a time after {gone}; or, if consumers can bear it, add \
         --even-if-done-before. A longer `inbox` under [retention] keeps proof for the next time"
    );
    Error::new(Kind::ProofGone, message)
}

/// The refusal of a replay, `letters` being those behind the horizon with the time of their publication.
pub fn no_replay(letters: &[(DeadLetterId, DateTime<Utc>)], horizon: DateTime<Utc>) -> Error {
    let gone = second(horizon);
    let named = match letters {
        [] => "something".to_owned(),
        [(id, at)] => format!("dead letter {id}, published at {},", second(*at)),
        [(id, at), others @ ..] => {
            format!("dead letter {id}, published at {}, and {} more", second(*at), others.len())
        }
    };
    let message = format!(
        "{named} would come again, but inbox rows up to {gone} are gone: a consumer that did it before would do it twice. \
         Replay others by their numbers, and archive what was done; or, if consumers can bear it, add \
         --even-if-done-before. A longer `inbox` under [retention] keeps proof for the next time"
    );
    Error::new(Kind::ProofGone, message)
}

fn second(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Secs, true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::Duration;

    #[test]
    fn a_refusal_names_what_why_and_the_ways_out() {
        let (at, gone) = (DateTime::UNIX_EPOCH, DateTime::UNIX_EPOCH + Duration::days(1));
        let event = EventId::fresh();
        let texts = [
            (no_rewind(event, at, gone), event.to_string()),
            (no_replay(&[(7, at)], gone), "dead letter 7, published".into()),
            (no_replay(&[(7, at), (9, gone)], gone), "and 1 more would come again".into()),
        ];
        for (error, named) in texts {
            assert_eq!(error.code(), "R0042");
            for part in [&*named, "1970-01-01T00:00:00Z", "up to 1970-01-02T00:00:00Z are gone"] {
                assert!(error.message().contains(part), "{part}: {error}");
            }
            assert!(error.message().contains("--even-if-done-before"), "{error}");
        }
    }

    #[test]
    fn an_edited_copy_is_known_only_since_it_was_made() {
        let (copy, long_ago) = (EventId::fresh(), DateTime::UNIX_EPOCH);
        assert_eq!(known_since(copy, long_ago, None), long_ago);
        assert!(known_since(copy, long_ago, Some(1)) > Utc::now() - Duration::minutes(5));
    }
}
