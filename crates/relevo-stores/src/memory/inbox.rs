//! Which keys of a consumer wait in its own log.

use super::db::{Db, TxId};
use relevo_core::event::{NewEvent, lane_of};
use relevo_core::limits::Limits;
use relevo_core::outbox::LaneId;
use relevo_core::{Error, Kind, Result};

/// The table of the last landed event of each key: its sequence number, as JSON.
pub(super) const INBOX_KEYS: &str = "relevo_inbox_key";

pub(super) fn inbox_key(consumer: &str, key: &str) -> String {
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
}
