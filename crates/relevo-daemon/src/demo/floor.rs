//! The shop floor as one can watch it: what waits, what passed, what died. Only for the eye; the proof is in
//! [`super::verify`].

use super::journal::{Attempt, Reader, Tally};
use super::shop::{CUSTOMERS, Place, sql};
use relevo_core::event::lane_of;
use relevo_core::{EventId, Result};
use rusqlite::Connection;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// What passed the gate so long ago is off the belt.
const OFF_THE_BELT: Duration = Duration::from_secs(3);
const KEPT_EVENTS: usize = 50;
const ROWS: i64 = 5_000;

/// An order on its way.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub(super) id: EventId,
    pub(super) placed: Duration,
    pub(super) state: ItemState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ItemState {
    Waiting,
    /// Its last attempt failed.
    Failing,
    Done(Duration),
    Dead(Duration),
}

/// The orders of one customer.
#[derive(Debug, Clone)]
pub(super) struct Belt {
    pub(super) customer: &'static str,
    pub(super) lane: u16,
    pub(super) items: VecDeque<Item>,
    pub(super) packed: u64,
}

impl Item {
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.state, ItemState::Waiting | ItemState::Failing)
    }
}

/// The figures of this moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Figures {
    pub(super) committed: u64,
    pub(super) effects: u64,
    pub(super) dead: u64,
    pub(super) retried: u64,
    pub(super) duplicates: u64,
    pub(super) rolled_back: u64,
}

impl Figures {
    pub(super) fn pending(&self) -> u64 {
        self.committed.saturating_sub(self.effects + self.dead)
    }
}

/// Everything there is to see.
pub(super) struct Floor {
    pub(super) belts: Vec<Belt>,
    pub(super) figures: Figures,
    /// What happened, newest last.
    pub(super) events: VecDeque<(Duration, String)>,
    /// How many things ever happened.
    pub(super) noted: usize,
    started: Instant,
    tally: Tally,
    of: HashMap<EventId, usize>,
}

impl Floor {
    /// The belts of the shop; none where it is not on.
    pub(super) fn new(shop: bool) -> Self {
        let belt = |customer: &&'static str| Belt {
            customer,
            lane: lane_of(customer),
            items: VecDeque::new(),
            packed: 0,
        };
        Self {
            belts: CUSTOMERS.iter().filter(|_| shop).map(belt).collect(),
            figures: Figures::default(),
            events: VecDeque::new(),
            noted: 0,
            started: Instant::now(),
            tally: Tally::default(),
            of: HashMap::new(),
        }
    }

    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Remembers what happened.
    pub(super) fn note(&mut self, text: impl Into<String>) {
        self.events.push_back((self.now(), text.into()));
        self.noted += 1;
        if self.events.len() > KEPT_EVENTS {
            self.events.pop_front();
        }
    }

    fn placed(&mut self, id: EventId, customer: &str, now: Duration) {
        self.figures.committed += 1;
        if let Some(index) = CUSTOMERS.iter().position(|name| *name == customer) {
            self.of.insert(id, index);
            self.belts[index].items.push_back(Item { id, placed: now, state: ItemState::Waiting });
        }
    }

    fn set(&mut self, id: EventId, state: ItemState) {
        let Some(belt) = self.of.get(&id).and_then(|index| self.belts.get_mut(*index)) else {
            return;
        };
        if let Some(item) = belt.items.iter_mut().find(|item| item.id == id && item.is_waiting()) {
            item.state = state;
        }
    }

    fn packed(&mut self, id: EventId, customer: &str, now: Duration) {
        self.figures.effects += 1;
        if let Some(belt) = self.belts.iter_mut().find(|belt| belt.customer == customer) {
            belt.packed += 1;
        }
        self.set(id, ItemState::Done(now));
    }

    fn attempted(&mut self, attempt: Attempt, id: EventId, now: Duration) {
        self.tally.add(attempt, id);
        (self.figures.retried, self.figures.duplicates) =
            (self.tally.retried, self.tally.duplicates);
        match attempt {
            Attempt::Failed => self.set(id, ItemState::Failing),
            Attempt::Poisoned => {
                self.figures.dead += 1;
                self.set(id, ItemState::Dead(now));
                let customer = self.of.get(&id).map_or("somebody", |index| CUSTOMERS[*index]);
                self.note(format!(
                    "dead letter: an order of {customer}; later ones of {customer} go on"
                ));
            }
            Attempt::Effect => {}
        }
    }

    fn clear_away(&mut self, now: Duration) {
        for belt in &mut self.belts {
            let gone = |item: &Item| match item.state {
                ItemState::Done(at) | ItemState::Dead(at) => now.saturating_sub(at) > OFF_THE_BELT,
                _ => false,
            };
            while belt.items.front().is_some_and(gone) {
                if let Some(item) = belt.items.pop_front() {
                    self.of.remove(&item.id);
                }
            }
        }
    }
}

/// Looks at the database and the journal, always only at what is new.
pub(super) struct Watch {
    connection: Connection,
    journal: Reader,
    last_order: i64,
    last_parcel: i64,
}

impl Watch {
    pub(super) fn open(place: &Place) -> Result<Self> {
        Ok(Self {
            connection: place.connect()?,
            journal: Reader::open(&place.journal())?,
            last_order: 0,
            last_parcel: 0,
        })
    }

    /// Brings `floor` up to this moment.
    pub(super) fn look(&mut self, floor: &mut Floor) -> Result<()> {
        let now = floor.now();
        // One snapshot for both: no parcel without its order.
        let tx = self.connection.transaction().map_err(sql)?;
        for (number, id, customer) in
            rows(&tx, "SELECT number, id, customer FROM shop_order", self.last_order)?
        {
            self.last_order = number;
            floor.placed(id, &customer, now);
        }
        for (number, id, customer) in
            rows(&tx, "SELECT number, order_id, customer FROM shop_parcel", self.last_parcel)?
        {
            self.last_parcel = number;
            floor.packed(id, &customer, now);
        }
        drop(tx);
        for (attempt, id) in self.journal.read()? {
            floor.attempted(attempt, id, now);
        }
        floor.clear_away(now);
        Ok(())
    }
}

fn rows(connection: &Connection, select: &str, after: i64) -> Result<Vec<(i64, EventId, String)>> {
    let select = format!("{select} WHERE number > ?1 ORDER BY number LIMIT {ROWS}");
    let mut statement = connection.prepare_cached(&select).map_err(sql)?;
    let rows = statement
        .query_map([after], |row| Ok((row.get(0)?, row.get::<_, String>(1)?, row.get(2)?)))
        .map_err(sql)?;
    rows.map(|row| {
        let (number, id, customer): (i64, String, String) = row.map_err(sql)?;
        Ok((number, id.parse()?, customer))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_waits_fails_passes_and_leaves_the_belt() {
        let mut floor = Floor::new(true);
        let (id, at) = (EventId::fresh(), Duration::from_secs);
        floor.placed(id, "anna", at(1));
        floor.attempted(Attempt::Failed, id, at(2));
        assert_eq!(floor.belts[0].items[0].state, ItemState::Failing);
        floor.packed(id, "anna", at(3));
        assert_eq!(
            (floor.figures.pending(), floor.figures.retried, floor.belts[0].packed),
            (0, 1, 1)
        );
        floor.clear_away(at(4));
        assert_eq!(floor.belts[0].items.len(), 1);
        floor.clear_away(at(9));
        assert!(floor.belts[0].items.is_empty() && floor.of.is_empty());
    }
}
