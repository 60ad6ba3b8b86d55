//! The log in memory: a full store for tests, and the model of PostgreSQL that the simulator runs on.
//!
//! [`Db`] is the database: synchronous, one statement per call, deterministic. It has transaction ids, snapshots,
//! row locks and savepoints as PostgreSQL has them, so rows appear in the log out of the order of their sequence
//! numbers exactly as they do there. [`MemoryStore`] puts the async ports on top of it.
//!
//! An application tests its handlers with it: [`MemoryStore::begin`] gives a transaction to publish in,
//! [`MemoryTransaction::put`] and [`MemoryTransaction::get`] stand for the application's own tables, and the store
//! itself is the [`relevo_core::inbox::TxDriver`] for direct handlers.

mod db;
mod doctor;
mod effects;
mod horizon;
mod inbox;
mod lanes;
mod log;
mod operate;
mod publish;
mod record;
mod requests;
mod retention;
mod store;
mod ticks;
mod transaction;
mod why;

pub use db::{Db, Refusal, Statement, TxId};
pub use effects::MemoryTransaction;
pub use lanes::CursorRow;
pub use log::{LogRow, PageStep};
pub use publish::MemoryOutbox;
pub use record::{DeadRow, ParkedRow, RefRow, SkipRow};
pub use requests::RequestRow;
pub use store::MemoryStore;

/// True when a deliberately wrong variant is switched on; always false without the feature `mutants`.
#[cfg(not(feature = "mutants"))]
macro_rules! mutant {
    ($name:ident) => {
        relevo_core::no_mutant()
    };
}
#[cfg(feature = "mutants")]
macro_rules! mutant {
    ($name:ident) => {
        relevo_core::mutants::active(relevo_core::mutants::Mutant::$name)
    };
}
pub(crate) use mutant;
