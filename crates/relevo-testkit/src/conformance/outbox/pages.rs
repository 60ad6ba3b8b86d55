//! Pages and windows: each row once, within limits, and where one page ended the next goes on.

use super::some_events;
use crate::conformance::Rig;
use crate::conformance::rig::{ids, numbered};
use relevo_core::event::{EventId, lane_of};
use relevo_core::outbox::{PageRequest, Row};
use relevo_core::{NewEvent, Result};

/// Pages of any size add up to the log.
pub async fn pages_of_any_size_bring_every_event_once(rig: &Rig) -> Result<()> {
    rig.migrated().await?;
    let mut published = rig.commit(some_events(11)).await?;
    published.extend(rig.commit(some_events(12)).await?);
    for size in [1, 2, 3, 7, 22, 23, 24, 1000] {
        let mut reader = rig.reader(&format!("pages-of-{size}")).await?;
        let rows = reader.until(&published, size).await?;
        assert_eq!(ids(&rows), published, "pages of {size}");
        assert!(
            reader.page(size).await?.rows.is_empty(),
            "nothing comes twice with pages of {size}"
        );
    }
    Ok(())
}

/// A page stops after so many bytes, and brings at least one row however large.
pub async fn a_page_is_bounded_by_bytes_and_brings_at_least_one_row(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("all").await?;
    let published =
        rig.commit((0..6).map(|_| NewEvent::bytes("large", vec![7; 1000])).collect()).await?;
    let (mut rows, mut pages) = (Vec::new(), 0);
    while rows.len() < published.len() {
        let page = reader.page_of(1000, 1500).await?;
        if page.to.is_some() && reader.position.to.is_some() {
            assert!(
                (1..=2).contains(&page.rows.len()),
                "{} rows of 1000 bytes in 1500",
                page.rows.len()
            );
        }
        pages += 1;
        rows.extend(page.rows);
        assert!(pages < 1000, "pages make progress");
    }
    assert_eq!(ids(&rows), published);
    Ok(())
}

/// Lanes that had no row in a page stand where the page ended, and miss nothing later.
pub async fn lanes_without_rows_end_where_the_others_end(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("all").await?;
    let first = rig.commit((0..5).map(|n| numbered("one-key", n)).collect()).await?;
    reader.until(&first, 2).await?;
    reader.record().await?;
    let other = (0..)
        .map(|n| format!("other-{n}"))
        .find(|key| lane_of(key) != lane_of("one-key"))
        .unwrap_or_default();
    let second = rig.commit(vec![numbered(&other, 1), numbered("one-key", 6)]).await?;
    assert_eq!(ids(&reader.until(&second, 100).await?), second);
    Ok(())
}

/// A page has rows of the asked lanes only.
pub async fn a_page_brings_only_the_lanes_asked_for(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("all").await?;
    let start = reader.position;
    let published = rig.commit((0..40).map(|n| numbered(&format!("key-{n}"), n)).collect()).await?;
    let rows = reader.until(&published, 100).await?;
    let lanes = vec![rows[0].lane, rows[1].lane];
    let mut position = start;
    let mut found = Vec::new();
    while position != reader.position {
        let page = rig
            .store
            .read_page(&PageRequest {
                position,
                lanes: lanes.clone(),
                max_rows: 1,
                max_bytes: 1 << 30,
            })
            .await?;
        assert!(page.end > position, "a page moves on: {page:?}");
        position = page.end;
        found.extend(page.rows);
    }
    let wanted: Vec<Row> = rows.into_iter().filter(|row| lanes.contains(&row.lane)).collect();
    assert_eq!(ids(&found), ids(&wanted));
    Ok(())
}

/// What commits while a window is paged belongs to the next one.
pub async fn a_window_stays_frozen_while_it_is_paged(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("all").await?;
    let mut other = rig.reader("other").await?;
    let first = rig.commit(some_events(6)).await?;
    let mut rows = Vec::new();
    while rows.is_empty() {
        rows.extend(reader.page(2).await?.rows);
    }
    let window = reader.position.to;
    let second = rig.commit(some_events(4)).await?;
    // Another reader goes beyond: where the log has ticks, there is a newer one now.
    other.until(&second, 100).await?;
    while reader.position.to.is_some() {
        rows.extend(reader.page(2).await?.rows);
    }
    assert_eq!(ids(&rows), first, "the window ends with what it began with");
    assert_eq!(window, Some(reader.position.from), "and leads where it led from its first page on");
    assert_eq!(ids(&reader.until(&second, 2).await?), second);
    Ok(())
}

/// A cursor in the middle of a window is enough to go on from, for whoever takes the lane.
pub async fn a_position_in_the_middle_of_a_window_resumes_there(rig: &Rig) -> Result<()> {
    let mut hand = rig.migrated().await?.hand("all", "k").await?;
    let published = rig.commit((0..6).map(|n| numbered("k", n)).collect()).await?;
    let reads = hand.read(6).await?;
    let mut change = hand.change();
    change.after = reads[2].after;
    hand.record(change).await?;
    rig.commit_one(numbered("k", 7)).await?;
    let mut heir = rig.hand("all", "k").await?;
    assert_eq!(heir.position, reads[2].after);
    let rest: Vec<EventId> = heir.read(4).await?.into_iter().map(|read| read.at.id).collect();
    assert_eq!(rest[..3], published[3..], "the rest of the window first");
    Ok(())
}
