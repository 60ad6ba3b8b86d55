//! The relay's machine with all lanes, a page of one event each: read, handed over, recorded.

use super::headers::event;
use relevo_core::clock::{Instant, Rng};
use relevo_core::event::lane_of;
use relevo_core::inbox::Outcome;
use relevo_core::limits::LANES;
use relevo_core::outbox::{
    Claim, Fleet, LaneState, Lease, MemberId, Page, PageRequest, ParkedKey, Position, Row, TickRef,
};
use relevo_core::relay::{Action, Batch, Delivery, Input, Relay, RelayConfig};
use std::time::Duration;

/// Parked keys of each lane, none of which is due.
const PARKED: u64 = 100;

pub(crate) fn step(times: u64) -> u64 {
    World::new(0).steps(times)
}

/// The same, where every event's key is looked for among those that wait.
pub(crate) fn step_beside_parked_keys(times: u64) -> u64 {
    World::new(PARKED).steps(times)
}

/// A machine and a store that answers at once.
struct World {
    relay: Relay,
    now: Instant,
    parked: u64,
    /// A row for each lane.
    rows: Vec<Row>,
    tick: i64,
    delivered: u64,
}

fn member() -> MemberId {
    MemberId("alone".into())
}

impl World {
    fn new(parked: u64) -> World {
        let mut config = RelayConfig::default();
        (config.one_transaction, config.lease) = (false, Duration::from_secs(3600));
        let relay = Relay::new("s", member(), config, false, Rng::seeded(7));
        let (now, rows) = (Instant::ZERO, one_of_each_lane());
        World { relay, now, parked, rows, tick: 0, delivered: 0 }
    }

    /// Goes on until so many events of each lane were delivered.
    fn steps(mut self, times: u64) -> u64 {
        let wanted = times * self.rows.len() as u64;
        let mut idle = 0;
        while self.delivered < wanted && idle < 100_000 {
            self.now = self.now + Duration::from_millis(1);
            self.relay.handle(self.now, Input::Wake);
            let actions = self.relay.poll(self.now);
            idle = if actions.is_empty() { idle + 1 } else { 0 };
            for action in actions {
                if let Some(input) = self.answer(action) {
                    self.relay.handle(self.now, input);
                }
            }
        }
        self.delivered
    }

    fn answer(&mut self, action: Action) -> Option<Input> {
        Some(match action {
            Action::Beat(_) => Input::Beat { sent: self.now, result: Ok(fleet()) },
            Action::Take(claims) => {
                let result =
                    Ok(claims.iter().map(|claim| (claim.lane, self.lane(claim))).collect());
                Input::Taken { claims, result }
            }
            Action::ReadPage { reader, request } => {
                Input::Page { reader, result: Ok(self.page(&request)) }
            }
            Action::Deliver(batch) => self.deliver(*batch),
            Action::Record(changes) => Input::Recorded { changes, result: Ok(()) },
            _ => return None,
        })
    }

    fn lane(&self, claim: &Claim) -> LaneState {
        let key = |n| ParkedKey {
            key: format!("parked-{}-{n}", claim.lane),
            attempts: 1,
            deaths: 0,
            due_in: None,
        };
        LaneState { position: Position::default(), parked: (0..self.parked).map(key).collect() }
    }

    /// The rows of the asked lanes, in a window of their own.
    fn page(&mut self, request: &PageRequest) -> Page {
        self.tick += 1;
        let to = TickRef { number: self.tick, nonce: 9 };
        let asked = |row: &&Row| request.lanes.contains(&row.lane);
        let mut rows: Vec<Row> = self.rows.iter().filter(asked).cloned().collect();
        rows.iter_mut().for_each(|row| row.seq += self.tick * i64::from(LANES));
        Page { rows, to: Some(to), end: Position::at(to) }
    }

    fn deliver(&mut self, mut batch: Batch) -> Input {
        while let Some(index) = batch.next() {
            batch.settle(index, Outcome::Done);
            self.delivered += 1;
        }
        let (lane, token) = (batch.lane().lane, batch.token());
        let (change, rest) = batch.finish();
        let delivery = match change {
            Some(change) => Delivery::Decided { change, rest, down: None },
            None => Delivery::Down { items: rest, reason: "nothing was decided".into() },
        };
        Input::Delivered { lane, token, delivery: Box::new(delivery) }
    }
}

fn fleet() -> Fleet {
    let free = |lane| Lease { lane, owner: None, token: 0, position: Position::default() };
    Fleet {
        members: vec![(member(), 1)],
        leases: (0..LANES).map(free).collect(),
        ..Fleet::default()
    }
}

fn one_of_each_lane() -> Vec<Row> {
    let mut rows: Vec<Option<Row>> = (0..LANES).map(|_| None).collect();
    let mut number = 0;
    while rows.iter().any(Option::is_none) {
        number += 1;
        let event = event(number);
        let lane = lane_of(&event.order_key());
        rows[usize::from(lane)] = Some(Row { lane, seq: i64::from(lane), event });
    }
    rows.into_iter().flatten().collect()
}
