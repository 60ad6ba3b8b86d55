//! Who waits for whom on PostgreSQL, and that nobody waits for each other.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

mod postgres_support;

use postgres_support::*;
use relevo_core::dead_letters::{DeadFilter, DeadState, Operate};
use relevo_core::outbox::{Death, Position, Retention, Start, Store};
use relevo_core::{ErrorClass, Kind};
use serde_json::json;
use std::time::Duration;
use tokio_postgres::Client;

/// A subscription with one parked event, and the change that settles it, as `relevo.record` reads it.
async fn settling(rig: &Rig) -> String {
    let owner = Owner::of(&rig.store, "s", "me").await;
    let mut client = connect(&rig.url).await;
    publish(&mut client, event("a", "k")).await;
    let page = page(&rig.store, Position::default()).await;
    let waits = at(&page.rows[0], page.to.unwrap());
    let mut change = owner.change(&rig.store, "k", page.end).await;
    change.waiting.push(waits.clone());
    change.parked.push(parked("k", Some(Duration::from_secs(600))));
    rig.store.record(&[change]).await.unwrap();
    let lane = owner.lane("k");
    let place = owner.state(&rig.store, &lane).await.position;
    let position = json!({"from_number": place.from.number, "from_nonce": place.from.nonce,
        "to_number": place.to.map(|to| to.number), "to_nonce": place.to.map(|to| to.nonce), "seq": place.seq});
    let settled =
        json!({"key": waits.key, "to_number": waits.to.number, "seq": waits.seq, "id": waits.id});
    let change = json!({"subscription": "s", "lane": lane.lane, "token": owner.token(&lane), "before": position,
        "after": position, "settled": [settled], "unparked": ["k"], "delivered": 1});
    change.to_string()
}

/// Waits until some session waits for a lock.
async fn somebody_waits(client: &Client) {
    let sql = "SELECT count(*) FROM pg_stat_activity
                WHERE wait_event_type = 'Lock' AND datname = current_database()";
    relevo_testkit::eventually("somebody waits", async || {
        (client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) > 0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_and_an_operator_who_meet_halfway_do_not_wait_for_each_other() {
    for operation in ["rewind", "remove", "pause"] {
        let Some(rig) = rig().await else { return };
        let change = settling(&rig).await;
        let mut recording = connect(&rig.url).await;
        let tx = recording.transaction().await.unwrap();
        tx.execute("SELECT relevo.record_rows($1::text::jsonb)", &[&change]).await.unwrap();
        let store = rig.store.clone();
        let operator = tokio::spawn(async move {
            match operation {
                "rewind" => store.rewind("s", Start::Beginning).await,
                "remove" => store.remove("s").await,
                _ => store.pause("s", "ana").await,
            }
        });
        somebody_waits(&connect(&rig.url).await).await;
        tx.execute("SELECT relevo.fence($1::text::jsonb)", &[&change]).await.unwrap();
        tx.commit().await.unwrap();
        operator.await.unwrap().unwrap_or_else(|error| panic!("{operation}: {error}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_consumer_lands_while_its_note_is_waited_for_holds_its_key_back() {
    let Some(rig) = rig().await else { return };
    let (mut first, second) = (connect(&rig.url).await, connect(&rig.url).await);
    let tx = first.transaction().await.unwrap();
    tx.batch_execute("SELECT relevo.meet('c', '{s}', '{1}', '{k}')").await.unwrap();
    tx.batch_execute("SELECT relevo.keys_landed('c', '{k}')").await.unwrap();
    let other = tokio::spawn(async move {
        let both = "SELECT relevo.meet('c', '{s,s}', '{1,2}', '{k,k}')";
        second.query_one(both, &[]).await.unwrap().get::<_, Vec<i16>>(0)
    });
    somebody_waits(&connect(&rig.url).await).await;
    tx.commit().await.unwrap();
    assert_eq!(other.await.unwrap(), [0, 2], "the first was seen, the second waits behind it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_who_do_different_things_at_once_do_not_wait_for_each_other() {
    let Some(rig) = rig().await else { return };
    Owner::of(&rig.store, "s", "me").await;
    let again = |n: usize| {
        let store = rig.store.clone();
        tokio::spawn(async move {
            for _ in 0..20 {
                match n % 3 {
                    0 => store.rewind("s", Start::Beginning).await.unwrap(),
                    1 => store.pause("s", "ana").await.unwrap(),
                    _ => store.resume("s").await.unwrap(),
                }
            }
        })
    };
    for task in (0..6).map(again).collect::<Vec<_>>() {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn looking_whether_the_log_was_moved_waits_for_nobody() {
    let Some(rig) = rig().await else { return };
    let mut client = connect(&rig.url).await;
    let tx = client.transaction().await.unwrap();
    tx.batch_execute("SELECT relevo.lock_history()").await.unwrap();
    let patience = Duration::from_secs(4);
    let probe = tokio::time::timeout(patience, rig.store.probe()).await;
    assert!(probe.is_ok(), "the probe waited for whoever tidies the log");
    tx.rollback().await.unwrap();
}

/// Makes so many dead letters of the key "k".
async fn dead(rig: &Rig, count: usize) -> Owner {
    let owner = Owner::of(&rig.store, "s", "me").await;
    let mut client = connect(&rig.url).await;
    for _ in 0..count {
        publish(&mut client, event("a", "k")).await;
    }
    let page = page(&rig.store, Position::default()).await;
    let mut change = owner.change(&rig.store, "k", page.end).await;
    let died = |row| Death {
        event: at(row, page.to.unwrap()),
        attempts: 1,
        class: ErrorClass::Poison,
        error: "no good".to_owned(),
    };
    change.deaths = page.rows.iter().map(died).collect();
    rig.store.record(&[change]).await.unwrap();
    owner
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_that_meets_the_end_of_its_subscription_is_refused_and_leaves_nothing() {
    let Some(rig) = rig().await else { return };
    dead(&rig, 3).await;
    let mut removing = connect(&rig.url).await;
    let tx = removing.transaction().await.unwrap();
    tx.batch_execute("DELETE FROM relevo.subscription WHERE name = 's'; DELETE FROM relevo.cursor")
        .await
        .unwrap();
    let store = rig.store.clone();
    let mut filter = DeadFilter::default();
    filter.subscription = Some("s".into());
    let meant = filter.clone();
    let asking = tokio::spawn(async move { store.replay(&meant, None).await });
    let client = connect(&rig.url).await;
    somebody_waits(&client).await;
    tx.commit().await.unwrap();
    let refused = asking.await.unwrap().unwrap_err();
    assert_eq!(refused.kind(), Kind::ReplayRefused, "{refused}");
    assert!(refused.to_string().contains("\"s\" was removed"), "{refused}");
    for table in ["request", "replay"] {
        let sql = format!("SELECT count(*) FROM relevo.{table}");
        assert_eq!(client.query_one(&sql, &[]).await.unwrap().get::<_, i64>(0), 0, "{table}");
    }
    assert_eq!(rig.store.dead_letters(&filter, None, 10).await.unwrap().len(), 3, "they stay dead");
}

#[tokio::test]
async fn removing_a_subscription_takes_its_dead_letters_out_of_their_replay() {
    let Some(rig) = rig().await else { return };
    dead(&rig, 3).await;
    let asked = rig.store.replay(&DeadFilter::default(), None).await.unwrap();
    rig.store.remove("s").await.unwrap();
    let progress = rig.store.replay_progress(asked.operation).await.unwrap();
    assert_eq!((progress.total, progress.waiting, progress.cancelled), (3, 0, 3));
    let mut filter = DeadFilter::default();
    filter.state = Some(DeadState::Dead);
    assert_eq!(rig.store.dead_letters(&filter, None, 10).await.unwrap().len(), 3);
}

#[tokio::test]
async fn old_marks_go_in_pieces_and_finished_replays_with_them() {
    let Some(rig) = rig().await else { return };
    let client = connect(&rig.url).await;
    client
        .batch_execute(
            "INSERT INTO relevo.inbox SELECT 'c', 's', n::text, now() - interval '1 year' FROM generate_series(1, 12000) n;
             INSERT INTO relevo.inbox VALUES ('c', 's', 'young');
             INSERT INTO relevo.replay (asked_at) VALUES (now() - interval '1 year'), (now() - interval '1 year'), (now());
             INSERT INTO relevo.request (subscription, lane, key, kind, operation, due)
             SELECT 's', 0, 'k', 'replay', min(operation), now() FROM relevo.replay;
             CREATE TABLE piece (rows bigint);
             CREATE FUNCTION note_piece() RETURNS trigger LANGUAGE plpgsql AS
             'BEGIN INSERT INTO piece SELECT count(*) FROM gone; RETURN NULL; END';
             CREATE TRIGGER piece AFTER DELETE ON relevo.inbox REFERENCING OLD TABLE AS gone
             FOR EACH STATEMENT EXECUTE FUNCTION note_piece()",
        )
        .await
        .unwrap();
    rig.store.upkeep(&Retention::default()).await.unwrap();
    let number = async |sql: &str| -> i64 { client.query_one(sql, &[]).await.unwrap().get(0) };
    assert_eq!(number("SELECT count(*) FROM relevo.inbox").await, 1);
    assert_eq!(number("SELECT max(rows) FROM piece").await, 5000);
    // One still has a request that waits, one is young.
    assert_eq!(number("SELECT count(*) FROM relevo.replay").await, 2);
}

/// The inbox row of a consumer that did something long ago.
const DONE: &str = "INSERT INTO relevo.inbox VALUES ('c', 's', 'done', now() - interval '1 year')";

/// A dead letter of a subscription to a broker that has nothing else to send, and the inbox row of who did it long ago.
async fn dead_and_done(rig: &Rig) -> Client {
    dead(rig, 1).await;
    rig.store.rewind("s", Start::Now).await.unwrap();
    let client = connect(&rig.url).await;
    let sql = "UPDATE relevo.subscription SET outside = true;
               UPDATE relevo.dead_letter SET created_at = now() - interval '2 years'";
    client.batch_execute(sql).await.unwrap();
    client.batch_execute(DONE).await.unwrap();
    client
}

async fn marks(client: &Client) -> i64 {
    client.query_one("SELECT count(*) FROM relevo.inbox", &[]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn between_the_look_and_the_replay_no_proof_goes() {
    let Some(rig) = rig().await else { return };
    let client = dead_and_done(&rig).await;
    // Somebody brings events again: retention passes over the inbox, and waits for nobody.
    let mut bringing = connect(&rig.url).await;
    let tx = bringing.transaction().await.unwrap();
    tx.batch_execute("SELECT FROM relevo.inbox_horizon FOR SHARE").await.unwrap();
    rig.store.upkeep(&Retention::default()).await.unwrap();
    assert_eq!(marks(&client).await, 1);
    tx.rollback().await.unwrap();
    // Retention is at the inbox: whoever wants to bring events again waits, and learns what is gone.
    let tx = bringing.transaction().await.unwrap();
    tx.batch_execute("DELETE FROM relevo.inbox").await.unwrap();
    assert_eq!(marks(&client).await, 1, "not committed yet");
    let store = rig.store.clone();
    let asking = tokio::spawn(async move { store.replay(&DeadFilter::default(), None).await });
    somebody_waits(&client).await;
    tx.commit().await.unwrap();
    let refused = asking.await.unwrap().unwrap_err();
    assert_eq!(refused.kind(), Kind::ProofGone, "{refused}");
}

/// Asks for ten days of everything, of the inbox too.
fn ten_days() -> Retention {
    let mut retention = Retention::default();
    let days = Duration::from_secs(10 * 86_400);
    (retention.events, retention.dead_letters, retention.inbox) = (days, days, days);
    retention
}

#[tokio::test]
async fn at_the_very_edge_what_may_be_replayed_is_proven_and_what_is_not_is_refused() {
    let Some(rig) = rig().await else { return };
    let client = dead_and_done(&rig).await;
    // The letter goes in a minute. Who did its event did so a day before it died: that is within the margin.
    let edge = "UPDATE relevo.dead_letter SET created_at = now() - interval '12 days',
                                              died_at = now() - interval '10 days' + interval '1 minute';
                UPDATE relevo.inbox SET seen_at = now() - interval '11 days' + interval '1 minute'";
    client.batch_execute(edge).await.unwrap();
    rig.store.upkeep(&ten_days()).await.unwrap();
    assert_eq!(marks(&client).await, 1, "the letter is there, so is the proof");
    let asked = rig.store.replay(&DeadFilter::default(), None).await.unwrap();
    assert_eq!(asked.total, 1);
    rig.store.cancel_replay(asked.operation).await.unwrap();
    // Longer before its death than the margin.
    let older = "UPDATE relevo.inbox SET seen_at = seen_at - interval '61 seconds'";
    client.batch_execute(older).await.unwrap();
    rig.store.upkeep(&ten_days()).await.unwrap();
    assert_eq!(marks(&client).await, 0);
    let refused = rig.store.replay(&DeadFilter::default(), None).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::ProofGone, "{refused}");
}

#[tokio::test]
async fn what_is_asked_for_keeps_the_proof_it_may_need() {
    let Some(rig) = rig().await else { return };
    let client = dead_and_done(&rig).await;
    let asked = rig.store.replay(&DeadFilter::default(), None).await.unwrap();
    rig.store.upkeep(&Retention::default()).await.unwrap();
    assert_eq!(marks(&client).await, 1, "it may have met what is replayed");
    rig.store.cancel_replay(asked.operation).await.unwrap();
    rig.store.upkeep(&Retention::default()).await.unwrap();
    assert_eq!(marks(&client).await, 0);
}
