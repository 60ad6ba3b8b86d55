//! Existing outbox tables, relayed in place: what their columns mean in Relevo's words.
//!
//! The owner's table stays the truth and gets no new column. A **claim** puts a row's event into the log, where lanes,
//! leases, parked keys and dead letters are as for all others; what becomes of it is marked in the owner's columns, in
//! the transaction that records it.
//!
//! - [`Mapping`]: which column is what; [`Preset`]s for known tables
//! - [`TableShape`]: a table as the database describes it
//! - [`judge`], [`propose`]: does a mapping fit, what can be promised, which mapping is likely
//! - [`RawRow`], [`sort_out`]: from rows to events, in an order that holds
//! - [`RowSeen`]: why a row is no event of the log

mod judge;
#[cfg(test)]
mod judge_tests;
mod mapping;
#[cfg(test)]
mod mapping_tests;
mod marks;
mod names;
mod presets;
mod propose;
mod rows;
mod shape;
mod why;

pub use judge::{KeyOrder, Verdict, judge};
pub use mapping::{DeadTable, KeyFrom, Mapping, Role, Status, TopicFrom};
pub use marks::{Failure, Marks};
pub use names::{TableName, literal, quoted_name};
pub use presets::Preset;
pub use propose::propose;
pub use rows::{Claims, Fit, Harvest, RawRow, Unfit, event_id, inbox_of, key_of, sort_out};
pub use shape::{ColumnShape, IndexShape, RowNumber, Sort, TableShape, Times};
pub use why::RowSeen;

use crate::dead_letters::Answer;
use crate::error::Result;
use crate::event::EventId;
use crate::outbox::{Retention, Store};
use async_trait::async_trait;
use std::sync::Arc;

/// A store in whose database tables can be adopted.
#[async_trait]
pub trait Adopt: Send + Sync + 'static {
    /// A table as the database describes it. Changes nothing, and needs none of Relevo's tables.
    async fn table_shape(&self, name: &TableName) -> Result<TableShape>;

    /// What can be said of a mapping and its table. Changes nothing.
    async fn judge_mapping(&self, mapping: &Mapping) -> Result<Verdict>;

    /// Why is the event of this row where it is? For a row as its owner knows it; `None` if no adopted table has it.
    async fn why_row(&self, row: &str) -> Result<Option<(EventId, Answer)>>;

    /// Adopts a table under a name. Refuses a mapping that does not fit it.
    async fn adopt_table(&self, name: &str, mapping: Mapping) -> Result<Arc<dyn AdoptedTable>>;
}

/// An adopted table at work: a store for one subscription.
#[async_trait]
pub trait AdoptedTable: Store {
    /// What waits, as the table's owner sees it.
    async fn pending(&self) -> Result<Pending>;

    /// Forgets what is kept of rows that are done with and gone; [`Store::upkeep`] does it too.
    async fn forget_done(&self, retention: &Retention) -> Result<()>;
}

/// Rows that are not relayed yet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pending {
    /// How many (no more are counted than 100,000).
    pub rows: i64,
    /// The age of the oldest, in seconds; 0 where the table has no times.
    pub oldest_s: f64,
}
