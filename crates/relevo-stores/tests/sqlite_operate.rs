//! What people look at and do: dead letters and their replay, `why`, pause, rewind, remove, status, doctor.
#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

mod sqlite_support;

use relevo_core::dead_letters::{Answer, DeadFilter, DeadState, Finding, Level, Operate, Why};
use relevo_core::event::{Headers, TopicFilter, lane_of};
use relevo_core::outbox::{
    Beat, Claim, Death, LaneChange, MemberId, Position, Retention, Skip, Start, Store,
    Subscription, TickRef,
};
use relevo_core::{ErrorClass, EventId, Kind};
use relevo_stores::sqlite::SqliteStore;
use sqlite_support::*;
use std::time::Duration;

fn dead(page_at: relevo_core::outbox::EventRef) -> Death {
    Death { event: page_at, attempts: 3, class: ErrorClass::Permanent, error: "never works".into() }
}

/// Every event of key `k` dies.
async fn kill_all(store: &SqliteStore, hand: &mut Hand) {
    let page = hand.page(store).await;
    let mut change = hand.change(page.end);
    change.deaths = page.rows.iter().map(|row| dead(at(&page, row))).collect();
    hand.record(store, change).await;
}

/// Beats as the owner and carries out what is asked.
async fn carry_out(store: &SqliteStore, hand: &mut Hand) -> usize {
    let beat = Beat {
        subscription: hand.id.subscription.clone(),
        member: MemberId("m".into()),
        note: "{}".into(),
    };
    let requests = store.beat(&beat).await.unwrap().requests;
    let mut change = hand.change(hand.state.position);
    change.replayed = requests.iter().map(|request| request.id).collect();
    hand.record(store, change).await;
    requests.len()
}

/// Settles the first waiting event; unparks the key if nothing is left.
async fn deliver_first(store: &SqliteStore, hand: &mut Hand) -> EventId {
    let waiting = store.read_parked(&hand.id, "k", 10).await.unwrap();
    let mut change = hand.change(hand.state.position);
    change.settled.push(waiting[0].at.clone());
    if waiting.len() == 1 {
        change.unparked.push("k".into());
    }
    hand.record(store, change).await;
    waiting[0].event.id
}

async fn why_is(store: &SqliteStore, id: EventId) -> Why {
    match store.why(id).await.unwrap() {
        Answer::Known { mut subscriptions, .. } => subscriptions.remove(0).1,
        other => panic!("{other:?}"),
    }
}

fn ids(ids: &[i64]) -> DeadFilter {
    let mut filter = DeadFilter::default();
    filter.ids = ids.to_vec();
    filter
}

#[tokio::test]
async fn dead_letters_come_back_in_their_old_order_and_are_delivered_once() {
    let scratch = Scratch::new();
    let store = scratch.store().await;
    let published = publish(&store, "k", 3).await;
    let mut hand = take(&store, "s", "k", 1).await;
    kill_all(&store, &mut hand).await;
    let letters = store.dead_letters(&DeadFilter::default(), None, 10).await.unwrap();
    assert_eq!(
        letters.iter().map(|letter| letter.event.id).collect::<Vec<_>>(),
        [published[2], published[1], published[0]]
    );
    assert_eq!(
        (&letters[0].event.payload[..], letters[0].attempts, letters[0].lane),
        (&b"payload"[..], 3, lane_of("k"))
    );
    // The log forgets them; the letters do not.
    scratch.connect().execute("DELETE FROM relevo_outbox", []).unwrap();
    let progress = store.replay(&DeadFilter::default(), None).await.unwrap();
    assert_eq!((progress.total, progress.waiting, progress.replayed), (3, 3, 0));
    assert_eq!(
        store.replay(&ids(&[letters[0].id]), None).await.unwrap_err().kind(),
        Kind::ReplayRefused
    );
    assert_eq!(carry_out(&store, &mut hand).await, 3);
    assert_eq!(store.replay_progress(progress.operation).await.unwrap().replayed, 3);
    assert_eq!(
        store.replay(&ids(&[letters[0].id]), None).await.unwrap_err().kind(),
        Kind::ReplayRefused
    );
    assert!(matches!(why_is(&store, published[0]).await, Why::Parked { .. }));
    assert!(
        matches!(why_is(&store, published[1]).await, Why::ParkedBehind { event, before: 1, .. } if event == published[0])
    );
    let mut delivered = Vec::new();
    for _ in 0..3 {
        delivered.push(deliver_first(&store, &mut hand).await);
    }
    assert_eq!(delivered, published);
    assert_eq!(
        (count(&scratch, "relevo_parked_key"), count(&scratch, "relevo_parked_ref")),
        (0, 0)
    );
    assert_eq!(why_is(&store, published[0]).await, Why::Delivered);
}

#[tokio::test]
async fn a_replayed_event_that_dies_again_is_a_dead_letter_again() {
    let scratch = Scratch::new();
    let store = scratch.store().await;
    publish(&store, "k", 1).await;
    let mut hand = take(&store, "s", "k", 1).await;
    kill_all(&store, &mut hand).await;
    scratch.connect().execute("DELETE FROM relevo_outbox", []).unwrap();
    store.replay(&DeadFilter::default(), None).await.unwrap();
    carry_out(&store, &mut hand).await;
    let mut none = Retention::default();
    none.dead_letters = Duration::ZERO;
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(
        store.upkeep(&none).await.unwrap().dead_letters_dropped,
        0,
        "a letter with waiting bytes stays"
    );
    let waiting = store.read_parked(&hand.id, "k", 10).await.unwrap();
    let mut change = hand.change(hand.state.position);
    change.deaths.push(dead(waiting[0].at.clone()));
    change.settled.push(waiting[0].at.clone());
    change.unparked.push("k".into());
    hand.record(&store, change).await;
    let letters = store.dead_letters(&DeadFilter::default(), None, 10).await.unwrap();
    assert_eq!((letters.len(), &letters[0].event.payload[..]), (1, &b"payload"[..]));
    let mut replayed = DeadFilter::default();
    replayed.state = Some(DeadState::Replayed);
    assert_eq!(
        store.dead_letters(&replayed, None, 10).await.unwrap().len(),
        1,
        "its history stays"
    );
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(store.upkeep(&none).await.unwrap().dead_letters_dropped, 2);
}

#[tokio::test]
async fn a_replay_at_a_rate_is_due_bit_by_bit_and_can_be_cancelled() {
    let scratch = Scratch::new();
    let store = scratch.store().await;
    publish(&store, "k", 4).await;
    let mut hand = take(&store, "s", "k", 1).await;
    kill_all(&store, &mut hand).await;
    let progress = store.replay(&DeadFilter::default(), Some(0.01)).await.unwrap();
    assert_eq!(carry_out(&store, &mut hand).await, 1, "the others are due in minutes");
    let progress = store.cancel_replay(progress.operation).await.unwrap();
    assert_eq!(
        (progress.total, progress.waiting, progress.replayed, progress.cancelled),
        (4, 0, 1, 3)
    );
    assert_eq!(
        store.dead_letters(&DeadFilter::default(), None, 10).await.unwrap().len(),
        3,
        "dead again"
    );
    assert_eq!(
        store.replay(&DeadFilter::default(), Some(0.0)).await.unwrap_err().kind(),
        Kind::InvalidArgument
    );
    assert_eq!(store.replay_progress(99).await.unwrap_err().kind(), Kind::InvalidArgument);
}

#[tokio::test]
async fn an_edited_copy_has_an_id_of_its_own_and_takes_its_originals_place() {
    let scratch = Scratch::new();
    let store = scratch.store().await;
    let published = publish(&store, "k", 1).await;
    let mut hand = take(&store, "s", "k", 1).await;
    kill_all(&store, &mut hand).await;
    let letter = store.dead_letters(&DeadFilter::default(), None, 1).await.unwrap().remove(0);
    let headers: Headers = [("fixed", "yes")].into_iter().collect();
    let copy = store.replay_edited(letter.id, "mended".into(), headers.clone()).await.unwrap();
    assert_ne!(copy, published[0]);
    assert!(
        store.replay_edited(letter.id, "again".into(), Headers::default()).await.is_err(),
        "the original is archived"
    );
    carry_out(&store, &mut hand).await;
    let waiting = store.read_parked(&hand.id, "k", 10).await.unwrap();
    assert_eq!(
        (waiting[0].event.id, &waiting[0].event.payload[..], &waiting[0].event.headers),
        (copy, &b"mended"[..], &headers)
    );
    assert_eq!(waiting[0].at.seq, 1);
    assert!(matches!(why_is(&store, copy).await, Why::Parked { .. }));
    assert!(
        matches!(why_is(&store, published[0]).await, Why::Dead { dead_state, .. } if dead_state == "archived")
    );
    deliver_first(&store, &mut hand).await;
    assert_eq!(why_is(&store, copy).await, Why::Delivered);
}

#[tokio::test]
async fn archiving_lets_a_held_key_go_on() {
    let scratch = Scratch::new();
    let store = scratch.store().await;
    let published = publish(&store, "k", 2).await;
    let mut hand = take(&store, "s", "k", 1).await;
    let page = hand.page(&store).await;
    let mut change = hand.change(page.end);
    change.deaths.push(dead(at(&page, &page.rows[0])));
    change.waiting.push(at(&page, &page.rows[1]));
    change.parked.push(park("k", None));
    hand.record(&store, change).await;
    assert_eq!(store.archive(&DeadFilter::default()).await.unwrap(), 1);
    assert_eq!(store.archive(&DeadFilter::default()).await.unwrap(), 0);
    assert_eq!(carry_out(&store, &mut hand).await, 1);
    let state = store.load_lane(&hand.id, 1, 10).await.unwrap().unwrap();
    assert_eq!(state.parked[0].due_in, Some(Duration::ZERO));
    assert_eq!(deliver_first(&store, &mut hand).await, published[1]);
}

#[tokio::test]
async fn why_tells_every_state() {
    let scratch = Scratch::new();
    let store = scratch.store().await;
    let before = publish(&store, "k", 1).await[0];
    let unknown = EventId::fresh();
    assert_eq!(
        store.why(unknown).await.unwrap(),
        Answer::Unknown { suspects: vec![], past_retention: false }
    );
    let filter = TopicFilter::parse("a.*").unwrap();
    store.subscribe(&Subscription::new("s").topics([filter]).start(Start::Now)).await.unwrap();
    assert_eq!(why_is(&store, before).await, Why::BeforeStart);
    let other = store.publish_now(event("elsewhere", "k")).await.unwrap();
    assert!(matches!(why_is(&store, other).await, Why::FilteredOut { .. }));
    let waiting = publish(&store, "k", 1).await[0];
    let lane = lane_of("k");
    assert_eq!(why_is(&store, waiting).await, Why::NobodyWorks { lane });
    let (member, claim) = beat_and_claim(&store, lane, "{}").await;
    let (_, state) = store.take_lanes("s", &[claim], &member, 1).await.unwrap().remove(0);
    assert!(matches!(why_is(&store, waiting).await, Why::LaneLeased { owner, .. } if owner == "m"));
    beat_and_claim(&store, lane, r#"{"breaker":{"reason":"refused","open_s":60}}"#).await;
    let down = why_is(&store, waiting).await;
    let Why::BreakerOpen { reason, open_s } = &down else { panic!("{down:?}") };
    assert!(reason == "refused" && *open_s >= 60.0, "{down:?}");
    let mut hand = Hand {
        id: relevo_core::outbox::LaneId { subscription: "s".into(), lane },
        token: claim.fresh,
        state,
    };
    let page = hand.page(&store).await;
    let mut change = hand.change(page.end);
    change.skips.push(Skip { event: at(&page, &page.rows[1]), reason: "not mine".into() });
    hand.record(&store, change).await;
    assert_eq!(why_is(&store, waiting).await, Why::Skipped { reason: "not mine".into() });
    let next = publish(&store, "k", 1).await[0];
    store.pause("s", "ops").await.unwrap();
    assert_eq!(why_is(&store, next).await, Why::Paused { by: "ops".into(), then: None });
    store.resume("s").await.unwrap();
    store.rewind("s", Start::Now).await.unwrap();
    assert!(
        matches!(why_is(&store, next).await, Why::Skipped { reason } if reason.contains("left out"))
    );
    let mut none = Retention::default();
    none.events = Duration::ZERO;
    tokio::time::sleep(Duration::from_millis(5)).await;
    store.upkeep(&none).await.unwrap();
    assert_eq!(
        store.why(before).await.unwrap(),
        Answer::Unknown { suspects: vec![], past_retention: true }
    );
}

/// Upkeep that is asked for ten days of everything, of the inbox too; how many inbox rows it leaves.
async fn keep_ten_days(scratch: &Scratch, store: &SqliteStore) -> i64 {
    let mut retention = Retention::default();
    let days = Duration::from_secs(10 * 86_400);
    (retention.events, retention.dead_letters, retention.inbox) = (days, days, days);
    store.upkeep(&retention).await.unwrap();
    let count = "SELECT count(*) FROM relevo_inbox";
    scratch.connect().query_row(count, [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn at_the_very_edge_what_may_be_replayed_is_proven_and_what_is_not_is_refused() {
    let scratch = Scratch::new();
    let store = scratch.store().await;
    publish(&store, "k", 1).await;
    let mut hand = take(&store, "s", "k", 1).await;
    kill_all(&store, &mut hand).await;
    // The letter goes in a minute. Who did its event did so a day before it died: that is within the margin.
    let edge = "UPDATE relevo_subscription SET outside = 1;
        UPDATE relevo_dead_letter SET created_at = created_at - 12 * 86400000, died_at = died_at - 10 * 86400000 + 60000;
        INSERT INTO relevo_inbox (consumer, source, id) VALUES ('c', 's', 'done');
        UPDATE relevo_inbox SET first_at = first_at - 11 * 86400000 + 60000";
    scratch.connect().execute_batch(edge).unwrap();
    assert_eq!(keep_ten_days(&scratch, &store).await, 1, "the letter is there, so is the proof");
    let asked = store.replay(&DeadFilter::default(), None).await.unwrap();
    assert_eq!(asked.total, 1);
    store.cancel_replay(asked.operation).await.unwrap();
    // Longer before its death than the margin.
    let older = "UPDATE relevo_inbox SET first_at = first_at - 61000";
    scratch.connect().execute_batch(older).unwrap();
    assert_eq!(keep_ten_days(&scratch, &store).await, 0);
    let refused = store.replay(&DeadFilter::default(), None).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::ProofGone, "{refused}");
}

async fn beat_and_claim(store: &SqliteStore, lane: u16, note: &str) -> (MemberId, Claim) {
    let member = MemberId("m".into());
    let beat = Beat { subscription: "s".into(), member: member.clone(), note: note.into() };
    let fleet = store.beat(&beat).await.unwrap();
    (member, Claim { lane, seen: fleet.leases[usize::from(lane)].token, fresh: 42 })
}

#[tokio::test]
async fn pausing_and_rewinding_fence_the_owner_off() {
    let scratch = Scratch::new();
    let store = scratch.store().await;
    publish(&store, "k", 2).await;
    let hand = take(&store, "s", "k", 1).await;
    let page = hand.page(&store).await;
    store.pause("s", "ops: maintenance").await.unwrap();
    assert_eq!(store.record(&[hand.change(page.end)]).await.unwrap_err().kind(), Kind::Stale);
    let (member, claim) = beat_and_claim(&store, hand.id.lane, "{}").await;
    assert!(
        store.take_lanes("s", &[claim], &member, 1).await.unwrap().is_empty(),
        "nobody takes a paused lane"
    );
    store.resume("s").await.unwrap();
    let mut hand = take(&store, "s", "k", 2).await;
    let mut change = hand.change(page.end);
    change.waiting.extend(page.rows.iter().map(|row| at(&page, row)));
    change.parked.push(park("k", Some(Duration::ZERO)));
    hand.record(&store, change).await;
    store.rewind("s", Start::Beginning).await.unwrap();
    assert_eq!(store.record(&[hand.change(page.end)]).await.unwrap_err().kind(), Kind::Stale);
    assert_eq!(count(&scratch, "relevo_parked_ref"), 0, "what is read again is not parked");
    assert_eq!(count(&scratch, "relevo_parked_key"), 0);
    let hand = take(&store, "s", "k", 3).await;
    assert_eq!(hand.page(&store).await.rows.len(), 2);
}

#[tokio::test]
async fn a_replay_after_a_rewind_waits_once_with_what_the_log_brings_again() {
    let scratch = Scratch::new();
    let store = scratch.store().await;
    publish(&store, "k", 1).await;
    let mut hand = take(&store, "s", "k", 1).await;
    kill_all(&store, &mut hand).await;
    store.rewind("s", Start::Beginning).await.unwrap();
    let mut hand = take(&store, "s", "k", 2).await;
    store.replay(&DeadFilter::default(), None).await.unwrap();
    carry_out(&store, &mut hand).await;
    let page = hand.page(&store).await;
    let mut change = hand.change(page.end);
    change.waiting.push(at(&page, &page.rows[0]));
    hand.record(&store, change).await;
    assert_eq!(store.read_parked(&hand.id, "k", 10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_removed_subscription_leaves_its_dead_letters() {
    let scratch = Scratch::new();
    let store = scratch.store().await;
    publish(&store, "k", 1).await;
    let mut hand = take(&store, "s", "k", 1).await;
    kill_all(&store, &mut hand).await;
    store.replay(&DeadFilter::default(), None).await.unwrap();
    store.remove("s").await.unwrap();
    assert_eq!(store.remove("s").await.unwrap_err().kind(), Kind::UnknownSubscription);
    assert_eq!(store.pause("s", "x").await.unwrap_err().kind(), Kind::UnknownSubscription);
    let beat = Beat { subscription: "s".into(), member: MemberId("m".into()), note: "{}".into() };
    assert!(store.beat(&beat).await.unwrap().removed);
    assert_eq!(store.dead_letters(&DeadFilter::default(), None, 10).await.unwrap().len(), 1);
    assert_eq!(
        store.replay(&DeadFilter::default(), None).await.unwrap_err().kind(),
        Kind::ReplayRefused
    );
}

#[tokio::test]
async fn status_and_doctor_name_what_waits_and_who_forgot_it() {
    let scratch = Scratch::new();
    let store = scratch.store().await;
    publish(&store, "k", 3).await;
    let mut hand = take(&store, "s", "k", 1).await;
    let position =
        Position { from: TickRef::default(), to: Some(TickRef { number: 3, nonce: 0 }), seq: 1 };
    let mut change: LaneChange = hand.change(position);
    change.parked.push(park("k", None));
    hand.record(&store, change).await;
    let status = store.status().await.unwrap();
    let one = &status.subscriptions[0];
    assert_eq!((status.last_seq, one.backlog, one.lanes_owned, one.parked_keys), (3, 3, 1, 1));
    assert_eq!(
        (one.members[0].member.as_str(), one.members[0].lanes, one.forgotten_for_s),
        ("m", 1, None)
    );
    assert!(status.bytes.unwrap() > 0 && one.oldest_pending_s >= 0.0 && one.moved_at.is_some());
    let findings = store.doctor().await.unwrap();
    assert!(findings.iter().all(|finding| finding.level != Level::Problem), "{findings:?}");
    let sql = "UPDATE relevo_member SET seen_at = 0; UPDATE relevo_cursor SET moved_at = 0;
               UPDATE relevo_subscription SET created_at = 0";
    scratch.connect().execute_batch(sql).unwrap();
    assert!(store.status().await.unwrap().subscriptions[0].forgotten_for_s.is_some());
    let findings = store.doctor().await.unwrap();
    assert!(
        findings
            .iter()
            .any(|finding| finding.level == Level::Problem && finding.text.contains("remove s"))
    );
    assert!(store.upkeep(&Retention::default()).await.unwrap().warnings[0].contains("\"s\""));
}

#[tokio::test]
async fn a_subscription_with_nothing_but_parked_keys_can_be_forgotten_too() {
    let scratch = Scratch::new();
    let store = scratch.store().await;
    publish(&store, "k", 1).await;
    let mut hand = take(&store, "s", "k", 1).await;
    let page = hand.page(&store).await;
    let mut change = hand.change(page.end);
    change.waiting.push(at(&page, &page.rows[0]));
    change.parked.push(park("k", None));
    hand.record(&store, change).await;
    // All lanes have read everything, and that was long ago.
    let sql = "UPDATE relevo_cursor SET from_number = 1, moved_at = 0; UPDATE relevo_member SET seen_at = 0;
               UPDATE relevo_subscription SET created_at = 0";
    scratch.connect().execute_batch(sql).unwrap();
    let status = store.status().await.unwrap();
    let one = &status.subscriptions[0];
    assert_eq!((one.backlog, one.parked_keys, one.parked_events), (0, 1, 1));
    assert!(one.forgotten_for_s.is_some(), "{one:?}");
    let findings = store.doctor().await.unwrap();
    let named = |it: &&Finding| it.level == Level::Problem && it.check == "subscription s";
    let text = &findings.iter().find(named).unwrap().text;
    assert!(text.contains("while 1 parked event waits"), "{text}");
    let warning = &store.upkeep(&Retention::default()).await.unwrap().warnings[0];
    assert!(warning.contains("while 1 parked event waits, and the log"), "{warning}");
}
