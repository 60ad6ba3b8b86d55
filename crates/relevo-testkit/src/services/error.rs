//! What can go wrong with a server, and what a missing one means.

use std::io::Write;

/// The result of everything in this module.
pub type Result<T, E = ServiceError> = std::result::Result<T, E>;

/// Why a server cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// The program is nowhere on this machine.
    #[error(
        "{server} is not on this machine (looked at {looked}); `cargo xtask test --install` gets it"
    )]
    Missing {
        /// What is missing, e.g. `PostgreSQL 15`.
        server: String,
        /// The places that were looked at.
        looked: String,
    },
    /// The program is there and did not do what it should.
    #[error("{server}: {why}")]
    Failed {
        /// Which server.
        server: String,
        /// What happened, with the end of the server's log where there is one.
        why: String,
    },
}

impl ServiceError {
    pub(crate) fn failed(server: &str, why: impl std::fmt::Display) -> ServiceError {
        ServiceError::Failed { server: server.to_owned(), why: why.to_string() }
    }
}

/// The server, or `None` if it is missing and the test may be skipped.
///
/// A skip is printed and noted in the file that `RELEVO_SKIPPED` names, so that the end of a test
/// run can tell. With `CI=true` or `RELEVO_REQUIRE=1` a missing server fails the test instead.
///
/// # Panics
/// If the server is missing where it must not be, or is there and does not work.
#[track_caller]
pub fn require<T>(server: Result<T>) -> Option<T> {
    match server {
        Ok(server) => Some(server),
        Err(ServiceError::Missing { server, .. }) if !all_required() => {
            note_skip(&server);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn all_required() -> bool {
    let is_true = |name| std::env::var(name).is_ok_and(|value| value == "true" || value == "1");
    is_true("CI") || is_true("RELEVO_REQUIRE")
}

fn note_skip(server: &str) {
    eprintln!("SKIPPED: {server}");
    let Some(file) = std::env::var_os("RELEVO_SKIPPED") else { return };
    let noted = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(&file)
        // One write: tests of several threads and processes append to this file.
        .and_then(|mut file| file.write_all(format!("{server}\n").as_bytes()));
    if let Err(error) = noted {
        panic!("the skip of {server} cannot be noted in {}: {error}", file.display());
    }
}
