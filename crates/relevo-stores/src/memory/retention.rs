//! What goes, when: rows and dead letters that are old enough, ticks that nobody needs.

use super::db::{Db, Lock, Statement};
use super::lanes::SubscriptionRow;
use super::log::LogRow;
use super::mutant;
use chrono::{DateTime, Utc};
use relevo_core::dead_letters::{Holder, RetentionPlan};
use relevo_core::outbox::{Retention, TickRef, Upkeep};
use std::sync::Arc;

impl Db {
    /// What upkeep would do, and who keeps it from doing more.
    pub fn plan_retention(&self, retention: &Retention) -> RetentionPlan {
        let bound = self.oldest_cursor().and_then(|oldest| self.tick(oldest).ok());
        let old = |kept: std::time::Duration, since: DateTime<Utc>| {
            chrono::Duration::from_std(kept).is_ok_and(|kept| self.now - since >= kept)
        };
        let mut plan = RetentionPlan::default();
        plan.unread = bound.is_none();
        let floor = bound.map_or(0, |tick| tick.floor);
        for (_, row) in self.rows_after(0).filter(|(seq, _)| *seq <= floor) {
            match old(retention.events, row.event.created_at) {
                true => plan.droppable_events += 1,
                false => plan.young_events += 1,
            }
        }
        let letters = self.dead_letters.values().filter(|row| !row.is_requested());
        let died = letters.filter(|row| old(retention.dead_letters, row.died_at));
        plan.dead_letters = died.count() as i64;
        let holder = |(name, row): (&Arc<str>, &SubscriptionRow)| {
            let status = self.status_of(name, row);
            Holder::of(&status, self.sequence - status.backlog, status.backlog, None)
        };
        plan.holders = self.subscriptions.iter().map(holder).collect();
        plan.sorted()
    }

    /// Drops what every cursor is past and what is old enough; thins ticks out below the oldest cursor.
    pub fn upkeep(&mut self, retention: &Retention) -> Statement<Upkeep> {
        let mut upkeep = Upkeep::default();
        let Some(oldest) = self.oldest_cursor() else { return Ok(upkeep) };
        let bound = self
            .tick(oldest)
            .map(|tick| if mutant!(RetentionByCursor) { tick.top } else { tick.floor })?;
        self.drop_rows(bound, retention, &mut upkeep)?;
        self.thin_ticks(oldest.number, &mut upkeep);
        upkeep.dead_letters_dropped = self.drop_dead_letters(retention.dead_letters);
        self.forget_inbox(retention.inbox);
        Ok(upkeep)
    }

    fn drop_rows(
        &mut self,
        bound: i64,
        retention: &Retention,
        upkeep: &mut Upkeep,
    ) -> Statement<()> {
        let age = chrono::Duration::from_std(retention.events).unwrap_or(chrono::Duration::MAX);
        let old = |row: &LogRow| self.now - row.event.created_at >= age;
        let gone: Vec<i64> = self
            .log
            .range(..=bound)
            .filter(|(_, row)| row.committed && old(row))
            .map(|(seq, _)| *seq)
            .collect();
        for lane in self.cursors.keys() {
            self.must_be_free(&Lock::Cursor(lane.clone()))?;
        }
        self.copy_bytes_of_refs(&gone);
        for seq in &gone {
            if let Some(row) = self.log.remove(seq) {
                self.dropped_up_to = self.dropped_up_to.max(Some(row.event.id));
            }
        }
        if mutant!(NumbersComeAgain) && self.log.is_empty() && self.transactions.is_empty() {
            self.sequence = 0;
        }
        upkeep.rows_dropped = gone.len() as u64;
        upkeep.segments_dropped = u64::from(!gone.is_empty());
        Ok(())
    }

    fn copy_bytes_of_refs(&mut self, gone: &[i64]) {
        if mutant!(RefsLoseTheirBytes) {
            return;
        }
        for ((_, _, _, seq, _), parked) in &mut self.parked_refs {
            if parked.event.is_none() && gone.binary_search(seq).is_ok() {
                parked.event = self.log.get(seq).map(|row| row.event.clone());
            }
        }
    }

    /// Below the oldest cursor one tick a second is enough to rewind by time.
    fn thin_ticks(&mut self, below: i64, upkeep: &mut Upkeep) {
        let mut kept: Option<DateTime<Utc>> = None;
        let before = self.ticks.len();
        self.ticks.retain(|number, row| {
            let needed = *number >= below && !mutant!(PrunesNeededTicks);
            let keep = *number == 0
                || needed
                || kept.is_none_or(|at| row.at - at >= chrono::Duration::seconds(1));
            if keep {
                kept = Some(row.at);
            }
            keep
        });
        upkeep.ticks_pruned = (before - self.ticks.len()) as u64;
    }

    /// Those past their time; the one that a held key waits for is what releases it.
    fn drop_dead_letters(&mut self, keep: std::time::Duration) -> u64 {
        let keep = chrono::Duration::from_std(keep).unwrap_or(chrono::Duration::MAX);
        let (now, before, parked) = (self.now, self.dead_letters.len(), &self.parked_keys);
        self.dead_letters.retain(|_, letter| {
            let key = (letter.lane.clone(), letter.at.key.clone());
            let held = parked.get(&key).is_some_and(|row| row.due.is_none());
            held || letter.is_requested() || now - letter.died_at < keep
        });
        (before - self.dead_letters.len()) as u64
    }

    /// The oldest tick any cursor stands at.
    fn oldest_cursor(&self) -> Option<TickRef> {
        self.cursors.values().map(|cursor| cursor.position.from).min()
    }
}

#[cfg(test)]
mod tests {
    use super::super::log::tests::{db, event, read};
    use super::*;

    fn catch_up(db: &mut Db) {
        let position = db.cursors.values().next().unwrap().position;
        let end = read(db, position).end;
        db.cursors.values_mut().for_each(|cursor| cursor.position = end);
    }

    fn publish(db: &mut Db) {
        let tx = db.begin();
        db.publish(tx, event("c")).unwrap();
        db.commit(tx).unwrap();
    }

    #[test]
    fn retention_waits_for_every_cursor_and_for_late_commits() {
        let mut db = db();
        let late = db.begin();
        db.publish(late, event("a")).unwrap();
        publish(&mut db);
        db.subscribe(&relevo_core::outbox::Subscription::new("s"), 1).unwrap();
        let mut retention = Retention::default();
        retention.events = std::time::Duration::ZERO;
        catch_up(&mut db);
        assert_eq!(db.upkeep(&retention).unwrap().rows_dropped, 0);
        db.commit(late).unwrap();
        assert_eq!(db.upkeep(&retention).unwrap().rows_dropped, 0);
        for _ in 0..2 {
            catch_up(&mut db);
            publish(&mut db);
        }
        catch_up(&mut db);
        assert!(db.upkeep(&retention).unwrap().rows_dropped >= 2);
    }
}
