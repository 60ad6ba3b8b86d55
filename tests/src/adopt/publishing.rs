//! What the owner may do and sees while a row is on its way.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a case that unwraps says what it expects, its name what it shows"
)]

use super::by_hand::WorkByHand;
use super::cases::{PUBLISHED, counts, insert_one};
use super::{Database, smartedify};
use relevo_core::ErrorClass;
use relevo_core::broker::Confirm;
use relevo_core::outbox::adopt::{Mapping, Role};
use relevo_testkit::eventually;
use uuid::Uuid;

pub async fn no_transaction_is_open_and_no_row_locked_while_one_is_published(db: Database) {
    let mapping = smartedify(&db).await;
    let id = insert_one(&db, "k", r#"{"n": 1}"#).await;
    let begun = if db.is_postgres() { now(&db).await } else { String::new() };
    let mut work = WorkByHand::begin(&db, mapping).await;
    let answer = work.next().await;
    if db.is_postgres() {
        its_owner_can_lock_it(&db, id).await;
        no_transaction_stays_open(&db, &begun).await;
        its_owner_can_lock_it(&db, id).await;
    } else {
        nobody_reads_or_writes(&db).await;
    }
    assert_eq!(db.number(PUBLISHED).await, 0, "nothing is marked before the broker has it");
    answer.send(Confirm::Stored).unwrap();
    counts(&db, PUBLISHED, 1).await;
    work.end().await;
}

async fn now(db: &Database) -> String {
    db.rows("SELECT clock_timestamp()").await[0][0].clone().unwrap()
}

async fn its_owner_can_lock_it(db: &Database, id: Uuid) {
    let lock = format!("SELECT 1 FROM outbox_events WHERE id = '{id}' FOR UPDATE NOWAIT");
    db.run(&format!("BEGIN; {lock}; COMMIT")).await;
}

/// Signs of life and looks at the table go on all the while, each in a moment's transaction: those that were open when the
/// broker was asked must end though it does not answer.
async fn no_transaction_stays_open(db: &Database, begun: &str) {
    let relays = format!(
        "datname = current_database() AND application_name = 'relevo' AND backend_start >= '{begun}'"
    );
    let asked = now(db).await;
    let sessions = db.rows(&format!("SELECT pid FROM pg_stat_activity WHERE {relays}")).await;
    let sessions: Vec<String> = sessions.into_iter().filter_map(|row| row[0].clone()).collect();
    assert!(!sessions.is_empty(), "the relay has sessions");
    let open =
        format!("SELECT count(*) FROM pg_stat_activity WHERE {relays} AND xact_start <= '{asked}'");
    counts(db, &open, 0).await;
    // By themselves: what the server's patience ends takes its session with it.
    let sessions_there =
        format!("SELECT count(*) FROM pg_stat_activity WHERE pid IN ({})", sessions.join(", "));
    assert_eq!(db.number(&sessions_there).await, sessions.len() as i64);
}

/// SQLite empties its write-ahead log only while nobody has a transaction open, not even to read.
async fn nobody_reads_or_writes(db: &Database) {
    assert_eq!(db.rows("PRAGMA journal_mode").await[0][0].as_deref(), Some("wal"));
    eventually("a moment without transactions", async || {
        (db.number("PRAGMA wal_checkpoint(TRUNCATE)").await == 0).then_some(())
    })
    .await;
}

/// A time that no mark has.
const LONG_AGO: &str = "2001-01-01T00:00:00.000Z";

fn refused(class: ErrorClass) -> Confirm {
    Confirm::Refused { class, error: "the broker's reason".into(), after: None }
}

/// How many rows of a table were changed within the last hour, as `updated_at` says.
async fn updated(db: &Database, table: &str) -> i64 {
    let recent = match db.is_postgres() {
        true => "now() - interval '1 hour'",
        false => "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 hour')",
    };
    db.number(&format!("SELECT count(*) FROM {table} WHERE updated_at > {recent}")).await
}

/// Its owner wrote it long ago, and has not touched it since.
async fn untouched(db: &Database) {
    db.run(&format!("UPDATE outbox_events SET updated_at = '{LONG_AGO}'")).await;
    assert_eq!(updated(db, "outbox_events").await, 0);
}

/// A row that was inserted long ago, on its way.
async fn one_row(db: &Database, mapping: Mapping) -> WorkByHand {
    insert_one(db, "k", r#"{"n": 1}"#).await;
    untouched(db).await;
    WorkByHand::begin(db, mapping).await
}

pub async fn updated_at_moves_with_every_mark(db: Database) {
    let mapping = smartedify(&db).await;
    assert_eq!(mapping.column(Role::UpdatedAt), Some("updated_at"));
    let mut work = one_row(&db, mapping).await;
    let first = work.next().await;
    assert_eq!(updated(&db, "outbox_events").await, 0, "a claim marks nothing");
    first.send(refused(ErrorClass::Transient)).unwrap();
    let second = work.next().await;
    counts(&db, "SELECT count(*) FROM outbox_events WHERE retry_count = 1", 1).await;
    assert_eq!(updated(&db, "outbox_events").await, 1, "it failed");
    untouched(&db).await;
    second.send(Confirm::Stored).unwrap();
    counts(&db, PUBLISHED, 1).await;
    assert_eq!(updated(&db, "outbox_events").await, 1, "it was published");
    insert_one(&db, "k", r#"{"n": 2}"#).await;
    let third = work.next().await;
    untouched(&db).await;
    third.send(refused(ErrorClass::Permanent)).unwrap();
    counts(&db, "SELECT count(*) FROM outbox_events_dlq", 1).await;
    assert_eq!(updated(&db, "outbox_events_dlq").await, 1, "it failed for good");
    assert_eq!(updated(&db, "outbox_events").await, 0, "and the other row is as it was");
    work.end().await;
}

pub async fn updated_at_is_its_owners_where_the_mapping_does_not_name_it(db: Database) {
    let mapping = smartedify(&db).await.without(Role::UpdatedAt);
    let mut work = one_row(&db, mapping).await;
    work.next().await.send(refused(ErrorClass::Transient)).unwrap();
    work.next().await.send(Confirm::Stored).unwrap();
    counts(&db, PUBLISHED, 1).await;
    assert_eq!(db.number("SELECT retry_count FROM outbox_events").await, 1);
    assert_eq!(updated(&db, "outbox_events").await, 0);
    work.end().await;
}
