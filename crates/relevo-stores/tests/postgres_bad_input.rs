//! What goes wrong around PostgreSQL gives a code that says what to do.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

mod postgres_support;

use postgres_support::*;
use relevo_core::dead_letters::Operate;
use relevo_core::outbox::{Position, Store};
use relevo_core::{Kind, Result};
use relevo_stores::postgres::PostgresStore;
use relevo_testkit::services::{PgBouncer, Postgres, PostgresOptions, require};
use std::time::Duration;

fn kind<T: std::fmt::Debug>(result: Result<T>) -> Kind {
    result.expect_err("it should have been refused").kind()
}

#[tokio::test]
async fn a_url_that_cannot_be_understood_is_refused_and_never_repeated() {
    for url in [
        "nonsense",
        "postgres://user:secret@host:port/db",
        "postgres:///db",
        "postgres://u:secret@h/db?sslmode=secret",
    ] {
        let error = PostgresStore::connect(url).await.unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidUrl, "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}

/// Whatever is wrong with the URL, no piece of the password shows: not in the message, not in what lies behind it.
#[tokio::test]
async fn no_piece_of_a_password_shows_whatever_is_wrong_with_its_url() {
    for url in [
        "postgres://user:hush/hush2@127.0.0.1:1/db",
        "postgres://user:hush@hush2@127.0.0.1:1/db",
        "postgres://user:hush?hush2@127.0.0.1:1/db",
        "postgres://user:hush#hush2@127.0.0.1:1/db",
        "postgres://user:hush:hush2@127.0.0.1:port/db",
        "postgres://user:hush%zzhush2@127.0.0.1:1/db",
        "postgres://user:hush%@127.0.0.1:1/db",
        "postgres://user:hush@127.0.0.1:1/db?hush2=1",
        "postgres://user:hush@127.0.0.1:1/db?connect_timeout=hush2",
        "postgres://user:hush@[::1/db",
        "postgres://user:hush hush2@127.0.0.1:1/db",
        "host=127.0.0.1 port=1 user=u password='hush",
        "host=127.0.0.1 port=1 user=u password=hush hush2",
        "host=127.0.0.1 port=hush password=hush",
    ] {
        let error = PostgresStore::connect(url).await.unwrap_err();
        let shown = format!("{error} {error:?} {:?}", std::error::Error::source(&error));
        assert!(!shown.contains("hush"), "{url}: {shown}");
        assert!(matches!(error.kind(), Kind::InvalidUrl | Kind::Unreachable), "{url}: {shown}");
    }
}

#[tokio::test]
async fn nobody_there_a_wrong_password_and_a_wrong_database_are_told_apart() {
    assert_eq!(
        kind(PostgresStore::connect("postgres://u:p@127.0.0.1:1/db").await),
        Kind::Unreachable
    );
    let Some((server, url)) = empty() else { return };
    let wrong = url.replace("postgres:relevo@", "postgres:wrong@");
    assert_eq!(kind(PostgresStore::connect(&wrong).await), Kind::AuthenticationFailed);
    let without = url.replace("postgres:relevo@", "postgres@");
    assert_eq!(kind(PostgresStore::connect(&without).await), Kind::AuthenticationFailed);
    assert_eq!(
        kind(PostgresStore::connect(&server.url("no_such_database")).await),
        Kind::InvalidUrl
    );
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_given_up_in_time() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("postgres://u:p@{}/db", listener.local_addr().unwrap());
    let mut options = relevo_stores::postgres::Options::default();
    options.connect_limit = Duration::from_millis(200);
    let store = PostgresStore::open(&url, options).unwrap();
    assert!(matches!(kind(store.probe().await), Kind::Timeout | Kind::Unreachable));
}

/// How many there are, one numbered file each.
fn migrations() -> usize {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/postgres/migrations");
    let names = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name());
    names
        .filter(|name| name.to_string_lossy().starts_with(|first: char| first.is_ascii_digit()))
        .count()
}

#[tokio::test]
async fn a_missing_an_older_and_a_newer_schema_are_told_apart() {
    let Some((_server, url)) = empty() else { return };
    let store = open(&url);
    assert_eq!(kind(store.probe().await), Kind::SchemaMissing);
    assert_eq!(kind(store.publish_now(event("a", "k")).await), Kind::SchemaMissing);
    assert_eq!(store.migrate().await.unwrap().len(), migrations());
    assert!(store.migrate().await.unwrap().is_empty(), "the second time there is nothing to do");
    let client = connect(&url).await;
    client
        .batch_execute("INSERT INTO relevo.migration VALUES (99, 'of tomorrow', 'x')")
        .await
        .unwrap();
    assert_eq!(kind(store.probe().await), Kind::SchemaNewer);
    assert_eq!(kind(store.migrate().await), Kind::SchemaNewer);
    client.batch_execute("DELETE FROM relevo.migration WHERE version >= 6").await.unwrap();
    assert_eq!(kind(store.probe().await), Kind::SchemaOlder);
    client
        .batch_execute("UPDATE relevo.migration SET checksum = 'x' WHERE version = 1")
        .await
        .unwrap();
    assert_eq!(kind(store.migrate().await), Kind::SchemaNewer);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_migrate_at_once_do_it_once() {
    let Some((_server, url)) = empty() else { return };
    let stores: Vec<PostgresStore> = (0..4).map(|_| open(&url)).collect();
    let done = futures::future::join_all(stores.iter().map(|store| store.migrate())).await;
    let counts: Vec<usize> = done.into_iter().map(|applied| applied.unwrap().len()).collect();
    assert_eq!(counts.iter().sum::<usize>(), migrations(), "{counts:?}");
    stores[0].probe().await.unwrap();
}

#[tokio::test]
async fn a_user_who_may_not_create_a_schema_is_told_so() {
    let Some((_server, url)) = empty() else { return };
    let suffix = url.rsplit('_').next().unwrap();
    let admin = connect(&url).await;
    admin.batch_execute(&format!("CREATE ROLE nobody_{suffix} LOGIN PASSWORD 'n'")).await.unwrap();
    let store = open(&url.replace("postgres:relevo@", &format!("nobody_{suffix}:n@")));
    assert_eq!(kind(store.migrate().await), Kind::MissingPrivilege);
}

#[tokio::test]
async fn a_sequence_that_caches_is_refused() {
    let Some(rig) = rig().await else { return };
    let client = connect(&rig.url).await;
    client.batch_execute("ALTER SEQUENCE relevo.outbox_seq CACHE 20").await.unwrap();
    assert_eq!(kind(rig.store.probe().await), Kind::SequenceCache);
}

#[tokio::test]
async fn a_restored_log_whose_sequence_fell_behind_is_refused() {
    let Some(rig) = rig().await else { return };
    let mut client = connect(&rig.url).await;
    for _ in 0..3 {
        publish(&mut client, event("a", "k")).await;
    }
    drain(&rig.store, Position::default()).await;
    client.batch_execute("UPDATE relevo.meta SET value = '1' WHERE name = 'system'; SELECT setval('relevo.outbox_seq', 1)").await.unwrap();
    assert_eq!(kind(rig.store.probe().await), Kind::AnotherCluster);
}

#[tokio::test]
async fn a_read_only_server_is_refused() {
    let Some(rig) = rig().await else { return };
    let client = connect(&rig.url).await;
    let name = rig.url.rsplit('/').next().unwrap();
    client
        .batch_execute(&format!("ALTER DATABASE {name} SET default_transaction_read_only = on"))
        .await
        .unwrap();
    assert_eq!(kind(open(&rig.url).publish_now(event("a", "k")).await), Kind::ReadOnlyReplica);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_works_through_a_transaction_pooler_and_it_is_named() {
    let Some(rig) = rig().await else { return };
    let Some(bouncer) = require(PgBouncer::start(&rig.server)) else { return };
    let store = open(&bouncer.url(&rig.url));
    let probe = store.probe().await.unwrap();
    assert!(probe.notes.iter().any(|note| note.contains("pooler")), "{:?}", probe.notes);
    assert!(rig.store.probe().await.unwrap().notes.is_empty(), "and without one nothing is said");
    let owner = Owner::of(&store, "s", "me").await;
    let sent = futures::future::join_all((0..20).map(|_| store.publish_now(event("a", "k")))).await;
    assert!(sent.iter().all(Result::is_ok));
    let (rows, end) = drain(&store, Position::default()).await;
    assert_eq!(rows.len(), 20);
    let change = owner.change(&store, "k", end).await;
    store.record(&[change]).await.unwrap();
    store.upkeep(&Default::default()).await.unwrap();
    store.status().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_that_allows_no_transactions_is_refused_by_name() {
    let Some(rig) = rig().await else { return };
    let Some(bouncer) = require(PgBouncer::start_in(&rig.server, "statement")) else { return };
    let refused = open(&bouncer.url(&rig.url)).probe().await.unwrap_err();
    assert_eq!(refused.kind(), Kind::TransactionPooler, "{refused}");
    assert!(refused.to_string().contains("statement mode"), "{refused}");
}

#[tokio::test]
async fn a_crash_of_the_server_loses_nothing_that_was_committed() {
    let options = PostgresOptions::new(major()).durable();
    let Some(server) = require(Postgres::start_with(&options)) else { return };
    let url = server.create_database().unwrap();
    let store = open(&url);
    store.migrate().await.unwrap();
    let owner = Owner::of(&store, "s", "me").await;
    let kept = store.publish_now(event("a", "k")).await.unwrap();
    let page = page(&store, Position::default()).await;
    let change = owner.change(&store, "k", page.end).await;
    server.kill9();
    let lost = store.record(std::slice::from_ref(&change)).await.unwrap_err();
    assert!(matches!(lost.kind(), Kind::CommitUnknown | Kind::Unreachable), "{lost}");
    server.restart().unwrap();
    // The tick may have gone with the crash: then so has the cursor, and the event comes again.
    let owner = Owner::take(&open(&url), "s", "me").await;
    let (rows, _) = drain(&open(&url), owner.lanes[&owner.lane("k").lane].position).await;
    assert_eq!(ids(&rows), [kept]);
    drain(&store, Position::default()).await;
}

#[tokio::test]
async fn a_replica_is_refused() {
    let Some(server) = require(Postgres::start(major())) else { return };
    let url = server.create_database().unwrap();
    open(&url).migrate().await.unwrap();
    server.stop();
    // A standby that waits for a primary which never comes.
    std::fs::write(server.data_folder().join("standby.signal"), "").unwrap();
    server.restart().unwrap();
    let store = open(&url);
    assert_eq!(kind(store.probe().await), Kind::ReadOnlyReplica);
    assert_eq!(kind(store.migrate().await), Kind::ReadOnlyReplica);
    assert_eq!(kind(store.publish_now(event("a", "k")).await), Kind::ReadOnlyReplica);
}
