//! The log in a file: publishing, pages, leases, the fence, retention.
#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

mod sqlite_support;

use relevo_core::Kind;
use relevo_core::dead_letters::Operate;
use relevo_core::event::{Headers, lane_of};
use relevo_core::outbox::{
    Death, PageRequest, Position, Retention, Start, Store, Subscription, TickRef,
};
use relevo_core::{ErrorClass, NewEvent};
use relevo_stores::sqlite::{SqliteOutbox, SqliteStore, first_time, migrations_sql};
use rusqlite::TransactionBehavior;
use sqlite_support::*;
use std::time::Duration;

fn tick(number: i64) -> TickRef {
    TickRef { number, nonce: 0 }
}

fn whole(position: Position) -> PageRequest {
    PageRequest { position, lanes: (0..64).collect(), max_rows: 1000, max_bytes: 1 << 30 }
}

#[tokio::test]
async fn an_event_exists_if_and_only_if_its_rusqlite_transaction_commits() {
    let scratch = Scratch::new();
    let store = scratch.store().await;
    let outbox = SqliteOutbox::default();
    let mut conn = scratch.connect();
    conn.execute_batch("CREATE TABLE tickets (n INTEGER)").unwrap();
    for commit in [true, false] {
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        tx.execute("INSERT INTO tickets VALUES (1)", []).unwrap();
        outbox.publish_sync(&tx, event("ticket.created", "t-1").header("tenant", "x")).unwrap();
        outbox
            .publish_all_sync(&tx, vec![event("a", "k"), NewEvent::bytes("b", vec![0xff, 0])])
            .unwrap();
        if commit {
            tx.commit().unwrap();
        }
    }
    let page = store.read_page(&whole(Position::default())).await.unwrap();
    let topics: Vec<&str> = page.rows.iter().map(|row| row.event.topic.as_str()).collect();
    assert_eq!(topics, ["ticket.created", "a", "b"]);
    assert_eq!(page.rows[0].event.headers.get("tenant"), Some("x"));
    assert_eq!(&page.rows[2].event.payload[..], [0xff, 0]);
    assert_eq!(page.end, Position::at(tick(3)));
    assert_eq!(count(&scratch, "tickets"), 1);
}

#[cfg(feature = "sqlx")]
#[tokio::test]
async fn an_event_exists_if_and_only_if_its_sqlx_transaction_commits() {
    use relevo_core::outbox::PublishIn;
    let scratch = Scratch::new();
    let store = scratch.store().await;
    let outbox = store.outbox();
    let pool = sqlx::SqlitePool::connect(&scratch.url()).await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let id = outbox.publish(&mut tx, event("a", "k")).await.unwrap();
    let many = (0..1201).map(|n| NewEvent::bytes("b", n.to_string())).collect();
    assert_eq!(outbox.publish_all(&mut tx, many).await.unwrap().len(), 1201);
    tx.commit().await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    outbox.publish(&mut tx, event("c", "k")).await.unwrap();
    tx.rollback().await.unwrap();
    let rows = store.peek(0, 10_000).await.unwrap();
    assert_eq!((rows.len(), rows[0].1.id, rows[0].1.topic.as_str()), (1202, id, "a"));
    assert!(
        (1..1202).all(|n| rows[n].1.payload == (n - 1).to_string()),
        "the order of the batch is kept"
    );
    pool.close().await;
}

#[tokio::test]
async fn what_is_out_of_bounds_is_refused_before_anything_is_written() {
    let scratch = Scratch::new();
    let _store = scratch.store().await;
    let mut conn = scratch.connect();
    let tx = conn.transaction().unwrap();
    let good_then_bad = vec![event("a", "k"), NewEvent::bytes("a", vec![0; (1 << 20) + 1])];
    let error = SqliteOutbox::default().publish_all_sync(&tx, good_then_bad).unwrap_err();
    assert_eq!(error.kind(), Kind::PayloadTooLarge);
    tx.commit().unwrap();
    assert_eq!(count(&scratch, "relevo_outbox"), 0);
}

#[tokio::test]
async fn plain_sql_needs_topic_key_and_payload_and_is_checked_too() {
    let scratch = Scratch::new();
    let store = scratch.store().await;
    let conn = scratch.connect();
    let insert = |columns: &str, values: &str| {
        conn.execute(&format!("INSERT INTO relevo_outbox ({columns}) VALUES ({values})"), [])
    };
    insert("topic, key, payload", r#"'ticket.created', 't-1', '{"n":1}'"#).unwrap();
    insert(
        "topic, key, payload, headers",
        r#"'a', NULL, x'ff00', '{"n":1,"deep":{"a":null},"none":null}'"#,
    )
    .unwrap();
    insert("topic, key, payload", "'a', CAST(x'ff41' AS TEXT), ''").unwrap();
    let refused = [
        ("topic, payload", "'', ''", "relevo_invalid_topic"),
        ("topic, payload", "'a..b', ''", "relevo_invalid_topic"),
        ("topic, payload", "'a.#', ''", "relevo_invalid_topic"),
        ("topic, payload", "'a' || char(0) || 'b', ''", "relevo_invalid_topic"),
        ("topic, payload", "'a' || char(8195), ''", "relevo_invalid_topic"),
        ("topic, key, payload", "'a', '', ''", "relevo_invalid_key"),
        ("topic, key, payload", "'a', 'x' || char(10), ''", "relevo_invalid_key"),
        ("topic, payload", "'a', zeroblob(1048577)", "relevo_payload_too_large"),
        ("topic, payload, headers", "'a', '', '[]'", "relevo_invalid_headers"),
        ("topic, payload, headers", "'a', '', 'nonsense'", "relevo_invalid_headers"),
        (
            "topic, payload, headers",
            r#"'a', '', json_object('a', hex(zeroblob(8192)))"#,
            "relevo_invalid_headers",
        ),
        ("topic, payload, id", "'a', '', 'no uuid'", "relevo_invalid_id"),
        ("topic, payload, seq", "'a', '', -5", "relevo_invalid_seq"),
    ];
    for (columns, values, expected) in refused {
        let error = insert(columns, values).unwrap_err().to_string();
        assert!(error.contains(expected), "{values}: {error}");
    }
    assert!(
        conn.execute("UPDATE relevo_outbox SET topic = 'b'", [])
            .unwrap_err()
            .to_string()
            .contains("never changed")
    );
    let rows = store.peek(0, 10).await.unwrap();
    assert_eq!(rows.len(), 3);
    assert_eq!(rows[0].1.id.0.get_version_num(), 7);
    assert_eq!(rows[0].1.json::<serde_json::Value>().unwrap()["n"], 1);
    let headers: Headers = [("n", "1"), ("deep", r#"{"a":null}"#)].into_iter().collect();
    assert_eq!(rows[1].1.headers, headers);
    assert_eq!(
        rows[2].1.key.as_deref(),
        Some("\u{fffd}A"),
        "text that is not UTF-8 never makes a page unreadable"
    );
}

#[test]
fn of_many_that_start_at_once_one_migrates() {
    let scratch = Scratch::new();
    let applied: Vec<usize> = std::thread::scope(|scope| {
        let start = || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let store = SqliteStore::open(&scratch.url()).unwrap();
            runtime.block_on(store.migrate()).unwrap().len()
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(start)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(applied.iter().filter(|n| **n > 0).count(), 1, "{applied:?}");
}

#[tokio::test]
async fn an_older_a_newer_and_a_missing_schema_are_told_apart() {
    let scratch = Scratch::new();
    let store = SqliteStore::open(&scratch.url()).unwrap();
    assert_eq!(store.probe().await.unwrap_err().kind(), Kind::SchemaMissing);
    assert_eq!(store.publish_now(event("a", "k")).await.unwrap_err().kind(), Kind::SchemaMissing);
    scratch.connect().execute_batch(&migrations_sql()).unwrap();
    assert!(store.migrate().await.unwrap().is_empty(), "printed and applied by hand is the same");
    assert!(store.probe().await.unwrap().waking.contains("data_version"));
    let conn = scratch.connect();
    conn.execute("DELETE FROM relevo_schema WHERE number >= 2", []).unwrap();
    assert_eq!(store.probe().await.unwrap_err().kind(), Kind::SchemaOlder);
    conn.execute("INSERT INTO relevo_schema VALUES (99, 'future', '', 0, NULL)", []).unwrap();
    assert_eq!(store.probe().await.unwrap_err().kind(), Kind::SchemaNewer);
    assert_eq!(store.migrate().await.unwrap_err().kind(), Kind::SchemaNewer);
}

#[tokio::test]
async fn a_newer_schema_that_allows_it_lets_older_programs_go_on() {
    let scratch = Scratch::new();
    let store = scratch.store().await;
    let change = "ALTER TABLE relevo_outbox ADD COLUMN note TEXT";
    let next = SqliteStore::open_as_next_version(&scratch.url(), change).unwrap();
    assert_eq!(next.probe().await.unwrap_err().kind(), Kind::SchemaOlder);
    assert_eq!(next.migrate().await.unwrap().len(), 1);
    let (old, new) = (store.probe().await.unwrap(), next.probe().await.unwrap());
    assert_eq!(old.schema, new.schema, "both work with the tables that are there");
    assert!(old.notes.iter().any(|note| note.contains("goes on beside")), "{:?}", old.notes);
    assert!(new.notes.is_empty(), "{:?}", new.notes);
    assert!(store.migrate().await.unwrap().is_empty(), "an older program has nothing to add");
    store.publish_now(event("a", "k")).await.unwrap();
    scratch.connect().execute("UPDATE relevo_schema SET oldest = number", []).unwrap();
    assert_eq!(store.probe().await.unwrap_err().kind(), Kind::SchemaNewer);
    assert_eq!(store.migrate().await.unwrap_err().kind(), Kind::SchemaNewer);
    next.probe().await.unwrap();
}

#[tokio::test]
async fn a_page_of_some_lanes_ends_where_all_of_them_stand() {
    let scratch = Scratch::new();
    let store = scratch.store().await;
    let mine: Vec<u16> = vec![lane_of("k1"), lane_of("k2")];
    for n in 0..30 {
        publish(&store, ["k1", "other-1", "k2", "other-2", "other-3"][n % 5], 1).await;
    }
    let mut request = whole(Position::default());
    request.lanes = mine.clone();
    request.max_rows = 5;
    let (mut seqs, mut pages) = (Vec::new(), 0);
    loop {
        let page = store.read_page(&request).await.unwrap();
        seqs.extend(page.rows.iter().map(|row| row.seq));
        assert!(page.rows.iter().all(|row| mine.contains(&row.lane)));
        assert_eq!(page.to, Some(tick(30)), "the window stays the same until it is done");
        request.position = page.end;
        pages += 1;
        if page.end.to.is_none() {
            break;
        }
        publish(&store, "k1", 1).await;
    }
    let expected: Vec<i64> = (0..30).filter(|n| n % 5 == 0 || n % 5 == 2).map(|n| n + 1).collect();
    assert_eq!((seqs, pages, request.position), (expected, 3, Position::at(tick(30))));
    let next = store.read_page(&request).await.unwrap();
    assert_eq!(next.rows.len(), pages - 1, "what came meanwhile is the next window");
    request.position = next.end;
    let nothing = store.read_page(&request).await.unwrap();
    assert_eq!((nothing.to, nothing.rows.len(), nothing.end), (None, 0, next.end));
}

#[tokio::test]
async fn a_page_stops_after_its_bytes_but_brings_at_least_one_row() {
    let scratch = Scratch::new();
    let store = scratch.store().await;
    for _ in 0..3 {
        store.publish_now(NewEvent::bytes("a", vec![0; 1000]).key("k")).await.unwrap();
    }
    let mut request = whole(Position::default());
    request.max_bytes = 10;
    let page = store.read_page(&request).await.unwrap();
    assert_eq!((page.rows.len(), page.end.seq, page.end.to), (1, 1, Some(tick(3))));
}

#[tokio::test]
async fn a_stale_token_or_position_leaves_nothing() {
    let scratch = Scratch::new();
    let store = scratch.store().await;
    publish(&store, "k", 2).await;
    let mut hand = take(&store, "s", "k", 7).await;
    let page = hand.page(&store).await;
    let mut change = hand.change(page.end);
    let row = at(&page, &page.rows[0]);
    change.deaths.push(Death {
        event: row.clone(),
        attempts: 1,
        class: ErrorClass::Poison,
        error: "bad".into(),
    });
    change.waiting.push(at(&page, &page.rows[1]));
    change.parked.push(park("k", None));
    for wrong in ["token", "from", "to", "seq"] {
        let mut stale = change.clone();
        match wrong {
            "token" => stale.token = 8,
            "from" => stale.before.from = tick(1),
            "to" => stale.before.to = Some(tick(2)),
            _ => stale.before.seq = 1,
        }
        assert_eq!(store.record(&[stale]).await.unwrap_err().kind(), Kind::Stale, "{wrong}");
    }
    let other = take(&store, "other", "k", 9).await;
    let mut late = other.change(page.end);
    late.token = 10;
    assert_eq!(
        store.record(&[change.clone(), late]).await.unwrap_err().kind(),
        Kind::Stale,
        "all or nothing"
    );
    for table in ["relevo_dead_letter", "relevo_parked_key", "relevo_parked_ref"] {
        assert_eq!(count(&scratch, table), 0, "{table}");
    }
    hand.record(&store, change).await;
    assert_eq!(count(&scratch, "relevo_dead_letter"), 1);
    let loaded = store.load_lane(&hand.id, 7, 10).await.unwrap().unwrap();
    assert_eq!((loaded.position, loaded.parked[0].due_in), (page.end, None));
    assert!(store.load_lane(&hand.id, 8, 10).await.unwrap().is_none());
}

#[tokio::test]
async fn a_new_subscription_starts_at_the_beginning_now_or_a_time() {
    let scratch = Scratch::new();
    let store = scratch.store().await;
    publish(&store, "k", 2).await;
    store.subscribe(&Subscription::new("first")).await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    let between = chrono::Utc::now();
    tokio::time::sleep(Duration::from_millis(20)).await;
    publish(&store, "k", 1).await;
    store.subscribe(&Subscription::new("now").start(Start::Now)).await.unwrap();
    store.subscribe(&Subscription::new("time").start(Start::Time(between))).await.unwrap();
    let early = between - chrono::Duration::days(1);
    store.subscribe(&Subscription::new("early").start(Start::Time(early))).await.unwrap();
    for (name, expected) in [("first", 0), ("now", 3), ("time", 2), ("early", 0)] {
        let sql =
            format!("SELECT DISTINCT from_number FROM relevo_cursor WHERE subscription = '{name}'");
        let from: i64 = scratch.connect().query_row(&sql, [], |row| row.get(0)).unwrap();
        assert_eq!(from, expected, "{name}");
    }
}

#[tokio::test]
async fn retention_keeps_what_is_undelivered_young_or_parked() {
    let scratch = Scratch::new();
    let store = scratch.store().await;
    publish(&store, "k", 5).await;
    let mut none = Retention::default();
    none.events = Duration::ZERO;
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(
        store.upkeep(&none).await.unwrap().rows_dropped,
        0,
        "without any subscription all of it stays"
    );
    let mut hand = take(&store, "s", "k", 1).await;
    scratch
        .connect()
        .execute("UPDATE relevo_cursor SET from_number = 5 WHERE lane <> ?1", [hand.id.lane])
        .unwrap();
    let page = hand.page(&store).await;
    let mut change = hand.change(Position { from: tick(0), to: Some(tick(5)), seq: 4 });
    change.waiting.push(at(&page, &page.rows[1]));
    change.parked.push(park("k", Some(Duration::from_secs(60))));
    hand.record(&store, change).await;
    assert_eq!(store.upkeep(&Retention::default()).await.unwrap().rows_dropped, 0, "too young");
    assert_eq!(store.upkeep(&none).await.unwrap().rows_dropped, 3);
    let left: Vec<i64> = store.peek(0, 10).await.unwrap().iter().map(|(seq, _)| *seq).collect();
    assert_eq!(left, [2, 5], "parked, undelivered");
    let sql = "INSERT INTO relevo_member VALUES ('s', 'killed long ago', 1, '{}', 0)";
    scratch.connect().execute(sql, []).unwrap();
    store.upkeep(&none).await.unwrap();
    assert_eq!(count(&scratch, "relevo_member"), 1, "the one that is alive");
    assert_eq!(store.read_parked(&hand.id, "k", 5).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_log_emptied_by_retention_never_gives_a_number_twice() {
    let scratch = Scratch::new();
    let store = scratch.store().await;
    publish(&store, "k", 10).await;
    let mut hand = take(&store, "s", "k", 1).await;
    let page = hand.page(&store).await;
    let change = hand.change(page.end);
    hand.record(&store, change).await;
    scratch.connect().execute("DELETE FROM relevo_outbox", []).unwrap();
    let fresh = publish(&store, "k", 10).await;
    let seen: Vec<_> = hand.page(&store).await.rows.iter().map(|row| row.event.id).collect();
    assert_eq!(seen, fresh);
}

#[tokio::test]
async fn a_sequence_that_went_backwards_is_refused() {
    let scratch = Scratch::new();
    let store = scratch.store().await;
    publish(&store, "k", 3).await;
    store.subscribe(&Subscription::new("s").start(Start::Now)).await.unwrap();
    scratch
        .connect()
        .execute_batch("DELETE FROM relevo_outbox; DELETE FROM sqlite_sequence")
        .unwrap();
    assert_eq!(store.probe().await.unwrap_err().kind(), Kind::SequenceReset);
}

#[tokio::test]
async fn the_doorbell_rings_for_commits_of_others_and_stays_silent_otherwise() {
    let scratch = Scratch::new();
    let store = scratch.store().await;
    let mut rings = store.doorbell().expect("SQLite has a doorbell");
    store.subscribe(&Subscription::new("s")).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!rings.has_changed().unwrap(), "nothing came");
    let conn = scratch.connect();
    conn.execute("INSERT INTO relevo_outbox (topic, payload) VALUES ('a', '')", []).unwrap();
    tokio::time::timeout(Duration::from_secs(2), rings.changed()).await.expect("it rings").unwrap();
}

#[tokio::test]
async fn a_consumer_sees_a_message_for_the_first_time_once() {
    let scratch = Scratch::new();
    let _store = scratch.store().await;
    let mut conn = scratch.connect();
    for (commit, expected) in [(false, true), (true, true), (true, false)] {
        let tx = conn.transaction().unwrap();
        assert_eq!(first_time(&tx, "mailer", "shop", "1").unwrap(), expected);
        assert!(commit || first_time(&tx, "mailer", "shop", "2").unwrap());
        if commit {
            tx.commit().unwrap();
        }
    }
}
