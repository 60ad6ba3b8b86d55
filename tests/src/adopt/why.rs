//! Why is a row where it is? An answer for rows that nobody claimed yet, and for those that the log has forgotten.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a case that unwraps says what it expects, its name what it shows"
)]

use super::cases::{counts, insert};
use super::{Database, NAME, Sink, Work, smartedify};
use relevo_core::EventId;
use relevo_core::broker::Confirm;
use relevo_core::dead_letters::{Answer, Operate, Why};
use relevo_core::outbox::adopt::{Adopt, AdoptedTable, Mapping, Role, Status, TableName, event_id};
use relevo_core::outbox::{Beat, MemberId, Subscription};
use relevo_stores::postgres::PostgresStore;
use relevo_stores::sqlite::SqliteStore;
use relevo_testkit::eventually;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

async fn insert_one(db: &Database, key: &str, payload: &str) -> Uuid {
    let id = Uuid::now_v7();
    db.run(&insert(id, key, payload)).await;
    id
}

/// What is said of a row that is no event of the log.
pub async fn of_row(operate: &Arc<dyn Operate>, id: Uuid) -> Why {
    match operate.why(EventId(id)).await.unwrap() {
        Answer::InTable { adoption, row, key, why, .. } => {
            assert_eq!((adoption.as_str(), row), (NAME, id.to_string()));
            assert!(key.is_some());
            why
        }
        answer => panic!("{answer:?}"),
    }
}

/// A relay that signs life and looks at nothing.
pub async fn sign_life(table: &Arc<dyn AdoptedTable>, note: &str) {
    let (member, note) = (MemberId("one".into()), note.to_owned());
    let beat = Beat { subscription: NAME.into(), member, note };
    table.beat(&beat).await.unwrap();
}

pub async fn a_row_that_nobody_claimed_yet_says_what_it_waits_for(db: Database) {
    let mapping = smartedify(&db).await;
    let [first, second] =
        [insert_one(&db, "k", r#"{"n": 1}"#).await, insert_one(&db, "k", r#"{"n": 2}"#).await];
    // Whoever asks knows the table from what lies beside it, not from a mapping of their own.
    let operate = db.operate().await;
    assert!(matches!(operate.why(EventId(first)).await.unwrap(), Answer::Unknown { .. }));
    let (table, _) = db.adopt(NAME, mapping).await.unwrap();
    assert_eq!(of_row(&operate, first).await, Why::NotRelayed);
    table.subscribe(&Subscription::new(NAME)).await.unwrap();
    assert!(matches!(of_row(&operate, first).await, Why::NobodyWorks { .. }));
    sign_life(&table, "{}").await;
    let why = of_row(&operate, second).await;
    assert!(matches!(&why, Why::Unclaimed { relay, before: 1, .. } if relay == "one"), "{why:?}");
    assert!(matches!(of_row(&operate, first).await, Why::Unclaimed { before: 0, .. }));
    sign_life(&table, r#"{"breaker":{"reason":"refused","open_s":60},"stopped":{}}"#).await;
    let why = of_row(&operate, first).await;
    assert!(matches!(&why, Why::BreakerOpen { reason, .. } if reason == "refused"), "{why:?}");
    operate.pause(NAME, "ana").await.unwrap();
    let why = of_row(&operate, first).await;
    assert!(matches!(&why, Why::Paused { by, .. } if by.contains("ana")), "{why:?}");
    assert!(matches!(
        operate.why(EventId::fresh()).await.unwrap(),
        Answer::Unknown { past_retention: false, .. }
    ));
}

pub async fn a_row_that_is_not_due_says_until_when(db: Database) {
    let mapping = smartedify(&db).await;
    let id = insert_one(&db, "k", r#"{"n": 1}"#).await;
    let time =
        if db.is_postgres() { "now() + interval '1 hour'" } else { "datetime('now', '1 hour')" };
    db.run(&format!("UPDATE outbox_events SET next_retry_at = {time}")).await;
    let (table, operate) = db.adopt(NAME, mapping).await.unwrap();
    table.subscribe(&Subscription::new(NAME)).await.unwrap();
    sign_life(&table, "{}").await;
    let why = of_row(&operate, id).await;
    let Why::NotDue { until } = &why else { panic!("{why:?}") };
    let minutes = (*until - chrono::Utc::now()).num_minutes();
    assert!((58..=60).contains(&minutes), "{until}");
}

/// From its claim on a row is an event of the log; when the log has forgotten it, its row still tells.
pub async fn a_row_is_answered_for_from_its_insert_until_its_row_goes(db: Database) {
    let mapping = smartedify(&db).await;
    let work = Work::begin(db.clone(), mapping, Sink::refusing("bad", None)).await;
    let (good, bad) = (
        insert_one(&db, "good", r#"{"n": 1}"#).await,
        insert_one(&db, "bad", "{\"n\": \"bad\"}").await,
    );
    counts(&db, "SELECT count(*) FROM outbox_events_dlq", 1).await;
    counts(&db, "SELECT count(*) FROM outbox_events WHERE published_at IS NOT NULL", 1).await;
    for (id, dead) in [(good, false), (bad, true)] {
        let answer = work.operate.why(EventId(id)).await.unwrap();
        let Answer::Known { subscriptions, .. } = &answer else { panic!("{answer:?}") };
        let why = &subscriptions.iter().find(|(name, _)| name == NAME).unwrap().1;
        assert_eq!(matches!(why, Why::Dead { .. }), dead, "{why:?}");
        assert_eq!(*why == Why::Delivered, !dead, "{why:?}");
    }
    let (operate, pg) = (work.operate.clone(), db.is_postgres());
    work.end().await;
    // As retention leaves it, long after.
    let forget = match pg {
        true => "TRUNCATE relevo.outbox, relevo.dead_letter, relevo.claim CASCADE",
        false => {
            "DELETE FROM relevo_outbox; DELETE FROM relevo_dead_letter; DELETE FROM relevo_claim"
        }
    };
    db.run(forget).await;
    assert!(matches!(of_row_any(&operate, good).await, Why::Marked { at: Some(_) }));
    let why = of_row_any(&operate, bad).await;
    assert!(
        matches!(&why, Why::Buried { table } if table.ends_with("outbox_events_dlq")),
        "{why:?}"
    );
    db.run("DELETE FROM outbox_events").await;
    assert!(matches!(operate.why(EventId(good)).await.unwrap(), Answer::Unknown { .. }));
}

async fn of_row_any(operate: &Arc<dyn Operate>, id: Uuid) -> Why {
    match operate.why(EventId(id)).await.unwrap() {
        Answer::InTable { why, .. } => why,
        answer => panic!("{answer:?}"),
    }
}

/// A table that has a time for what was published, and no place to tell what failed for good.
pub async fn a_row_that_failed_for_good_is_not_said_to_be_delivered(db: Database) {
    let mut mapping = smartedify(&db).await;
    mapping.dead_letters = None;
    let work = Work::begin(db.clone(), mapping, Sink::refusing("bad", None)).await;
    let bad = insert_one(&db, "bad", "{\"n\": \"bad\"}").await;
    let (claim, forget) = match db.is_postgres() {
        true => ("relevo.claim", "TRUNCATE relevo.outbox, relevo.dead_letter CASCADE"),
        false => ("relevo_claim", "DELETE FROM relevo_outbox; DELETE FROM relevo_dead_letter"),
    };
    counts(&db, &format!("SELECT count(*) FROM {claim} WHERE state = 'dead'"), 1).await;
    let operate = work.operate.clone();
    work.end().await;
    // As retention leaves it, long after.
    db.run(forget).await;
    assert_eq!(of_row(&operate, bad).await, Why::GivenUp);
    db.run(&format!("UPDATE {claim} SET state = 'claimed'")).await;
    assert_eq!(of_row(&operate, bad).await, Why::Taken);
}

pub async fn a_row_that_its_owner_put_back_is_pending_again_whatever_the_log_says(db: Database) {
    let mapping = smartedify(&db).await;
    let work = Work::begin(db.clone(), mapping, Sink::new()).await;
    let id = insert_one(&db, "k", r#"{"n": 1}"#).await;
    counts(&db, "SELECT count(*) FROM outbox_events WHERE published_at IS NOT NULL", 1).await;
    let operate = work.operate.clone();
    work.end().await;
    db.run("UPDATE outbox_events SET published_at = NULL").await;
    let why = of_row(&operate, id).await;
    assert!(matches!(why, Why::NobodyWorks { .. }), "the relay has left: {why:?}");
}

/// A table of these rows, whose ids are numbers and whose states are words, with a relay that looks at nothing.
async fn numbered(db: &Database, rows: &str) -> Arc<dyn Operate> {
    db.run("CREATE TABLE msgs (no int PRIMARY KEY, body text, state text DEFAULT 'NEW')").await;
    db.run(rows).await;
    let mapping = Mapping::new(TableName::parse("msgs").unwrap())
        .with(Role::Id, "no")
        .with(Role::Payload, "body")
        .topic("msgs")
        .status(Status::new("state", ["NEW"], "SENT").dead("DEAD"));
    let (table, operate) = db.adopt(NAME, mapping).await.unwrap();
    table.subscribe(&Subscription::new(NAME)).await.unwrap();
    sign_life(&table, "{}").await;
    operate
}

/// Ids that are numbers, and states that are words: the owner asks for a row by its own id.
pub async fn a_row_whose_id_is_no_uuid_is_answered_for_by_either_id(db: Database) {
    let rows = "INSERT INTO msgs VALUES (41, 'x', 'NEW'), (42, 'x', 'NEW'), (43, 'x', 'HELD')";
    let operate = numbered(&db, rows).await;
    let adopt = rows_of(&db).await;
    let (event, by_row) = adopt.why_row("42").await.unwrap().unwrap();
    assert_eq!(event, event_id(NAME, "42"));
    let Answer::InTable { topic, row, why, .. } = &by_row else { panic!("{by_row:?}") };
    assert_eq!((topic.as_deref(), row.as_str()), (Some("msgs"), "42"));
    assert!(matches!(why, Why::Unclaimed { before: 1, .. }), "{why:?}");
    let (same, _) = adopt.why_row("0042").await.unwrap().unwrap();
    assert_eq!(same, event, "the row's own id counts, however it is written");
    let by_event = operate.why(event).await.unwrap();
    assert!(matches!(&by_event, Answer::InTable { row, .. } if row == "42"), "{by_event:?}");
    let (_, other) = adopt.why_row("43").await.unwrap().unwrap();
    let Answer::InTable { why, .. } = &other else { panic!("{other:?}") };
    assert_eq!(*why, Why::OtherState { says: Some("HELD".into()) });
    for nobody in ["44", "order-1", "99999999999999999999", ""] {
        assert!(adopt.why_row(nobody).await.unwrap().is_none(), "{nobody:?}");
    }
}

pub async fn of_very_many_rows_that_come_first_not_all_are_counted(db: Database) {
    let rows = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100002)
                INSERT INTO msgs SELECT i, 'x', 'NEW' FROM n";
    numbered(&db, rows).await;
    let adopt = rows_of(&db).await;
    for (row, counted) in
        [("5", (4, false)), ("100001", (100_000, false)), ("100002", (100_000, true))]
    {
        let (_, answer) = adopt.why_row(row).await.unwrap().unwrap();
        let Answer::InTable { why: Why::Unclaimed { before, more, .. }, .. } = answer else {
            panic!("{answer:?}")
        };
        assert_eq!((before, more), counted, "row {row}");
    }
}

pub(super) async fn rows_of(db: &Database) -> Arc<dyn Adopt> {
    match db.is_postgres() {
        true => Arc::new(PostgresStore::connect(&db.url).await.unwrap()),
        false => Arc::new(SqliteStore::open(&db.url).unwrap()),
    }
}

/// While a destination hangs, what was claimed is in the hands of a process, and `why` names it.
pub async fn a_claimed_row_is_in_the_hands_of_its_relay(db: Database) {
    let mapping = smartedify(&db).await;
    let hole = Sink::answering(|_, _| {
        std::thread::sleep(Duration::from_millis(20));
        Confirm::Unknown { error: "no answer".into() }
    });
    let work = Work::begin(db.clone(), mapping, hole).await;
    let id = insert_one(&db, "k", r#"{"n": 1}"#).await;
    eventually("the row is an event of the log", async || {
        match work.operate.why(EventId(id)).await.unwrap() {
            Answer::Known { subscriptions, .. } => {
                assert_eq!(subscriptions[0].0, NAME);
                Some(())
            }
            _ => None,
        }
    })
    .await;
    work.end().await;
}
