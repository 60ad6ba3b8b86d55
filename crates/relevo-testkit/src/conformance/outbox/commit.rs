//! What committed is seen, what did not commit never is: by readers, by a look, by the doorbell.

use super::some_events;
use crate::conformance::Rig;
use crate::conformance::rig::{ids, numbered};
use crate::{PATIENCE, eventually};
use relevo_core::Result;
use std::time::Duration;

/// What committed is read.
pub async fn a_committed_event_is_read(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("all").await?;
    let id = rig.commit_one(numbered("k", 1)).await?;
    assert_eq!(ids(&reader.until(&[id], 10).await?), [id]);
    assert!(reader.rest().await?.is_empty(), "it is read once");
    Ok(())
}

/// What rolled back is never read.
pub async fn a_rolled_back_event_is_never_read(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("all").await?;
    let mut writer = rig.begin().await?;
    writer.publish(some_events(3)).await?;
    writer.roll_back().await?;
    assert!(reader.rest().await?.is_empty());
    Ok(())
}

/// A transaction that is dropped without a word leaves nothing.
pub async fn an_event_of_a_transaction_that_was_dropped_is_never_read(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("all").await?;
    let mut writer = rig.begin().await?;
    writer.publish(some_events(3)).await?;
    drop(writer);
    assert!(reader.rest().await?.is_empty());
    Ok(())
}

/// Nothing is read before its commit.
pub async fn an_event_is_not_read_before_its_transaction_commits(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("all").await?;
    let mut writer = rig.begin().await?;
    let published = writer.publish(some_events(2)).await?;
    for _ in 0..5 {
        assert!(reader.page(10).await?.rows.is_empty());
    }
    writer.commit().await?;
    assert_eq!(ids(&reader.until(&published, 10).await?), published);
    Ok(())
}

/// Within a window rows come by `seq`, which is the order of publication within a transaction.
pub async fn events_of_a_transaction_come_in_the_order_of_their_publication(
    rig: &Rig,
) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("all").await?;
    let mut writer = rig.begin().await?;
    let mut published = writer.publish(some_events(20)).await?;
    published.extend(writer.publish(some_events(1)).await?);
    published.extend(writer.publish(some_events(5)).await?);
    writer.commit().await?;
    assert_eq!(ids(&reader.until(&published, 100).await?), published);
    Ok(())
}

/// A look at the log sees what committed, in order, and delivers nothing.
pub async fn a_peek_shows_what_committed_and_delivers_nothing(rig: &Rig) -> Result<()> {
    rig.migrated().await?;
    let published = rig.commit(some_events(5)).await?;
    let mut open = rig.begin().await?;
    open.publish(some_events(1)).await?;
    let all = rig.operate.peek(0, 100).await?;
    assert_eq!(all.iter().map(|(_, event)| event.id).collect::<Vec<_>>(), published);
    let after = all[2].0;
    let two = rig.operate.peek(after, 1).await?;
    assert_eq!(two.iter().map(|(_, event)| event.id).collect::<Vec<_>>(), published[3..4]);
    open.roll_back().await?;
    let mut reader = rig.reader("all").await?;
    assert_eq!(ids(&reader.until(&published, 100).await?), published);
    Ok(())
}

/// A commit rings.
pub async fn a_commit_rings_the_doorbell(rig: &Rig) -> Result<()> {
    let Some(mut bell) = rig.migrated().await?.store.doorbell() else {
        panic!("a store that declares a doorbell has one")
    };
    // The bell may first have to be hung up.
    eventually("the first ring", async || {
        rig.commit_one(numbered("k", 1)).await.ok()?;
        tokio::time::timeout(Duration::from_millis(200), bell.changed()).await.ok()?.ok()
    })
    .await;
    for n in 0..5 {
        bell.mark_unchanged();
        rig.commit_one(numbered("k", n)).await?;
        let rung = tokio::time::timeout(PATIENCE, bell.changed()).await;
        assert!(rung.is_ok(), "commit {n} rang no bell");
    }
    Ok(())
}
