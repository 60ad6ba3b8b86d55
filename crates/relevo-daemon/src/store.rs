//! From a URL to an open store. The scheme picks the adapter; nothing else in the binary knows which one it is.

use crate::config::{Secret, did_you_mean};
use relevo_core::dead_letters::Operate;
use relevo_core::error::quoted;
use relevo_core::outbox::Store;
use relevo_core::outbox::adopt::Adopt;
use relevo_core::{Error, Kind, Result};
use relevo_stores::postgres::PostgresStore;
use relevo_stores::sqlite::SqliteStore;
use std::sync::Arc;

const TEACH: &str = "write postgres://user@host:5432/database or sqlite:path/to/file.db";

/// An open store, by both of its ports.
#[derive(Clone)]
#[non_exhaustive]
pub struct Opened {
    /// Its adapter.
    pub adapter: Adapter,
    /// The port of the relay.
    pub store: Arc<dyn Store>,
    /// The port of people.
    pub operate: Arc<dyn Operate>,
    /// The port through which tables of somebody else's are adopted.
    pub adopt: Arc<dyn Adopt>,
}

/// May opening make a file that is not there?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// Yes: `migrate`, `run` and `demo`.
    Create,
    /// No: whoever only looks must not leave an empty file behind a mistyped name.
    Refuse,
}

/// The kinds of store a URL can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Adapter {
    /// `postgres://...`
    Postgres,
    /// `sqlite:file`
    Sqlite,
}

/// The adapter that a URL names, or an error that says how a URL is written. It never repeats the URL.
pub fn check_url(url: &Secret) -> Result<Adapter> {
    let bad = |why: String| Err(Error::new(Kind::InvalidUrl, why));
    let text = url.expose();
    if text.trim().is_empty() {
        return bad(format!("it is empty; {TEACH}"));
    }
    match url.scheme() {
        Some("postgres" | "postgresql") => match text.contains("://") {
            true => Ok(Adapter::Postgres),
            false => bad(format!("\"//\" is missing after the scheme; {TEACH}")),
        },
        Some("sqlite") if text.trim_end_matches('/') == "sqlite:" => {
            bad(format!("no file is named; {TEACH}"))
        }
        Some("sqlite") => Ok(Adapter::Sqlite),
        Some(scheme @ ("mysql" | "mariadb" | "dynamodb")) => {
            bad(format!("{scheme} is not a store of this version; {TEACH}"))
        }
        Some(scheme) => {
            let near = did_you_mean(scheme, ["postgres", "postgresql", "sqlite"]);
            bad(format!("the scheme {} names no store{near}; {TEACH}", quoted(scheme)))
        }
        None if text.contains('=') => {
            bad(format!("settings such as host=... are not a URL; {TEACH}"))
        }
        None => bad(format!("it has no scheme; {TEACH}")),
    }
}

/// Opens the store that a URL names.
pub async fn open(url: &Secret, missing: Missing) -> Result<Opened> {
    let adapter = check_url(url)?;
    match adapter {
        Adapter::Postgres => {
            let store = PostgresStore::connect(url.expose()).await?;
            Ok(opened(adapter, store))
        }
        Adapter::Sqlite => {
            let store = open_file(url.clone(), missing).await?;
            Ok(opened(adapter, store))
        }
    }
}

fn opened<S: Store + Operate + Adopt + Clone>(adapter: Adapter, store: S) -> Opened {
    let (operate, adopt) = (Arc::new(store.clone()), Arc::new(store.clone()));
    Opened { adapter, store: Arc::new(store), operate, adopt }
}

/// On a thread of its own: a file that hangs (a lock, a network drive) must not hold up anything else.
async fn open_file(url: Secret, missing: Missing) -> Result<SqliteStore> {
    let opening = tokio::task::spawn_blocking(move || match missing {
        Missing::Create => SqliteStore::open(url.expose()),
        Missing::Refuse => SqliteStore::open_existing(url.expose()),
    });
    let failed = |error| Error::new(Kind::StoreFailed, format!("opening it failed: {error}"));
    opening.await.map_err(failed)?
}

/// Every migration of an adapter as SQL, with the grants its roles need.
pub fn migrations_sql(adapter: Adapter) -> String {
    match adapter {
        Adapter::Postgres => relevo_stores::postgres::print(),
        Adapter::Sqlite => relevo_stores::sqlite::migrations_sql(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_picks_the_adapter() {
        for (url, adapter) in [
            ("postgres://h/d", Adapter::Postgres),
            ("postgresql://h/d", Adapter::Postgres),
            ("sqlite:relevo.db", Adapter::Sqlite),
        ] {
            assert_eq!(check_url(&Secret::new(url)).unwrap(), adapter);
        }
    }

    #[test]
    fn a_url_nobody_can_open_teaches_and_never_shows_its_password() {
        for url in [
            "",
            "postgre://u:s3cret@h/d",
            "mysql://u:s3cret@h/d",
            "host=h password=s3cret",
            "relevo.db",
            "sqlite:",
            "sqlite://",
            "postgres:s3cret",
        ] {
            let error = check_url(&Secret::new(url)).unwrap_err();
            assert_eq!(error.kind(), Kind::InvalidUrl);
            assert!(error.message().contains("sqlite:path/to/file.db"), "{error}");
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }
}
