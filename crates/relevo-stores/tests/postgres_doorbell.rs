//! The doorbell on PostgreSQL: it rings for commits, costs an idle log nothing, and is never needed.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

mod postgres_support;

use postgres_support::*;
use relevo_core::outbox::{PublishIn, Store};
use relevo_stores::postgres::{PostgresOutbox, PostgresStore};
use relevo_testkit::eventually;
use relevo_testkit::services::{Postgres, PostgresOptions, require};
use std::time::Duration;
use tokio::sync::watch;
use tokio_postgres::Client;

async fn slots(client: &Client) -> i64 {
    let sql = "SELECT count(*) FROM pg_replication_slots WHERE active AND temporary AND database = current_database()";
    client.query_one(sql, &[]).await.unwrap().get(0)
}

/// A bell that hears: its slot is there, and it has fallen quiet.
async fn hung(rig: &Rig, client: &Client) -> watch::Receiver<u64> {
    assert!(rig.store.probe().await.unwrap().waking.starts_with("doorbell"));
    let mut bell = rig.store.doorbell().unwrap();
    eventually("a slot", async || (slots(client).await == 1).then_some(())).await;
    eventually("quiet", async || {
        bell.mark_unchanged();
        tokio::time::timeout(Duration::from_millis(700), bell.changed())
            .await
            .is_err()
            .then_some(())
    })
    .await;
    bell
}

async fn rings(bell: &mut watch::Receiver<u64>, within: Duration) -> bool {
    tokio::time::timeout(within, bell.changed()).await.is_ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_rings_at_once_and_nothing_else_does() {
    let Some(rig) = rig_alone().await else { return };
    let mut client = connect(&rig.url).await;
    let mut bell = hung(&rig, &client).await;
    client.batch_execute("CREATE TABLE other (n int); INSERT INTO other VALUES (1)").await.unwrap();
    let mut tx = client.transaction().await.unwrap();
    PostgresOutbox::new().publish(&mut tx, event("a", "k")).await.unwrap();
    tx.rollback().await.unwrap();
    assert!(
        !rings(&mut bell, Duration::from_millis(600)).await,
        "other tables and rollbacks are quiet"
    );
    let mut tx = client.transaction().await.unwrap();
    PostgresOutbox::new().publish(&mut tx, event("a", "k")).await.unwrap();
    assert!(!rings(&mut bell, Duration::from_millis(300)).await, "nothing is committed yet");
    tx.commit().await.unwrap();
    assert!(rings(&mut bell, Duration::from_secs(10)).await);
    // A second listener has rings of its own.
    let mut other = rig.store.doorbell().unwrap();
    tokio::time::sleep(Duration::from_millis(400)).await;
    bell.mark_unchanged();
    other.mark_unchanged();
    publish(&mut client, event("b", "k")).await;
    assert!(
        rings(&mut bell, Duration::from_secs(10)).await
            && rings(&mut other, Duration::from_secs(10)).await
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_slot_goes_with_the_store_and_comes_back_after_a_crash() {
    let Some(rig) = rig_alone().await else { return };
    let client = connect(&rig.url).await;
    let mut bell = hung(&rig, &client).await;
    rig.server.kill9();
    rig.server.restart().unwrap();
    // Deaf for a while, it rings by the clock; then it hears again.
    assert!(rings(&mut bell, Duration::from_secs(5)).await);
    let client = connect(&rig.url).await;
    eventually("a new slot", async || (slots(&client).await == 1).then_some(())).await;
    drop((bell, rig.store));
    eventually("no slot", async || (slots(&client).await == 0).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_slot_waits_for_an_open_transaction_the_bell_rings_by_the_clock() {
    let Some(rig) = rig_alone().await else { return };
    let mut writer = connect(&rig.url).await;
    let mut tx = writer.transaction().await.unwrap();
    PostgresOutbox::new().publish(&mut tx, event("a", "k")).await.unwrap();
    let mut bell = rig.store.doorbell().unwrap();
    for _ in 0..3 {
        assert!(rings(&mut bell, Duration::from_secs(3)).await);
    }
    tx.commit().await.unwrap();
    let client = connect(&rig.url).await;
    eventually("a slot that hears", async || (slots(&client).await == 1).then_some(())).await;
}

#[tokio::test]
async fn where_no_bell_can_be_the_probe_says_why_and_readers_poll() {
    let options = PostgresOptions::new(major()).setting("wal_level", "replica");
    let Some(server) = require(Postgres::start_with(&options)) else { return };
    let store = open(&server.create_database().unwrap());
    relevo_core::dead_letters::Operate::migrate(&store).await.unwrap();
    let waking = store.probe().await.unwrap().waking;
    assert!(waking.starts_with("polling: wal_level is replica"), "{waking}");
    assert!(store.doorbell().is_none());

    let Some(rig) = rig().await else { return };
    let pooled = PostgresStore::from_pool(rig.store.pool().clone());
    let waking = pooled.probe().await.unwrap().waking;
    assert!(waking.contains("given a pool"), "{waking}");
    assert!(pooled.doorbell().is_none());
}
