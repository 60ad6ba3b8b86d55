//! What PostgreSQL and its drivers report, in Relevo's own kinds, each with what to do about it.

use deadpool_postgres::PoolError;
use relevo_core::{Error, Kind};
use std::error::Error as StdError;
use tokio_postgres::error::SqlState;

/// The adapter's name, as errors and metrics carry it.
pub(crate) const ADAPTER: &str = "postgres";

/// What the server said, whichever driver heard it.
struct Report<'a> {
    state: &'a str,
    constraint: Option<&'a str>,
    message: String,
}

/// An error of this adapter.
pub(crate) fn error(kind: Kind, message: impl Into<String>) -> Error {
    Error::new(kind, message).from_adapter(ADAPTER)
}

/// An error of tokio-postgres.
pub(crate) fn from_driver(cause: tokio_postgres::Error) -> Error {
    let (kind, message) = match cause.as_db_error() {
        Some(db) => {
            let message = [Some(db.message()), db.detail()]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .join("; ");
            reported(&Report { state: db.code().code(), constraint: db.constraint(), message })
        }
        None => driver_kind(&cause),
    };
    error(kind, message).because(cause)
}

/// An error of the pool.
pub(crate) fn from_pool(cause: PoolError) -> Error {
    match cause {
        PoolError::Backend(cause) => from_driver(cause),
        PoolError::Timeout(_) => error(
            Kind::Timeout,
            "no connection came free in time; the pool is too small or the server does not answer",
        ),
        PoolError::Closed => error(Kind::Unreachable, "the pool is closed"),
        other => error(Kind::StoreFailed, other.to_string()).because(other),
    }
}

/// An error of sqlx.
#[cfg(feature = "sqlx")]
pub(crate) fn from_sqlx(cause: sqlx::Error) -> Error {
    let (kind, message) = match &cause {
        sqlx::Error::Database(db) => {
            let state = db.code().unwrap_or_default().into_owned();
            reported(&Report {
                state: &state,
                constraint: db.constraint(),
                message: db.message().to_owned(),
            })
        }
        sqlx::Error::Io(_) | sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed => {
            (Kind::Unreachable, cause.to_string())
        }
        sqlx::Error::PoolTimedOut => {
            (Kind::Timeout, "no connection of the sqlx pool came free in time".to_owned())
        }
        _ => (Kind::StoreFailed, cause.to_string()),
    };
    error(kind, message).because(cause)
}

/// An error on COMMIT (or on a statement that is a transaction of its own). Where the server did not say that it
/// rolled back, nobody knows.
pub(crate) fn on_commit(cause: Error) -> Error {
    match cause.kind() {
        Kind::Unreachable | Kind::Timeout => {
            let message = format!("the connection was lost while committing: {}", cause.message());
            error(Kind::CommitUnknown, message).because(cause)
        }
        _ => cause,
    }
}

fn reported(report: &Report<'_>) -> (Kind, String) {
    let kind = kind_of(report.state, report.constraint);
    let message = match hint_of(kind, report.state) {
        Some(hint) => format!("{} [{}]; {hint}", report.message, report.state),
        None => format!("{} [{}]", report.message, report.state),
    };
    (kind, message)
}

/// The kind of an SQLSTATE.
fn kind_of(state: &str, constraint: Option<&str>) -> Kind {
    if let Some(kind) = own_kind(state) {
        return kind;
    }
    match state {
        "28000" | "28P01" => Kind::AuthenticationFailed,
        "42501" => Kind::MissingPrivilege,
        "25006" => Kind::ReadOnlyReplica,
        // Deadlock, serialization, cancelled, idle or too long in the transaction, lock timeout, aborted already.
        "40001" | "40P01" | "57014" | "25P03" | "25P04" | "55P03" | "25P02" => {
            Kind::TransactionConflict
        }
        "53100" => Kind::DiskFull,
        "42P01" | "3F000" | "42883" => Kind::SchemaMissing,
        "42703" => Kind::SchemaOlder,
        "3D000" => Kind::InvalidUrl,
        // A statement prepared in one transaction is gone, or another client's, in the next.
        "26000" | "42P05" => Kind::TransactionPooler,
        "23514" => constraint.map_or(Kind::StoreFailed, checked_kind),
        "23505" if constraint == Some("parked_ref_pkey") => Kind::Stale,
        "22021" | "22P05" => Kind::InvalidPayload,
        "53300" | "57P01" | "57P02" | "57P03" => Kind::Unreachable,
        _ if state.starts_with("08") => Kind::Unreachable,
        _ => Kind::StoreFailed,
    }
}

/// Our own functions raise `RLV` and the last two digits of our code.
fn own_kind(state: &str) -> Option<Kind> {
    let digits = state.strip_prefix("RLV")?;
    let code = format!("R00{digits}");
    Kind::ALL.iter().copied().find(|kind| kind.code() == code)
}

fn checked_kind(constraint: &str) -> Kind {
    match constraint {
        "outbox_topic_valid" => Kind::InvalidTopic,
        "outbox_key_valid" => Kind::InvalidKey,
        "outbox_payload_fits" => Kind::PayloadTooLarge,
        "outbox_headers_valid" => Kind::InvalidHeaders,
        _ => Kind::StoreFailed,
    }
}

fn hint_of(kind: Kind, state: &str) -> Option<&'static str> {
    match (kind, state) {
        (_, "3D000") => Some("the URL names a database that is not there"),
        (_, "53300") => Some("raise max_connections, or use a smaller pool"),
        (Kind::AuthenticationFailed, _) => Some("check user, password and pg_hba.conf"),
        (Kind::MissingPrivilege, _) => {
            Some("`relevo migrate --print` ends with the GRANTs for a writer and a relay role")
        }
        (Kind::ReadOnlyReplica, _) => {
            Some("point the URL at the primary, or add target_session_attrs=read-write")
        }
        (Kind::SchemaMissing, _) => Some("run `relevo migrate`"),
        (Kind::DiskFull, _) => Some("nothing was written; free space on the server's disk"),
        (Kind::TransactionPooler, _) => {
            Some("switch the pooler to session mode, or let it keep prepared statements")
        }
        _ => None,
    }
}

/// What the driver reports without the server having said anything.
fn driver_kind(cause: &tokio_postgres::Error) -> (Kind, String) {
    let text = chain(cause);
    let kind = if cause.is_closed() || text.starts_with("error connecting") || has_io(cause) {
        Kind::Unreachable
    } else if text.starts_with("timeout") {
        Kind::Timeout
    } else if text.contains("password missing") || text.starts_with("authentication error") {
        Kind::AuthenticationFailed
    } else if text.contains("connection string")
        || text.contains("configuration")
        || text.contains("TLS")
    {
        Kind::InvalidUrl
    } else {
        Kind::StoreFailed
    };
    (kind, text)
}

fn has_io(cause: &tokio_postgres::Error) -> bool {
    cause.source().is_some_and(|source| source.is::<std::io::Error>())
}

/// The error and everything behind it, in one line.
fn chain(cause: &dyn StdError) -> String {
    let mut text = cause.to_string();
    let mut source = cause.source();
    while let Some(inner) = source {
        let more = inner.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = inner.source();
    }
    text
}

/// True if a lock was not to be had: not in the moment that was given to it, or only by somebody's giving way.
pub(crate) fn could_not_lock(cause: &Error) -> bool {
    let source =
        StdError::source(cause).and_then(|source| source.downcast_ref::<tokio_postgres::Error>());
    let code = source.and_then(tokio_postgres::Error::code);
    code.is_some_and(|code| {
        [SqlState::LOCK_NOT_AVAILABLE, SqlState::T_R_DEADLOCK_DETECTED].contains(code)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_of_ours_finds_its_kind_again() {
        assert_eq!(kind_of("RLV23", None), Kind::Stale);
        assert_eq!(kind_of("RLV10", None), Kind::PayloadTooLarge);
        assert_eq!(kind_of("RLV99", None), Kind::StoreFailed);
    }

    #[test]
    fn what_the_server_says_finds_its_kind() {
        for (state, constraint, kind) in [
            ("28P01", None, Kind::AuthenticationFailed),
            ("42501", None, Kind::MissingPrivilege),
            ("40P01", None, Kind::TransactionConflict),
            ("53100", None, Kind::DiskFull),
            ("42P01", None, Kind::SchemaMissing),
            ("08006", None, Kind::Unreachable),
            ("26000", None, Kind::TransactionPooler),
            ("23514", Some("outbox_key_valid"), Kind::InvalidKey),
            ("23505", Some("parked_ref_pkey"), Kind::Stale),
            ("23505", Some("orders_pkey"), Kind::StoreFailed),
        ] {
            assert_eq!(kind_of(state, constraint), kind, "{state}");
        }
    }

    #[test]
    fn a_connection_lost_while_committing_leaves_the_outcome_unknown() {
        assert_eq!(on_commit(error(Kind::Unreachable, "gone")).kind(), Kind::CommitUnknown);
        assert_eq!(
            on_commit(error(Kind::TransactionConflict, "deadlock")).kind(),
            Kind::TransactionConflict
        );
    }
}
