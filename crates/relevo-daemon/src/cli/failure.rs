//! How a command ends when it does not end well: a code, a hint, a page, and an exit code that scripts can rely on.

use super::show::{escaped, escaped_lines};
use crate::config::redacted;
use relevo_core::{Error, Kind};
use serde_json::json;
use std::io;
use std::process::ExitCode;

/// Exit codes; `relevo --help` and docs/cli.md list them.
pub mod exit {
    /// A check found something wrong: `doctor` a problem, `topology check` a difference, `demo` a broken promise.
    pub const FOUND: u8 = 1;
    /// The command line, the configuration or the event is wrong.
    pub const USAGE: u8 = 2;
    /// The store or the broker cannot be reached, refuses, or is not fit.
    pub const STORE: u8 = 3;
    /// There is no such event, subscription, dead letter or operation.
    pub const NOT_FOUND: u8 = 4;
    /// Not done: refused (it would lose messages at a broker, or do things twice), or not confirmed.
    pub const REFUSED: u8 = 5;
}

/// Why a command did not do what it was asked to.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Something went wrong.
    Error(Error),
    /// Nobody said yes.
    NotConfirmed(String),
    /// Whoever read our output has read enough.
    PipeClosed,
}

/// The result of a command.
pub(crate) type Outcome<T = ExitCode> = Result<T, Failure>;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::PipeClosed;
        }
        Self::Error(
            Error::new(Kind::InvalidArgument, format!("output or input failed: {error}"))
                .because(error),
        )
    }
}

/// An argument that cannot be meant.
pub(crate) fn wrong(message: impl Into<String>) -> Failure {
    Failure::Error(Error::new(Kind::InvalidArgument, message))
}

/// Something asked for by number or id that is not there.
pub(crate) fn missing(message: impl Into<String>) -> Failure {
    Failure::Error(Error::new(Kind::EventNotFound, message))
}

/// The exit code of an error.
pub fn exit_code(kind: Kind) -> u8 {
    match kind {
        Kind::InvalidUrl
        | Kind::InvalidConfig
        | Kind::InvalidArgument
        | Kind::PayloadTooLarge
        | Kind::InvalidPayload
        | Kind::InvalidTopic
        | Kind::InvalidKey
        | Kind::InvalidHeaders => exit::USAGE,
        Kind::UnknownSubscription | Kind::EventNotFound => exit::NOT_FOUND,
        Kind::ReplayRefused | Kind::NotSupported | Kind::LosesMessages | Kind::ProofGone => {
            exit::REFUSED
        }
        _ => exit::STORE,
    }
}

/// Tells on standard error what happened, and returns the exit code.
pub(crate) fn report(failure: &Failure, json: bool) -> ExitCode {
    match failure {
        Failure::PipeClosed => ExitCode::SUCCESS,
        Failure::NotConfirmed(what) => {
            if json {
                eprintln!("{}", json!({"error": {"code": null, "message": what}}));
            } else {
                eprintln!("not done: {}", escaped(what));
            }
            ExitCode::from(exit::REFUSED)
        }
        Failure::Error(error) => {
            if json {
                eprintln!("{}", error_json(error));
            } else {
                eprint!("{}", error_text(error));
            }
            ExitCode::from(exit_code(error.kind()))
        }
    }
}

pub(super) fn error_json(error: &Error) -> serde_json::Value {
    json!({"error": {
        "code": error.code(),
        "adapter": error.adapter(),
        "class": error.class().as_str(),
        "title": error.kind().title(),
        "message": redacted(error.message()),
        "because": because(error),
        "hint": hint(error),
    }})
}

pub(super) fn error_text(error: &Error) -> String {
    let code = error.code();
    let adapter = error.adapter().map(|name| format!(" ({name})")).unwrap_or_default();
    let message = escaped_lines(&redacted(error.message()));
    let mut text = match message.split_once('\n') {
        // Several findings: each on a line of its own.
        Some(_) => format!(
            "error {code}{adapter}: {}:\n  {}\n",
            error.kind().title(),
            message.replace('\n', "\n  ")
        ),
        None => format!("error {code}{adapter}: {}: {message}\n", error.kind().title()),
    };
    if let Some(because) = because(error) {
        text.push_str(&format!("because: {}\n", escaped(&because)));
    }
    if let Some(hint) = hint(error) {
        text.push_str(&format!("hint: {hint}\n"));
    }
    text + &format!("more: relevo explain {code}\n")
}

/// What lies behind it, unless the message says it already.
fn because(error: &Error) -> Option<String> {
    let mut parts: Vec<String> = Vec::new();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let text = redacted(&cause.to_string());
        if !error.message().contains(&text) && !parts.iter().any(|part| part.contains(&text)) {
            parts.push(text);
        }
        source = cause.source();
    }
    (!parts.is_empty()).then(|| parts.join(": "))
}

/// What to do next, in one line, unless the message names the same command already.
fn hint(error: &Error) -> Option<&'static str> {
    let hint = hint_of(error.kind())?;
    let said = hint.split('`').nth(1).is_some_and(|command| error.message().contains(command));
    (!said).then_some(hint)
}

fn hint_of(kind: Kind) -> Option<&'static str> {
    Some(match kind {
        Kind::InvalidUrl => {
            "a store is postgres://user@host:5432/database or sqlite:path/to/file.db"
        }
        Kind::Unreachable => "is the server running, and are host and port right?",
        Kind::AuthenticationFailed => {
            "check user and password; url_file in relevo.toml keeps them out of the command line"
        }
        Kind::ReadOnlyReplica => "connect to the primary: Relevo writes",
        Kind::TransactionPooler => "connect to PostgreSQL itself, or let the pooler keep sessions",
        Kind::MissingPrivilege => {
            "`relevo migrate --print` ends with the GRANTs for a writer and a relay role"
        }
        Kind::SchemaMissing | Kind::SchemaOlder => "run `relevo migrate` with the same store",
        Kind::SchemaNewer => "use a newer relevo; older ones cannot read these tables",
        Kind::InvalidPayload => "a payload is JSON unless --content-type says otherwise",
        Kind::UnknownSubscription => "`relevo subscriptions list` names them",
        Kind::InvalidConfig => "`relevo config example` shows every key with its default",
        Kind::UnfitTable => "`relevo adopt check TABLE` shows the table and proposes a mapping",
        Kind::FileLocked => "another process holds the file for long: keep transactions short",
        Kind::DiskFull => "make room; nothing was lost",
        Kind::DestinationDown => "is the broker running, and are host and port right?",
        Kind::LosesMessages => "--force does it all the same; empty the queue or stream first",
        Kind::ReplayRefused => "`relevo dead-letters show ID` says what became of it",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_tells_its_code_its_adapter_a_hint_and_its_page() {
        let error = Error::new(Kind::SchemaMissing, "no table").from_adapter("sqlite");
        let text = error_text(&error);
        assert!(text.starts_with("error R0007 (sqlite): "), "{text}");
        assert!(
            text.contains("hint: run `relevo migrate`")
                && text.ends_with("more: relevo explain R0007\n"),
            "{text}"
        );
    }

    #[test]
    fn an_error_never_prints_a_password_or_a_control_character() {
        let source = io::Error::other("at postgres://u:s3cret@h/d");
        let error =
            Error::new(Kind::Unreachable, "postgres://u:s3cret@h/d \x1b[2J").because(source);
        let text = error_text(&error) + &error_json(&error).to_string();
        assert!(!text.contains("s3cret") && !text.contains('\x1b'), "{text}");
    }

    #[test]
    fn every_kind_has_an_exit_code_that_is_documented() {
        for kind in Kind::ALL {
            assert!((exit::USAGE..=exit::REFUSED).contains(&exit_code(*kind)), "{kind:?}");
        }
    }
}
