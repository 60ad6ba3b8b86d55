use super::store::{LaneId, Position, RequestId, Token};
use super::tick::TickRef;
use crate::error::ErrorClass;
use crate::event::EventId;
use std::time::Duration;

/// Where an event of one delivery stands: order among the refs of a key is `(to, seq)`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventRef {
    /// Its order key.
    pub key: String,
    /// The tick its window led to.
    pub to: TickRef,
    /// Its place in the log.
    pub seq: i64,
    /// Its identity.
    pub id: EventId,
}

/// A key that is (or stays) parked: its first ref failed.
#[derive(Debug, Clone, PartialEq)]
pub struct ParkKey {
    /// The order key.
    pub key: String,
    /// Attempts its first event has had.
    pub attempts: u32,
    /// Dead letters of this key in a row, just before.
    pub deaths: u32,
    /// When to try again; `None` holds the key until an operator acts.
    pub retry_in: Option<Duration>,
    /// Class of the last error.
    pub class: ErrorClass,
    /// Text of the last error.
    pub error: String,
}

/// An event that failed for good.
#[derive(Debug, Clone, PartialEq)]
pub struct Death {
    /// Which event.
    pub event: EventRef,
    /// Attempts it had.
    pub attempts: u32,
    /// Class of the last error.
    pub class: ErrorClass,
    /// Text of the last error.
    pub error: String,
}

/// An event its handler chose not to work on.
#[derive(Debug, Clone, PartialEq)]
pub struct Skip {
    /// Which event.
    pub event: EventRef,
    /// Why.
    pub reason: String,
}

/// Everything one lane transaction writes. A store applies all of it or nothing, in the order of the
/// fields, and fences last: unless exactly one cursor row still carries `token` and `before`, it fails as stale.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct LaneChange {
    /// The subscription and lane.
    pub lane: LaneId,
    /// The owner's fencing token.
    pub token: Token,
    /// Where the cursor must stand.
    pub before: Position,
    /// Where it stands afterwards.
    pub after: Position,
    /// Dead letters to write, bytes copied from the ref or the log. Always before `settled` deletes their refs.
    pub deaths: Vec<Death>,
    /// Skips to note.
    pub skips: Vec<Skip>,
    /// Refs that are done (or dead, or skipped) and go.
    pub settled: Vec<EventRef>,
    /// Refs of events that now wait behind their key.
    pub waiting: Vec<EventRef>,
    /// Keys to park or to park again.
    pub parked: Vec<ParkKey>,
    /// Keys that nothing waits behind any more.
    pub unparked: Vec<String>,
    /// Requests to carry out: their dead letter becomes a ref at its old place, its key due at once.
    pub replayed: Vec<RequestId>,
    /// How many events of this change took effect or were confirmed.
    pub delivered: u64,
    /// Which ones; for stores that mark rows of somebody else's ([`super::adopt`]).
    pub done: Vec<EventId>,
    /// Which events failed and are tried again; `parked` tells of their keys when and why.
    pub failed: Vec<EventRef>,
}

impl LaneChange {
    /// A change that only moves the cursor.
    pub fn moving(lane: LaneId, token: Token, before: Position, after: Position) -> Self {
        Self {
            lane,
            token,
            before,
            after,
            deaths: Vec::new(),
            skips: Vec::new(),
            settled: Vec::new(),
            waiting: Vec::new(),
            parked: Vec::new(),
            unparked: Vec::new(),
            replayed: Vec::new(),
            delivered: 0,
            done: Vec::new(),
            failed: Vec::new(),
        }
    }

    /// True if it tells what became of something that was handed over.
    pub(crate) fn is_at_stake(&self) -> bool {
        self.delivered > 0 || !self.only_moves()
    }

    /// How many failed attempts it notes that will be tried again.
    pub fn retried(&self) -> u64 {
        self.parked.iter().filter(|key| key.attempts > 0).count() as u64
    }

    /// True if the cursor is all that changes: a lost one only brings copies.
    pub fn only_moves(&self) -> bool {
        self.deaths.is_empty()
            && self.skips.is_empty()
            && self.settled.is_empty()
            && self.waiting.is_empty()
            && self.parked.is_empty()
            && self.unparked.is_empty()
            && self.replayed.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moving() -> LaneChange {
        let lane = LaneId { subscription: "s".into(), lane: 1 };
        let to = Position::at(TickRef { number: 1, nonce: 0 });
        LaneChange::moving(lane, 7, Position::default(), to)
    }

    /// Its first event failed once.
    fn parked() -> ParkKey {
        ParkKey {
            key: "k".into(),
            attempts: 1,
            deaths: 0,
            retry_in: Some(Duration::ZERO),
            class: ErrorClass::Transient,
            error: String::new(),
        }
    }

    #[test]
    fn a_failure_that_is_tried_again_counts_and_a_key_that_only_waits_does_not() {
        let held = ParkKey { attempts: 0, retry_in: None, ..parked() };
        let change = LaneChange { parked: vec![parked(), held], ..moving() };
        assert_eq!((change.retried(), moving().retried()), (1, 0));
    }

    #[test]
    fn a_change_that_tells_of_any_event_does_more_than_move_the_cursor() {
        let event =
            || EventRef { key: "k".into(), to: TickRef::default(), seq: 1, id: EventId::fresh() };
        let (class, error) = (ErrorClass::Transient, String::new);
        let death = Death { event: event(), attempts: 1, class, error: error() };
        let skip = Skip { event: event(), reason: String::new() };
        assert!(moving().only_moves() && !moving().is_at_stake());
        for telling in [
            LaneChange { deaths: vec![death], ..moving() },
            LaneChange { skips: vec![skip], ..moving() },
            LaneChange { settled: vec![event()], ..moving() },
            LaneChange { waiting: vec![event()], ..moving() },
            LaneChange { parked: vec![parked()], ..moving() },
            LaneChange { unparked: vec!["k".into()], ..moving() },
            LaneChange { replayed: vec![1], ..moving() },
        ] {
            assert!(!telling.only_moves() && telling.is_at_stake(), "{telling:?}");
        }
        let delivered = LaneChange { delivered: 1, ..moving() };
        assert!(delivered.only_moves() && delivered.is_at_stake(), "a lost one brings copies only");
    }
}
