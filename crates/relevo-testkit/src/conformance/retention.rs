//! What is past its time goes; what a cursor or a parked key still needs stays.

use super::hand::{death, park_key};
use super::rig::{assert_same, ids, numbered};
use super::{Reader, Rig};
use crate::PATIENCE;
use relevo_core::Result;
use relevo_core::dead_letters::DeadFilter;
use relevo_core::event::{EventId, NewEvent};
use relevo_core::outbox::{Retention, Subscription};
use std::time::{Duration, Instant};

fn at_once() -> Retention {
    let mut retention = Retention::default();
    retention.events = Duration::ZERO;
    retention
}

/// As many events as it takes until retention has something to drop.
async fn fill_segments(rig: &Rig) -> Result<Vec<EventId>> {
    let mut published = Vec::new();
    let wanted = 2 * rig.under_test.rows_of_a_segment() + 3;
    while published.len() < wanted {
        let count = (wanted - published.len()).min(500);
        published.extend(
            rig.commit((0..count).map(|n| numbered(&format!("key-{}", n % 5), n)).collect())
                .await?,
        );
    }
    Ok(published)
}

async fn read_and_record(reader: &mut Reader<'_>, published: &[EventId]) -> Result<()> {
    reader.until(&published[published.len() - 1..], 500).await?;
    reader.record().await
}

/// Lets the log go on until retention has dropped this event. What may still be undecided is known only from later
/// on, and on a shared server other databases' open transactions count too.
async fn until_dropped(rig: &Rig, reader: &mut Reader<'_>, event: EventId) -> Result<()> {
    let began = Instant::now();
    while in_the_log(rig).await?.contains(&event) {
        assert!(began.elapsed() < PATIENCE, "retention drops nothing");
        reader.rest().await?;
        reader.record().await?;
        rig.store.upkeep(&at_once()).await?;
    }
    Ok(())
}

async fn in_the_log(rig: &Rig) -> Result<Vec<EventId>> {
    Ok(rig.operate.peek(0, 100_000).await?.into_iter().map(|(_, event)| event.id).collect())
}

/// Several rounds, as a daemon keeps house: a store may move on by one step a round.
async fn keep_house(rig: &Rig, retention: &Retention) -> Result<()> {
    rig.let_time_pass().await;
    for _ in 0..4 {
        rig.store.upkeep(retention).await?;
    }
    Ok(())
}

/// What every subscription is past goes when it is old enough.
pub async fn what_every_cursor_is_past_goes_when_it_is_old_enough(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("s").await?;
    let published = fill_segments(rig).await?;
    read_and_record(&mut reader, &published).await?;
    keep_house(rig, &Retention::default()).await?;
    assert!(in_the_log(rig).await?.starts_with(&published), "it is not old enough");
    until_dropped(rig, &mut reader, published[0]).await?;
    let next = rig.commit_one(numbered("k", 1)).await?;
    assert_eq!(
        reader.until(&[next], 10).await?.len(),
        1,
        "the log goes on, its numbers are not given again"
    );
    Ok(())
}

/// A subscription that is behind keeps the log.
pub async fn what_a_cursor_still_needs_stays(rig: &Rig) -> Result<()> {
    let mut ahead = rig.migrated().await?.reader("ahead").await?;
    let mut behind = rig.reader("behind").await?;
    let published = fill_segments(rig).await?;
    read_and_record(&mut ahead, &published).await?;
    keep_house(rig, &at_once()).await?;
    let rows = ids(&behind.until(&published, 500).await?);
    assert!(rows.starts_with(&published), "nothing it needs is gone");
    Ok(())
}

/// Without any subscription nobody is past anything.
pub async fn a_log_without_subscriptions_keeps_everything(rig: &Rig) -> Result<()> {
    rig.migrated().await?;
    let published = fill_segments(rig).await?;
    keep_house(rig, &at_once()).await?;
    let mut reader = rig.reader_of(Subscription::new("first")).await?;
    assert_eq!(reader.until(&published, 500).await?.len(), published.len());
    Ok(())
}

/// What is open while the log is cleaned up, and commits later, is not lost.
pub async fn what_commits_after_the_log_was_cleaned_up_is_not_lost(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("s").await?;
    let mut open = rig.begin().await?;
    let late = open.publish(vec![numbered("late", 1)]).await?;
    let published = fill_segments(rig).await?;
    read_and_record(&mut reader, &published).await?;
    keep_house(rig, &at_once()).await?;
    open.commit().await?;
    // Its number lies below the cursor's, and it was not read yet.
    keep_house(rig, &at_once()).await?;
    assert_eq!(reader.until(&late, 500).await?.len(), 1);
    Ok(())
}

/// A parked event keeps its bytes when the log has moved on.
pub async fn a_parked_event_survives_its_segment(rig: &Rig) -> Result<()> {
    let event = NewEvent::bytes("large", vec![0xfe; 1000]).key("parked").header("x", "y");
    let mut hand = rig.migrated().await?.hand("s", "parked").await?;
    rig.commit_one(event.clone()).await?;
    let read = hand.read_event(event.id).await?;
    hand.park(&[read], Some(Duration::ZERO)).await?;
    let mut reader = take_all(rig, "s").await?;
    let published = fill_segments(rig).await?;
    read_and_record(&mut reader, &published).await?;
    until_dropped(rig, &mut reader, published[rig.under_test.rows_of_a_segment()]).await?;
    let parked = rig.store.read_parked(&hand.lane, "parked", 10).await?;
    assert_eq!(parked.len(), 1);
    assert_same(&parked[0].event, &event);
    Ok(())
}

/// A dead letter comes back with its bytes when the log has moved on.
pub async fn a_dead_letter_survives_its_segment(rig: &Rig) -> Result<()> {
    let event = NewEvent::bytes("large", vec![0xfe; 1000]).key("dead").header("x", "y");
    let mut hand = rig.migrated().await?.hand("s", "dead").await?;
    rig.commit_one(event.clone()).await?;
    let read = hand.read_event(event.id).await?;
    let mut change = hand.change();
    change.deaths = vec![death(&read.at, "no good")];
    hand.record(change).await?;
    let mut reader = take_all(rig, "s").await?;
    let published = fill_segments(rig).await?;
    read_and_record(&mut reader, &published).await?;
    until_dropped(rig, &mut reader, published[rig.under_test.rows_of_a_segment()]).await?;
    rig.operate.replay(&DeadFilter::default(), None).await?;
    let mut hand = rig.hand("s", "dead").await?;
    assert_eq!(hand.carry_out_requests().await?, 1);
    let parked = hand.parked("dead").await?;
    assert_same(&parked[0].event, &event);
    let mut change = hand.still();
    change.deaths = vec![death(&parked[0].at, "still no good")];
    change.settled = vec![parked[0].at.clone()];
    change.parked = vec![park_key("dead", 0, None)];
    hand.record(change).await?;
    assert_same(&rig.dead().await?[0].event, &event);
    Ok(())
}

/// All lanes of a subscription whose lanes may stand at different places: brought in step first.
async fn take_all<'r>(rig: &'r Rig, name: &str) -> Result<Reader<'r>> {
    rig.operate.rewind(name, relevo_core::outbox::Start::Now).await?;
    rig.reader(name).await
}

/// Several processes keep house at the same time, while events come.
pub async fn processes_that_keep_house_at_once_are_no_harm(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("s").await?;
    let published = fill_segments(rig).await?;
    read_and_record(&mut reader, &published).await?;
    let (one, two) = (rig.under_test.another().await?.0, rig.under_test.another().await?.0);
    for n in 0..10 {
        let retention = at_once();
        let (_, _, id) = tokio::try_join!(
            one.upkeep(&retention),
            two.upkeep(&retention),
            rig.commit_one(numbered("k", n))
        )?;
        assert_eq!(ids(&reader.until(&[id], 10).await?), [id]);
        reader.record().await?;
    }
    Ok(())
}

/// A cursor never finds the tick it stands at gone.
pub async fn the_tick_a_cursor_stands_at_stays(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("s").await?;
    let mut slow = rig.reader("slow").await?;
    for n in 0..20 {
        let id = rig.commit_one(numbered("k", n)).await?;
        reader.until(&[id], 10).await?;
        reader.record().await?;
        rig.store.upkeep(&at_once()).await?;
    }
    assert_eq!(slow.rest().await?.len(), 20);
    Ok(())
}

/// Whoever looks sees who holds the log, and why.
pub async fn a_plan_names_who_holds_the_log_and_changes_nothing(rig: &Rig) -> Result<()> {
    let mut retention = Retention::default();
    retention.events = Duration::ZERO;
    rig.migrated().await?;
    let published = rig.commit(vec![numbered("k", 1), numbered("k", 2)]).await?;
    let plan = rig.operate.retention(&retention).await?;
    assert!(plan.unread && plan.holders.is_empty() && plan.droppable_events == 0, "{plan:?}");
    rig.store.subscribe(&Subscription::new("s")).await?;
    rig.operate.pause("s", "ana, for the audit").await?;
    let plan = rig.operate.retention(&retention).await?;
    assert_eq!((plan.unread, plan.droppable_events, plan.holders.len()), (false, 0, 1), "{plan:?}");
    let holder = &plan.holders[0];
    assert_eq!((holder.subscription.as_str(), holder.decided_seq), ("s", 0));
    assert!(holder.events >= 2 && holder.state.contains("ana, for the audit"), "{holder:?}");
    let left = rig.operate.peek(0, 10).await?;
    assert_eq!(left.iter().map(|(_, event)| event.id).collect::<Vec<_>>(), published);
    Ok(())
}
