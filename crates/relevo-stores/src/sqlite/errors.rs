//! What SQLite says, as Relevo's kinds with a hint.

use super::ADAPTER;
use relevo_core::{Error, Kind};
use rusqlite::ffi;

/// Inside a transaction: either the driver's error or one of ours.
#[derive(Debug)]
pub(super) enum Fault {
    Sql(rusqlite::Error),
    Own(Error),
}

/// The result of work inside a transaction.
pub(super) type Sql<T> = Result<T, Fault>;

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Own(error)
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Sql(error) => of_rusqlite(error),
            Fault::Own(error) => error,
        }
    }
}

/// An error of this store.
pub(super) fn own(kind: Kind, message: impl Into<String>) -> Error {
    Error::new(kind, message).from_adapter(ADAPTER)
}

/// The kind of an error of rusqlite.
pub(super) fn of_rusqlite(error: rusqlite::Error) -> Error {
    let code = error.sqlite_error().map(|e| e.extended_code);
    described(code, &error.to_string()).because(error)
}

/// The kind of an error of sqlx.
#[cfg(feature = "sqlx")]
pub(super) fn of_sqlx(error: sqlx::Error) -> Error {
    let code = error.as_database_error().and_then(|e| e.code()).and_then(|code| code.parse().ok());
    let error_of = match &error {
        sqlx::Error::PoolTimedOut => {
            own(Kind::Timeout, "no connection of the pool became free in time")
        }
        sqlx::Error::PoolClosed => own(Kind::StoreFailed, "the pool is closed"),
        other => described(code, &other.to_string()),
    };
    error_of.because(error)
}

/// True if the transaction read before somebody else wrote, and cannot write any more.
pub(super) fn is_snapshot_conflict(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|e| e.extended_code == ffi::SQLITE_BUSY_SNAPSHOT)
}

fn described(extended_code: Option<i32>, text: &str) -> Error {
    let (kind, hint) = match extended_code {
        Some(code) => of_code(code, text),
        None => of_text(text),
    };
    let message = if hint.is_empty() { text.to_owned() } else { format!("{text}; {hint}") };
    own(kind, message)
}

fn of_code(extended: i32, text: &str) -> (Kind, &'static str) {
    match (extended, extended & 0xff) {
        (ffi::SQLITE_BUSY_SNAPSHOT, _) => {
            (Kind::TransactionConflict, "it read before another transaction wrote")
        }
        (_, ffi::SQLITE_BUSY | ffi::SQLITE_LOCKED) => (
            Kind::FileLocked,
            "another process or connection holds the write lock for longer than the busy timeout: keep transactions short",
        ),
        (ffi::SQLITE_READONLY_DBMOVED, _) | (ffi::SQLITE_IOERR_VNODE, _) => {
            (Kind::FileMoved, "put it back or restart")
        }
        (_, ffi::SQLITE_READONLY) => (
            Kind::FileReadOnly,
            "the file and its folder must be writable for this user, and not be opened with mode=ro",
        ),
        (_, ffi::SQLITE_FULL) => (Kind::DiskFull, "make room; nothing of the transaction was kept"),
        (_, ffi::SQLITE_CANTOPEN) => (
            Kind::FileMoved,
            "look whether the path exists and this user may read and write the file and its folder",
        ),
        (_, ffi::SQLITE_NOTADB) => {
            (Kind::FileMoved, "the file is not an SQLite database (or is encrypted)")
        }
        (_, ffi::SQLITE_CORRUPT) => {
            (Kind::FileMoved, "the file is damaged: restore it from a backup")
        }
        (_, ffi::SQLITE_PERM | ffi::SQLITE_AUTH) => {
            (Kind::MissingPrivilege, "this user may not do that")
        }
        (_, ffi::SQLITE_INTERRUPT) => {
            (Kind::TransactionConflict, "it ran past its limit and was ended")
        }
        (_, ffi::SQLITE_CONSTRAINT) => of_constraint(text),
        _ => of_text(text),
    }
}

/// The log's checks carry the name of what they refuse.
fn of_constraint(text: &str) -> (Kind, &'static str) {
    let known = [
        (
            "relevo_invalid_topic",
            Kind::InvalidTopic,
            "words parted by single dots, at most 255 bytes, no white space and no * # >",
        ),
        (
            "relevo_invalid_key",
            Kind::InvalidKey,
            "1 to 255 bytes of text without control characters, or NULL",
        ),
        (
            "relevo_invalid_headers",
            Kind::InvalidHeaders,
            "a JSON object of at most 16384 bytes of names and values",
        ),
        ("relevo_payload_too_large", Kind::PayloadTooLarge, "the limit is 1048576 bytes"),
        ("relevo_invalid_id", Kind::InvalidArgument, "a UUID in lower case, or leave it out"),
        ("relevo_invalid_seq", Kind::InvalidArgument, ""),
        ("relevo_append_only", Kind::InvalidArgument, ""),
        (
            "relevo_invalid_created_at",
            Kind::InvalidArgument,
            "milliseconds since 1970, or leave it out",
        ),
    ];
    let found = known.iter().find(|(name, ..)| text.contains(name));
    found.map_or((Kind::StoreFailed, ""), |(_, kind, hint)| (*kind, *hint))
}

fn of_text(text: &str) -> (Kind, &'static str) {
    if text.contains("no such table: relevo_") || text.contains("no such table: main.relevo_") {
        (Kind::SchemaMissing, "run `relevo migrate`, or call migrate()")
    } else if text.contains("no such column") || text.contains("has no column named") {
        (Kind::SchemaOlder, "run `relevo migrate`, or call migrate()")
    } else {
        (Kind::StoreFailed, "")
    }
}
