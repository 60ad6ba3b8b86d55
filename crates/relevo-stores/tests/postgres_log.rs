//! The log on PostgreSQL: nothing committed is skipped, nothing rolled back is seen.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

mod postgres_support;

use postgres_support::*;
use relevo_core::event::lane_of;
use relevo_core::outbox::{PageRequest, Position, PublishIn, Start, Store, Subscription};
use relevo_core::{Kind, NewEvent};
use relevo_stores::postgres::{PostgresOutbox, PostgresStore};
use relevo_testkit::eventually;
use relevo_testkit::services::{Postgres, PostgresOptions, pg_client, require};
use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio_postgres::Client;

#[tokio::test]
async fn a_rollback_leaves_nothing() {
    let Some(rig) = rig().await else { return };
    let mut client = connect(&rig.url).await;
    let mut tx = client.transaction().await.unwrap();
    PostgresOutbox::new().publish(&mut tx, event("a", "k")).await.unwrap();
    tx.rollback().await.unwrap();
    let kept = publish(&mut client, event("b", "k")).await;
    let (rows, _) = drain(&rig.store, Position::default()).await;
    assert_eq!(ids(&rows), [kept]);
}

#[tokio::test]
async fn a_late_commit_is_not_skipped() {
    let Some(rig) = rig().await else { return };
    let (mut late, mut quick) = (connect(&rig.url).await, connect(&rig.url).await);
    let mut tx = late.transaction().await.unwrap();
    let slow = PostgresOutbox::new().publish(&mut tx, event("slow", "a")).await.unwrap();
    let fast = publish(&mut quick, event("fast", "b")).await;
    let (rows, position) = drain(&rig.store, Position::default()).await;
    assert_eq!(ids(&rows), [fast], "an open transaction stalls nobody");
    // Several ticks pass over it.
    let more = publish(&mut quick, event("more", "b")).await;
    let (rows, position) = drain(&rig.store, position).await;
    assert_eq!(ids(&rows), [more]);
    tx.commit().await.unwrap();
    let (rows, position) = drain(&rig.store, position).await;
    assert_eq!(ids(&rows), [slow], "it comes when it commits, though the sequence stands still");
    assert!(drain(&rig.store, position).await.0.is_empty(), "and only once");
}

#[tokio::test]
async fn a_prepared_transaction_is_a_late_commit_too() {
    let Some(rig) = rig().await else { return };
    let mut client = connect(&rig.url).await;
    client.batch_execute("BEGIN; INSERT INTO relevo.outbox (topic, payload) VALUES ('p', ''); PREPARE TRANSACTION 'p1'").await.unwrap();
    let other = publish(&mut client, event("b", "k")).await;
    let (rows, position) = drain(&rig.store, Position::default()).await;
    assert_eq!(ids(&rows), [other]);
    client.batch_execute("COMMIT PREPARED 'p1'").await.unwrap();
    let (rows, _) = drain(&rig.store, position).await;
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].event.topic, "p");
}

#[tokio::test]
async fn a_page_ends_by_rows_or_by_bytes_and_goes_on_where_it_ended() {
    let Some(rig) = rig().await else { return };
    let mut client = connect(&rig.url).await;
    let mut sent = Vec::new();
    for n in 0..7 {
        sent.push(publish(&mut client, NewEvent::bytes("a", vec![n; 100]).key("k")).await);
    }
    let first = page_of(&rig.store, Position::default(), 3).await;
    assert_eq!(ids(&first.rows), sent[..3]);
    assert_eq!((first.end.to, first.end.seq), (first.to, first.rows[2].seq));
    let request =
        PageRequest { position: first.end, lanes: all_lanes(), max_rows: 100, max_bytes: 150 };
    let second = rig.store.read_page(&request).await.unwrap();
    assert_eq!(ids(&second.rows), sent[3..5], "the row that crosses the limit still comes");
    let request = PageRequest { position: second.end, max_bytes: 1, ..request };
    let third = rig.store.read_page(&request).await.unwrap();
    assert_eq!(ids(&third.rows), sent[5..6], "at least one row comes");
    let (rest, end) = drain(&rig.store, third.end).await;
    assert_eq!(ids(&rest), sent[6..]);
    assert_eq!(end, Position::at(first.to.unwrap()));
}

#[tokio::test]
async fn a_page_brings_only_the_asked_lanes() {
    let Some(rig) = rig().await else { return };
    let mut client = connect(&rig.url).await;
    let keys: Vec<String> = (0..20).map(|n| format!("key-{n}")).collect();
    for key in &keys {
        publish(&mut client, event("a", key)).await;
    }
    let lane = lane_of("key-3");
    let request = PageRequest {
        position: Position::default(),
        lanes: vec![lane],
        max_rows: 100,
        max_bytes: 1 << 20,
    };
    let page = rig.store.read_page(&request).await.unwrap();
    let wanted: Vec<&String> = keys.iter().filter(|key| lane_of(key) == lane).collect();
    let got: Vec<String> = page.rows.iter().map(|row| row.event.order_key()).collect();
    assert_eq!(got.iter().collect::<Vec<_>>(), wanted);
    assert_eq!(page.end, Position::at(page.to.unwrap()));
}

#[tokio::test]
async fn a_tick_maker_that_slept_until_its_number_was_pruned_throws_its_tick_away() {
    let Some(rig) = rig().await else { return };
    let mut client = connect(&rig.url).await;
    publish(&mut client, event("a", "k")).await;
    // It has read that no tick was made yet, and waits to insert the first one.
    client.batch_execute("BEGIN; LOCK TABLE relevo.tick IN SHARE MODE").await.unwrap();
    let store = rig.store.clone();
    let sleeper = tokio::spawn(async move { page(&store, Position::default()).await });
    let waiting =
        "SELECT count(*) FROM pg_locks WHERE relation = 'relevo.tick'::regclass AND NOT granted";
    let watcher = connect(&rig.url).await;
    eventually("the tick's insertion waits", async || {
        let waits = watcher.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) > 0;
        waits.then_some(())
    })
    .await;
    let others = "INSERT INTO relevo.tick (number, nonce, generation, snapshot, xmax_, low, top, floor, at)
        SELECT n, n, generation, pg_current_snapshot()::text, pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
               1, 1, 0, clock_timestamp() FROM relevo.tick, generate_series(1, 3) n WHERE number = 0;
        DELETE FROM relevo.tick WHERE number IN (1, 2); COMMIT";
    client.batch_execute(others).await.unwrap();
    let read = sleeper.await.unwrap();
    assert_eq!(read.to.map(|tick| tick.number), Some(3), "it goes on with what others made");
    let numbers = watcher.query("SELECT number FROM relevo.tick ORDER BY number", &[]).await;
    let numbers: Vec<i64> = numbers.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(numbers, [0, 3]);
}

/// Seven rows fill a page, and 32 pages are one range of an index.
const ROWS_OF_MANY_RANGES: i64 = 2000;

async fn fill_ranges(client: &Client) {
    let sql = "INSERT INTO relevo.outbox (topic, key, payload)
               SELECT 'a', 'k', convert_to(repeat('x', 1000), 'UTF8') FROM generate_series(1, $1::bigint)";
    client.execute(sql, &[&ROWS_OF_MANY_RANGES]).await.unwrap();
}

/// Summarises what the indices of the log do not know yet, and answers how many ranges that were.
async fn summarize_new_ranges(client: &Client) -> i64 {
    let sql = "SELECT coalesce(sum(brin_summarize_new_values(i.indexrelid::regclass)), 0)::bigint
                 FROM relevo.segment s
                 JOIN pg_index i ON i.indrelid = to_regclass(format('relevo.%I', s.name))
                 JOIN pg_class x ON x.oid = i.indexrelid
                 JOIN pg_am a ON a.oid = x.relam AND a.amname = 'brin'";
    client.query_one(sql, &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn ranges_of_the_log_are_summarised_for_the_search_for_late_commits_when_ticks_are_made() {
    // A server that summarises nothing by itself.
    let options = PostgresOptions::new(major()).setting("autovacuum", "off");
    let Some(server) = require(Postgres::start_with(&options)) else { return };
    let url = server.create_database().unwrap();
    let store = PostgresStore::connect(&url).await.unwrap();
    relevo_core::dead_letters::Operate::migrate(&store).await.unwrap();
    let client = connect(&url).await;
    fill_ranges(&client).await;
    assert!(summarize_new_ranges(&client).await > 2, "rows alone leave ranges unsummarised");
    fill_ranges(&client).await;
    let (rows, _) = drain(&store, Position::default()).await;
    assert_eq!(rows.len() as i64, 2 * ROWS_OF_MANY_RANGES);
    assert_eq!(summarize_new_ranges(&client).await, 0, "the tick left none");
}

#[tokio::test]
async fn a_quiet_log_makes_no_ticks() {
    let Some(rig) = rig().await else { return };
    let mut client = connect(&rig.url).await;
    publish(&mut client, event("a", "k")).await;
    let (_, end) = drain(&rig.store, Position::default()).await;
    let (_, end) = drain(&rig.store, end).await;
    // Transactions that have nothing to do with the log, also such as were open when the tick was made.
    client.batch_execute("CREATE TABLE other (n int); INSERT INTO other VALUES (1)").await.unwrap();
    let quiet = page(&rig.store, end).await;
    assert_eq!((quiet.to, quiet.end), (None, end));
    let mut busy = connect(&rig.url).await;
    let tx = busy.transaction().await.unwrap();
    tx.execute("INSERT INTO other VALUES (2)", &[]).await.unwrap();
    publish(&mut client, event("b", "k")).await;
    let (_, end) = drain(&rig.store, end).await;
    tx.commit().await.unwrap();
    let quiet = page(&rig.store, end).await;
    assert_eq!((quiet.to, quiet.end), (None, end));
}

#[tokio::test]
async fn every_lane_of_sql_is_the_lane_of_rust() {
    let Some(rig) = rig().await else { return };
    let mut client = connect(&rig.url).await;
    for key in ["", "a", "order-1", "ñandú", "🚚", "a b'c\"d\\"] {
        let lane: i16 =
            client.query_one("SELECT relevo.lane_of($1)", &[&key]).await.unwrap().get(0);
        assert_eq!(lane as u16, lane_of(key), "{key:?}");
    }
    for n in 0..50 {
        publish(&mut client, event("a", &format!("key {n} é"))).await;
        publish(&mut client, NewEvent::bytes("a", vec![])).await;
    }
    let (rows, _) = drain(&rig.store, Position::default()).await;
    assert_eq!(rows.len(), 100);
    for row in rows {
        assert_eq!(row.lane, lane_of(&row.event.order_key()));
    }
}

/// The rows that a reader of these lanes gets, with the lanes that they are said to lie in.
async fn read_in(store: &PostgresStore, lanes: Vec<u16>) -> Vec<(String, u16)> {
    let position = Position::default();
    let request = PageRequest { position, lanes, max_rows: 100, max_bytes: 1 << 20 };
    let page = store.read_page(&request).await.unwrap();
    page.rows.iter().map(|row| (row.event.order_key(), row.lane)).collect()
}

#[tokio::test]
async fn an_event_lies_in_the_lane_of_its_key_whoever_published_it() {
    let Some(rig) = rig().await else { return };
    let mut client = connect(&rig.url).await;
    let stated = "SELECT in_lane FROM relevo.outbox ORDER BY seq DESC LIMIT 1";
    let mut wanted = vec![publish(&mut client, event("a", "k")).await.to_string()];
    let by_sql = "SELECT relevo.publish_bytes('a', $1, '')";
    for key in [Some("k"), None] {
        let id: uuid::Uuid = client.query_one(by_sql, &[&key]).await.unwrap().get(0);
        let key = key.map_or_else(|| id.to_string(), str::to_owned);
        let lane: Option<i16> = client.query_one(stated, &[]).await.unwrap().get(0);
        assert_eq!(lane, Some(lane_of(&key) as i16), "{key}");
        wanted.push(key);
    }
    wanted[0] = "k".into();
    let plain = "INSERT INTO relevo.outbox (topic, key, payload) VALUES ('a', $1::text, '') RETURNING id, in_lane";
    for key in [Some("k"), None] {
        let row = client.query_one(plain, &[&key]).await.unwrap();
        assert_eq!(row.get::<_, Option<i16>>(1), None);
        wanted.push(key.map_or_else(|| row.get::<_, uuid::Uuid>(0).to_string(), str::to_owned));
    }
    let all: Vec<_> = wanted.into_iter().map(|key| (key.clone(), lane_of(&key))).collect();
    assert_eq!(read_in(&rig.store, all_lanes()).await, all);
    for lane in all_lanes() {
        let of_lane: Vec<_> = all.iter().filter(|(_, it)| *it == lane).cloned().collect();
        assert_eq!(read_in(&rig.store, vec![lane]).await, of_lane, "lane {lane}");
    }
}

#[tokio::test]
async fn a_lane_that_somebody_made_up_loses_nothing() {
    let Some(rig) = rig().await else { return };
    let client = connect(&rig.url).await;
    let made_up =
        "INSERT INTO relevo.outbox (in_lane, topic, key, payload) VALUES ($1, 'a', 'k', '')";
    for lane in [64i16, 200, -1] {
        client.execute(made_up, &[&lane]).await.unwrap();
    }
    let wanted = [("k".to_owned(), 0), ("k".to_owned(), 200 % 64), ("k".to_owned(), 63)];
    assert_eq!(read_in(&rig.store, all_lanes()).await, wanted);
    for row in wanted {
        assert_eq!(read_in(&rig.store, vec![row.1]).await, [row]);
    }
}

#[tokio::test]
async fn a_subscription_starts_at_the_beginning_now_or_at_a_time() {
    let Some(rig) = rig().await else { return };
    let mut client = connect(&rig.url).await;
    let first = publish(&mut client, event("first", "k")).await;
    drain(&rig.store, Position::default()).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    let time: chrono::DateTime<chrono::Utc> =
        client.query_one("SELECT clock_timestamp()", &[]).await.unwrap().get(0);
    tokio::time::sleep(Duration::from_millis(20)).await;
    let second = publish(&mut client, event("second", "k")).await;
    let starts =
        [("beginning", Start::Beginning), ("now", Start::Now), ("time", Start::Time(time))];
    for (name, start) in starts {
        rig.store.subscribe(&Subscription::new(name).start(start)).await.unwrap();
    }
    let third = publish(&mut client, event("third", "k")).await;
    for (name, wanted) in [
        ("beginning", vec![first, second, third]),
        ("now", vec![third]),
        ("time", vec![second, third]),
    ] {
        let owner = Owner::take(&rig.store, name, "me").await;
        let (rows, _) = drain(&rig.store, owner.lanes[&lane_of("k")].position).await;
        assert_eq!(ids(&rows), wanted, "{name}");
    }
}

/// Writers that hold their transactions open for a while, roll back, and commit out of order; two processes that
/// make ticks; a reader of its own for each. Every committed event comes exactly once to each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_tick_makers_lose_nothing_and_repeat_nothing() {
    let Some(rig) = rig().await else { return };
    let stop = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (store, stop) = (open(&rig.url), stop.clone());
            tokio::spawn(async move {
                let (mut position, mut rows) = (Position::default(), Vec::new());
                loop {
                    let last = stop.load(Ordering::SeqCst);
                    let (more, end) = drain(&store, position).await;
                    rows.extend(more);
                    position = end;
                    if last {
                        return rows;
                    }
                }
            })
        })
        .collect();
    let writers: Vec<_> = (0..8u64).map(|n| tokio::spawn(write(rig.url.clone(), n))).collect();
    let mut committed = BTreeSet::new();
    for writer in writers {
        committed.extend(writer.await.unwrap());
    }
    stop.store(true, Ordering::SeqCst);
    for reader in readers {
        let rows = reader.await.unwrap();
        let seen: BTreeSet<_> = rows.iter().map(|row| row.event.id).collect();
        assert_eq!(seen.len(), rows.len(), "nothing twice");
        assert_eq!(seen, committed, "nothing lost, no ghost");
    }
}

async fn write(url: String, writer: u64) -> Vec<relevo_core::EventId> {
    let mut client = connect(&url).await;
    let mut random = relevo_core::clock::Rng::seeded(writer);
    let mut committed = Vec::new();
    for _ in 0..60 {
        let mut tx = client.transaction().await.unwrap();
        let events: Vec<NewEvent> = (0..=random.below(3))
            .map(|_| event("a", &format!("key-{}", random.below(9))))
            .collect();
        let ids = PostgresOutbox::new().publish_all(&mut tx, events).await.unwrap();
        let pause = if random.below(10) == 0 { 150 } else { random.below(8) };
        tokio::time::sleep(Duration::from_millis(pause)).await;
        if random.below(6) == 0 {
            tx.rollback().await.unwrap();
        } else {
            tx.commit().await.unwrap();
            committed.extend(ids);
        }
    }
    committed
}

#[tokio::test]
async fn a_log_that_moved_to_another_cluster_is_rebased_and_loses_nothing() {
    let Some(rig) = rig().await else { return };
    let (mut open_one, mut client) = (connect(&rig.url).await, connect(&rig.url).await);
    let read = publish(&mut client, event("read", "k")).await;
    let mut tx = open_one.transaction().await.unwrap();
    let late = PostgresOutbox::new().publish(&mut tx, event("late", "k")).await.unwrap();
    let (rows, position) = drain(&rig.store, Position::default()).await;
    assert_eq!(ids(&rows), [read]);
    tx.commit().await.unwrap();
    let unread = publish(&mut client, event("unread", "k")).await;
    // As if restored elsewhere: another identifier, and transaction ids that mean nothing here.
    client.batch_execute("UPDATE relevo.meta SET value = '1' WHERE name = 'system'").await.unwrap();
    let probe = rig.store.probe().await.unwrap();
    assert!(probe.notes.iter().any(|note| note.contains("another cluster")), "{:?}", probe.notes);
    let after = publish(&mut client, event("after", "k")).await;
    let (rows, end) = drain(&rig.store, position).await;
    assert_eq!(ids(&rows), [late, unread, after]);
    assert!(drain(&rig.store, end).await.0.is_empty());
    assert!(rig.store.probe().await.unwrap().notes.is_empty(), "it is said once");
}

#[tokio::test]
async fn a_running_relay_notices_the_move_by_itself() {
    let Some(rig) = rig().await else { return };
    let mut client = connect(&rig.url).await;
    publish(&mut client, event("read", "k")).await;
    let (_, position) = drain(&rig.store, Position::default()).await;
    client.batch_execute("UPDATE relevo.meta SET value = '1' WHERE name = 'system'").await.unwrap();
    let after = publish(&mut client, event("after", "k")).await;
    let (rows, _) = drain(&rig.store, position).await;
    assert_eq!(ids(&rows), [after]);
}

#[tokio::test]
async fn a_tick_that_a_crash_took_leads_no_window_though_memory_has_it() {
    let Some(rig) = rig().await else { return };
    let mut client = connect(&rig.url).await;
    publish(&mut client, event("a", "k")).await;
    let (_, position) = drain(&rig.store, Position::default()).await;
    // As after a crash: the tick is gone, others made the next ones under the same numbers.
    let others = "UPDATE relevo.tick SET nonce = nonce + 1 WHERE number = (SELECT max(number) FROM relevo.tick)";
    client.batch_execute(others).await.unwrap();
    publish(&mut client, event("b", "k")).await;
    drain(&rig.store, Position::default()).await;
    let request = PageRequest { position, lanes: all_lanes(), max_rows: 10, max_bytes: 1000 };
    assert_eq!(rig.store.read_page(&request).await.unwrap_err().kind(), Kind::Stale);
}

#[tokio::test]
async fn a_sequence_that_went_backwards_stops_the_reading() {
    let Some(rig) = rig().await else { return };
    let mut client = connect(&rig.url).await;
    for _ in 0..3 {
        publish(&mut client, event("a", "k")).await;
    }
    let (_, position) = drain(&rig.store, Position::default()).await;
    client.batch_execute("TRUNCATE relevo.outbox; SELECT setval('relevo.outbox_seq', 1); INSERT INTO relevo.outbox (topic, payload) VALUES ('a', '')").await.unwrap();
    let request = PageRequest { position, lanes: all_lanes(), max_rows: 10, max_bytes: 1000 };
    let error = open(&rig.url).read_page(&request).await.unwrap_err();
    assert_eq!(error.kind(), Kind::SequenceReset);
}

/// Dumps one database into another with PostgreSQL's own programs.
fn copy(from: &str, to: &str) -> Option<()> {
    let dump = require(pg_client("pg_dump"))?;
    let psql = require(pg_client("psql"))?;
    let dumped = Command::new(dump).arg(from).output().unwrap();
    assert!(dumped.status.success(), "{}", String::from_utf8_lossy(&dumped.stderr));
    let mut restore = Command::new(psql)
        .args(["-q", "-v", "ON_ERROR_STOP=1", to])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    restore.stdin.take().unwrap().write_all(&dumped.stdout).unwrap();
    assert!(restore.wait().unwrap().success());
    Some(())
}

#[tokio::test]
async fn a_dump_restored_into_another_cluster_with_lower_transaction_ids_loses_nothing() {
    let (Some(old), Some(new)) = (require(Postgres::start(15)), require(Postgres::start(15)))
    else {
        return;
    };
    let (old_url, new_url) = (old.create_database().unwrap(), new.create_database().unwrap());
    let store = open(&old_url);
    relevo_core::dead_letters::Operate::migrate(&store).await.unwrap();
    let (mut open_one, mut client) = (connect(&old_url).await, connect(&old_url).await);
    client
        .batch_execute(
            "DO $$ BEGIN FOR n IN 1..3000 LOOP PERFORM txid_current(); COMMIT; END LOOP; END $$",
        )
        .await
        .unwrap();
    let owner = Owner::of(&store, "s", "me").await;
    let read = publish(&mut client, event("read", "k")).await;
    let mut tx = open_one.transaction().await.unwrap();
    let late = PostgresOutbox::new().publish(&mut tx, event("late", "k")).await.unwrap();
    let (rows, position) = drain(&store, Position::default()).await;
    assert_eq!(ids(&rows), [read]);
    let change = owner.change(&store, "k", position).await;
    store.record(&[change]).await.unwrap();
    tx.commit().await.unwrap();
    let unread = publish(&mut client, event("unread", "k")).await;
    if copy(&old_url, &new_url).is_none() {
        return;
    }

    let moved = open(&new_url);
    let mut there = connect(&new_url).await;
    let before = publish(&mut there, event("before.probe", "k")).await;
    let probe = moved.probe().await.unwrap();
    assert!(probe.notes.iter().any(|note| note.contains("another cluster")), "{:?}", probe.notes);
    let after = publish(&mut there, event("after", "k")).await;
    let owner = Owner::take(&moved, "s", "there").await;
    let (rows, _) = drain(&moved, owner.lanes[&lane_of("k")].position).await;
    assert_eq!(ids(&rows), [late, unread, before, after]);
}
