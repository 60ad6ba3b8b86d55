//! What travels arrives as it was published.

use super::Rig;
use super::rig::{assert_same, numbered};
use relevo_core::event::{EventId, NewEvent, lane_of};
use relevo_core::{Kind, Result};

/// Texts that break what is not quoted, escaped or measured in bytes.
pub(super) const HOSTILE: &[&str] = &[
    "'; DROP TABLE relevo_outbox; --",
    "\"quoted\" and \\back\\slashed",
    "$1 %s {} ${x} $$ \\x00 \\u0000",
    "{\"json\": [1, null]}",
    "ñandú 中文 🦀 \u{202e}right to left",
    "NULL",
];

/// Events of hostile words, bytes that are no text, and nothing at all.
pub(super) fn hostile_events() -> Vec<NewEvent> {
    let every_byte: Vec<u8> = (0..=255).collect();
    let mut events: Vec<NewEvent> = HOSTILE
        .iter()
        .map(|text| {
            let topic: String = text.chars().filter(|c| !c.is_whitespace() && *c != '.').collect();
            NewEvent::bytes(topic, every_byte.clone()).key(*text).header("x-hostile'\"", *text)
        })
        .collect();
    events.push(NewEvent::bytes("empty", "").key("k".repeat(255)).header("empty", ""));
    events.push(
        NewEvent::bytes("not.utf8", vec![0xff, 0xfe, 0x00, 0xc3, 0x28]).key("tab\u{a0}inside"),
    );
    events.push(
        NewEvent::bytes("t".repeat(255), vec![0; 1 << 20])
            .key("é".repeat(127))
            .header("tab", "a\tb"),
    );
    events
}

/// Bytes, headers and names come back exactly as they were published.
pub async fn every_byte_comes_back_as_it_was_published(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("all").await?;
    let published = hostile_events();
    let ids = rig.commit(published.clone()).await?;
    let rows = reader.until(&ids, 100).await?;
    assert_eq!(rows.len(), published.len());
    for (row, event) in rows.iter().zip(&published) {
        assert_same(&row.event, event);
    }
    Ok(())
}

/// The lane is a function of the key, and of the id where there is no key.
pub async fn an_event_lies_in_the_lane_of_its_key_or_of_its_own_id(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("all").await?;
    let mut ids = rig.commit((0..20).map(|n| numbered(&format!("key-{n}"), n)).collect()).await?;
    ids.extend(rig.commit((0..20).map(|_| NewEvent::bytes("no.key", "")).collect()).await?);
    for row in reader.until(&ids, 100).await? {
        assert_eq!(row.lane, lane_of(&row.event.order_key()), "{:?}", row.event.key);
        assert_eq!(row.event.key.is_none(), row.event.topic == "no.key");
    }
    Ok(())
}

/// An id that the caller gives is the event's id.
pub async fn an_id_given_by_the_caller_is_kept(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("all").await?;
    let id = EventId::fresh();
    assert_eq!(rig.commit(vec![NewEvent::bytes("a.b", "").id(id)]).await?, [id]);
    assert_eq!(reader.until(&[id], 10).await?.len(), 1);
    Ok(())
}

/// An event knows when it was published.
pub async fn an_event_carries_the_time_of_its_publication(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("all").await?;
    let before = chrono::Utc::now();
    let id = rig.commit_one(numbered("k", 1)).await?;
    let after = chrono::Utc::now();
    let created = reader.until(&[id], 10).await?[0].event.created_at;
    // Stores keep different fractions of a second.
    let slack = chrono::Duration::seconds(1);
    assert!(
        created >= before - slack && created <= after + slack,
        "{created} is not between {before} and {after}"
    );
    Ok(())
}

/// What is over a limit is refused by its kind; the transaction is unharmed and nothing of it was written.
pub async fn what_is_out_of_bounds_is_refused_before_anything_is_written(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("all").await?;
    let bad = [
        (NewEvent::bytes("a", vec![0; (1 << 20) + 1]), Kind::PayloadTooLarge),
        (NewEvent::bytes("", ""), Kind::InvalidTopic),
        (NewEvent::bytes("a..b", ""), Kind::InvalidTopic),
        (NewEvent::bytes("a.#", ""), Kind::InvalidTopic),
        (NewEvent::bytes("a\0b", ""), Kind::InvalidTopic),
        (NewEvent::bytes("t".repeat(256), ""), Kind::InvalidTopic),
        (NewEvent::bytes("a", "").key(""), Kind::InvalidKey),
        (NewEvent::bytes("a", "").key("line\nbreak"), Kind::InvalidKey),
        (NewEvent::bytes("a", "").key("é".repeat(128)), Kind::InvalidKey),
        (NewEvent::bytes("a", "").header("", ""), Kind::InvalidHeaders),
        (NewEvent::bytes("a", "").header("x", "a\r\nb"), Kind::InvalidHeaders),
        (NewEvent::bytes("a", "").header("x", "v".repeat(17 << 10)), Kind::InvalidHeaders),
        (NewEvent::bytes("a", "").header("traceparent", "nonsense"), Kind::InvalidHeaders),
    ];
    let mut writer = rig.begin().await?;
    for (event, kind) in bad {
        // The good one before it must not be written either: the call is refused as a whole.
        let refused = writer.publish(vec![numbered("beside", 0), event]).await;
        assert_eq!(refused.err().map(|error| error.kind()), Some(kind));
    }
    let good = writer.publish(vec![numbered("good", 1)]).await?;
    writer.commit().await?;
    assert_eq!(reader.until(&good, 100).await?.len(), 1, "only the good event was written");
    Ok(())
}

/// The command line's publish keeps to the same limits.
pub async fn an_operators_publish_keeps_to_the_limits_too(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("all").await?;
    let refused = rig.operate.publish_now(NewEvent::bytes("a b", "")).await;
    assert_eq!(refused.err().map(|error| error.kind()), Some(Kind::InvalidTopic));
    let event = numbered("k", 7).header("x", "y");
    let id = rig.operate.publish_now(event.clone()).await?;
    let rows = reader.until(&[id], 10).await?;
    assert_eq!(rows.len(), 1);
    assert_same(&rows[0].event, &event);
    Ok(())
}
