//! Numbered migrations, each applied once: by several processes at the same time, again and again, whatever is there.

use crate::db::{Conn, Db, Sql, Tx};
use sqlx::Result;

/// A migration in both dialects.
struct Migration {
    name: &'static str,
    postgres: &'static str,
    sqlite: &'static str,
    /// Columns of texts, each with its table, that are there before SQLite's script runs.
    sqlite_columns: &'static [(&'static str, &'static str)],
}

macro_rules! migration {
    ($folder:literal, $name:literal $(, $table:literal has $column:literal)*) => {
        Migration {
            name: $name,
            postgres: include_str!(concat!("../migrations/postgres/", $folder, $name, ".sql")),
            sqlite: include_str!(concat!("../migrations/sqlite/", $folder, $name, ".sql")),
            sqlite_columns: &[$(($table, $column)),*],
        }
    };
}

/// The tenant service's.
const TENANTS: &[Migration] = &[
    migration!("", "0001_tenants_and_outbox"),
    migration!(
        "",
        "0002_error_classes_dlq_and_indices",
        "outbox_events" has "error_class",
        "outbox_events" has "last_error_at"
    ),
    migration!("", "0003_index_of_pending"),
    migration!("", "0004_chosen_broker"),
];

/// The downstream service's, in its own database.
const DOWNSTREAM: &[Migration] = &[migration!("downstream/", "0001_directory")];

/// Partitions by month, on PostgreSQL.
const PARTITIONS: &str = include_str!("../migrations/postgres/optional_partitions.sql");

const APPLIED: Sql = Sql::both(
    "CREATE TABLE IF NOT EXISTS smartedify_migrations (name text PRIMARY KEY, applied_at text DEFAULT CURRENT_TIMESTAMP)",
);
const NOTE: Sql =
    Sql::both("INSERT INTO smartedify_migrations (name) VALUES ($1) ON CONFLICT (name) DO NOTHING");

/// Others wait until this transaction ends. SQLite's has the write lock already.
const ALONE: Sql = Sql::each("SELECT pg_advisory_xact_lock(5130003)", "SELECT 1");

/// Brings the tenant service's tables up to date; answers what was applied.
pub async fn tenants(db: &Db) -> Result<Vec<&'static str>> {
    apply(db, TENANTS).await
}

/// Brings the downstream service's tables up to date.
pub async fn downstream(db: &Db) -> Result<Vec<&'static str>> {
    apply(db, DOWNSTREAM).await
}

async fn apply(db: &Db, migrations: &[Migration]) -> Result<Vec<&'static str>> {
    let mut tx = db.begin().await?;
    let mut conn = tx.conn();
    conn.run(&ALONE, &[]).await?;
    conn.run(&APPLIED, &[]).await?;
    let mut applied = Vec::new();
    for migration in migrations {
        if conn.run(&NOTE, &[migration.name.into()]).await? == 1 {
            migration.run(&mut conn).await?;
            applied.push(migration.name);
        }
    }
    tx.commit().await?;
    Ok(applied)
}

impl Migration {
    async fn run(&self, conn: &mut Conn<'_>) -> Result<()> {
        if let Conn::Postgres(_) = conn {
            return conn.script(self.postgres).await;
        }
        for (table, column) in self.sqlite_columns {
            add_column(conn, table, column).await?;
        }
        conn.script(self.sqlite).await
    }
}

const HAS_COLUMN: Sql = Sql::both("SELECT count(*) FROM pragma_table_info($1) WHERE name = $2");

/// SQLite has no ADD COLUMN IF NOT EXISTS.
async fn add_column(conn: &mut Conn<'_>, table: &str, column: &str) -> Result<()> {
    let found: Option<(i64,)> = conn.row(&HAS_COLUMN, &[table.into(), column.into()]).await?;
    if found == Some((1,)) {
        return Ok(());
    }
    conn.run_made(format!("ALTER TABLE {table} ADD COLUMN {column} TEXT")).await
}

/// Partitions the outbox by month. False on SQLite, which has no partitions.
pub async fn partition(db: &Db) -> Result<bool> {
    let mut tx = db.begin().await?;
    if let Tx::Sqlite(_) = tx {
        return Ok(false);
    }
    let mut conn = tx.conn();
    conn.run(&ALONE, &[]).await?;
    conn.script(PARTITIONS).await?;
    tx.commit().await?;
    Ok(true)
}
