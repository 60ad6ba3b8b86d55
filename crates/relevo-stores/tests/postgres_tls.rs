//! Connections to PostgreSQL by TLS: sessions and doorbell alike, with what `sslmode` asks of the certificate.
#![cfg(feature = "tls")]
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

mod postgres_support;

use postgres_support::*;
use relevo_core::Kind;
use relevo_core::dead_letters::Operate;
use relevo_core::outbox::Store;
use relevo_stores::postgres::PostgresStore;
use relevo_testkit::eventually;
use relevo_testkit::services::{Certificates, Postgres, PostgresOptions, TLS_ONLY, require};

/// A server with TLS whose certificate is for these names, and a database of it.
struct Secure {
    server: Postgres,
    superuser: String,
}

impl Secure {
    async fn start(names: &[&str]) -> Option<Secure> {
        let certificates = Certificates::for_names(names).unwrap();
        let server =
            require(Postgres::start_with(&PostgresOptions::new(major()).tls(&certificates)))?;
        let superuser = server.create_database().unwrap();
        let roles = format!(
            "CREATE ROLE {TLS_ONLY} SUPERUSER LOGIN PASSWORD 'hush'; CREATE ROLE relevo SUPERUSER LOGIN"
        );
        connect(&superuser).await.batch_execute(&roles).await.unwrap();
        Some(Secure { server, superuser })
    }

    /// The database's URL for a user, with these settings.
    fn url(&self, user: &str, settings: &str) -> String {
        let (_, host) = self.superuser.split_once('@').unwrap();
        format!("postgres://{user}@{host}?{settings}")
    }

    fn ca(&self) -> String {
        self.server.tls_files().unwrap().ca.display().to_string()
    }

    async fn welcomes(&self, settings: &str) -> bool {
        let url = self.url(&format!("{TLS_ONLY}:hush"), settings);
        match PostgresStore::connect(&url).await {
            Ok(_) => true,
            Err(error) => {
                assert!(!error.to_string().contains("hush"), "{error}");
                false
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_and_doorbell_are_encrypted_alike() {
    let Some(secure) = Secure::start(&["127.0.0.1"]).await else { return };
    let settings = format!("sslmode=verify-full&sslrootcert={}", secure.ca());
    let store = open(&secure.url(&format!("{TLS_ONLY}:hush"), &settings));
    store.migrate().await.unwrap();
    assert!(store.probe().await.unwrap().waking.starts_with("doorbell"));
    let mut bell = store.doorbell().unwrap();
    let mut watcher = connect(&secure.superuser).await;
    eventually("an encrypted doorbell", async || {
        let sql = "SELECT bool_and(s.ssl) AND bool_or(a.backend_type = 'walsender')
                     FROM pg_stat_activity a JOIN pg_stat_ssl s USING (pid) WHERE a.usename = $1";
        let row = watcher.query_one(sql, &[&TLS_ONLY]).await.unwrap();
        (row.get::<_, Option<bool>>(0) == Some(true)).then_some(())
    })
    .await;
    bell.mark_unchanged();
    publish(&mut watcher, event("a", "k")).await;
    bell.changed().await.unwrap();
    assert_eq!(store.peek(0, 10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn without_any_setting_tls_is_used_where_the_server_has_it() {
    let Some(secure) = Secure::start(&["elsewhere.example"]).await else { return };
    assert!(secure.welcomes("").await && secure.welcomes("sslmode=prefer").await);
    assert!(!secure.welcomes("sslmode=disable").await, "{TLS_ONLY} came in without TLS");
}

#[tokio::test]
async fn each_mode_asks_of_the_certificate_what_it_says() {
    let Some(secure) = Secure::start(&["elsewhere.example"]).await else { return };
    let ca = secure.ca();
    assert!(secure.welcomes("sslmode=require").await);
    assert!(secure.welcomes(&format!("sslmode=verify-ca&sslrootcert={ca}")).await);
    assert!(!secure.welcomes(&format!("sslmode=verify-full&sslrootcert={ca}")).await);
    // An authority nobody knows.
    assert!(!secure.welcomes("sslmode=verify-ca").await);
    let other = Certificates::new().unwrap();
    let folder = std::env::temp_dir().join(format!("relevo-other-ca-{}.pem", std::process::id()));
    std::fs::write(&folder, other.ca).unwrap();
    let strange = format!("sslrootcert={}", folder.display());
    assert!(!secure.welcomes(&format!("sslmode=require&{strange}")).await);
    assert!(!secure.welcomes(&format!("sslmode=verify-full&{strange}")).await);
    std::fs::remove_file(&folder).unwrap();
}

#[tokio::test]
async fn a_client_logs_in_by_certificate() {
    let Some(secure) = Secure::start(&["127.0.0.1"]).await else { return };
    let files = secure.server.tls_files().unwrap();
    let trust = format!("sslmode=verify-full&sslrootcert={}", files.ca.display());
    let shown = format!("&sslcert={}&sslkey={}", files.certificate.display(), files.key.display());
    PostgresStore::connect(&secure.url("relevo", &(trust.clone() + &shown))).await.unwrap();
    assert!(PostgresStore::connect(&secure.url("relevo", &trust)).await.is_err());
}

#[tokio::test]
async fn a_server_without_tls_is_refused_where_it_is_required() {
    let Some((_server, url)) = empty() else { return };
    PostgresStore::connect(&url).await.unwrap();
    let error = PostgresStore::connect(&format!("{url}?sslmode=require")).await.unwrap_err();
    assert!(error.to_string().to_lowercase().contains("tls"), "{error}");
}

#[tokio::test]
async fn files_that_cannot_be_used_are_named() {
    for (settings, named) in [
        ("sslmode=verify-full&sslrootcert=/nowhere/ca.pem", "/nowhere/ca.pem"),
        ("sslmode=verify-full&sslrootcert=/dev/null", "/dev/null"),
        ("sslmode=require&sslcert=/nowhere/c.pem&sslkey=/nowhere/k.pem", "/nowhere/"),
    ] {
        let error = PostgresStore::connect(&format!("postgres://u:hush@h/d?{settings}")).await;
        let error = error.unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidUrl);
        assert!(
            error.to_string().contains(named) && !error.to_string().contains("hush"),
            "{error}"
        );
    }
}
