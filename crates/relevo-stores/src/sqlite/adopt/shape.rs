//! The table as the file describes it.

use super::super::errors::{Sql, own};
use relevo_core::Kind;
use relevo_core::outbox::adopt::{
    ColumnShape, IndexShape, RowNumber, Sort, TableName, TableShape, Times,
};
use rusqlite::{OptionalExtension, Transaction};

/// Reads what matters of a table; refuses one that is not there, or is none.
pub(super) fn read(tx: &Transaction<'_>, name: &TableName) -> Sql<TableShape> {
    let schema = name.schema.as_deref().unwrap_or("main");
    let sql = "SELECT type, wr FROM pragma_table_list WHERE schema = ?1 AND name = ?2";
    let found = tx.query_row(sql, (schema, &name.table), |row| Ok((row.get(0)?, row.get(1)?)));
    let found: Option<(String, bool)> = found.optional()?;
    let Some((kind, without_rowid)) = found else {
        return Err(missing(tx, schema, name)?.into());
    };
    if kind != "table" {
        let why = format!("{name} is a {kind}, no table: its rows cannot be claimed");
        return Err(own(Kind::UnfitTable, why).into());
    }
    let mut shape = TableShape::named(name.clone());
    shape.columns = columns(tx, schema, &name.table)?;
    shape.row_number = row_number(tx, schema, &name.table)?;
    // One transaction writes at a time, and the number that SQLite gives a row is higher than that of every row there is.
    let seen = shape.row_number.is_some() || !shape.columns.iter().any(hides_number);
    shape.rows_are_in_commit_order = !without_rowid && seen;
    shape.indices = indices(tx, schema, &name.table)?;
    Ok(shape)
}

/// A column of this name stands in SQL where the row's number would.
fn hides_number(column: &ColumnShape) -> bool {
    column.name.eq_ignore_ascii_case("_rowid_")
}

/// The column that is the row's own number: an INTEGER PRIMARY KEY, which has no index of its own.
fn row_number(tx: &Transaction<'_>, schema: &str, table: &str) -> Sql<Option<RowNumber>> {
    let sql = "SELECT name, (SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = ?2) FROM pragma_table_xinfo(?2, ?1)
                WHERE pk = 1 AND NOT EXISTS (SELECT 1 FROM pragma_index_list(?2, ?1) WHERE origin = 'pk')";
    let found = tx.query_row(sql, (schema, table), |row| Ok((row.get(0)?, row.get(1)?)));
    let found: Option<(String, Option<String>)> = found.optional()?;
    Ok(found.map(|(column, sql)| {
        let sql = bare(&sql.unwrap_or_default()).to_ascii_uppercase();
        let mut words = sql.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '$'));
        RowNumber { column, comes_again: !words.any(|word| word == "AUTOINCREMENT") }
    }))
}

/// SQL without its comments, and without what is quoted: names and texts.
fn bare(sql: &str) -> String {
    let (mut bare, mut rest) = (String::new(), sql);
    while let Some(first) = rest.chars().next() {
        let end = match first {
            '-' if rest.starts_with("--") => "\n",
            '/' if rest.starts_with("/*") => "*/",
            '\'' => "'",
            '"' => "\"",
            '`' => "`",
            '[' => "]",
            _ => {
                bare.push(first);
                rest = &rest[first.len_utf8()..];
                continue;
            }
        };
        let begin = if end == "\n" || end == "*/" { 2 } else { 1 };
        bare.push(' ');
        rest = rest[begin..].split_once(end).map_or("", |(_, after)| after);
    }
    bare
}

fn missing(tx: &Transaction<'_>, schema: &str, name: &TableName) -> Sql<relevo_core::Error> {
    let sql = "SELECT name FROM pragma_table_list WHERE schema = ?1 AND lower(name) = lower(?2)";
    let near: Option<String> =
        tx.query_row(sql, (schema, &name.table), |row| row.get(0)).optional()?;
    let near = near.map(|near| format!("; did you mean {near:?}?")).unwrap_or_default();
    Ok(own(Kind::UnfitTable, format!("there is no table {name} in this file{near}")))
}

fn columns(tx: &Transaction<'_>, schema: &str, table: &str) -> Sql<Vec<ColumnShape>> {
    let sql = "SELECT name, type, \"notnull\", dflt_value, hidden IN (2, 3) FROM pragma_table_xinfo(?2, ?1)
                WHERE hidden <> 1 ORDER BY cid";
    let mut statement = tx.prepare(sql)?;
    let rows = statement.query_map((schema, table), |row| {
        let type_name: String = row.get(1)?;
        Ok(ColumnShape {
            name: row.get(0)?,
            sort: sort(&type_name),
            // Any column takes any value, and what is no time is read as none.
            times: Times::Holds,
            type_name,
            nullable: !row.get::<_, bool>(2)?,
            default: row.get(3)?,
            sequence_step: None,
            generated: row.get(4)?,
        })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// By the declared type, as far as one can go by it.
fn sort(type_name: &str) -> Sort {
    let name = type_name.to_uppercase();
    let has = |words: &[&str]| words.iter().any(|word| name.contains(word));
    match () {
        () if has(&["INT"]) => Sort::Integer,
        () if has(&["JSON"]) => Sort::Json,
        () if has(&["UUID", "GUID"]) => Sort::Uuid,
        () if has(&["DATE", "TIME"]) => Sort::Time,
        () if has(&["CHAR", "CLOB", "TEXT"]) => Sort::Text,
        () if has(&["BLOB", "BINARY"]) => Sort::Bytes,
        () => Sort::Other,
    }
}

fn indices(tx: &Transaction<'_>, schema: &str, table: &str) -> Sql<Vec<IndexShape>> {
    let sql = "SELECT l.name, l.\"unique\", CASE l.partial WHEN 1 THEN s.sql END
                 FROM pragma_index_list(?2, ?1) l LEFT JOIN sqlite_schema s ON s.type = 'index' AND s.name = l.name";
    let mut statement = tx.prepare(sql)?;
    let found = statement.query_map((schema, table), |row| {
        Ok((row.get::<_, String>(0)?, row.get(1)?, row.get::<_, Option<String>>(2)?))
    })?;
    let mut indices = Vec::new();
    for index in found {
        let (name, unique, sql) = index?;
        let condition = sql.map(|sql| sql.rsplit("WHERE").next().unwrap_or_default().trim().into());
        let columns = strings(
            tx,
            "SELECT COALESCE(name, '') FROM pragma_index_info(?2, ?1) ORDER BY seqno",
            schema,
            &name,
        )?;
        indices.push(IndexShape { columns, unique, condition });
    }
    // An INTEGER PRIMARY KEY is the row's own number, and has no index of its own.
    let key = strings(
        tx,
        "SELECT name FROM pragma_table_xinfo(?2, ?1) WHERE pk > 0 ORDER BY pk",
        schema,
        table,
    )?;
    if !key.is_empty() {
        indices.push(IndexShape { columns: key, unique: true, condition: None });
    }
    Ok(indices)
}

fn strings(tx: &Transaction<'_>, sql: &str, schema: &str, name: &str) -> Sql<Vec<String>> {
    let mut statement = tx.prepare(sql)?;
    let rows = statement.query_map((schema, name), |row| row.get(0))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

#[cfg(test)]
mod tests {
    use super::bare;

    #[test]
    fn what_is_quoted_or_a_comment_says_nothing() {
        for (sql, left) in [
            ("a -- AUTOINCREMENT", "a  "),
            ("a -- not AUTOINCREMENT\nb", "a  b"),
            ("a/* AUTO\n */b", "a b"),
            ("a 'AUTO''INCREMENT' \"x\"[y]`z` -1", "a        -1"),
            ("a 'never ends", "a  "),
            ("ñ AUTOINCREMENT", "ñ AUTOINCREMENT"),
        ] {
            assert_eq!(bare(sql), left, "{sql}");
        }
    }
}
