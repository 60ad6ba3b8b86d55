use super::mapping::{Mapping, TopicFrom};
use super::rows::{RawRow, event_id, key_of};
use crate::dead_letters::{Answer, OpenTransaction, Why};
use crate::event::{lane_of, order_key};
use crate::outbox::MemberNote;
use chrono::{DateTime, Utc};

/// What a store sees of a row of an adopted table that is no event of its log.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RowSeen {
    /// What became of it, if it is done with.
    pub ended: Option<Why>,
    /// The subscription that relays the table, and who paused it.
    pub subscription: Option<(String, Option<String>)>,
    /// The relay last heard of: its name, for how many seconds it has been silent, and what it says of itself.
    pub relay: Option<(String, f64, MemberNote)>,
    /// When it may be claimed, if that is later than now.
    pub not_before: Option<DateTime<Utc>>,
    /// Who holds it locked.
    pub locked_by: Vec<OpenTransaction>,
    /// A row of its key that comes first and is locked.
    pub behind: Option<String>,
    /// Rows that are claimed before it.
    pub before: i64,
    /// There are more than those.
    pub more_before: bool,
}

impl RowSeen {
    /// More rows that come first are not counted.
    pub const MOST_BEFORE: i64 = 100_000;

    /// What became of a row that looks pending, as the state of its claim tells beside it.
    pub fn by_claim(state: Option<&str>, at: Option<DateTime<Utc>>) -> Why {
        match state {
            Some("published") => Why::Marked { at },
            Some("dead") => Why::GivenUp,
            _ => Why::Taken,
        }
    }

    /// The answer for a row of the table adopted under this name.
    pub fn answer<I>(self, adoption: &str, mapping: &Mapping, row: &RawRow<I>) -> Answer {
        let key = key_of(mapping, row);
        let lane = lane_of(&order_key(key.as_deref(), event_id(adoption, &row.id)));
        let topic = match &mapping.topic {
            TopicFrom::Always(topic) => Some(topic.clone()),
            TopicFrom::Column { prefix } => row.topic.as_ref().map(|own| format!("{prefix}{own}")),
        };
        Answer::InTable {
            adoption: adoption.to_owned(),
            table: mapping.table.to_string(),
            row: row.id.clone(),
            topic,
            key,
            created_at: row.created_at,
            subscription: self.subscription.as_ref().map(|(name, _)| name.clone()),
            why: self.why(lane),
        }
    }

    /// The answer for a row that is in its owner's table of dead letters.
    pub fn buried(adoption: &str, mapping: &Mapping, row: String, table: String) -> Answer {
        Answer::InTable {
            adoption: adoption.to_owned(),
            table: mapping.table.to_string(),
            row,
            topic: None,
            key: None,
            created_at: None,
            subscription: None,
            why: Why::Buried { table },
        }
    }

    /// What keeps it, beginning with what a person would have to change.
    fn why(self, lane: u16) -> Why {
        if let Some(ended) = self.ended {
            return ended;
        }
        let Some((_, paused)) = self.subscription else { return Why::NotRelayed };
        if let Some(by) = paused {
            return Why::Paused { by, then: None };
        }
        let Some((relay, silent_s, note)) = self.relay else { return Why::NobodyWorks { lane } };
        if let Some(until) = self.not_before {
            return Why::NotDue { until };
        }
        if !self.locked_by.is_empty() {
            return Why::RowLocked { by: self.locked_by };
        }
        if let Some(row) = self.behind {
            return Why::BehindRow { row };
        }
        match note.breaker_after(silent_s) {
            Some(open) => Why::BreakerOpen { reason: open.reason, open_s: open.open_s },
            None => Why::Unclaimed { relay, silent_s, before: self.before, more: self.more_before },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::OpenBreaker;

    /// Everything at once; each test takes away what comes first.
    fn troubled() -> RowSeen {
        let breaker = Some(OpenBreaker { reason: "refused".into(), open_s: 1.0 });
        let note = MemberNote { breaker, ..MemberNote::default() };
        let session = OpenTransaction::new(1, "app".into(), 2.0, "idle".into(), "SELECT".into());
        RowSeen {
            ended: Some(Why::Marked { at: None }),
            subscription: None,
            relay: None,
            not_before: Some(Utc::now()),
            locked_by: vec![session],
            behind: Some("r-1".into()),
            before: 7,
            more_before: true,
        }
        .with_note(note)
    }

    impl RowSeen {
        fn with_note(mut self, note: MemberNote) -> Self {
            self.relay = Some(("one".into(), 0.5, note));
            self
        }
    }

    #[test]
    fn only_what_was_published_is_said_to_be_delivered() {
        let why = |state| RowSeen::by_claim(Some(state), None);
        assert_eq!(why("published"), Why::Marked { at: None });
        assert_eq!(why("dead"), Why::GivenUp);
        assert_eq!(why("claimed"), Why::Taken);
    }

    #[test]
    fn what_a_person_would_have_to_change_is_told_first() {
        let mut seen = troubled();
        let mut told = Vec::new();
        let mut tell = |seen: &RowSeen| {
            let why = serde_json::to_value(seen.clone().why(3)).unwrap();
            told.push(why["state"].as_str().unwrap().to_owned());
        };
        tell(&seen);
        seen.ended = None;
        tell(&seen);
        seen.subscription = Some(("s".into(), Some("ana".into())));
        tell(&seen);
        seen.subscription = Some(("s".into(), None));
        let relay = seen.relay.take();
        tell(&seen);
        seen.relay = relay;
        tell(&seen);
        seen.not_before = None;
        tell(&seen);
        seen.locked_by.clear();
        tell(&seen);
        seen.behind = None;
        tell(&seen);
        let seen = seen.with_note(MemberNote::default());
        assert_eq!(
            seen.clone().why(3),
            Why::Unclaimed { relay: "one".into(), silent_s: 0.5, before: 7, more: true }
        );
        assert_eq!(
            told,
            [
                "marked",
                "not_relayed",
                "paused",
                "nobody_works",
                "not_due",
                "row_locked",
                "behind_row",
                "breaker_open"
            ]
        );
    }
}
