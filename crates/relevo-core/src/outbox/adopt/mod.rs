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

mod judge;
mod mapping;
mod marks;
mod names;
mod presets;
mod propose;
mod rows;
mod shape;

pub use judge::{KeyOrder, Verdict, judge};
pub use mapping::{DeadTable, KeyFrom, Mapping, Role, Status, TopicFrom};
pub use marks::{Failure, Marks};
pub use names::{TableName, literal, quoted_name};
pub use presets::Preset;
pub use propose::propose;
pub use rows::{Claims, Fit, Harvest, RawRow, Unfit, inbox_of, sort_out};
pub use shape::{ColumnShape, IndexShape, Sort, TableShape};

use crate::error::Result;
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
