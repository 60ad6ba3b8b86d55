//! Why an event is where it is.

use super::db::Db;
use super::lanes::SubscriptionRow;
use super::log::LogRow;
use super::record::{DeadRow, RefRow};
use relevo_core::dead_letters::{Answer, DeadState, OpenTransaction, Why};
use relevo_core::event::{EventId, TopicFilter, header};
use relevo_core::outbox::{LEFT_OUT, LaneId, MemberNote, Moved, Position, TickRef, Window};
use std::sync::Arc;

/// An event's place, as far as the log still has it.
struct Place<'a> {
    id: EventId,
    key: String,
    lane: u16,
    topic: &'a str,
    /// The consumer whose log it landed in.
    inbox: Option<&'a str>,
    row: Option<(i64, &'a LogRow)>,
}

impl Db {
    /// Why is this event where it is?
    pub fn why(&self, id: EventId) -> Answer {
        let row = self
            .log
            .iter()
            .find(|(_, row)| row.event.id == id && row.committed)
            .map(|(seq, row)| (*seq, row));
        let kept = || {
            self.parked_refs.values().find(|row| row.id == id).and_then(|row| row.event.as_ref())
        };
        let dead =
            || self.dead_letters.values().find(|row| row.event.id == id).map(|row| &row.event);
        let Some(event) = row.map(|(_, row)| &row.event).or_else(kept).or_else(dead) else {
            return Answer::Unknown {
                suspects: self.suspects(),
                past_retention: self.dropped_up_to.is_some_and(|last| id <= last),
            };
        };
        let key = event.order_key();
        let place = Place {
            id,
            lane: relevo_core::event::lane_of(&key),
            key,
            topic: &event.topic,
            inbox: event.headers.get(header::INBOX),
            row,
        };
        Answer::Known {
            topic: event.topic.clone(),
            key: event.key.clone(),
            lane: place.lane,
            seq: row.map(|(seq, _)| seq),
            created_at: event.created_at,
            subscriptions: self
                .subscriptions
                .iter()
                .map(|(name, about)| (name.to_string(), self.why_for(name, about, &place)))
                .collect(),
        }
    }

    fn suspects(&self) -> Vec<OpenTransaction> {
        let open = self.transactions.iter().filter(|(_, transaction)| transaction.xid.is_some());
        open.map(|(tx, transaction)| {
            let what = format!(
                "{} events, {} other writes",
                transaction.rows.len(),
                transaction.writes.len()
            );
            OpenTransaction::new(
                tx.0 as i32,
                "this process".into(),
                0.0,
                "idle in transaction".into(),
                what,
            )
        })
        .collect()
    }

    fn why_for(&self, name: &Arc<str>, about: &SubscriptionRow, place: &Place<'_>) -> Why {
        let lane = LaneId { subscription: name.clone(), lane: place.lane };
        if let Some(why) = self.exception(&lane, place) {
            return why.while_paused(about.paused.as_deref());
        }
        if !TopicFilter::any_wants(&about.about.topics, place.topic, place.inbox) {
            return Why::FilteredOut {
                topics: about.about.topics.iter().map(ToString::to_string).collect(),
            };
        }
        // What the log no longer has, every cursor is past.
        let Some((seq, row)) = place.row else { return Why::Delivered };
        if about.started_at.has_decided(seq, row.xid) && about.started_at.tick != TickRef::default()
        {
            return Why::BeforeStart;
        }
        let Some(cursor) = self.cursors.get(&lane) else {
            return Why::NobodyWorks { lane: place.lane };
        };
        if self.is_decided(cursor.position, seq, row) {
            let moves = self.moves.iter().filter(|(of, _)| *of == lane).map(|(_, moved)| moved);
            return match Moved::left_out(moves, seq, row.xid) {
                true => Why::Skipped { reason: LEFT_OUT.to_owned() },
                false => Why::Delivered,
            };
        }
        self.why_undecided(&lane, about, row)
    }

    /// Parked, dead or skipped: the exceptions are rows.
    fn exception(&self, lane: &LaneId, place: &Place<'_>) -> Option<Why> {
        let refs: Vec<&RefRow> = self.refs(lane, &place.key).map(|(_, _, row)| row).collect();
        if let Some(before) = refs.iter().position(|row| row.id == place.id) {
            let parked = self.parked_keys.get(&(lane.clone(), place.key.clone()))?;
            let (due, error) = (parked.due, parked.error.clone());
            if let Some(held) = due.is_none().then(|| self.held(lane, &place.key, before)).flatten()
            {
                return Some(held);
            }
            return Some(match before {
                0 => Why::Parked {
                    attempts: parked.attempts,
                    due,
                    class: parked.class.to_string(),
                    error,
                },
                before => {
                    Why::ParkedBehind { event: refs[0].id, before: before as i64, due, error }
                }
            });
        }
        let letter = self
            .dead_letters
            .iter()
            .rev()
            .find(|(_, row)| row.event.id == place.id && row.lane == *lane);
        if let Some((id, row)) = letter.filter(|(_, row)| row.state != DeadState::Replayed) {
            let (class, error) = (row.class.to_string(), row.error.clone());
            return Some(Why::Dead {
                dead_letter: *id,
                dead_state: row.state.as_str().into(),
                class,
                error,
            });
        }
        let skip =
            self.skips.iter().rev().find(|skip| skip.event == place.id && skip.lane == *lane);
        skip.map(|skip| Why::Skipped { reason: skip.reason.clone() })
    }

    /// The dead letter that holds a key until a person decides.
    fn held(&self, lane: &LaneId, key: &str, before: usize) -> Option<Why> {
        let waits = |row: &DeadRow| matches!(row.state, DeadState::Dead | DeadState::Requested);
        let holds = |row: &DeadRow| row.lane == *lane && row.at.key == key && waits(row);
        let (id, row) = self.dead_letters.iter().rev().find(|(_, row)| holds(row))?;
        Some(Why::Held {
            dead_letter: *id,
            event: row.event.id,
            before: before as i64,
            class: row.class.to_string(),
            error: row.error.clone(),
        })
    }

    pub(super) fn is_decided(&self, position: Position, seq: i64, row: &LogRow) -> bool {
        let Ok(from) = self.tick(position.from) else { return false };
        let window = position
            .to
            .and_then(|to| self.tick(to).ok())
            .and_then(|to| Window::between(&from, &to).ok());
        from.has_decided(seq, row.xid)
            || window.is_some_and(|window| seq <= position.seq && window.contains(seq, row.xid))
    }

    fn why_undecided(&self, lane: &LaneId, about: &SubscriptionRow, row: &LogRow) -> Why {
        if let Some(by) = &about.paused {
            return Why::Paused { by: by.clone(), then: None };
        }
        let owner = self.cursors.get(lane).and_then(|cursor| cursor.owner.clone());
        let Some(owner) = owner else { return Why::NobodyWorks { lane: lane.lane } };
        let Some(member) = self.members.get(&(lane.subscription.clone(), owner.clone())) else {
            return Why::NobodyWorks { lane: lane.lane };
        };
        let note: serde_json::Value = serde_json::from_str(&member.note).unwrap_or_default();
        let silent_s = (self.now - member.at).num_milliseconds() as f64 / 1000.0;
        if let Some(it) = MemberNote::read(&note).breaker_after(silent_s) {
            return Why::BreakerOpen { reason: it.reason, open_s: it.open_s };
        }
        if !self.newest_tick().snapshot.sees(row.xid) {
            return Why::WaitsForTick;
        }
        Why::LaneLeased { lane: lane.lane, owner: owner.to_string(), silent_s }
    }
}
