use anyhow::{Context, Result};
use bytes::BytesMut;
use chrono::{DateTime, SecondsFormat, Utc};
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;
use std::error::Error;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use uuid::Uuid;

/// A parameter. PostgreSQL says which type it wants; SQLite takes what it gets.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Text, or a UUID as text.
    Text(String),
    /// A number.
    Number(i64),
    /// A time.
    Time(DateTime<Utc>),
    /// Nothing.
    Null,
}

impl Value {
    /// As SQLite keeps it: text whose order is that of the times.
    pub(super) fn sortable(&self) -> Option<String> {
        match self {
            Self::Time(time) => Some(time.to_rfc3339_opts(SecondsFormat::Micros, true)),
            _ => None,
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<Uuid> for Value {
    fn from(id: Uuid) -> Self {
        Self::Text(id.to_string())
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<DateTime<Utc>> for Value {
    fn from(time: DateTime<Utc>) -> Self {
        Self::Time(time)
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

impl ToSql for Value {
    fn to_sql(
        &self,
        wanted: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match self {
            Self::Text(text) if *wanted == Type::UUID => Uuid::parse_str(text)?.to_sql(wanted, out),
            Self::Text(text) => text.to_sql(wanted, out),
            Self::Number(number) => number.to_sql(wanted, out),
            Self::Time(time) => time.to_sql(wanted, out),
            Self::Null => Ok(IsNull::Yes),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// A row of either database.
#[derive(Debug)]
pub enum Row {
    /// Of PostgreSQL.
    Postgres(tokio_postgres::Row),
    /// Of SQLite.
    Sqlite(SqliteRow),
}

impl Row {
    /// The text, or the UUID as text, of a column.
    pub fn text(&self, column: usize) -> Result<String> {
        self.maybe_text(column)?.context("a NULL where text was expected")
    }

    /// The same, which may be NULL.
    pub fn maybe_text(&self, column: usize) -> Result<Option<String>> {
        Ok(match self {
            Self::Postgres(row) if *row.columns()[column].type_() == Type::UUID => {
                row.try_get::<_, Option<Uuid>>(column)?.map(|id| id.to_string())
            }
            Self::Postgres(row) => row.try_get(column)?,
            Self::Sqlite(row) => row.try_get(column)?,
        })
    }

    /// The number in a column.
    pub fn number(&self, column: usize) -> Result<i64> {
        Ok(match self {
            Self::Postgres(row) => row.try_get(column)?,
            Self::Sqlite(row) => row.try_get(column)?,
        })
    }

    /// The time in a column.
    pub fn time(&self, column: usize) -> Result<DateTime<Utc>> {
        self.maybe_time(column)?.context("a NULL where a time was expected")
    }

    /// The same, which may be NULL.
    pub fn maybe_time(&self, column: usize) -> Result<Option<DateTime<Utc>>> {
        Ok(match self {
            Self::Postgres(row) => row.try_get(column)?,
            Self::Sqlite(row) => {
                let text: Option<String> = row.try_get(column)?;
                let parse = |text: String| DateTime::parse_from_rfc3339(&text);
                text.map(parse).transpose()?.map(|time| time.with_timezone(&Utc))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_as_text_are_in_the_order_of_the_times() {
        let at = |micros| Value::Time(DateTime::from_timestamp_micros(micros).unwrap()).sortable();
        assert!(at(999_999) < at(1_000_000) && at(1_000_000) < at(1_000_001));
    }
}
