//! Lane transactions on PostgreSQL: all of a change or nothing, and nothing at all from a stale owner.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

mod postgres_support;

use postgres_support::*;
use relevo_core::dead_letters::{DeadFilter, DeadState, Operate};
use relevo_core::outbox::{Beat, Death, EventRef, LaneChange, Page, Position, Skip, Store};
use relevo_core::{ErrorClass, Kind, Result};
use std::time::Duration;
use tokio_postgres::Client;

/// A subscription `s` owned by `me`, and a page of these events of key `k`.
async fn owned(rig: &Rig, topics: &[&str]) -> (Owner, Page) {
    let owner = Owner::of(&rig.store, "s", "me").await;
    let mut client = connect(&rig.url).await;
    for topic in topics {
        publish(&mut client, event(topic, "k")).await;
    }
    (owner, page(&rig.store, Position::default()).await)
}

fn refs(page: &Page) -> Vec<EventRef> {
    page.rows.iter().map(|row| at(row, page.to.unwrap())).collect()
}

fn death(event: &EventRef) -> Death {
    Death {
        event: event.clone(),
        attempts: 3,
        class: ErrorClass::Poison,
        error: "cannot be read\0".into(),
    }
}

async fn count(client: &Client, table: &str) -> i64 {
    client.query_one(&format!("SELECT count(*) FROM relevo.{table}"), &[]).await.unwrap().get(0)
}

async fn record(rig: &Rig, change: LaneChange) -> Result<()> {
    rig.store.record(&[change]).await
}

#[tokio::test]
async fn a_stale_token_changes_nothing() {
    let Some(rig) = rig().await else { return };
    let (owner, page) = owned(&rig, &["a", "b"]).await;
    let refs = refs(&page);
    let mut change = owner.change(&rig.store, "k", page.end).await;
    change.deaths.push(death(&refs[0]));
    change.skips.push(Skip { event: refs[0].clone(), reason: "no".into() });
    change.waiting.push(refs[1].clone());
    change.parked.push(parked("k", Some(Duration::ZERO)));
    Owner::take(&rig.store, "s", "other").await;
    assert_eq!(record(&rig, change).await.unwrap_err().kind(), Kind::Stale);
    let client = connect(&rig.url).await;
    for table in ["dead_letter", "skip", "parked_ref", "parked_key"] {
        assert_eq!(count(&client, table).await, 0, "{table}");
    }
}

#[tokio::test]
async fn a_change_must_start_where_the_cursor_stands() {
    let Some(rig) = rig().await else { return };
    let (owner, page) = owned(&rig, &["a"]).await;
    let change = owner.change(&rig.store, "k", page.end).await;
    record(&rig, change.clone()).await.unwrap();
    assert_eq!(record(&rig, change).await.unwrap_err().kind(), Kind::Stale, "twice is once");
    let state = owner.state(&rig.store, &owner.lane("k")).await;
    assert_eq!(state.position, page.end);
}

#[tokio::test]
async fn a_tick_that_was_lost_and_made_again_is_another_tick() {
    let Some(rig) = rig().await else { return };
    let (owner, page) = owned(&rig, &["a"]).await;
    let change = owner.change(&rig.store, "k", page.end).await;
    let client = connect(&rig.url).await;
    client
        .batch_execute("UPDATE relevo.tick SET nonce = nonce + 1 WHERE number > 0")
        .await
        .unwrap();
    assert_eq!(record(&rig, change).await.unwrap_err().kind(), Kind::Stale);
    // A reader that does not have it in memory is told the same.
    let request = relevo_core::outbox::PageRequest {
        position: page.end,
        lanes: all_lanes(),
        max_rows: 10,
        max_bytes: 1000,
    };
    assert_eq!(open(&rig.url).read_page(&request).await.unwrap_err().kind(), Kind::Stale);
}

#[tokio::test]
async fn changes_of_several_lanes_are_one() {
    let Some(rig) = rig().await else { return };
    let (owner, page) = owned(&rig, &["a"]).await;
    let good = owner.change(&rig.store, "k", page.end).await;
    let mut bad = owner.change(&rig.store, "other", page.end).await;
    assert_ne!(good.lane, bad.lane);
    bad.token += 1;
    let error = rig.store.record(&[good.clone(), bad]).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Stale);
    assert_eq!(owner.state(&rig.store, &good.lane).await.position, Position::default());
}

#[tokio::test]
async fn a_parked_key_waits_is_retried_and_released() {
    let Some(rig) = rig().await else { return };
    let (owner, page) = owned(&rig, &["a", "b"]).await;
    let lane = owner.lane("k");
    let mut change = owner.change(&rig.store, "k", page.end).await;
    change.waiting = refs(&page);
    change.parked.push(parked("k", Some(Duration::from_secs(60))));
    record(&rig, change).await.unwrap();
    let state = owner.state(&rig.store, &lane).await;
    assert_eq!((state.parked.len(), state.parked[0].attempts), (1, 1));
    let due_in = state.parked[0].due_in.unwrap();
    assert!(due_in > Duration::from_secs(50) && due_in <= Duration::from_secs(60), "{due_in:?}");
    let waiting = rig.store.read_parked(&lane, "k", 10).await.unwrap();
    assert_eq!(waiting.iter().map(|event| event.at.clone()).collect::<Vec<_>>(), refs(&page));
    assert_eq!(waiting[0].event, page.rows[0].event);

    let mut done = owner.resting(&rig.store, "k").await;
    done.settled = refs(&page);
    done.unparked.push("k".into());
    record(&rig, done.clone()).await.unwrap();
    assert!(owner.state(&rig.store, &lane).await.parked.is_empty());
    assert_eq!(
        record(&rig, done).await.unwrap_err().kind(),
        Kind::Stale,
        "gone refs cannot go again"
    );
}

#[tokio::test]
async fn a_key_is_not_released_while_events_wait_behind_it() {
    let Some(rig) = rig().await else { return };
    let (owner, page) = owned(&rig, &["a", "b"]).await;
    let mut change = owner.change(&rig.store, "k", page.end).await;
    change.waiting = refs(&page);
    change.parked.push(parked("k", None));
    record(&rig, change).await.unwrap();
    let state = owner.state(&rig.store, &owner.lane("k")).await;
    assert_eq!(state.parked[0].due_in, None, "held for an operator");
    let mut wrong = owner.resting(&rig.store, "k").await;
    wrong.settled = vec![refs(&page)[0].clone()];
    wrong.unparked.push("k".into());
    assert_eq!(record(&rig, wrong).await.unwrap_err().kind(), Kind::Stale);
}

#[tokio::test]
async fn the_same_ref_twice_is_stale() {
    let Some(rig) = rig().await else { return };
    let (owner, page) = owned(&rig, &["a"]).await;
    let mut change = owner.change(&rig.store, "k", page.end).await;
    change.waiting = refs(&page);
    change.parked.push(parked("k", Some(Duration::ZERO)));
    record(&rig, change).await.unwrap();
    let mut again = owner.resting(&rig.store, "k").await;
    again.waiting = refs(&page);
    assert_eq!(record(&rig, again).await.unwrap_err().kind(), Kind::Stale);
}

/// A dead letter of the page's first event, and the number it got.
async fn one_dead(rig: &Rig, owner: &Owner, page: &Page) -> i64 {
    let mut change = owner.change(&rig.store, "k", page.end).await;
    change.deaths.push(death(&refs(page)[0]));
    record(rig, change).await.unwrap();
    rig.store.dead_letters(&DeadFilter::default(), None, 10).await.unwrap()[0].id
}

async fn due_requests(rig: &Rig, owner: &Owner) -> Vec<i64> {
    let beat = Beat {
        subscription: owner.name.clone(),
        member: owner.member.clone(),
        note: String::new(),
    };
    rig.store.beat(&beat).await.unwrap().requests.iter().map(|request| request.id).collect()
}

#[tokio::test]
async fn a_dead_letter_has_its_bytes_and_comes_back_at_its_old_place() {
    let Some(rig) = rig().await else { return };
    let (owner, page) = owned(&rig, &["a", "b"]).await;
    one_dead(&rig, &owner, &page).await;
    let letter = rig.store.dead_letters(&DeadFilter::default(), None, 10).await.unwrap().remove(0);
    assert_eq!(
        (&letter.event, letter.attempts, letter.class),
        (&page.rows[0].event, 3, ErrorClass::Poison)
    );
    assert_eq!(letter.error, "cannot be read\u{FFFD}");

    let mut filter = DeadFilter::default();
    filter.ids = vec![letter.id];
    let progress = rig.store.replay(&filter, None).await.unwrap();
    assert_eq!((progress.total, progress.waiting), (1, 1));
    let again = rig.store.replay(&filter, None).await.unwrap_err();
    assert_eq!(again.kind(), Kind::ReplayRefused, "twice is refused");

    let mut change = owner.resting(&rig.store, "k").await;
    change.replayed = due_requests(&rig, &owner).await;
    assert_eq!(change.replayed.len(), 1);
    record(&rig, change).await.unwrap();
    let state = owner.state(&rig.store, &owner.lane("k")).await;
    assert_eq!(state.parked[0].due_in, Some(Duration::ZERO));
    let back = rig.store.read_parked(&owner.lane("k"), "k", 10).await.unwrap();
    assert_eq!((&back[0].at, &back[0].event), (&refs(&page)[0], &page.rows[0].event));
    let progress = rig.store.replay_progress(progress.operation).await.unwrap();
    assert_eq!((progress.waiting, progress.replayed), (0, 1));
    assert!(due_requests(&rig, &owner).await.is_empty());
}

#[tokio::test]
async fn a_replay_keeps_to_its_rate_and_can_be_cancelled() {
    let Some(rig) = rig().await else { return };
    let (owner, page) = owned(&rig, &["a", "b", "c"]).await;
    let mut change = owner.change(&rig.store, "k", page.end).await;
    change.deaths = refs(&page).iter().map(death).collect();
    record(&rig, change).await.unwrap();
    let progress = rig.store.replay(&DeadFilter::default(), Some(0.001)).await.unwrap();
    assert_eq!((progress.total, progress.waiting), (3, 3));
    assert_eq!(due_requests(&rig, &owner).await.len(), 1, "the others are due later");
    let cancelled = rig.store.cancel_replay(progress.operation).await.unwrap();
    assert_eq!((cancelled.waiting, cancelled.cancelled), (0, 3));
    assert_eq!(rig.store.dead_letters(&DeadFilter::default(), None, 10).await.unwrap().len(), 3);
    assert_eq!(
        rig.store.replay(&DeadFilter::default(), Some(0.0)).await.unwrap_err().kind(),
        Kind::InvalidArgument
    );
    assert_eq!(rig.store.replay_progress(999).await.unwrap_err().kind(), Kind::InvalidArgument);
}

#[tokio::test]
async fn an_edited_copy_has_its_own_id_and_the_original_is_archived() {
    let Some(rig) = rig().await else { return };
    let (owner, page) = owned(&rig, &["a"]).await;
    let id = one_dead(&rig, &owner, &page).await;
    let headers = [("x", "y")].into_iter().collect();
    let copy = rig.store.replay_edited(id, "mended".into(), headers).await.unwrap();
    let mut change = owner.resting(&rig.store, "k").await;
    change.replayed = due_requests(&rig, &owner).await;
    record(&rig, change).await.unwrap();
    let back = rig.store.read_parked(&owner.lane("k"), "k", 10).await.unwrap();
    assert_eq!((back.len(), back[0].event.id), (1, copy));
    assert_eq!(&back[0].event.payload[..], b"mended");
    assert_ne!(copy, page.rows[0].event.id);
    let mut archived = DeadFilter::default();
    archived.state = Some(DeadState::Archived);
    assert_eq!(rig.store.dead_letters(&archived, None, 10).await.unwrap()[0].id, id);
    // Should it die again, its own bytes are kept.
    let mut again = owner.resting(&rig.store, "k").await;
    again.deaths.push(death(&back[0].at));
    again.settled.push(back[0].at.clone());
    again.unparked.push("k".into());
    record(&rig, again).await.unwrap();
    let letter = rig.store.dead_letters(&DeadFilter::default(), None, 10).await.unwrap().remove(0);
    assert_eq!((&letter.event.payload[..], letter.copy_of), (&b"mended"[..], Some(id)));
}

#[tokio::test]
async fn archiving_lets_a_held_key_go_on() {
    let Some(rig) = rig().await else { return };
    let (owner, page) = owned(&rig, &["a", "b"]).await;
    let refs = refs(&page);
    let mut change = owner.change(&rig.store, "k", page.end).await;
    change.deaths.push(death(&refs[0]));
    change.waiting.push(refs[1].clone());
    change.parked.push(parked("k", None));
    record(&rig, change).await.unwrap();
    assert_eq!(rig.store.archive(&DeadFilter::default()).await.unwrap(), 1);
    let mut release = owner.resting(&rig.store, "k").await;
    release.replayed = due_requests(&rig, &owner).await;
    assert_eq!(release.replayed.len(), 1);
    record(&rig, release).await.unwrap();
    let state = owner.state(&rig.store, &owner.lane("k")).await;
    assert_eq!(state.parked[0].due_in, Some(Duration::ZERO));
}

#[tokio::test]
async fn a_lane_is_taken_once_and_its_old_owner_reads_nothing() {
    let Some(rig) = rig().await else { return };
    let first = Owner::of(&rig.store, "s", "first").await;
    let claims: Vec<_> = first
        .tokens
        .iter()
        .map(|(lane, token)| relevo_core::outbox::Claim {
            lane: *lane,
            seen: *token,
            fresh: token + 7,
        })
        .collect();
    let stores = [open(&rig.url), open(&rig.url)];
    let members = ["a", "b"].map(|name| relevo_core::outbox::MemberId(name.into()));
    let (a, b) = futures::join!(
        stores[0].take_lanes("s", &claims, &members[0], 10),
        stores[1].take_lanes("s", &claims, &members[1], 10)
    );
    assert_eq!(a.unwrap().len() + b.unwrap().len(), 64, "each lane went to one of them");
    let lane = first.lane("k");
    assert_eq!(rig.store.load_lane(&lane, first.token(&lane), 10).await.unwrap(), None);
}

#[tokio::test]
async fn a_released_lane_has_no_owner_and_a_paused_subscription_is_not_taken() {
    let Some(rig) = rig().await else { return };
    let owner = Owner::of(&rig.store, "s", "me").await;
    let lane = owner.lane("k");
    let claim = relevo_core::outbox::Claim { lane: lane.lane, seen: owner.token(&lane), fresh: 99 };
    rig.store.release_lanes("s", &[claim]).await.unwrap();
    let beat =
        Beat { subscription: "s".into(), member: owner.member.clone(), note: "no JSON".into() };
    let fleet = rig.store.beat(&beat).await.unwrap();
    assert_eq!(
        (&fleet.leases[lane.lane as usize].owner, fleet.leases[lane.lane as usize].token),
        (&None, 99)
    );
    assert_eq!(fleet.members, [(owner.member.clone(), 2)]);

    rig.store.pause("s", "me, for a while").await.unwrap();
    let change = LaneChange::moving(lane.clone(), 99, Position::default(), Position::default());
    assert_eq!(
        record(&rig, change).await.unwrap_err().kind(),
        Kind::Stale,
        "its owners are fenced off"
    );
    assert!(rig.store.beat(&beat).await.unwrap().paused);
    assert!(Owner::take(&rig.store, "s", "other").await.lanes.is_empty());
    rig.store.resume("s").await.unwrap();
    assert_eq!(Owner::take(&rig.store, "s", "other").await.lanes.len(), 64);

    rig.store.remove("s").await.unwrap();
    assert!(rig.store.beat(&beat).await.unwrap().removed);
    for result in
        [rig.store.pause("s", "x").await, rig.store.resume("s").await, rig.store.remove("s").await]
    {
        assert_eq!(result.unwrap_err().kind(), Kind::UnknownSubscription);
    }
}

#[tokio::test]
async fn a_rewind_brings_events_again_and_keeps_what_it_does_not_bring() {
    let Some(rig) = rig().await else { return };
    let (owner, first) = owned(&rig, &["a"]).await;
    let mut change = owner.change(&rig.store, "k", first.end).await;
    change.waiting = refs(&first);
    change.parked.push(parked("k", Some(Duration::from_secs(60))));
    record(&rig, change).await.unwrap();
    rig.store.rewind("s", relevo_core::outbox::Start::Now).await.unwrap();
    let owner = Owner::take(&rig.store, "s", "me").await;
    let lane = owner.lane("k");
    assert_eq!(
        rig.store.read_parked(&lane, "k", 10).await.unwrap().len(),
        1,
        "forwards it goes on waiting"
    );
    rig.store.rewind("s", relevo_core::outbox::Start::Beginning).await.unwrap();
    let owner = Owner::take(&rig.store, "s", "me").await;
    assert!(
        rig.store.read_parked(&lane, "k", 10).await.unwrap().is_empty(),
        "backwards it comes again"
    );
    let state = &owner.lanes[&lane.lane];
    assert!(state.parked.is_empty());
    let (rows, _) = drain(&rig.store, state.position).await;
    assert_eq!(ids(&rows), ids(&first.rows));
}
