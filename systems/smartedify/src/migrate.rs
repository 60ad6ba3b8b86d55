//! Numbered migrations, each applied once: by several processes at the same time, again and again, whatever is there.

use crate::db::{Conn, Db, Sql, Tx};
use sqlx::Result;

/// A migration in both dialects.
struct Migration {
    name: &'static str,
    postgres: &'static str,
    sqlite: &'static str,
}

macro_rules! migration {
    ($folder:literal, $name:literal) => {
        Migration {
            name: $name,
            postgres: include_str!(concat!("../migrations/postgres/", $folder, $name, ".sql")),
            sqlite: include_str!(concat!("../migrations/sqlite/", $folder, $name, ".sql")),
        }
    };
}

/// The tenant service's.
const TENANTS: &[Migration] = &[
    migration!("", "0001_tenants_and_outbox"),
    migration!("", "0002_error_classes_dlq_and_indices"),
    migration!("", "0003_index_of_pending"),
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
            conn.script(migration.for_conn(&conn)).await?;
            applied.push(migration.name);
        }
    }
    tx.commit().await?;
    Ok(applied)
}

impl Migration {
    fn for_conn(&self, conn: &Conn<'_>) -> &'static str {
        match conn {
            Conn::Postgres(_) => self.postgres,
            Conn::Sqlite(_) => self.sqlite,
        }
    }
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
