//! What operators do to a subscription fences its owners off, and shows.

use super::hand::{death, park_key};
use super::rig::{ids, numbered};
use super::{Hand, Rig};
use crate::eventually;
use relevo_core::dead_letters::Level;
use relevo_core::event::NewEvent;
use relevo_core::outbox::{Start, Subscription};
use relevo_core::{Kind, Result};
use std::time::Duration;

const HOUR: Option<Duration> = Some(Duration::from_secs(3600));

async fn assert_fenced_off(rig: &Rig, hand: &mut Hand<'_>) -> Result<()> {
    assert_eq!(rig.store.load_lane(&hand.lane, hand.token, 10).await?, None, "its token is void");
    let refused = hand.record(hand.change()).await;
    assert_eq!(refused.err().map(|error| error.kind()), Some(Kind::Stale));
    let fleet = rig.beat(&hand.lane.subscription, "somebody").await?;
    assert!(fleet.leases.iter().all(|lease| lease.owner.is_none()), "nobody owns a lane");
    Ok(())
}

/// A pause fences owners off at once and is seen by the next beat; a resume ends it.
pub async fn a_pause_fences_owners_off_until_it_is_resumed(rig: &Rig) -> Result<()> {
    let mut hand = rig.migrated().await?.hand("s", "k").await?;
    rig.commit_one(numbered("k", 1)).await?;
    hand.read(1).await?;
    rig.operate.pause("s", "ana: the printer is on fire").await?;
    assert!(rig.beat("s", "a").await?.paused);
    assert!(rig.status("s").await?.paused.is_some_and(|by| by.contains("the printer is on fire")));
    assert_fenced_off(rig, &mut hand).await?;
    rig.operate.resume("s").await?;
    assert!(!rig.beat("s", "a").await?.paused);
    assert_eq!(rig.status("s").await?.paused, None);
    let mut heir = rig.hand("s", "k").await?;
    assert_eq!(heir.read(1).await?.len(), 1, "what was not recorded comes again");
    Ok(())
}

/// A paused subscription stays paused when a process subscribes again.
pub async fn a_pause_survives_a_restart_of_the_relay(rig: &Rig) -> Result<()> {
    rig.migrated().await?.store.subscribe(&Subscription::new("s")).await?;
    rig.operate.pause("s", "ana").await?;
    rig.store.subscribe(&Subscription::new("s")).await?;
    assert!(rig.beat("s", "a").await?.paused);
    Ok(())
}

/// A rewind to the beginning brings everything again.
pub async fn a_rewind_to_the_beginning_brings_everything_again(rig: &Rig) -> Result<()> {
    let mut hand = rig.migrated().await?.hand("s", "k").await?;
    rig.commit(vec![numbered("k", 1), numbered("k", 2)]).await?;
    hand.read(2).await?;
    hand.record(hand.change()).await?;
    rig.operate.rewind("s", Start::Beginning).await?;
    assert_fenced_off(rig, &mut hand).await?;
    let mut heir = rig.hand("s", "k").await?;
    assert_eq!(heir.read(2).await?.len(), 2);
    Ok(())
}

/// A rewind to now leaves out what was not decided yet, and nothing that commits later.
pub async fn a_rewind_to_now_leaves_out_what_came_before(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("s").await?;
    rig.commit(vec![numbered("k", 1), numbered("k", 2)]).await?;
    reader.page(10).await?;
    rig.operate.rewind("s", Start::Now).await?;
    let later = rig.commit_one(numbered("k", 3)).await?;
    let mut reader = rig.reader("s").await?;
    assert_eq!(ids(&reader.until(&[later], 10).await?), [later]);
    Ok(())
}

/// A rewind to a time misses nothing after it.
pub async fn a_rewind_to_a_time_brings_all_that_committed_after_it(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("s").await?;
    let first = rig.commit_one(numbered("k", 1)).await?;
    reader.until(&[first], 10).await?;
    rig.let_time_pass().await;
    let time = chrono::Utc::now();
    rig.let_time_pass().await;
    let second = rig.commit_one(numbered("k", 2)).await?;
    reader.until(&[second], 10).await?;
    reader.record().await?;
    rig.operate.rewind("s", Start::Time(time)).await?;
    let mut reader = rig.reader("s").await?;
    assert!(ids(&reader.until(&[second], 10).await?).ends_with(&[second]));
    Ok(())
}

/// What a rewind brings again does not wait behind a parked key as well.
pub async fn a_rewind_unparks_what_it_brings_again(rig: &Rig) -> Result<()> {
    let mut hand = rig.migrated().await?.hand("s", "k").await?;
    rig.commit(vec![numbered("k", 1), numbered("k", 2)]).await?;
    let reads = hand.read(2).await?;
    hand.park(&reads, HOUR).await?;
    rig.operate.rewind("s", Start::Beginning).await?;
    let mut heir = rig.hand("s", "k").await?;
    assert!(heir.load().await?.parked.is_empty(), "the key is not parked");
    assert!(heir.parked("k").await?.is_empty(), "and nothing waits behind it");
    assert_eq!(heir.read(2).await?.len(), 2);
    Ok(())
}

/// A removed subscription is gone with everything of its own; its dead letters stay.
pub async fn a_removed_subscription_leaves_only_its_dead_letters(rig: &Rig) -> Result<()> {
    let mut hand = rig.migrated().await?.hand("s", "k").await?;
    rig.commit(vec![numbered("k", 1), numbered("k", 2)]).await?;
    let reads = hand.read(2).await?;
    let mut change = hand.change();
    change.deaths = vec![death(&reads[0].at, "no good")];
    change.waiting = vec![reads[1].at.clone()];
    change.parked = vec![park_key("k", 1, HOUR)];
    hand.record(change).await?;
    rig.operate.remove("s").await?;
    assert!(rig.beat("s", "a").await?.removed);
    let refused = hand.record(hand.change()).await;
    assert_eq!(refused.err().map(|error| error.kind()), Some(Kind::Stale));
    assert!(rig.operate.status().await?.subscriptions.is_empty());
    assert_eq!(rig.dead().await?.len(), 1);
    // One of the same name starts afresh.
    let mut again = rig.hand("s", "k").await?;
    assert!(again.load().await?.parked.is_empty());
    assert_eq!(again.read(2).await?.len(), 2);
    Ok(())
}

/// Status shows what is there to be done.
pub async fn status_shows_backlog_parked_keys_and_dead_letters(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("s").await?;
    let quiet = rig.status("s").await?;
    assert_eq!(
        (quiet.backlog, quiet.parked_keys, quiet.parked_events, quiet.dead_letters),
        (0, 0, 0, 0)
    );
    assert_eq!((quiet.lanes_owned, quiet.members.len()), (64, 1));
    assert_eq!((quiet.members[0].member.as_str(), quiet.members[0].lanes), ("reader", 64));
    assert!(quiet.oldest_pending_s == 0.0 && quiet.members[0].silent_s < 60.0, "{quiet:?}");
    let published = rig.commit((0..5).map(|n| numbered("k", n)).collect()).await?;
    let busy = rig.status("s").await?;
    assert!(busy.backlog >= 5, "backlog {} is no upper bound of 5", busy.backlog);
    let old = async || Ok::<_, relevo_core::Error>(rig.status("s").await?.oldest_pending_s > 0.0);
    eventually("the oldest pending event has an age", async || {
        old().await.unwrap_or_default().then_some(())
    })
    .await;
    reader.until(&published, 100).await?;
    reader.record().await?;
    let done = rig.status("s").await?;
    assert_eq!((done.backlog, done.oldest_pending_s), (0, 0.0), "all is decided");
    assert!(done.moved_at.is_some());
    let log = rig.operate.status().await?;
    assert!(log.last_seq >= 5 && !log.probe.server.is_empty(), "{log:?}");
    Ok(())
}

/// Parked keys, the events behind them and dead letters are counted.
pub async fn status_counts_parked_events_and_dead_letters(rig: &Rig) -> Result<()> {
    let mut hand = rig.migrated().await?.hand("s", "k").await?;
    rig.commit((0..4).map(|n| numbered("k", n)).collect()).await?;
    let reads = hand.read(4).await?;
    let mut change = hand.change();
    change.deaths = vec![death(&reads[0].at, "no good")];
    change.waiting = reads[1..].iter().map(|read| read.at.clone()).collect();
    change.parked = vec![park_key("k", 2, HOUR)];
    hand.record(change).await?;
    let status = rig.status("s").await?;
    assert_eq!(
        (status.parked_keys, status.parked_events, status.dead_letters, status.lanes_owned),
        (1, 3, 1, 1)
    );
    Ok(())
}

/// A subscription that somebody works is not forgotten, however much there is to do.
pub async fn a_subscription_at_work_is_not_named_as_forgotten(rig: &Rig) -> Result<()> {
    rig.migrated().await?.reader("s").await?;
    rig.commit_one(numbered("k", 1)).await?;
    let status = rig.status("s").await?;
    assert!(status.backlog > 0 && status.forgotten_for_s.is_none(), "{status:?}");
    Ok(())
}

/// A note that a member sends is shown.
pub async fn a_members_note_is_shown(rig: &Rig) -> Result<()> {
    rig.migrated().await?.store.subscribe(&Subscription::new("s")).await?;
    let note = r#"{"breaker":{"reason":"refused","open_s":60.0},"stopped":{"3":"too many"}}"#;
    rig.beat_with("s", "a", note).await?;
    let status = rig.status("s").await?;
    assert_eq!(status.members[0].note["stopped"]["3"], "too many");
    let problems: Vec<String> = rig
        .operate
        .doctor()
        .await?
        .into_iter()
        .filter(|found| found.level == Level::Problem && found.check == "subscription s")
        .map(|found| found.text)
        .collect();
    let [down, stopped] = &problems[..] else { panic!("{problems:?}") };
    assert!(down.contains("down for 1m") && down.contains("refused"), "{down}");
    assert!(stopped.contains("lane 3 stopped: too many"), "{stopped}");
    Ok(())
}

/// A healthy store has no problem.
pub async fn a_healthy_store_has_no_problem(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("s").await?;
    let id = rig.commit_one(NewEvent::bytes("a.b", "")).await?;
    reader.until(&[id], 10).await?;
    reader.record().await?;
    let findings = rig.operate.doctor().await?;
    assert!(!findings.is_empty(), "doctor says what it looked at");
    let expected = rig.under_test.expected_problems();
    let problems: Vec<_> = findings
        .iter()
        .filter(|found| found.level == Level::Problem && !expected.contains(&found.check.as_str()))
        .collect();
    assert!(problems.is_empty(), "{problems:?}");
    Ok(())
}
