//! What must hold on every database.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a case that unwraps says what it expects, its name what it shows"
)]

use super::{Database, NAME, Sink, Work, relay, smartedify};
use relevo_core::Kind as ErrorKind;
use relevo_core::dead_letters::{Answer, DeadFilter, DeadState};
use relevo_core::outbox::adopt::{Mapping, Preset, Role, Status, TableName, event_id};
use relevo_testkit::eventually;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use uuid::Uuid;

/// An owner's insert.
pub fn insert(id: Uuid, key: &str, payload: &str) -> String {
    format!(
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
         VALUES ('{id}', 'tenant', '{key}', 'governance.changed', '{payload}');"
    )
}

pub(super) async fn insert_one(db: &Database, key: &str, payload: &str) -> Uuid {
    let id = Uuid::now_v7();
    db.run(&insert(id, key, payload)).await;
    id
}

/// Waits until the owner's query answers with this number.
pub async fn counts(db: &Database, sql: &str, wanted: i64) {
    eventually(&format!("{wanted} from {sql}"), async || {
        (db.number(sql).await == wanted).then_some(())
    })
    .await;
}

pub(super) const PUBLISHED: &str =
    "SELECT count(*) FROM outbox_events WHERE published_at IS NOT NULL";
const CLAIMS_PG: &str = "SELECT count(*) FROM relevo.claim";
const CLAIMS_SQLITE: &str = "SELECT count(*) FROM relevo_claim";

fn claims(db: &Database) -> &'static str {
    if db.is_postgres() { CLAIMS_PG } else { CLAIMS_SQLITE }
}

pub async fn a_committed_row_is_published_and_marked_and_a_rolled_back_one_is_not(db: Database) {
    let mapping = smartedify(&db).await;
    let before = insert_one(&db, "t-1", r#"{"n": 1}"#).await;
    let work = Work::begin(db.clone(), mapping, Sink::new()).await;
    db.run(&format!("BEGIN; {} ROLLBACK;", insert(Uuid::now_v7(), "t-1", r#"{"n": 0}"#))).await;
    let after = insert_one(&db, "t-1", r#"{"n": 2}"#).await;
    let seen = work.sink.wait_for(2).await;
    let ids: Vec<String> = seen.iter().map(|seen| seen.id.clone()).collect();
    assert_eq!(ids, [before.to_string(), after.to_string()]);
    assert_eq!(seen[0].topic, "governance.changed");
    assert_eq!(seen[0].key, "t-1");
    assert_eq!(seen[0].headers, r#"{"content-type":"application/json"}"#);
    counts(&db, PUBLISHED, 2).await;
    assert_eq!(db.number(claims(&db)).await, 0, "what is marked needs no claim");
    assert_eq!(work.table.pending().await.unwrap().rows, 0);
    work.end().await;
}

pub async fn a_failure_is_told_in_the_owners_columns_and_holds_back_its_key_only(db: Database) {
    let mapping = smartedify(&db).await;
    let work = Work::begin(db.clone(), mapping, Sink::refusing("bad", Some(2))).await;
    let first = insert_one(&db, "t-1", r#"{"n": "bad"}"#).await;
    let second = insert_one(&db, "t-1", r#"{"n": 2}"#).await;
    let other = insert_one(&db, "t-2", r#"{"n": 3}"#).await;
    let seen: Vec<String> = work.sink.wait_for(3).await.into_iter().map(|seen| seen.id).collect();
    let place = |id: Uuid| seen.iter().position(|seen| *seen == id.to_string()).unwrap();
    assert!(place(first) < place(second), "{seen:?}");
    assert!(seen.contains(&other.to_string()));
    counts(&db, PUBLISHED, 3).await;
    let row = &db
        .rows(&format!("SELECT retry_count, last_error, error_class, last_error_at IS NOT NULL, next_retry_at > created_at
                          FROM outbox_events WHERE id = '{first}'"))
        .await[0];
    assert_eq!(row[0].as_deref(), Some("2"));
    assert_eq!(row[1].as_deref(), Some("the broker's reason"));
    assert_eq!(row[2].as_deref(), Some("transient"));
    for told in &row[3..] {
        assert!(matches!(told.as_deref(), Some("t" | "1")), "{row:?}");
    }
    work.end().await;
}

pub async fn what_fails_for_good_moves_to_the_owners_dead_letters_and_comes_back_when_replayed(
    db: Database,
) {
    let mapping = smartedify(&db).await;
    // A handful of words too long for the owner's column.
    let sink = Sink::answering(|event, attempt| {
        let bad = event.key.as_deref() == Some("bad") && attempt == 1;
        let error = "no, ".repeat(100);
        let class = relevo_core::ErrorClass::Permanent;
        if bad {
            relevo_core::broker::Confirm::Refused { class, error, after: None }
        } else {
            relevo_core::broker::Confirm::Stored
        }
    });
    let work = Work::begin(db.clone(), mapping, sink).await;
    let bad = insert_one(&db, "bad", r#"{"n": 1}"#).await;
    let good = insert_one(&db, "good", r#"{"n": 2}"#).await;
    counts(&db, "SELECT count(*) FROM outbox_events_dlq", 1).await;
    counts(&db, PUBLISHED, 1).await;
    let dead = &db.rows("SELECT id, error_class, retry_count FROM outbox_events_dlq").await[0];
    assert_eq!(dead[0], Some(bad.to_string()));
    assert_eq!((dead[1].as_deref(), dead[2].as_deref()), (Some("permanent"), Some("1")));
    assert_eq!(db.number("SELECT count(*) FROM outbox_events").await, 1);
    let letters = work.operate.dead_letters(&DeadFilter::default(), None, 10).await.unwrap();
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].subscription, NAME);
    work.operate.replay(&DeadFilter::default(), None).await.unwrap();
    counts(&db, PUBLISHED, 2).await;
    assert_eq!(db.number("SELECT count(*) FROM outbox_events_dlq").await, 0);
    let mut ids: Vec<String> = work.sink.stored().into_iter().map(|seen| seen.id).collect();
    ids.sort();
    assert_eq!(ids, [bad.to_string(), good.to_string()]);
    assert_eq!(db.number(claims(&db)).await, 0);
    work.end().await;
}

pub async fn a_dead_letter_that_dies_again_is_again_where_its_owner_looks(db: Database) {
    let mapping = smartedify(&db).await;
    let attempts = Arc::new(AtomicU32::new(0));
    let seen = attempts.clone();
    let sink = Sink::answering(move |_, _| match seen.fetch_add(1, Ordering::SeqCst) {
        0 | 1 => relevo_core::broker::Confirm::Refused {
            class: relevo_core::ErrorClass::Permanent,
            error: "not yet".into(),
            after: None,
        },
        _ => relevo_core::broker::Confirm::Stored,
    });
    let work = Work::begin(db.clone(), mapping, sink).await;
    let id = insert_one(&db, "k", r#"{"n": 1}"#).await;
    for died in 1..=2 {
        eventually("it dies", async || {
            let letters =
                work.operate.dead_letters(&DeadFilter::default(), None, 10).await.unwrap();
            let dead = letters.iter().filter(|letter| letter.state == DeadState::Dead).count();
            (attempts.load(Ordering::SeqCst) == died && dead == 1).then_some(())
        })
        .await;
        let dead = db.rows("SELECT id, payload FROM outbox_events_dlq").await;
        assert_eq!(dead.len(), 1, "death number {died}: {dead:?}");
        assert_eq!(dead[0][0], Some(id.to_string()));
        assert!(dead[0][1].as_deref().is_some_and(|payload| payload.contains('1')), "{dead:?}");
        assert_eq!(db.number("SELECT count(*) FROM outbox_events").await, 0);
        work.operate.replay(&DeadFilter::default(), None).await.unwrap();
    }
    counts(&db, PUBLISHED, 1).await;
    assert_eq!(db.number("SELECT count(*) FROM outbox_events_dlq").await, 0);
    assert_eq!(work.sink.stored().len(), 1);
    work.end().await;
}

pub async fn a_row_that_its_owner_puts_back_is_relayed_again(db: Database) {
    let mapping = smartedify(&db).await;
    let work = Work::begin(db.clone(), mapping, Sink::refusing("bad", None)).await;
    let id = insert_one(&db, "k", r#"{"n": "bad"}"#).await;
    counts(&db, "SELECT count(*) FROM outbox_events_dlq", 1).await;
    // The owner's own way of reprocessing, with the payload mended.
    db.run(&format!("DELETE FROM outbox_events_dlq; {}", insert(id, "k", r#"{"n": "mended"}"#)))
        .await;
    let seen = work.sink.wait_for(1).await;
    assert!(seen[0].payload.contains("mended"), "{seen:?}");
    counts(&db, PUBLISHED, 1).await;
    work.end().await;
}

pub async fn a_row_that_makes_no_event_is_a_dead_letter_and_keeps_nobody_back(db: Database) {
    let mapping = smartedify(&db).await;
    let work = Work::begin(db.clone(), mapping, Sink::new()).await;
    let (bad, large) = (Uuid::now_v7(), Uuid::now_v7());
    let poison = insert(bad, "k", r#"{"n": 1}"#).replace("governance.changed", "not a topic");
    db.run(&poison).await;
    let payload = format!(r#"{{"n": "{}"}}"#, "x".repeat(1 << 20));
    db.run(&insert(large, "k", &payload)).await;
    let good = insert_one(&db, "k", r#"{"n": 2}"#).await;
    let seen = work.sink.wait_for(1).await;
    assert_eq!(seen[0].id, good.to_string());
    counts(&db, "SELECT count(*) FROM outbox_events_dlq WHERE error_class = 'poison'", 2).await;
    let letters = work.operate.dead_letters(&DeadFilter::default(), None, 10).await.unwrap();
    let mut errors: Vec<&str> = letters.iter().map(|letter| &letter.error[..5]).collect();
    errors.sort_unstable();
    assert_eq!(errors, ["R0010", "R0012"]);
    // A person may send them all the same; their rows come back and are marked.
    work.operate.replay(&DeadFilter::default(), None).await.unwrap();
    let seen = work.sink.wait_for(3).await;
    assert!(seen.iter().any(|seen| seen.payload.len() > 1 << 20), "with all their bytes");
    counts(&db, PUBLISHED, 3).await;
    assert_eq!(db.number("SELECT count(*) FROM outbox_events_dlq").await, 0);
    work.end().await;
}

pub async fn a_row_without_an_id_stays_pending_and_keeps_nobody_back(db: Database) {
    db.run("CREATE TABLE notes (id text UNIQUE, topic text NOT NULL, payload text NOT NULL, at text, sent text)").await;
    let mapping = Mapping::new(TableName::parse("notes").unwrap()).with(Role::PublishedAt, "sent");
    db.run(
        "INSERT INTO notes VALUES (NULL, 't', 'none', 'a', NULL), ('7', 't', 'seven', 'b', NULL)",
    )
    .await;
    let work = Work::begin(db.clone(), mapping, Sink::new()).await;
    assert!(work.sink.wait_for(1).await[0].payload.contains("seven"));
    counts(&db, "SELECT count(*) FROM notes WHERE sent IS NOT NULL", 1).await;
    assert_eq!(work.table.pending().await.unwrap().rows, 1, "nobody overlooks it");
    let answer = work.operate.why(event_id(NAME, "9")).await.unwrap();
    assert!(matches!(answer, Answer::Unknown { .. }), "{answer:?}");
    db.run("UPDATE notes SET id = '8' WHERE id IS NULL").await;
    assert!(work.sink.wait_for(2).await[1].payload.contains("none"));
    work.end().await;
}

pub async fn a_time_may_be_a_number_of_milliseconds(db: Database) {
    let table = |name: &str, number: &str| {
        format!(
            "CREATE TABLE {name} (id text NOT NULL PRIMARY KEY, topic text NOT NULL, payload text NOT NULL, made {number}, due {number}, sent {number});"
        )
    };
    let mapping = |name: &str| {
        Mapping::new(TableName::parse(name).unwrap())
            .with(Role::CreatedAt, "made")
            .with(Role::NextAttemptAt, "due")
            .with(Role::PublishedAt, "sent")
    };
    db.run(&table("notes", "bigint")).await;
    let far = 4_000_000_000_000_u64;
    db.run(&format!("INSERT INTO notes VALUES ('1', 't', 'one', 1700000000000, NULL, NULL), ('2', 't', 'two', 1700000000001, {far}, NULL)")).await;
    let work = Work::begin(db.clone(), mapping("notes"), Sink::new()).await;
    assert!(work.sink.wait_for(1).await[0].payload.contains("one"));
    counts(&db, "SELECT count(*) FROM notes WHERE sent BETWEEN 1700000000000 AND 4000000000000", 1)
        .await;
    assert!(work.table.pending().await.unwrap().oldest_s > 1e6, "since it was made");
    work.end().await;
    // A number of 32 bits has no room for them: the first confirm could not be told.
    if db.is_postgres() {
        db.run(&table("small", "integer")).await;
        let error = db.adopt("small", mapping("small")).await.err().unwrap().to_string();
        assert!(error.contains(r#""sent" (published_at) takes no time, being integer"#), "{error}");
    }
}

pub async fn a_row_that_is_not_due_waits_for_its_time(db: Database) {
    let mapping = smartedify(&db).await;
    let later = insert_one(&db, "k", r#"{"n": 1}"#).await;
    let time =
        if db.is_postgres() { "now() + interval '1 hour'" } else { "datetime('now', '1 hour')" };
    db.run(&format!("UPDATE outbox_events SET next_retry_at = {time} WHERE id = '{later}'")).await;
    let work = Work::begin(db.clone(), mapping, Sink::new()).await;
    let now = insert_one(&db, "k", r#"{"n": 2}"#).await;
    counts(&db, PUBLISHED, 1).await;
    assert_eq!(work.sink.stored()[0].id, now.to_string());
    let past = if db.is_postgres() { "now()" } else { "datetime('now', '-1 second')" };
    db.run(&format!("UPDATE outbox_events SET next_retry_at = {past} WHERE id = '{later}'")).await;
    counts(&db, PUBLISHED, 2).await;
    work.end().await;
}

pub async fn ticketflows_table_has_its_key_in_the_payload(db: Database) {
    let (id, time) = if db.is_postgres() { ("uuid", "timestamptz") } else { ("TEXT", "TEXT") };
    db.run(&format!(
        r#"CREATE TABLE "Outbox" ("Id" {id} PRIMARY KEY, "Type" text NOT NULL, "PayloadJson" text NOT NULL,
               "CorrelationId" text, "OccurredAt" {time} NOT NULL, "DispatchedAt" {time})"#
    ))
    .await;
    let mapping = Preset::TicketFlow.mapping(TableName::parse("Outbox").unwrap());
    let row = |n: usize| {
        format!(
            r#"INSERT INTO "Outbox" VALUES ('{}', 'ticket.created', '{{"ticketId": "T-{}", "n": {n}}}', 'c-{n}', '2026-01-0{}T00:00:00Z', NULL);"#,
            Uuid::now_v7(),
            n % 2,
            n + 1
        )
    };
    db.run(&(0..6).map(row).collect::<String>()).await;
    let work = Work::begin(db.clone(), mapping, Sink::refusing(r#""n": 1"#, None)).await;
    let seen = work.sink.wait_for(5).await;
    for key in ["T-0", "T-1"] {
        let payloads: Vec<&str> =
            seen.iter().filter(|seen| seen.key == key).map(|seen| seen.payload.as_str()).collect();
        assert!(payloads.is_sorted(), "{payloads:?}");
    }
    assert!(seen[0].headers.contains(r#""correlation-id":"c-"#), "{seen:?}");
    counts(&db, r#"SELECT count(*) FROM "Outbox" WHERE "DispatchedAt" IS NOT NULL"#, 5).await;
    // The table has no word for what failed for good: it stays pending to its owner, and is not sent again.
    assert_eq!(work.table.pending().await.unwrap().rows, 0);
    insert_ticket(&db).await;
    work.sink.wait_for(6).await;
    assert_eq!(work.operate.dead_letters(&DeadFilter::default(), None, 10).await.unwrap().len(), 1);
    assert_eq!(work.sink.stored().len(), 6);
    work.end().await;
}

async fn insert_ticket(db: &Database) {
    db.run(&format!(
        r#"INSERT INTO "Outbox" VALUES ('{}', 'ticket.assigned', 'no JSON at all', NULL, '2026-01-09T00:00:00Z', NULL)"#,
        Uuid::now_v7()
    ))
    .await;
}

pub async fn rows_that_must_not_be_changed_never_are_and_come_once(db: Database) {
    let (id, json) = if db.is_postgres() { ("uuid", "jsonb") } else { ("text", "text") };
    db.run(&format!(
        "CREATE TABLE outboxevent (id {id} PRIMARY KEY, aggregatetype varchar(255) NOT NULL,
             aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload {json})"
    ))
    .await;
    if db.is_postgres() {
        db.run(
            "CREATE FUNCTION never() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'never'; END $$;
             CREATE TRIGGER never BEFORE UPDATE ON outboxevent FOR EACH ROW EXECUTE FUNCTION never();",
        )
        .await;
    } else {
        db.run("CREATE TRIGGER never BEFORE UPDATE ON outboxevent BEGIN SELECT RAISE(ABORT, 'never'); END").await;
    }
    let insert = |n: usize| {
        let id = Uuid::now_v7();
        format!(
            "INSERT INTO outboxevent VALUES ('{id}', 'order', 'o-1', 'OrderPlaced', '{{\"n\": {n}}}');"
        )
    };
    db.run(&(0..20).map(insert).collect::<String>()).await;
    let mapping = Preset::Debezium.mapping(TableName::parse("outboxevent").unwrap());
    let work = Work::begin(db.clone(), mapping.clone(), Sink::refusing(r#""n": 3"#, None)).await;
    let seen = work.sink.wait_for(19).await;
    assert_eq!(seen[0].topic, "outbox.event.order");
    assert!(seen[0].headers.contains(r#""type":"OrderPlaced""#), "{seen:?}");
    eventually("nothing pending", async || {
        (work.table.pending().await.unwrap().rows == 0).then_some(())
    })
    .await;
    let sink = work.sink.clone();
    work.end().await;
    // A process that begins anew finds them done.
    let (table, _) = db.adopt(NAME, mapping).await.unwrap();
    let running = relay(table.clone(), &sink, "two").await;
    db.run(&insert(20)).await;
    sink.wait_for(20).await;
    assert_eq!(sink.stored().len(), 20, "each came once");
    running.stop(Duration::from_secs(60)).await.unwrap();
    db.run("DELETE FROM outboxevent").await;
    let mut retention = relevo_core::outbox::Retention::default();
    retention.dead_letters = Duration::ZERO;
    eventually("claims go with their rows", async || {
        table.upkeep(&retention).await.unwrap();
        (db.number(claims(&db)).await == 0).then_some(())
    })
    .await;
}

pub async fn states_may_be_words_and_confirmed_rows_may_be_deleted(db: Database) {
    db.run("CREATE TABLE msgs (no int PRIMARY KEY, body text, state text NOT NULL DEFAULT 'NEW', why text)").await;
    let mapping = Mapping::new(TableName::parse("msgs").unwrap())
        .with(Role::Id, "no")
        .with(Role::Payload, "body")
        .with(Role::Error, "why")
        .topic("msgs")
        .content_type("text/plain")
        .status(Status::new("state", ["NEW", "RETRY"], "it's sent").dead("FAILED"));
    db.run("INSERT INTO msgs (no, body, state) VALUES (1, 'a', 'NEW'), (2, 'bad', 'RETRY'), (3, 'c', 'HELD')").await;
    let work = Work::begin(db.clone(), mapping, Sink::refusing("bad", None)).await;
    let seen = &work.sink.wait_for(1).await[0];
    assert_eq!((&*seen.topic, &*seen.headers), ("msgs", r#"{"content-type":"text/plain"}"#));
    counts(&db, "SELECT count(*) FROM msgs WHERE state = 'it''s sent' AND no = 1", 1).await;
    counts(
        &db,
        "SELECT count(*) FROM msgs WHERE state = 'FAILED' AND why LIKE 'the broker%' AND no = 2",
        1,
    )
    .await;
    assert_eq!(db.number("SELECT count(*) FROM msgs WHERE state = 'HELD'").await, 1);
    work.end().await;

    db.run("CREATE TABLE queue (id int PRIMARY KEY, topic text, payload text); INSERT INTO queue VALUES (1, 'a.b', 'x')").await;
    let mapping = Mapping::new(TableName::parse("queue").unwrap()).delete();
    let (table, _) = db.adopt("queue", mapping).await.unwrap();
    let sink = Arc::new(Sink::new());
    let running = start_other(table, &sink).await;
    counts(&db, "SELECT count(*) FROM queue", 0).await;
    assert_eq!(sink.stored().len(), 1);
    running.stop(Duration::from_secs(60)).await.unwrap();
}

async fn start_other(
    table: Arc<dyn relevo_core::outbox::adopt::AdoptedTable>,
    sink: &Arc<Sink>,
) -> relevo_core::relay::run::Running {
    use relevo_core::outbox::{MemberId, Subscription};
    let subscription = Subscription::new("queue");
    let (destination, member) = (Arc::new(sink.destination()), MemberId("q".into()));
    relevo_core::relay::run::start(table, subscription, super::config(), destination, member)
        .await
        .unwrap()
}

pub async fn a_mapping_that_does_not_fit_is_refused_with_its_reason(db: Database) {
    let mapping = smartedify(&db).await;
    let refused = async |mapping, part: &str| {
        let error = db.adopt("x", mapping).await.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::UnfitTable, "{error}");
        assert!(error.to_string().contains(part), "{part}: {error}");
    };
    refused(mapping.clone().with(Role::Tenant, "Tenant"), "no column \"Tenant\" (tenant)").await;
    refused(mapping.clone().with(Role::Id, "aggregate_id"), "unique index").await;
    let elsewhere = |name: &str| Preset::SmartEdify.mapping(TableName::parse(name).unwrap());
    refused(elsewhere("OUTBOX_EVENTS_"), "there is no table").await;
    refused(elsewhere("Outbox_Events"), "did you mean").await;
    db.run("CREATE VIEW seen AS SELECT * FROM outbox_events").await;
    refused(elsewhere("seen"), "no table").await;
    db.run("DROP TABLE outbox_events_dlq; CREATE TABLE outbox_events_dlq (id text PRIMARY KEY, cause text NOT NULL)").await;
    refused(mapping, "needs \"cause\"").await;
}

pub async fn a_native_subscription_of_the_same_log_never_gets_adopted_rows(db: Database) {
    let mapping = smartedify(&db).await;
    let work = Work::begin(db.clone(), mapping, Sink::new()).await;
    let native =
        work.operate.publish_now(relevo_core::NewEvent::bytes("own.event", "{}")).await.unwrap();
    insert_one(&db, "k", r#"{"n": 1}"#).await;
    counts(&db, PUBLISHED, 1).await;
    let store: Arc<dyn relevo_core::outbox::Store> = match db.kind {
        super::Kind::Sqlite => Arc::new(relevo_stores::sqlite::SqliteStore::open(&db.url).unwrap()),
        super::Kind::Postgres(_) => {
            Arc::new(relevo_stores::postgres::PostgresStore::connect(&db.url).await.unwrap())
        }
    };
    let sink = Arc::new(Sink::new());
    use relevo_core::outbox::{MemberId, Subscription};
    let (destination, member) = (Arc::new(sink.destination()), MemberId("n".into()));
    let running = relevo_core::relay::run::start(
        store,
        Subscription::new("native"),
        super::config(),
        destination,
        member,
    )
    .await
    .unwrap();
    sink.wait_for(1).await;
    let last =
        work.operate.publish_now(relevo_core::NewEvent::bytes("own.event", "{}")).await.unwrap();
    let ids: Vec<String> = sink.wait_for(2).await.into_iter().map(|seen| seen.id).collect();
    assert_eq!(ids, [native.to_string(), last.to_string()]);
    assert_eq!(work.sink.stored().len(), 1, "and the adopted one gets nothing of the log's own");
    running.stop(Duration::from_secs(60)).await.unwrap();
    work.end().await;
}
