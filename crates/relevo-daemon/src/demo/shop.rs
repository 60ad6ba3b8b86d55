//! The demo's business: orders of customers, and the parcels that are their effect.
//!
//! An order and its event are one transaction. Parcels have no unique key on purpose: if an effect happened
//! twice, two rows would show it.

use relevo_core::clock::Rng;
use relevo_core::{Error, EventId, Kind, NewEvent, Result};
use relevo_stores::sqlite::SqliteOutbox;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The subscription whose handler packs the parcels.
pub(super) const SUBSCRIPTION: &str = "parcels";
/// The topic of every order.
pub(super) const TOPIC: &str = "order.placed";
/// One transaction in so many is rolled back: nobody may ever hear of its order.
const ROLLED_BACK: u64 = 20;

/// Poison is for those whom a small screen shows.
const SHOWN: usize = 6;

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS shop_order (
        number   INTEGER PRIMARY KEY,
        id       TEXT NOT NULL UNIQUE,
        customer TEXT NOT NULL,
        n        INTEGER NOT NULL,
        poison   INTEGER NOT NULL DEFAULT 0
    );
    CREATE TABLE IF NOT EXISTS shop_parcel (
        number   INTEGER PRIMARY KEY,
        order_id TEXT NOT NULL,
        customer TEXT NOT NULL,
        n        INTEGER NOT NULL
    );
    CREATE INDEX IF NOT EXISTS shop_parcel_order ON shop_parcel (order_id);
    CREATE TABLE IF NOT EXISTS shop_switch (name TEXT PRIMARY KEY, on_since INTEGER NOT NULL);";

/// Who orders. Their names are the keys that are kept in order.
pub(super) const CUSTOMERS: [&str; 40] = [
    "anna", "bruno", "carla", "dario", "elena", "felix", "greta", "hugo", "irene", "jonas",
    "karla", "luca", "marta", "nuria", "oscar", "paula", "quique", "rosa", "sergio", "tania",
    "ursula", "victor", "wanda", "xavier", "yolanda", "zoe", "alba", "berta", "ciro", "delia",
    "emil", "flora", "gael", "helga", "ines", "julia", "kai", "lola", "milo", "noa",
];

/// What travels.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) customer: String,
    pub(super) n: i64,
}

/// Where the demo keeps everything.
#[derive(Debug, Clone)]
pub(super) struct Place {
    folder: PathBuf,
}

impl Place {
    pub(super) fn in_folder(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn database(&self) -> PathBuf {
        self.folder.join("demo.db")
    }

    pub(super) fn url(&self) -> String {
        format!("sqlite:{}", self.database().display())
    }

    /// What every attempt of the handler leaves behind, outside any transaction.
    pub(super) fn journal(&self) -> PathBuf {
        self.folder.join("attempts.log")
    }

    /// What the worker says.
    pub(super) fn worker_log(&self) -> PathBuf {
        self.folder.join("worker.log")
    }

    /// A connection of the application's own.
    pub(super) fn connect(&self) -> Result<Connection> {
        let connection = Connection::open(self.database()).map_err(sql)?;
        connection.busy_timeout(Duration::from_secs(20)).map_err(sql)?;
        // A crash of a process loses nothing with this; only a power cut could, and the demo survives none anyway.
        connection.pragma_update(None, "synchronous", "NORMAL").map_err(sql)?;
        connection.set_prepared_statement_cache_capacity(64);
        Ok(connection)
    }
}

/// The demo's own statements failing is a failure of the store.
pub(super) fn sql(error: rusqlite::Error) -> Error {
    Error::new(Kind::StoreFailed, format!("the demo's own tables: {error}")).because(error)
}

/// An order as placed (or nearly).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) customer: &'static str,
    pub(super) committed: bool,
    pub(super) poison: bool,
}

/// Places orders, each in one transaction with its event.
pub(super) struct Shop {
    connection: Connection,
    outbox: SqliteOutbox,
    rng: Rng,
    /// The last number of each customer.
    last: Vec<i64>,
    poison_next: u32,
}

impl Shop {
    /// Opens the shop and makes its tables.
    pub(super) fn open(place: &Place, outbox: SqliteOutbox) -> Result<Self> {
        let connection = place.connect()?;
        connection.execute_batch(TABLES).map_err(sql)?;
        let last = CUSTOMERS
            .iter()
            .map(|customer| last_number(&connection, customer))
            .collect::<Result<_>>()?;
        Ok(Self { connection, outbox, rng: Rng::from_os(), last, poison_next: 0 })
    }

    /// The next order will carry bytes that no handler can read.
    pub(super) fn poison_next(&mut self) {
        self.poison_next += 1;
    }

    /// Places one order of a random customer; now and then the transaction is rolled back at its end.
    pub(super) fn place(&mut self) -> Result<Placed> {
        let poison = self.poison_next > 0;
        let among = if poison { SHOWN } else { CUSTOMERS.len() };
        let who = self.rng.below(among as u64) as usize;
        let committed = poison || self.rng.below(ROLLED_BACK) != 0;
        let placed = Placed { customer: CUSTOMERS[who], committed, poison };
        self.write(&placed, self.last[who] + 1)?;
        if committed {
            self.last[who] += 1;
        }
        self.poison_next -= u32::from(poison);
        Ok(placed)
    }

    fn write(&mut self, placed: &Placed, n: i64) -> Result<()> {
        let tx = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(sql)?;
        let id = self.outbox.publish_sync(&tx, event(placed, n)?)?;
        insert(&tx, id, placed, n)?;
        if placed.committed { tx.commit() } else { tx.rollback() }.map_err(sql)
    }

    /// Makes the handler fail, or lets it work again.
    pub(super) fn fail(&self, on: bool) -> Result<()> {
        let statement = if on {
            "INSERT OR REPLACE INTO shop_switch (name, on_since) VALUES ('fail', unixepoch())"
        } else {
            "DELETE FROM shop_switch WHERE name = 'fail'"
        };
        self.connection.execute(statement, []).map(|_| ()).map_err(sql)
    }
}

fn event(placed: &Placed, n: i64) -> Result<NewEvent> {
    let event = match placed.poison {
        true => NewEvent::bytes(TOPIC, b"{ \"customer\": ???".as_slice())
            .content_type("application/json"),
        false => NewEvent::json(TOPIC, &Order { customer: placed.customer.into(), n })?,
    };
    Ok(event.key(placed.customer))
}

fn insert(tx: &Connection, id: EventId, placed: &Placed, n: i64) -> Result<()> {
    let statement = "INSERT INTO shop_order (id, customer, n, poison) VALUES (?1, ?2, ?3, ?4)";
    let mut statement = tx.prepare_cached(statement).map_err(sql)?;
    statement
        .execute(params![id.to_string(), placed.customer, n, placed.poison])
        .map(|_| ())
        .map_err(sql)
}

fn last_number(connection: &Connection, customer: &str) -> Result<i64> {
    let statement = "SELECT max(n) FROM shop_order WHERE customer = ?1";
    let last: Option<Option<i64>> =
        connection.query_row(statement, [customer], |row| row.get(0)).optional().map_err(sql)?;
    Ok(last.flatten().unwrap_or(0))
}

/// Is the handler told to fail?
pub(super) fn is_failing(connection: &Connection) -> rusqlite::Result<bool> {
    connection.prepare_cached("SELECT 1 FROM shop_switch WHERE name = 'fail'")?.exists([])
}

/// Packs the parcel of an order: the effect.
pub(super) fn pack(connection: &Connection, id: EventId, order: &Order) -> rusqlite::Result<()> {
    let statement = "INSERT INTO shop_parcel (order_id, customer, n) VALUES (?1, ?2, ?3)";
    connection
        .prepare_cached(statement)?
        .execute(params![id.to_string(), order.customer, order.n])
        .map(|_| ())
}
