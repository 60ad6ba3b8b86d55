//! What operators did to deliveries, and who may change a lane from when on.

use super::{Delivered, End, Journal};
use crate::simulation::invariant::Invariant;
use bytes::Bytes;
use relevo_core::event::{EventId, Headers};
use relevo_core::outbox::{LaneId, Position, Token};

impl Journal {
    pub(super) fn put_back(&mut self, subscriber: usize, event: EventId) {
        let event = self.original(event);
        let Some(delivered) = self.delivered(subscriber, event) else { return };
        delivered.replays += 1;
        delivered.parked = true;
        delivered.to_be_read_again = false;
        if !std::mem::replace(&mut delivered.awaited, true) {
            self.open += 1;
        }
    }

    /// An edited copy of a dead letter was asked for.
    pub(in crate::simulation) fn edited(
        &mut self,
        subscriber: usize,
        original: EventId,
        copy: EventId,
        payload: Bytes,
    ) {
        let now = self.tick();
        let original = self.original(original);
        let Some(original) = self.events.get(&original) else { return };
        let mut copied = original.clone();
        copied.payload = payload;
        copied.headers = Headers::default();
        copied.committed_at = Some(now);
        copied.only_for = Some(subscriber);
        copied.at = vec![Delivered::default(); self.subscribers.len()];
        // Not awaited yet: the lane's owner has to put it back first.
        self.events.insert(copy, copied);
    }

    /// Cursors were moved. What was applied may come again (`back`); what still waits in the log, for the first time or
    /// because an earlier rewind returned it there, may be left out (`forward`). What is parked goes on waiting, or the
    /// log brings it again. What never landed in a consumer's log, no rewind of that reaches; nor edited copies, which
    /// stand in no log.
    pub(in crate::simulation) fn rewound(&mut self, subscriber: usize, back: bool, forward: bool) {
        let behind = self.subscribers[subscriber].behind;
        for event in self.events.values_mut().filter(|event| event.committed_at.is_some()) {
            let copy = event.only_for == Some(subscriber);
            let delivered = &mut event.at[subscriber];
            if copy || behind && !delivered.landed {
                continue;
            }
            delivered.rewinds += 1;
            let first = delivered.end == End::None && !delivered.parked;
            if forward && (first || delivered.to_be_read_again) {
                delivered.optional |= first;
                if std::mem::take(&mut delivered.awaited) {
                    self.open -= 1;
                }
            }
            delivered.to_be_read_again |= back;
            delivered.parked &= !back;
        }
    }

    pub(in crate::simulation) fn token_swapped(&mut self, lane: LaneId, seen: Token, fresh: Token) {
        let before = self.tokens.insert(lane.clone(), fresh).unwrap_or(0);
        if before != seen {
            self.broken(
                Invariant::Fencing,
                format!("lane {} was taken over token {seen}, in force was {before}", lane.lane),
            );
        }
    }

    /// What an operator's statement made of a lane.
    pub(in crate::simulation) fn lane_reset(
        &mut self,
        lane: LaneId,
        token: Token,
        position: Position,
    ) {
        self.tokens.insert(lane.clone(), token);
        self.positions.insert(lane, position);
    }
}
