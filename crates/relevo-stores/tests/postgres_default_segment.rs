//! A log that ran into its default segment goes on, and leaves it without holding anybody up.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

mod postgres_support;

use postgres_support::*;
use relevo_core::dead_letters::{Level, Operate};
use relevo_core::outbox::{Position, PublishIn, Retention, Store, Subscription};
use relevo_stores::postgres::PostgresOutbox;
use tokio_postgres::Client;

/// Three segments of a hundred rows are ahead; these are beyond them.
async fn run_over(client: &Client, rows: i64) {
    let sql = "INSERT INTO relevo.outbox (topic, key, payload)
               SELECT 'a', 'k' || n % 50, 'x' FROM generate_series(1, 300 + $1::bigint) AS n";
    client.execute(sql, &[&rows]).await.unwrap();
}

async fn number(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap().get(0)
}

/// How often a new session's transaction looks through the whole default segment while it does this.
async fn looks_through(rig: &Rig, sql: &str) -> i64 {
    let mut client = connect(&rig.url).await;
    let tx = client.transaction().await.unwrap();
    tx.batch_execute(sql).await.unwrap();
    let looks = "SELECT pg_stat_get_xact_numscans('relevo.outbox_default'::regclass)";
    let looks = tx.query_one(looks, &[]).await.unwrap().get(0);
    tx.commit().await.unwrap();
    looks
}

#[tokio::test]
async fn new_segments_are_attached_without_a_look_through_the_default_segment() {
    let Some(rig) = rig_alone().await else { return };
    let client = connect(&rig.url).await;
    run_over(&client, 5000).await;
    let unguarded = looks_through(&rig, "SELECT relevo.attach_segment(1000000, 100)").await;
    assert_eq!(unguarded, 1, "that is what PostgreSQL does, with writers locked out");
    client
        .batch_execute(
            "DROP TABLE relevo.outbox_1000000; DELETE FROM relevo.segment WHERE from_seq = 1000000",
        )
        .await
        .unwrap();
    let guard = "SELECT relevo.guard_default(); SELECT relevo.check_default_guard()";
    client.batch_execute(guard).await.unwrap();
    let guarded = looks_through(&rig, "SELECT relevo.make_segments_beyond_guard(100, 3)").await;
    assert_eq!(guarded, 0);
    assert_eq!(number(&client, "SELECT count(*) FROM relevo.segment").await, 3 + 1 + 3);
}

#[tokio::test]
async fn while_the_default_segment_is_looked_through_writers_and_readers_go_on() {
    let Some(rig) = rig_alone().await else { return };
    let client = connect(&rig.url).await;
    run_over(&client, 100).await;
    let mut looking = connect(&rig.url).await;
    client.batch_execute("SELECT relevo.guard_default()").await.unwrap();
    let tx = looking.transaction().await.unwrap();
    tx.batch_execute("SELECT relevo.check_default_guard()").await.unwrap();
    // The locks of the look are held until its transaction ends.
    client
        .batch_execute("SET lock_timeout = '2s'; SELECT relevo.publish('a', 'k', '{}')")
        .await
        .unwrap();
    assert_eq!(number(&client, "SELECT count(*) FROM relevo.outbox").await, 401);
    tx.commit().await.unwrap();
}

#[tokio::test]
async fn whoever_dies_between_the_steps_leaves_a_log_that_takes_everything() {
    let Some(rig) = rig_alone().await else { return };
    let client = connect(&rig.url).await;
    run_over(&client, 10).await;
    for step in [
        "SELECT relevo.guard_default()",
        "SELECT relevo.check_default_guard()",
        "SELECT relevo.make_segments_beyond_guard(100, 3)",
        "SELECT relevo.jump_to_segments()",
    ] {
        client.batch_execute(step).await.unwrap();
        run_over(&client, 0).await;
    }
    assert_eq!(number(&client, "SELECT count(*) FROM relevo.outbox").await, 310 + 4 * 300);
    // The last three hundred filled the new segments: a second outage is as harmless as the first.
    run_over(&client, 0).await;
    rig.store.upkeep(&Retention::default()).await.unwrap();
    let (rows, _) = drain(&rig.store, Position::default()).await;
    assert_eq!(rows.len(), 310 + 5 * 300);
    assert!(rows.is_sorted_by_key(|row| row.seq));
}

#[tokio::test]
async fn upkeep_brings_the_log_back_into_segments_and_nobody_counts_the_numbers_between() {
    let Some(rig) = rig_alone().await else { return };
    let mut client = connect(&rig.url).await;
    rig.store.subscribe(&Subscription::new("s")).await.unwrap();
    run_over(&client, 700).await;
    let doctor = rig.store.doctor().await.unwrap();
    assert!(
        doctor.iter().any(
            |found| found.level == Level::Warning && found.text.contains("no segment is ahead")
        ),
        "{doctor:?}"
    );
    let upkeep = rig.store.upkeep(&Retention::default()).await.unwrap();
    assert_eq!(upkeep.segments_made, 3);
    publish(&mut client, event("a", "k")).await;
    let newest = "SELECT tableoid::regclass::text <> 'relevo.outbox_default' FROM relevo.outbox ORDER BY seq DESC LIMIT 1";
    assert!(
        client.query_one(newest, &[]).await.unwrap().get::<_, bool>(0),
        "the next event has a segment"
    );
    let doctor = rig.store.doctor().await.unwrap();
    assert!(
        doctor.iter().any(|found| found.text.contains("events stand in the default segment")),
        "{doctor:?}"
    );
    assert!(!doctor.iter().any(|found| found.text.contains("no segment is ahead")), "{doctor:?}");
    let backlog = rig.store.status().await.unwrap().subscriptions[0].backlog;
    assert!((1001..=200_000).contains(&backlog), "{backlog}");
}

#[tokio::test]
async fn a_transaction_that_was_open_in_the_default_segment_is_delivered_after_the_jump() {
    let Some(rig) = rig_alone().await else { return };
    let client = connect(&rig.url).await;
    run_over(&client, 10).await;
    client.batch_execute("SELECT relevo.guard_default(); SELECT relevo.check_default_guard(); SELECT relevo.make_segments_beyond_guard(100, 3)").await.unwrap();
    let mut writer = connect(&rig.url).await;
    let mut open = writer.transaction().await.unwrap();
    let late = PostgresOutbox::new().publish(&mut open, event("late", "k")).await.unwrap();
    client.batch_execute("SELECT relevo.jump_to_segments()").await.unwrap();
    run_over(&client, 0).await;
    let (rows, end) = drain(&rig.store, Position::default()).await;
    assert_eq!(rows.len(), 610);
    open.commit().await.unwrap();
    let (rows, _) = drain(&rig.store, end).await;
    assert_eq!(ids(&rows), [late]);
}
