//! The inbox's horizon: up to when its rows are gone, which of them are still needed, and what is refused behind it.

use super::db::Db;
use super::log::LogRow;
use chrono::{DateTime, Utc};
use relevo_core::Result;
use relevo_core::dead_letters::proof::{known_since, no_replay, no_rewind};
use relevo_core::dead_letters::{DeadFilter, DeadLetterId, DeadState};
use relevo_core::event::{TopicFilter, header};
use relevo_core::outbox::{LaneId, Start};
use std::time::Duration;

impl Db {
    /// Forgets inbox rows that are old enough, but none that something on its way outside may need; notes up to when.
    pub(super) fn forget_inbox(&mut self, keep: Duration) {
        let keep = chrono::Duration::from_std(keep).unwrap_or(chrono::Duration::MAX);
        let now = self.now;
        let old = |at: DateTime<Utc>| now - at > keep;
        if !self.inbox.values().any(|at| old(*at)) {
            return;
        }
        let needed = self.needed_since();
        let gone = |at: DateTime<Utc>| old(at) && needed.is_none_or(|since| at < since);
        let newest = self.inbox.values().copied().filter(|at| gone(*at)).max();
        self.inbox.retain(|_, at| !gone(*at));
        self.inbox_gone_until = self.inbox_gone_until.max(newest);
    }

    /// The publication of the oldest event that is still on its way outside: no copy of it was met before.
    fn needed_since(&self) -> Option<DateTime<Utc>> {
        let unread = self.rows_after(0).filter(|(seq, row)| self.goes_outside(*seq, row));
        let parked = self.parked_refs.iter().filter(|((lane, ..), _)| self.is_outside(lane));
        let parked = parked.filter_map(|((_, _, _, seq, _), row)| {
            row.event.as_ref().or_else(|| self.log.get(seq).map(|row| &row.event))
        });
        let asked = self.dead_letters.values();
        let asked = asked.filter(|row| row.is_requested() && self.is_outside(&row.lane));
        let events = unread.map(|(_, row)| &row.event).chain(parked);
        events.chain(asked.map(|row| &row.event)).map(|event| event.created_at).min()
    }

    fn is_outside(&self, lane: &LaneId) -> bool {
        self.subscriptions.get(&lane.subscription).is_some_and(|row| row.about.outside)
    }

    /// Has a subscription to the outside still to decide this row?
    fn goes_outside(&self, seq: i64, row: &LogRow) -> bool {
        let outside = self.subscriptions.iter().filter(|(_, known)| known.about.outside);
        outside.map(|(name, _)| LaneId { subscription: name.clone(), lane: row.lane }).any(|lane| {
            self.cursors
                .get(&lane)
                .is_some_and(|cursor| !self.is_decided(cursor.position, seq, row))
        })
    }

    /// Refuses a rewind that would bring again what the inbox may have forgotten.
    pub fn prove_rewind(&mut self, subscription: &str, to: Start) -> Result<()> {
        let known = self.subscription(subscription)?;
        let (outside, topics) = (known.about.outside, known.about.topics.clone());
        let Some(horizon) = self.inbox_gone_until.filter(|_| outside && to != Start::Now) else {
            return Ok(());
        };
        let tick = self.start_tick(to, 0)?;
        let unproven = self.rows_after(0).find(|(seq, row)| {
            row.event.created_at <= horizon
                && !tick.has_decided(*seq, row.xid)
                && TopicFilter::any_wants(
                    &topics,
                    &row.event.topic,
                    row.event.headers.get(header::INBOX),
                )
        });
        match unproven {
            Some((_, row)) => {
                Err(no_rewind(row.event.id, row.event.created_at, horizon).from_adapter("memory"))
            }
            None => Ok(()),
        }
    }

    /// Refuses a replay that would bring again what the inbox may have forgotten.
    pub fn prove_replay(&self, filter: &DeadFilter) -> Result<()> {
        let Some(horizon) = self.inbox_gone_until else { return Ok(()) };
        let mut meant = filter.clone();
        meant.state = Some(DeadState::Dead);
        let outside = self.find_dead(&meant, None).filter(|(_, row)| self.is_outside(&row.lane));
        let since = outside
            .map(|(id, row)| (id, known_since(row.event.id, row.event.created_at, row.copy_of)));
        let mut unproven: Vec<(DeadLetterId, DateTime<Utc>)> =
            since.filter(|(_, since)| *since <= horizon).collect();
        unproven.sort_by_key(|(id, since)| (*since, *id));
        match unproven.is_empty() {
            true => Ok(()),
            false => Err(no_replay(&unproven, horizon).from_adapter("memory")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::log::tests::db;
    use super::*;
    use relevo_core::outbox::{Retention, Subscription};

    /// Is the row still there at this age?
    fn is_kept(retention: &Retention, age: Duration) -> bool {
        let mut db = db();
        db.subscribe(&Subscription::new("s"), 1).unwrap();
        let seen = db.now;
        db.inbox.insert(("c".into(), "s".into(), "id".into()), seen);
        db.now = seen + age;
        let mut kept = retention.clone();
        kept.inbox = retention.inbox_kept();
        db.upkeep(&kept).unwrap();
        assert_eq!(db.inbox_gone_until, db.inbox.is_empty().then_some(seen));
        !db.inbox.is_empty()
    }

    #[test]
    fn a_row_just_at_its_limit_stays_and_goes_an_instant_later() {
        let mut retention = Retention::default();
        let (day, instant) = (Duration::from_secs(86_400), Duration::from_nanos(1));
        assert!(is_kept(&retention, 120 * day));
        assert!(!is_kept(&retention, 120 * day + instant));
        // As long as dead letters is not longer than they are: a tenth is added.
        retention.inbox = retention.dead_letters;
        assert!(is_kept(&retention, 99 * day));
        assert!(!is_kept(&retention, 99 * day + instant));
        (retention.events, retention.dead_letters) = (Duration::ZERO, Duration::ZERO);
        retention.inbox = Duration::ZERO;
        assert!(is_kept(&retention, Duration::from_millis(1)));
        assert!(!is_kept(&retention, Duration::from_millis(1) + instant));
    }
}
