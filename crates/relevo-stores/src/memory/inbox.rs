//! Which keys of a consumer wait in its own log.

use super::db::{Db, Statement, TxId};
use super::mutant;
use bytes::Bytes;
use relevo_core::event::{EventId, NewEvent, lane_of};
use relevo_core::limits::Limits;
use relevo_core::outbox::LaneId;
use relevo_core::{Error, Kind, Result};

/// The table of the last landed event of each key: its sequence number, as JSON.
const INBOX_KEYS: &str = "relevo_inbox_key";

fn inbox_key(consumer: &str, key: &str) -> String {
    format!("{consumer}\n{key}")
}

impl Db {
    /// Has the consumer's subscription still something of this key to decide?
    pub fn key_waits(&mut self, tx: TxId, consumer: &str, key: &str) -> Result<bool> {
        let Some(landed) = self.get(tx, INBOX_KEYS, &inbox_key(consumer, key))? else {
            return Ok(false);
        };
        let odd = |e: serde_json::Error| Error::new(Kind::StoreFailed, e.to_string());
        let seq: i64 = serde_json::from_slice(&landed).map_err(odd)?;
        let lane = LaneId { subscription: consumer.into(), lane: lane_of(key) };
        if self.parked_keys.contains_key(&(lane.clone(), key.to_owned())) {
            return Ok(true);
        }
        // What the log no longer has, every cursor is past.
        let Some(row) = self.log.get(&seq) else { return Ok(false) };
        let decided = |position| self.is_decided(position, seq, row);
        Ok(!self.cursors.get(&lane).is_some_and(|cursor| decided(cursor.position)))
    }

    /// Publishes an event that lands: it may carry Relevo's own headers.
    pub fn land(&mut self, tx: TxId, event: NewEvent) -> Result<i64> {
        Limits::default().landing().check(&event)?;
        self.assign_xid(tx)?;
        let seq = self.draw_seq();
        self.insert_event(tx, seq, event)?;
        Ok(seq)
    }

    /// Remembers that these keys have events in the log up to `last`, of this transaction.
    pub fn keys_landed(
        &mut self,
        tx: TxId,
        consumer: &str,
        keys: &[String],
        last: i64,
    ) -> Statement<()> {
        let last = Bytes::from(last.to_string());
        let put =
            |key: &String| self.put(tx, INBOX_KEYS, &inbox_key(consumer, key), Some(last.clone()));
        keys.iter().try_for_each(put)
    }

    /// What a wrong inbox knows a message by: its id of this day.
    pub(super) fn id_of_the_day(&self, id: &str) -> String {
        if mutant!(InboxByDay) {
            return format!("{id}@{}", self.now.timestamp_millis() / 200);
        }
        id.to_owned()
    }

    /// What a wrong inbox does: it remembers the highest number, and takes what is below as seen.
    pub(super) fn is_higher(&mut self, tx: TxId, consumer: &str, id: &str) -> Statement<bool> {
        let number = id.parse().map_or(0, |EventId(id)| id.as_u64_pair().0);
        let known = self.get(tx, "highest", consumer)?;
        let known = known.and_then(|known| String::from_utf8_lossy(&known).parse().ok());
        let highest = known.unwrap_or(0_u64);
        let next = Bytes::from(number.max(highest).to_string());
        self.put(tx, "highest", consumer, Some(next))?;
        Ok(number > highest)
    }
}
