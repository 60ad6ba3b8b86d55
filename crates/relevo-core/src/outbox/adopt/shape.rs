use super::names::TableName;

/// What kind of values a column holds, as far as it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sort {
    /// Text of any kind.
    Text,
    /// JSON.
    Json,
    /// Bytes.
    Bytes,
    /// A UUID.
    Uuid,
    /// A whole number.
    Integer,
    /// A moment in time.
    Time,
    /// A time without a zone, taken as UTC.
    NaiveTime,
    /// Anything else.
    Other,
}

/// What a column is to a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Times {
    /// It holds them; whole numbers are milliseconds since 1970.
    Holds,
    /// One can be written there, and is never read: what is there may be none.
    Takes,
    /// It has no room for one, or no form.
    Refuses,
}

/// A column as the database describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnShape {
    /// Its name.
    pub name: String,
    /// What it holds.
    pub sort: Sort,
    /// What it is to a time.
    pub times: Times,
    /// Its type as SQL writes it.
    pub type_name: String,
    /// May it be empty?
    pub nullable: bool,
    /// The expression a missing value is computed by.
    pub default: Option<String>,
    /// How many numbers a session takes at once (`1`: each when it is needed) from the sequence that the column's values are
    /// the numbers of; negative, where it goes down. A sequence that begins again is none.
    pub sequence_step: Option<i64>,
    /// Its value is always computed: nobody may write it.
    pub generated: bool,
}

/// An index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexShape {
    /// The columns, in order; an expression is an empty name.
    pub columns: Vec<String>,
    /// Are its values unique?
    pub unique: bool,
    /// The condition of a partial one.
    pub condition: Option<String>,
}

/// The column that is a row's own number (SQLite's `INTEGER PRIMARY KEY`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowNumber {
    /// Its name.
    pub column: String,
    /// Is the number of the last row given to another one, once that row is gone?
    pub comes_again: bool,
}

/// A table as the database describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableShape {
    /// Its name, with its schema where it has one.
    pub name: TableName,
    /// Columns in their order.
    pub columns: Vec<ColumnShape>,
    /// Indices.
    pub indices: Vec<IndexShape>,
    /// Rows are numbered in the order of their commits (SQLite's rowid), where nobody gives them numbers.
    pub rows_are_in_commit_order: bool,
    /// The column in which that number is seen, and may be given.
    pub row_number: Option<RowNumber>,
    /// The server keeps the time of every commit.
    pub commit_times: bool,
    /// What this user may not do with it: `SELECT`, `UPDATE`, `DELETE`, `INSERT`.
    pub denied: Vec<String>,
}

impl TableShape {
    /// A table nothing is known of yet but its name.
    pub fn named(name: TableName) -> Self {
        Self {
            name,
            columns: Vec::new(),
            indices: Vec::new(),
            rows_are_in_commit_order: false,
            row_number: None,
            commit_times: false,
            denied: Vec::new(),
        }
    }

    /// The column of this name.
    pub fn column(&self, name: &str) -> Option<&ColumnShape> {
        self.columns.iter().find(|column| column.name == name)
    }
}
