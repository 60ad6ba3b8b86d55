//! The schema is made once, and every process that comes to it finds the same log.

use super::some_events;
use crate::conformance::Rig;
use crate::conformance::rig::{ids, numbered};
use relevo_core::Result;
use relevo_core::limits::LANES;
use relevo_core::outbox::{PageRequest, Position};
use std::collections::BTreeSet;

/// Migrating what is migrated applies nothing.
pub async fn migrating_twice_applies_nothing_the_second_time(rig: &Rig) -> Result<()> {
    rig.operate.migrate().await?;
    let id = rig.commit_one(numbered("k", 1)).await?;
    assert!(rig.operate.migrate().await?.is_empty());
    assert_eq!(ids(&rig.reader("all").await?.until(&[id], 10).await?), [id]);
    Ok(())
}

/// Several processes that start at once migrate once.
pub async fn processes_that_start_at_once_migrate_once(rig: &Rig) -> Result<()> {
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let (_, operate) = rig.under_test.another().await?;
        tasks.push(tokio::spawn(async move { operate.migrate().await }));
    }
    let mut applied: Vec<String> = Vec::new();
    for task in tasks {
        applied.extend(task.await.unwrap_or_else(|error| panic!("a migration panicked: {error}"))?);
    }
    let once: BTreeSet<&String> = applied.iter().collect();
    assert_eq!(once.len(), applied.len(), "each migration was applied by one of them: {applied:?}");
    let id = rig.commit_one(numbered("k", 1)).await?;
    assert_eq!(ids(&rig.reader("all").await?.until(&[id], 10).await?), [id]);
    Ok(())
}

/// A second process sees the same log.
pub async fn another_process_reads_the_same_log(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("all").await?;
    let published = rig.commit(some_events(3)).await?;
    reader.until(&published, 100).await?;
    let (store, operate) = rig.under_test.another().await?;
    store.probe().await?;
    let request = PageRequest {
        position: Position::default(),
        lanes: (0..LANES).collect(),
        max_rows: 100,
        max_bytes: 1 << 30,
    };
    assert_eq!(ids(&store.read_page(&request).await?.rows), published);
    assert_eq!(operate.status().await?.subscriptions.len(), 1);
    Ok(())
}

/// A probe says what it found.
pub async fn a_probe_names_the_server_and_the_schema(rig: &Rig) -> Result<()> {
    rig.migrated().await?;
    let probe = rig.store.probe().await?;
    assert!(!probe.server.is_empty() && !probe.waking.is_empty() && probe.schema > 0, "{probe:?}");
    Ok(())
}
