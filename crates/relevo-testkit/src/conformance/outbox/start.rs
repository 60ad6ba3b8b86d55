//! Where a subscription starts, and that each has cursors of its own.

use super::some_events;
use crate::conformance::Rig;
use crate::conformance::rig::ids;
use relevo_core::Result;
use relevo_core::event::EventId;
use relevo_core::limits::LANES;
use relevo_core::outbox::{Position, Start, Subscription};

/// Every lane of a new subscription stands at its start.
pub async fn a_new_subscription_has_a_cursor_for_every_lane(rig: &Rig) -> Result<()> {
    let reader = rig.migrated().await?.reader("all").await?;
    assert_eq!(reader.recorded.len(), usize::from(LANES));
    assert_eq!(reader.position, Position::default(), "the beginning is the same on every store");
    Ok(())
}

/// Each subscription reads the whole log at its own pace.
pub async fn two_subscriptions_have_their_own_cursors(rig: &Rig) -> Result<()> {
    let mut one = rig.migrated().await?.reader("one").await?;
    let mut two = rig.reader("two").await?;
    let first = rig.commit(some_events(5)).await?;
    assert_eq!(ids(&one.until(&first, 100).await?), first);
    one.record().await?;
    let second = rig.commit(some_events(3)).await?;
    let both: Vec<EventId> = first.into_iter().chain(second.iter().copied()).collect();
    assert_eq!(ids(&two.until(&both, 2).await?), both);
    assert_eq!(ids(&one.until(&second, 2).await?), second);
    Ok(())
}

/// A subscription from the beginning gets what was there before it.
pub async fn a_subscription_from_the_beginning_gets_everything(rig: &Rig) -> Result<()> {
    rig.migrated().await?;
    let published = rig.commit(some_events(5)).await?;
    let mut reader = rig.reader_of(Subscription::new("late-comer").start(Start::Beginning)).await?;
    assert_eq!(ids(&reader.until(&published, 100).await?), published);
    Ok(())
}

/// A subscription from now gets what commits from now on and nothing before.
pub async fn a_subscription_from_now_gets_only_what_commits_from_now_on(rig: &Rig) -> Result<()> {
    rig.migrated().await?;
    rig.commit(some_events(5)).await?;
    let mut reader = rig.reader_of(Subscription::new("from-now").start(Start::Now)).await?;
    let later = rig.commit(some_events(3)).await?;
    assert_eq!(ids(&reader.until(&later, 100).await?), later);
    Ok(())
}

/// What was open when a subscription started now, and commits later, belongs to it.
pub async fn a_transaction_open_at_a_start_from_now_is_not_missed(rig: &Rig) -> Result<()> {
    rig.migrated().await?;
    let mut open = rig.begin().await?;
    let published = open.publish(some_events(2)).await?;
    rig.commit(some_events(2)).await?;
    let mut reader = rig.reader_of(Subscription::new("from-now").start(Start::Now)).await?;
    open.commit().await?;
    assert_eq!(ids(&reader.until(&published, 100).await?), published);
    Ok(())
}

/// A subscription from a time never starts too late.
pub async fn a_subscription_from_a_time_misses_nothing_that_committed_after_it(
    rig: &Rig,
) -> Result<()> {
    let mut other = rig.migrated().await?.reader("makes-ticks").await?;
    let before = rig.commit(some_events(2)).await?;
    other.until(&before, 100).await?;
    rig.let_time_pass().await;
    let time = chrono::Utc::now();
    rig.let_time_pass().await;
    let after = rig.commit(some_events(3)).await?;
    other.until(&after, 100).await?;
    let mut reader =
        rig.reader_of(Subscription::new("from-a-time").start(Start::Time(time))).await?;
    let rows = ids(&reader.until(&after, 100).await?);
    assert!(rows.ends_with(&after), "{rows:?}");
    let long_ago = time - chrono::Duration::days(365);
    let mut reader =
        rig.reader_of(Subscription::new("from-long-ago").start(Start::Time(long_ago))).await?;
    let all: Vec<EventId> = before.into_iter().chain(after).collect();
    assert_eq!(ids(&reader.until(&all, 100).await?), all);
    Ok(())
}

/// What was open at that time and committed after it comes.
pub async fn a_transaction_open_at_the_time_of_a_start_is_not_missed(rig: &Rig) -> Result<()> {
    let mut other = rig.migrated().await?.reader("makes-ticks").await?;
    let mut open = rig.begin().await?;
    let published = open.publish(some_events(2)).await?;
    let beside = rig.commit(some_events(1)).await?;
    other.until(&beside, 100).await?;
    rig.let_time_pass().await;
    let time = chrono::Utc::now();
    rig.let_time_pass().await;
    open.commit().await?;
    other.until(&published, 100).await?;
    let mut reader =
        rig.reader_of(Subscription::new("from-a-time").start(Start::Time(time))).await?;
    let rows = ids(&reader.until(&published, 100).await?);
    assert!(published.iter().all(|id| rows.contains(id)));
    Ok(())
}
