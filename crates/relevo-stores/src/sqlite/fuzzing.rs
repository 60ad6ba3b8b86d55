//! What this adapter reads, as plain functions for the project's fuzz targets. No part of the API.

use super::location::Location;
use super::{log, migrate};
use relevo_core::limits::LANES;
use relevo_core::outbox::{PageRequest, Position, Row};
use relevo_core::{Error, Kind, Result};
use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};
use std::path::PathBuf;

/// The file that a URL or a path names.
pub fn location(text: &str) -> Result<PathBuf> {
    Location::parse(text).map(|location| location.path)
}

/// A value as any client may write it.
#[derive(Debug, Clone, PartialEq)]
pub enum Column {
    /// What the table says.
    Default,
    /// NULL.
    Null,
    /// INTEGER.
    Integer(i64),
    /// REAL.
    Real(f64),
    /// TEXT, which need not be UTF-8.
    Text(Vec<u8>),
    /// BLOB.
    Blob(Vec<u8>),
}

impl Column {
    /// How a statement names it, and what it binds.
    fn bound(&self) -> (&'static str, Option<Value>) {
        match self {
            Self::Default => ("", None),
            Self::Null => ("?", Some(Value::Null)),
            Self::Integer(number) => ("?", Some(Value::Integer(*number))),
            Self::Real(number) => ("?", Some(Value::Real(*number))),
            Self::Text(bytes) => ("CAST(? AS TEXT)", Some(Value::Blob(bytes.clone()))),
            Self::Blob(bytes) => ("?", Some(Value::Blob(bytes.clone()))),
        }
    }
}

/// A log in memory.
pub struct Log(Connection);

const COLUMNS: [&str; 6] = ["id", "topic", "key", "headers", "payload", "created_at"];

impl Log {
    /// An empty one.
    pub fn new() -> Result<Self> {
        let connection = Connection::open_in_memory().map_err(failed)?;
        connection.execute_batch(&migrate::migrations_sql()).map_err(failed)?;
        Ok(Self(connection))
    }

    /// Takes every row out.
    pub fn empty(&self) -> Result<()> {
        self.0.execute("DELETE FROM relevo_outbox", []).map(|_| ()).map_err(failed)
    }

    /// Writes `id, topic, key, headers, payload, created_at` by plain SQL; the error names the rule that refused it.
    pub fn insert(&self, columns: &[Column; 6]) -> Result<()> {
        let (mut names, mut places, mut values) = (Vec::new(), Vec::new(), Vec::new());
        for (name, column) in COLUMNS.iter().zip(columns) {
            if let (place, Some(value)) = column.bound() {
                names.push(*name);
                places.push(place);
                values.push(value);
            }
        }
        let (names, places) = (names.join(", "), places.join(", "));
        let sql = match values.is_empty() {
            true => "INSERT INTO relevo_outbox DEFAULT VALUES".to_owned(),
            false => format!("INSERT INTO relevo_outbox ({names}) VALUES ({places})"),
        };
        self.0.execute(&sql, params_from_iter(values)).map(|_| ()).map_err(failed)
    }

    /// Everything, as the relay reads it.
    pub fn read(&mut self) -> Result<Vec<Row>> {
        let tx = self.0.transaction().map_err(failed)?;
        let lanes = (0..LANES).collect();
        let position = Position::default();
        let request = PageRequest { position, lanes, max_rows: 100, max_bytes: 1 << 30 };
        log::read_page(&tx, &request)
            .map(|page| page.rows)
            .map_err(|error| failed(format!("{error:?}")))
    }
}

fn failed(error: impl ToString) -> Error {
    Error::new(Kind::StoreFailed, error.to_string())
}
