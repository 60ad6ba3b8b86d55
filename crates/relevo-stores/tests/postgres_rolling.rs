//! The schema moves to the next version while programs of this one go on.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

mod postgres_support;

use postgres_support::*;
use relevo_core::Kind;
use relevo_core::dead_letters::Operate;
use relevo_core::outbox::Store;
use relevo_stores::postgres::{Options, PostgresStore};
use std::time::Duration;

/// A store as the next version has it.
fn next_version(url: &str) -> PostgresStore {
    changed_by(url, "ALTER TABLE relevo.outbox ADD COLUMN note text")
}

fn changed_by(url: &str, change: &'static str) -> PostgresStore {
    let mut options = Options::default();
    options.next_change = Some(change);
    PostgresStore::open(url, options).unwrap()
}

#[tokio::test]
async fn a_newer_schema_that_allows_it_lets_older_programs_go_on() {
    let Some(Rig { url, store, server: _server }) = rig().await else { return };
    let next = next_version(&url);
    assert_eq!(next.probe().await.unwrap_err().kind(), Kind::SchemaOlder);
    assert_eq!(next.migrate().await.unwrap().len(), 1);
    assert!(next.migrate().await.unwrap().is_empty());
    let (old, new) = (store.probe().await.unwrap(), next.probe().await.unwrap());
    assert_eq!(old.schema, new.schema, "both work with the tables that are there");
    assert!(old.notes.iter().any(|note| note.contains("goes on beside")), "{:?}", old.notes);
    assert!(!new.notes.iter().any(|note| note.contains("goes on beside")), "{:?}", new.notes);
    assert!(store.migrate().await.unwrap().is_empty(), "an older program has nothing to add");
    store.publish_now(event("a", "k")).await.unwrap();
    connect(&url)
        .await
        .batch_execute("UPDATE relevo.migration SET oldest = version")
        .await
        .unwrap();
    assert_eq!(store.probe().await.unwrap_err().kind(), Kind::SchemaNewer);
    assert_eq!(store.migrate().await.unwrap_err().kind(), Kind::SchemaNewer);
    next.probe().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_must_wait_for_a_transaction_keeps_no_publisher_waiting() {
    let Some(Rig { url, store, server: _server }) = rig().await else { return };
    let client = connect(&url).await;
    let open = "BEGIN; INSERT INTO relevo.outbox (topic, key, payload) VALUES ('a', 'k', '')";
    client.batch_execute(open).await.unwrap();
    let next = next_version(&url);
    let changing = tokio::spawn(async move { next.migrate().await });
    wait_until_something_waits(&url).await;
    for _ in 0..3 {
        let published = store.publish_now(event("b", "k"));
        tokio::time::timeout(Duration::from_secs(20), published).await.unwrap().unwrap();
    }
    assert!(!changing.is_finished(), "the transaction is still open");
    client.batch_execute("COMMIT").await.unwrap();
    assert_eq!(changing.await.unwrap().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_the_server_chooses_as_the_victim_of_a_deadlock_is_tried_again() {
    let Some(Rig { url, store: _store, server: _server }) = rig().await else { return };
    // Only the change looks for deadlocks, late enough for the other one to be in its way.
    let change = "SET LOCAL lock_timeout = 0; SET LOCAL deadlock_timeout = '5s';
        ALTER TABLE relevo.outbox ADD COLUMN note text; ALTER TABLE relevo.member ADD COLUMN note_2 text";
    let next = changed_by(&url, change);
    let client = connect(&url).await;
    let hold =
        "BEGIN; SET LOCAL deadlock_timeout = '1h'; LOCK TABLE relevo.member IN ACCESS SHARE MODE";
    client.batch_execute(hold).await.unwrap();
    let changing = tokio::spawn(async move { next.migrate().await });
    wait_until_something_waits(&url).await;
    client.batch_execute("LOCK TABLE relevo.outbox IN ACCESS SHARE MODE; COMMIT").await.unwrap();
    assert_eq!(changing.await.unwrap().unwrap().len(), 1);
}

/// Waits until a session waits for a lock of another.
async fn wait_until_something_waits(url: &str) {
    let client = connect(url).await;
    let sql = "SELECT 1 FROM pg_locks WHERE NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    for _ in 0..6000 {
        if !client.query(sql, &[]).await.unwrap().is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("nobody ever waited");
}
