//! Looks at what commonly goes wrong with a log in a file.

use super::errors::Sql;
use super::{SqliteStore, status};
use relevo_core::dead_letters::{Finding, Level, LogStatus, SubscriptionStatus};
use relevo_core::outbox::Store;
use relevo_core::{Error, Kind, Result};
use rusqlite::Transaction;

/// A write-ahead log above this was not folded back for long: somebody keeps a read transaction open.
const LARGE_WAL_BYTES: u64 = 256 << 20;

/// Files up to this size are read through for damage; for larger ones the command is named.
const CHECKED_BYTES: i64 = 64 << 20;

fn ok(check: &str, text: impl Into<String>) -> Finding {
    Finding::new(Level::Ok, check, text)
}

fn warning(check: &str, text: impl Into<String>) -> Finding {
    Finding::new(Level::Warning, check, text)
}

fn problem(check: &str, text: impl Into<String>) -> Finding {
    Finding::new(Level::Problem, check, text)
}

/// Everything, from the file to its subscriptions. What cannot be looked at is itself a finding.
pub(super) async fn doctor(store: &SqliteStore) -> Result<Vec<Finding>> {
    let mut findings = vec![match store.check_file() {
        Ok(()) => ok("file", store.path().display().to_string()),
        Err(error) => problem("file", error.to_string()),
    }];
    findings.push(match store.probe().await {
        Ok(probe) => {
            ok("schema", format!("{} with Relevo's schema {}", probe.server, probe.schema))
        }
        Err(error) => problem("schema", error.to_string()),
    });
    if findings.iter().any(|finding| finding.level == Level::Problem) {
        return Ok(findings);
    }
    findings.push(can_write(store.write(|_| Ok(())).await));
    findings.extend(store.read(file_settings).await?);
    findings.extend(wal_size(store));
    let status = status::status(store).await?;
    findings.extend(damage(store, &status).await?);
    findings.extend(status.subscriptions.iter().flat_map(SubscriptionStatus::findings));
    if status.subscriptions.is_empty() {
        findings
            .push(warning("subscriptions", "there is none: events are kept, but nobody gets them"));
    }
    Ok(findings)
}

fn can_write(tried: Result<(), Error>) -> Finding {
    match tried {
        Ok(()) => ok("write", "the write lock was got"),
        Err(error) if error.kind() == Kind::FileLocked => problem(
            "write",
            format!("{error}; look for a process that keeps a transaction open on the file"),
        ),
        Err(error) => problem("write", error.to_string()),
    }
}

fn file_settings(tx: &Transaction<'_>) -> Sql<Vec<Finding>> {
    let mode: String = tx.query_row("PRAGMA journal_mode", [], |row| row.get(0))?;
    let mode = match mode.as_str() {
        "wal" => ok("journal", "write-ahead log: readers and the writer go on beside each other"),
        other => problem(
            "journal",
            format!("the journal mode is {other}; somebody changed it from WAL: restart the relay"),
        ),
    };
    let sql = "SELECT sql FROM sqlite_schema WHERE name = 'relevo_outbox'";
    let table: String = tx.query_row(sql, [], |row| row.get(0))?;
    let numbers = if table.to_ascii_uppercase().contains("AUTOINCREMENT") {
        ok("numbers", "the log never gives a number twice")
    } else {
        problem(
            "numbers",
            "relevo_outbox lost its AUTOINCREMENT: numbers of dropped rows come again and are never delivered",
        )
    };
    Ok(vec![mode, numbers])
}

fn wal_size(store: &SqliteStore) -> Option<Finding> {
    let mut name = store.path().as_os_str().to_owned();
    name.push("-wal");
    let bytes = std::fs::metadata(name).ok()?.len();
    (bytes > LARGE_WAL_BYTES).then(|| {
        let text = format!(
            "the -wal file has {} MiB: some connection keeps a read transaction open for long",
            bytes >> 20
        );
        warning("journal size", text)
    })
}

async fn damage(store: &SqliteStore, status: &LogStatus) -> Result<Option<Finding>> {
    if status.bytes.is_some_and(|bytes| bytes > CHECKED_BYTES) {
        return Ok(Some(ok(
            "damage",
            "not looked for in a file this large; `PRAGMA quick_check` does",
        )));
    }
    let found: String =
        store.read(|tx| Ok(tx.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?)).await?;
    Ok(Some(if found == "ok" {
        ok("damage", "none")
    } else {
        problem("damage", format!("{found}; restore a backup"))
    }))
}
