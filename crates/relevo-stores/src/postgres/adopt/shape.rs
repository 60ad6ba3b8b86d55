//! The table as the catalogue describes it.

use super::super::errors::error;
use super::super::session::{Session, args};
use relevo_core::outbox::adopt::{ColumnShape, IndexShape, Sort, TableName, TableShape, Times};
use relevo_core::{Kind, Result};
use tokio_postgres::Row;

/// Reads what matters of a table; refuses one that is not there, or is none.
pub(super) async fn read(session: &Session, name: &TableName) -> Result<TableShape> {
    let sql = "SELECT c.oid::bigint, n.nspname::text, c.relname::text, c.relkind::text,
                      current_setting('track_commit_timestamp') = 'on'
                 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                WHERE c.oid = to_regclass($1)";
    let Some(row) = session.query_opt(sql, args![name.sql()]).await? else {
        return Err(missing(session, name).await?);
    };
    let (oid, kind): (i64, &str) = (row.get(0), row.get(3));
    if !matches!(kind, "r" | "p") {
        let why =
            format!("{name} is no table (a view, a foreign table ...): its rows cannot be claimed");
        return Err(error(Kind::UnfitTable, why));
    }
    let mut shape = TableShape::named(TableName { schema: Some(row.get(1)), table: row.get(2) });
    shape.commit_times = row.get(4);
    shape.columns = columns(session, oid).await?;
    shape.indices = indices(session, oid).await?;
    shape.denied = denied(session, oid).await?;
    Ok(shape)
}

/// Names are told as they are written: one of another case may be meant.
async fn missing(session: &Session, name: &TableName) -> Result<relevo_core::Error> {
    let sql = "SELECT n.nspname || '.' || c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                WHERE c.relkind IN ('r', 'p') AND lower(c.relname) = lower($1) ORDER BY 1 LIMIT 1";
    let near = session.query_opt(sql, args![name.table]).await?;
    let near = near.map(|row| format!("; did you mean {:?}?", row.get::<_, String>(0)));
    let why = format!("there is no table {name} in this database{}", near.unwrap_or_default());
    Ok(error(Kind::UnfitTable, why))
}

async fn columns(session: &Session, table: i64) -> Result<Vec<ColumnShape>> {
    // Text has another order than numbers, and so may what is computed of one.
    let sql = "SELECT a.attname::text, format_type(a.atttypid, a.atttypmod), coalesce(b.typname, t.typname)::text,
                      NOT a.attnotnull, pg_get_expr(d.adbin, d.adrelid), a.attgenerated <> '',
                      (SELECT max(CASE WHEN q.seqincrement > 0 THEN q.seqcache ELSE -q.seqcache END)
                         FROM pg_depend x JOIN pg_sequence q ON NOT q.seqcycle
                          AND ((x.classid = 'pg_class'::regclass AND q.seqrelid = x.objid AND x.deptype = 'i'
                                AND x.refclassid = 'pg_class'::regclass AND x.refobjid = a.attrelid AND x.refobjsubid = a.attnum)
                            OR (x.classid = 'pg_attrdef'::regclass AND x.objid = d.oid AND q.seqrelid = x.refobjid
                                AND pg_get_expr(d.adbin, d.adrelid) ~ '^nextval[(]E?''([^'']|'''')+''::regclass[)]$'))
                        WHERE coalesce(b.typname, t.typname) IN ('int2', 'int4', 'int8', 'numeric'))
                 FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
                 LEFT JOIN pg_type b ON b.oid = nullif(t.typbasetype, 0)
                 LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
                WHERE a.attrelid = $1::bigint::oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum";
    let rows = session.query(sql, args![table]).await?;
    Ok(rows.iter().map(column).collect())
}

fn column(row: &Row) -> ColumnShape {
    ColumnShape {
        name: row.get(0),
        type_name: row.get(1),
        sort: sort(row.get(2)),
        times: times(row.get(2)),
        nullable: row.get(3),
        default: row.get(4),
        generated: row.get(5),
        sequence_step: row.get(6),
    }
}

fn sort(type_name: &str) -> Sort {
    match type_name {
        "text" | "varchar" | "bpchar" | "citext" | "name" => Sort::Text,
        "json" | "jsonb" => Sort::Json,
        "bytea" => Sort::Bytes,
        "uuid" => Sort::Uuid,
        "int2" | "int4" | "int8" => Sort::Integer,
        "timestamptz" => Sort::Time,
        "timestamp" => Sort::NaiveTime,
        _ => Sort::Other,
    }
}

/// A text may be no time, and one bad row must not keep the others from being read; a day tells too little.
fn times(type_name: &str) -> Times {
    match type_name {
        "timestamptz" | "timestamp" | "int8" => Times::Holds,
        "text" | "varchar" | "bpchar" | "citext" | "date" => Times::Takes,
        _ => Times::Refuses,
    }
}

async fn indices(session: &Session, table: i64) -> Result<Vec<IndexShape>> {
    let sql = "SELECT (SELECT array_agg(coalesce(a.attname::text, '') ORDER BY k.place)
                         FROM unnest(i.indkey::smallint[]) WITH ORDINALITY AS k (number, place)
                         LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
                        WHERE k.place <= i.indnkeyatts),
                      i.indisunique, pg_get_expr(i.indpred, i.indrelid)
                 FROM pg_index i WHERE i.indrelid = $1::bigint::oid AND i.indisvalid ORDER BY i.indexrelid";
    let rows = session.query(sql, args![table]).await?;
    let index = |row: &Row| IndexShape {
        columns: row.get::<_, Option<Vec<String>>>(0).unwrap_or_default(),
        unique: row.get(1),
        condition: row.get(2),
    };
    Ok(rows.iter().map(index).collect())
}

async fn denied(session: &Session, table: i64) -> Result<Vec<String>> {
    let sql = "SELECT p.name FROM unnest(ARRAY['SELECT', 'UPDATE', 'INSERT']) AS p (name)
                WHERE NOT has_any_column_privilege($1::bigint::oid, p.name)
                UNION ALL SELECT 'DELETE' WHERE NOT has_table_privilege($1::bigint::oid, 'DELETE')";
    let rows = session.query(sql, args![table]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}
