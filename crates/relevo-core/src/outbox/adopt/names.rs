use crate::error::{Error, Kind, Result, quoted};
use serde::{Deserialize, Serialize};
use std::fmt;

/// No name of a table or column is longer (PostgreSQL cuts longer ones silently).
const NAME_BYTES: usize = 63;

/// A table's name, with its schema where it has one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TableName {
    /// The schema, if it is named.
    pub schema: Option<String>,
    /// The table.
    pub table: String,
}

impl TableName {
    /// Reads `table` or `schema.table`, as written: upper and lower case count.
    pub fn parse(text: &str) -> Result<Self> {
        let (schema, table) = match text.split_once('.') {
            Some((schema, table)) => (Some(schema.to_owned()), table),
            None => (None, text),
        };
        let name = Self { schema, table: table.to_owned() };
        name.check()?;
        Ok(name)
    }

    /// Refuses what no table can be called.
    pub fn check(&self) -> Result<()> {
        self.schema.iter().chain([&self.table]).try_for_each(|name| check_name(name))
    }

    /// As SQL names it.
    pub fn sql(&self) -> String {
        let schema = self.schema.iter().map(|schema| format!("{}.", quoted_name(schema)));
        schema.chain([quoted_name(&self.table)]).collect()
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.schema {
            Some(schema) => write!(f, "{schema}.{}", self.table),
            None => f.write_str(&self.table),
        }
    }
}

/// Refuses what no table or column can be called.
pub(super) fn check_name(name: &str) -> Result<()> {
    let bad = |why: String| Err(Error::new(Kind::UnfitTable, why));
    if name.is_empty() {
        return bad("the name of a table or column is empty".into());
    }
    if name.len() > NAME_BYTES {
        return bad(format!("the name {} has more than {NAME_BYTES} bytes", quoted(name)));
    }
    if name.chars().any(char::is_control) {
        return bad(format!("the name {} contains a control character", quoted(name)));
    }
    Ok(())
}

/// A name as SQL takes it whatever is in it.
pub fn quoted_name(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text as an SQL literal; of no type of its own, so that it fits the column it is compared with.
pub fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_a_name_whatever_is_in_it() {
        assert_eq!(TableName::parse("Outbox").unwrap().sql(), "\"Outbox\"");
        let hostile = TableName::parse("a.b\"; DROP TABLE x; --").unwrap();
        assert_eq!(hostile.sql(), "\"a\".\"b\"\"; DROP TABLE x; --\"");
        assert_eq!(literal("it's"), "'it''s'");
        for bad in ["", ".", "a.", "x\0y", &"n".repeat(64)] {
            assert_eq!(TableName::parse(bad).unwrap_err().kind(), Kind::UnfitTable, "{bad:?}");
        }
    }
}
