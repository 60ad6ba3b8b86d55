//! Numbered schema changes. Each is applied once, in one transaction with its entry in `relevo_schema`.

use super::errors::{Sql, own};
use super::rows::now_ms;
use relevo_core::Kind;
use rusqlite::{OptionalExtension, Transaction, params};
use std::fmt::Write;

#[derive(Debug, Clone, Copy)]
pub(super) struct Migration {
    number: i64,
    /// Programs whose newest change is at least this one go on working after it; its own number if none does.
    oldest: i64,
    name: &'static str,
    sql: &'static str,
}

const MIGRATIONS: &[Migration] = &[
    Migration { number: 1, oldest: 1, name: "log", sql: include_str!("migrations/0001_log.sql") },
    Migration {
        number: 2,
        oldest: 2,
        name: "relay",
        sql: include_str!("migrations/0002_relay.sql"),
    },
    Migration {
        number: 3,
        oldest: 3,
        name: "inbox",
        sql: include_str!("migrations/0003_inbox.sql"),
    },
    Migration {
        number: 4,
        oldest: 3,
        name: "horizon",
        sql: include_str!("migrations/0004_horizon.sql"),
    },
    Migration {
        number: 5,
        oldest: 3,
        name: "adopt",
        sql: include_str!("migrations/0005_adopt.sql"),
    },
    Migration {
        number: 6,
        oldest: 3,
        name: "adopt mapping",
        sql: include_str!("migrations/0006_adopt_mapping.sql"),
    },
];

const REGISTER: &str = "CREATE TABLE IF NOT EXISTS relevo_schema (
    number     INTEGER PRIMARY KEY,
    name       TEXT NOT NULL,
    checksum   TEXT NOT NULL,
    applied_at INTEGER NOT NULL,
    oldest     INTEGER
)";

impl Migration {
    /// What a program of the next version would bring along, for tests of rolling upgrades.
    pub(super) fn next(sql: &'static str) -> Self {
        Self { number: current() + 1, oldest: current(), name: "of the next version", sql }
    }

    /// FNV-1a, 64 bits: tells an edited file, not an attacker.
    fn checksum(&self) -> String {
        let mix =
            |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        format!("{:016x}", self.sql.bytes().fold(0xcbf2_9ce4_8422_2325, mix))
    }

    fn title(&self) -> String {
        format!("{:04} {}", self.number, self.name)
    }
}

/// Every schema change as SQL, for people who apply them by hand.
pub fn migrations_sql() -> String {
    let mut sql = format!("BEGIN IMMEDIATE;\n{REGISTER};\n");
    for migration in MIGRATIONS {
        let Migration { number, oldest, name, sql: body } = migration;
        // Writing to a String cannot fail.
        let _ = write!(
            sql,
            "\n-- {}\n{body}INSERT INTO relevo_schema VALUES ({number}, '{name}', '{}', {}, {oldest});\n",
            migration.title(),
            migration.checksum(),
            now_ms!()
        );
    }
    sql + "COMMIT;\n"
}

/// The newest change of this build.
fn current() -> i64 {
    MIGRATIONS.last().map_or(0, |migration| migration.number)
}

/// Every change that is known, in order; `next` is one that only tests know.
fn known(next: Option<&Migration>) -> impl Iterator<Item = &Migration> {
    MIGRATIONS.iter().chain(next)
}

/// The version that works with them.
pub(super) fn version(next: Option<&Migration>) -> i64 {
    known(next).last().map_or(0, |migration| migration.number)
}

/// Applies what is missing; answers with what it applied. The caller holds the write lock, so of two processes
/// that start at once the second finds everything done.
pub(super) fn apply(tx: &Transaction<'_>, next: Option<&Migration>) -> Sql<Vec<String>> {
    tx.execute_batch(REGISTER)?;
    refuse_unless_beside(tx, version(next))?;
    let mut applied = Vec::new();
    for migration in known(next) {
        let sql = "SELECT checksum FROM relevo_schema WHERE number = ?1";
        match tx.query_row(sql, [migration.number], |row| row.get::<_, String>(0)).optional()? {
            Some(checksum) => unchanged(migration, &checksum)?,
            None => {
                apply_one(tx, migration)?;
                applied.push(migration.title());
            }
        }
    }
    Ok(applied)
}

fn apply_one(tx: &Transaction<'_>, migration: &Migration) -> Sql<()> {
    tx.execute_batch(migration.sql)?;
    let sql = concat!(
        "INSERT INTO relevo_schema (number, name, checksum, oldest, applied_at) VALUES (?1, ?2, ?3, ?4, ",
        now_ms!(),
        ")"
    );
    let Migration { number, oldest, name, .. } = *migration;
    tx.execute(sql, params![number, name, migration.checksum(), oldest])?;
    Ok(())
}

fn unchanged(migration: &Migration, checksum: &str) -> Sql<()> {
    if migration.checksum() == checksum {
        return Ok(());
    }
    let message = format!(
        "migration {} was applied from another text than this build has: the file was made by a different build of Relevo",
        migration.title()
    );
    Err(own(Kind::SchemaNewer, message).into())
}

/// Refuses newer tables, unless every change since says that programs like this one go on beside it.
fn refuse_unless_beside(tx: &Transaction<'_>, version: i64) -> Sql<()> {
    let sql =
        "SELECT max(number), max(COALESCE(oldest, number)) FROM relevo_schema WHERE number > ?1";
    let (installed, oldest): (Option<i64>, Option<i64>) =
        tx.query_row(sql, [version], |row| Ok((row.get(0)?, row.get(1)?)))?;
    match (installed, oldest) {
        (Some(installed), Some(oldest)) if oldest > version => {
            let message = format!(
                "the file has schema {installed}, this build knows up to {version} and cannot go on beside it: use a newer Relevo"
            );
            Err(own(Kind::SchemaNewer, message).into())
        }
        _ => Ok(()),
    }
}

/// The newest applied change, 0 if there is none.
fn installed(tx: &Transaction<'_>) -> Sql<i64> {
    let there = tx
        .prepare_cached(
            "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'relevo_schema'",
        )?
        .exists([])?;
    if !there {
        return Ok(0);
    }
    Ok(tx.query_row("SELECT COALESCE(max(number), 0) FROM relevo_schema", [], |row| row.get(0))?)
}

/// The schema's version, if this build can work with it.
pub(super) fn require_current(tx: &Transaction<'_>, next: Option<&Migration>) -> Sql<i64> {
    let (installed, version) = (installed(tx)?, version(next));
    let hint = "run `relevo migrate`, or call migrate()";
    if installed == 0 {
        let message = format!("the file has no Relevo tables yet; {hint}");
        return Err(own(Kind::SchemaMissing, message).into());
    }
    if installed < version {
        let message =
            format!("the file has schema {installed}, this build needs {version}; {hint}");
        return Err(own(Kind::SchemaOlder, message).into());
    }
    refuse_unless_beside(tx, version)?;
    Ok(installed)
}
