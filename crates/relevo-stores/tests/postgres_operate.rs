//! What people see and do on PostgreSQL: why, status, doctor, retention.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

mod postgres_support;

use postgres_support::*;
use relevo_core::dead_letters::{Answer, Level, Operate, Why};
use relevo_core::event::TopicFilter;
use relevo_core::outbox::{
    Beat, Death, Page, Position, PublishIn, Retention, Skip, Start, Store, Subscription,
};
use relevo_core::{ErrorClass, EventId};
use relevo_stores::postgres::PostgresOutbox;
use std::time::Duration;

async fn why(rig: &Rig, event: EventId) -> Why {
    match rig.store.why(event).await.unwrap() {
        Answer::Known { subscriptions, .. } => {
            subscriptions.into_iter().find(|(name, _)| name == "s").unwrap().1
        }
        other => panic!("{other:?}"),
    }
}

async fn published(rig: &Rig, topics: &[&str]) -> Page {
    let mut client = connect(&rig.url).await;
    for topic in topics {
        publish(&mut client, event(topic, "k")).await;
    }
    page(&rig.store, Position::default()).await
}

#[tokio::test]
async fn an_event_in_an_open_transaction_is_unknown_and_the_session_is_named() {
    let Some(rig) = rig().await else { return };
    let mut client = connect(&format!("{}?application_name=shop", rig.url)).await;
    let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let mut tx = client.transaction().await.unwrap();
    let id = PostgresOutbox::new().publish(&mut tx, event("a", "k")).await.unwrap();
    let Answer::Unknown { suspects, past_retention } = rig.store.why(id).await.unwrap() else {
        panic!()
    };
    assert!(!past_retention);
    assert_eq!(
        (suspects.len(), suspects[0].pid, suspects[0].application.as_str()),
        (1, pid, "shop")
    );
    assert_eq!(suspects[0].state, "idle in transaction");
    assert!(suspects[0].query.contains("relevo.outbox"), "{}", suspects[0].query);
    tx.rollback().await.unwrap();
    let Answer::Unknown { suspects, .. } = rig.store.why(id).await.unwrap() else { panic!() };
    assert!(suspects.is_empty());
}

#[tokio::test]
async fn a_prepared_transaction_is_named_too() {
    let Some(rig) = rig().await else { return };
    let client = connect(&rig.url).await;
    client.batch_execute("BEGIN; INSERT INTO relevo.outbox (topic, payload) VALUES ('p', ''); PREPARE TRANSACTION 'tx of the shop'").await.unwrap();
    let Answer::Unknown { suspects, .. } = rig.store.why(EventId::fresh()).await.unwrap() else {
        panic!()
    };
    assert_eq!((suspects.len(), suspects[0].state.as_str()), (1, "prepared"));
    assert_eq!(suspects[0].application, "tx of the shop");
    client.batch_execute("ROLLBACK PREPARED 'tx of the shop'").await.unwrap();
}

#[tokio::test]
async fn why_follows_an_event_from_its_publication_to_its_delivery() {
    let Some(rig) = rig().await else { return };
    rig.store.subscribe(&Subscription::new("s")).await.unwrap();
    let mut client = connect(&rig.url).await;
    let id = publish(&mut client, event("a", "k")).await;
    assert!(matches!(why(&rig, id).await, Why::NobodyWorks { .. }));
    let owner = Owner::take(&rig.store, "s", "me").await;
    assert_eq!(why(&rig, id).await, Why::WaitsForTick);
    let page = page(&rig.store, Position::default()).await;
    let Why::LaneLeased { lane, owner: who, silent_s } = why(&rig, id).await else { panic!() };
    assert_eq!((lane, who.as_str()), (owner.lane("k").lane, "me"));
    assert!((0.0..5.0).contains(&silent_s));

    let note = r#"{"breaker": {"reason": "refused", "open_s": 60}}"#.to_owned();
    let beat = Beat { subscription: "s".into(), member: owner.member.clone(), note };
    rig.store.beat(&beat).await.unwrap();
    let down = why(&rig, id).await;
    let Why::BreakerOpen { reason, open_s } = &down else { panic!("{down:?}") };
    assert!(reason == "refused" && *open_s >= 60.0, "{down:?}");
    rig.store.pause("s", "ana: too loud").await.unwrap();
    assert_eq!(why(&rig, id).await, Why::Paused { by: "ana: too loud".into(), then: None });
    rig.store.resume("s").await.unwrap();

    let owner = Owner::take(&rig.store, "s", "me").await;
    let change = owner.change(&rig.store, "k", page.end).await;
    rig.store.record(&[change]).await.unwrap();
    assert_eq!(why(&rig, id).await, Why::Delivered);
}

#[tokio::test]
async fn why_knows_what_lies_behind_the_position_inside_an_open_window() {
    let Some(rig) = rig().await else { return };
    let owner = Owner::of(&rig.store, "s", "me").await;
    published(&rig, &["a", "b"]).await;
    let first = page_of(&rig.store, Position::default(), 1).await;
    let change = owner.change(&rig.store, "k", first.end).await;
    rig.store.record(&[change]).await.unwrap();
    let rest = page(&rig.store, first.end).await;
    assert_eq!(why(&rig, first.rows[0].event.id).await, Why::Delivered);
    assert!(matches!(why(&rig, rest.rows[0].event.id).await, Why::LaneLeased { .. }));
}

#[tokio::test]
async fn why_tells_the_exceptions() {
    let Some(rig) = rig().await else { return };
    let owner = Owner::of(&rig.store, "s", "me").await;
    let page = published(&rig, &["dead", "skipped", "first", "behind"]).await;
    let refs: Vec<_> = page.rows.iter().map(|row| at(row, page.to.unwrap())).collect();
    let mut change = owner.change(&rig.store, "k", page.end).await;
    let (class, error) = (ErrorClass::Poison, "cannot be read".to_owned());
    change.deaths.push(Death { event: refs[0].clone(), attempts: 1, class, error });
    change.skips.push(Skip { event: refs[1].clone(), reason: "nothing to do".into() });
    change.waiting = refs[2..].to_vec();
    change.parked.push(parked("k", Some(Duration::from_secs(60))));
    rig.store.record(&[change]).await.unwrap();

    assert!(
        matches!(why(&rig, refs[0].id).await, Why::Dead { dead_state, error, .. } if dead_state == "dead" && error == "cannot be read")
    );
    assert_eq!(why(&rig, refs[1].id).await, Why::Skipped { reason: "nothing to do".into() });
    let Why::Parked { attempts, due: Some(due), class, error } = why(&rig, refs[2].id).await else {
        panic!()
    };
    assert_eq!((attempts, class.as_str(), error.as_str()), (1, "transient", "it was not to be"));
    let Why::ParkedBehind { event, before, due: behind, .. } = why(&rig, refs[3].id).await else {
        panic!()
    };
    assert_eq!((event, before, behind), (refs[2].id, 1, Some(due)));
    rig.store.archive(&Default::default()).await.unwrap();
    assert!(
        matches!(why(&rig, refs[0].id).await, Why::Dead { dead_state, .. } if dead_state == "archived")
    );
}

#[tokio::test]
async fn why_tells_what_a_subscription_does_not_have() {
    let Some(rig) = rig().await else { return };
    let page = published(&rig, &["a.b"]).await;
    let late = Subscription::new("late").start(Start::Now);
    rig.store.subscribe(&late).await.unwrap();
    let filter = TopicFilter::parse("x.#").unwrap();
    rig.store.subscribe(&Subscription::new("other").topics([filter])).await.unwrap();
    let Answer::Known { subscriptions, seq, .. } =
        rig.store.why(page.rows[0].event.id).await.unwrap()
    else {
        panic!()
    };
    assert_eq!(seq, Some(page.rows[0].seq));
    assert_eq!(subscriptions[0], ("late".into(), Why::BeforeStart));
    assert_eq!(subscriptions[1], ("other".into(), Why::FilteredOut { topics: vec!["x.#".into()] }));
}

fn no_retention() -> Retention {
    let mut retention = Retention::default();
    retention.events = Duration::ZERO;
    retention
}

/// Moves every lane of the owner to `end`.
async fn deliver_all(rig: &Rig, owner: &Owner, end: Position) {
    let mut changes = Vec::new();
    for (lane, state) in &owner.lanes {
        let id = relevo_core::outbox::LaneId { subscription: owner.name.clone(), lane: *lane };
        let change = relevo_core::outbox::LaneChange::moving(
            id.clone(),
            owner.token(&id),
            state.position,
            end,
        );
        changes.push(change);
    }
    rig.store.record(&changes).await.unwrap();
}

async fn publish_many(rig: &Rig, count: usize) -> Vec<EventId> {
    let mut client = connect(&rig.url).await;
    let mut tx = client.transaction().await.unwrap();
    let events = (0..count).map(|n| event("a", &format!("k{n}"))).collect();
    let ids = PostgresOutbox::new().publish_all(&mut tx, events).await.unwrap();
    tx.commit().await.unwrap();
    ids
}

async fn rows_left(rig: &Rig) -> i64 {
    let client = connect(&rig.url).await;
    client.query_one("SELECT count(*) FROM relevo.outbox", &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn retention_keeps_what_is_undelivered_and_drops_the_rest() {
    let Some(rig) = rig_alone().await else { return };
    let ids = publish_many(&rig, 250).await;
    // Nobody subscribes: everything is kept.
    rig.store.upkeep(&no_retention()).await.unwrap();
    assert_eq!(rows_left(&rig).await, 250);
    let owner = Owner::of(&rig.store, "s", "me").await;
    let slow = Subscription::new("slow");
    rig.store.subscribe(&slow).await.unwrap();
    let (rows, end) = drain(&rig.store, Position::default()).await;
    assert_eq!(rows.len(), 250);
    // Ticks prove what is decided: a second one sees that nothing was open at the first.
    let (_, end) = drain(&rig.store, end).await;
    publish_many(&rig, 1).await;
    let (_, end) = drain(&rig.store, end).await;
    deliver_all(&rig, &owner, end).await;
    let upkeep = rig.store.upkeep(&no_retention()).await.unwrap();
    assert_eq!(
        (upkeep.segments_dropped, rows_left(&rig).await),
        (0, 251),
        "one subscription needs them"
    );
    rig.store.remove("slow").await.unwrap();
    let upkeep = rig.store.upkeep(&Retention::default()).await.unwrap();
    assert_eq!(
        (upkeep.segments_dropped, rows_left(&rig).await),
        (0, 251),
        "they are not old enough"
    );
    let upkeep = rig.store.upkeep(&no_retention()).await.unwrap();
    assert!(upkeep.segments_dropped >= 2, "{upkeep:?}");
    assert!(rows_left(&rig).await <= 51);
    let Answer::Unknown { past_retention, .. } = rig.store.why(ids[0]).await.unwrap() else {
        panic!()
    };
    assert!(past_retention);
    // And the log goes on.
    let id = publish_many(&rig, 1).await[0];
    let (rows, _) = drain(&rig.store, end).await;
    assert_eq!(postgres_support::ids(&rows), [id]);
}

#[tokio::test]
async fn an_open_late_transaction_keeps_its_segment() {
    let Some(rig) = rig().await else { return };
    let mut client = connect(&rig.url).await;
    let mut tx = client.transaction().await.unwrap();
    let late = PostgresOutbox::new().publish(&mut tx, event("late", "k")).await.unwrap();
    publish_many(&rig, 250).await;
    let owner = Owner::of(&rig.store, "s", "me").await;
    let (_, end) = drain(&rig.store, Position::default()).await;
    publish_many(&rig, 1).await;
    let (_, end) = drain(&rig.store, end).await;
    deliver_all(&rig, &owner, end).await;
    rig.store.upkeep(&no_retention()).await.unwrap();
    tx.commit().await.unwrap();
    let (rows, _) = drain(&rig.store, end).await;
    assert_eq!(ids(&rows), [late]);
}

#[tokio::test]
async fn a_rewind_after_a_move_to_another_cluster_leaves_what_waits_there_waiting() {
    let Some(rig) = rig_alone().await else { return };
    let owner = Owner::of(&rig.store, "s", "me").await;
    let page = published(&rig, &["waits"]).await;
    let mut change = owner.change(&rig.store, "k", page.end).await;
    change.waiting.push(at(&page.rows[0], page.to.unwrap()));
    change.parked.push(parked("k", Some(Duration::from_secs(600))));
    rig.store.record(&[change]).await.unwrap();
    // As if restored where fewer transactions have been: the row's id lies far ahead of every snapshot there.
    let moved = "UPDATE relevo.outbox SET xid = xid + 1000000; UPDATE relevo.meta SET value = '1' WHERE name = 'system'";
    connect(&rig.url).await.batch_execute(moved).await.unwrap();
    rig.store.probe().await.unwrap();
    rig.store.rewind("s", Start::Now).await.unwrap();
    let waits = rig.store.read_parked(&owner.lane("k"), "k", 10).await.unwrap();
    assert_eq!(waits.len(), 1, "no window brings it again, so nothing else may take it away");
}

#[tokio::test]
async fn a_parked_event_keeps_its_bytes_when_its_segment_goes() {
    let Some(rig) = rig_alone().await else { return };
    publish_many(&rig, 120).await;
    let owner = Owner::of(&rig.store, "s", "me").await;
    let (rows, end) = drain(&rig.store, Position::default()).await;
    let waits = &rows[0];
    let key = waits.event.order_key();
    deliver_all(&rig, &owner, end).await;
    let mut change = owner.resting(&rig.store, &key).await;
    change.waiting.push(at(waits, end.from));
    change.parked.push(parked(&key, Some(Duration::from_secs(600))));
    rig.store.record(&[change]).await.unwrap();
    let owner = Owner::take(&rig.store, "s", "me").await;
    publish_many(&rig, 1).await;
    let (_, end) = drain(&rig.store, end).await;
    let (_, end) = drain(&rig.store, end).await;
    deliver_all(&rig, &owner, end).await;
    let upkeep = rig.store.upkeep(&no_retention()).await.unwrap();
    assert!(upkeep.segments_dropped >= 1, "{upkeep:?}");
    let lane = owner.lane(&key);
    let parked = rig.store.read_parked(&lane, &key, 10).await.unwrap();
    assert_eq!(parked[0].event, waits.event);
    assert!(matches!(why(&rig, waits.event.id).await, Why::Parked { .. }));
}

#[tokio::test]
async fn a_daemon_that_stood_still_never_makes_a_publish_fail() {
    let Some(rig) = rig_alone().await else { return };
    // Three segments of a hundred rows each are ahead; nobody makes more.
    publish_many(&rig, 1000).await;
    let upkeep = rig.store.upkeep(&Retention::default()).await.unwrap();
    assert!(
        upkeep.warnings.iter().any(|warning| warning.contains("default segment")),
        "{upkeep:?}"
    );
    assert_eq!(upkeep.segments_made, 3, "new ones begin ahead of the log");
    let doctor = rig.store.doctor().await.unwrap();
    assert!(
        doctor
            .iter()
            .any(|found| found.level == Level::Warning && found.text.contains("default segment"))
    );
    publish_many(&rig, 3000).await;
    let (rows, end) = drain(&rig.store, Position::default()).await;
    assert_eq!(rows.len(), 4000);
    // The default segment is emptied as all others are.
    let owner = Owner::of(&rig.store, "s", "me").await;
    // Upkeep makes the tick that proves that the last rows are decided.
    rig.store.upkeep(&no_retention()).await.unwrap();
    let (_, end) = drain(&rig.store, end).await;
    deliver_all(&rig, &owner, end).await;
    rig.store.upkeep(&no_retention()).await.unwrap();
    assert_eq!(rows_left(&rig).await, 0);
    assert!(rig.store.upkeep(&no_retention()).await.unwrap().warnings.is_empty());
}

#[tokio::test]
async fn upkeep_waits_for_no_writer() {
    let Some(rig) = rig_alone().await else { return };
    publish_many(&rig, 150).await;
    let owner = Owner::of(&rig.store, "s", "me").await;
    let (_, end) = drain(&rig.store, Position::default()).await;
    publish_many(&rig, 1).await;
    let (_, end) = drain(&rig.store, end).await;
    let (_, end) = drain(&rig.store, end).await;
    deliver_all(&rig, &owner, end).await;
    // Somebody reads the old segment and goes to lunch.
    let mut client = connect(&rig.url).await;
    let tx = client.transaction().await.unwrap();
    tx.query("SELECT FROM relevo.outbox", &[]).await.unwrap();
    // The reader is at lunch until it is over: whoever waited for it would wait for ever.
    let settings = no_retention();
    let upkeep = tokio::time::timeout(Duration::from_secs(60), rig.store.upkeep(&settings)).await;
    assert_eq!(upkeep.unwrap().unwrap().segments_dropped, 0);
    tx.commit().await.unwrap();
    assert!(rig.store.upkeep(&no_retention()).await.unwrap().segments_dropped >= 1);
}

#[tokio::test]
async fn ticks_are_thinned_below_the_oldest_cursor_only() {
    let Some(rig) = rig().await else { return };
    let owner = Owner::of(&rig.store, "s", "me").await;
    let mut position = Position::default();
    for _ in 0..10 {
        publish_many(&rig, 1).await;
        position = drain(&rig.store, position).await.1;
    }
    assert_eq!(rig.store.upkeep(&Retention::default()).await.unwrap().ticks_pruned, 0);
    deliver_all(&rig, &owner, position).await;
    assert!(rig.store.upkeep(&Retention::default()).await.unwrap().ticks_pruned > 0);
    let id = publish_many(&rig, 1).await[0];
    let (rows, _) = drain(&open(&rig.url), position).await;
    assert_eq!(ids(&rows), [id]);
    let (rows, _) = drain(&open(&rig.url), Position::default()).await;
    assert_eq!(rows.len(), 11, "the beginning stays");
}

#[tokio::test]
async fn status_tells_the_backlog_without_counting() {
    let Some(rig) = rig_alone().await else { return };
    let owner = Owner::of(&rig.store, "s", "me").await;
    publish_many(&rig, 10).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let status = rig.store.status().await.unwrap();
    let s = &status.subscriptions[0];
    assert_eq!((status.last_seq, s.backlog, s.lanes_owned, s.members.len()), (10, 10, 64, 1));
    assert_eq!((s.members[0].member.as_str(), s.members[0].lanes), ("me", 64));
    assert!(s.oldest_pending_s >= 0.04 && s.oldest_pending_s < 30.0, "{}", s.oldest_pending_s);
    assert_eq!(s.forgotten_for_s, None, "somebody is at work");
    let (_, end) = drain(&rig.store, Position::default()).await;
    let (_, end) = drain(&rig.store, end).await;
    deliver_all(&rig, &owner, end).await;
    let s = rig.store.status().await.unwrap().subscriptions.remove(0);
    assert_eq!((s.backlog, s.oldest_pending_s, s.forgotten_for_s), (0, 0.0, None));
    assert!(status.bytes.unwrap() > 0 && status.segments >= 4);
}

#[tokio::test]
async fn doctor_names_a_forgotten_subscription() {
    let Some(rig) = rig().await else { return };
    Owner::of(&rig.store, "s", "me").await;
    publish_many(&rig, 1).await;
    let client = connect(&rig.url).await;
    client.batch_execute("UPDATE relevo.member SET seen_at = seen_at - interval '2 days'; UPDATE relevo.cursor SET moved_at = moved_at - interval '2 days'").await.unwrap();
    let found = rig.store.doctor().await.unwrap();
    assert!(
        found.iter().any(|found| found.level == Level::Problem && found.check == "subscription s"),
        "{found:?}"
    );
}

#[tokio::test]
async fn a_subscription_with_nothing_but_parked_keys_can_be_forgotten_too() {
    let Some(rig) = rig().await else { return };
    let owner = Owner::of(&rig.store, "s", "me").await;
    publish_many(&rig, 1).await;
    let page = page(&rig.store, Position::default()).await;
    let row = &page.rows[0];
    let key = row.event.order_key();
    let mut change = owner.change(&rig.store, &key, page.end).await;
    change.waiting.push(at(row, page.to.unwrap()));
    change.parked.push(parked(&key, Some(Duration::from_secs(600))));
    rig.store.record(&[change]).await.unwrap();
    // All lanes have read everything, and that was long ago.
    let client = connect(&rig.url).await;
    let sql = "UPDATE relevo.member SET seen_at = seen_at - interval '2 days';
               UPDATE relevo.cursor SET moved_at = moved_at - interval '2 days',
                      (from_number, from_nonce) = (SELECT c.from_number, c.from_nonce FROM relevo.cursor c
                                                    ORDER BY c.from_number DESC LIMIT 1)";
    client.batch_execute(sql).await.unwrap();
    let one = rig.store.status().await.unwrap().subscriptions.remove(0);
    assert_eq!((one.backlog, one.parked_keys, one.parked_events), (0, 1, 1));
    assert!(one.forgotten_for_s.is_some(), "{one:?}");
    let texts: Vec<String> = one.findings().into_iter().map(|found| found.text).collect();
    assert!(texts[0].contains("while 1 parked event waits"), "{texts:?}");
}

#[tokio::test]
async fn tail_looks_at_the_log_in_order() {
    let Some(rig) = rig().await else { return };
    let ids = publish_many(&rig, 5).await;
    let peeked = rig.store.peek(2, 2).await.unwrap();
    assert_eq!(
        peeked.iter().map(|(seq, event)| (*seq, event.id)).collect::<Vec<_>>(),
        [(3, ids[2]), (4, ids[3])]
    );
}
