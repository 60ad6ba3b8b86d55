//! Events as messages and messages as events.

use super::Rig;
use super::rig::{settle_all, take};
use super::world::Raw;
use crate::eventually;
use relevo_core::Result;
use relevo_core::broker::{Foreign, Settle, Take};
use relevo_core::event::{Event, NewEvent};

const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn full(rig: &Rig) -> Event {
    let event = NewEvent::bytes(rig.world.topic(), br#"{"n":1}"#.to_vec())
        .key("key-7")
        .content_type("application/json")
        .event_type("ticket.created.v2")
        .tenant("acme")
        .correlation_id("flow-1")
        .header("source", "shop")
        .header("time", "2026-01-02T03:04:05Z")
        .header("traceparent", TRACEPARENT)
        .header("x-own", "7");
    Event::stored(event, chrono::Utc::now())
}

/// CloudEvents 1.0, binary mode: every attribute under the binding's prefix, the payload as it is.
pub async fn attributes_are_where_the_specification_says(rig: &Rig) -> Result<()> {
    let event = full(rig);
    rig.store(&rig.world.publisher()?, std::slice::from_ref(&event)).await;
    let mut receiver = rig.receiver(10).await?;
    let message = take(&mut receiver, 1).await?.remove(0);
    let id = event.id.to_string();
    let topic = rig.world.topic();
    let attributes = [
        ("specversion", "1.0"),
        ("id", id.as_str()),
        ("source", "shop"),
        ("type", "ticket.created.v2"),
        ("time", "2026-01-02T03:04:05Z"),
        ("subject", "key-7"),
        ("partitionkey", "key-7"),
        ("topic", &topic),
        ("tenant", "acme"),
        ("correlationid", "flow-1"),
    ];
    let prefix = rig.world.binding().prefix;
    for (name, value) in attributes {
        let name = format!("{prefix}{name}");
        assert_eq!(message.header(&name), Some(value), "{name} in {:?}", message.headers);
    }
    for (name, value) in [
        ("x-event-id", id.as_str()),
        ("x-correlation-id", "flow-1"),
        ("traceparent", TRACEPARENT),
        ("x-own", "7"),
    ] {
        assert_eq!(message.header(name), Some(value), "{name} in {:?}", message.headers);
    }
    let content_type = message.content_type.as_deref().or_else(|| message.header("content-type"));
    assert_eq!(content_type, Some("application/json"));
    assert_eq!(message.payload, event.payload);
    settle_all(&mut receiver, &[message]).await
}

/// Also with what is hard to write in a header.
pub async fn an_event_comes_back_as_it_was(rig: &Rig) -> Result<()> {
    let odd = NewEvent::bytes(rig.world.topic(), vec![0, 159, 146, 150, 255])
        .key("Straße 7 \"%41\" 😀")
        .tenant("a b")
        .correlation_id("x".repeat(300))
        .event_type("t".repeat(300))
        .header("x-odd", "ä; b=\"c\"")
        .header("x-event-id", "forged");
    let odd = Event::stored(odd, chrono::Utc::now());
    let bare = Event::stored(NewEvent::bytes(rig.world.topic(), vec![]), chrono::Utc::now());
    let events = [full(rig), odd, bare];
    let publisher = rig.world.publisher()?;
    let mut receiver = rig.receiver(10).await?;
    for event in events {
        rig.store(&publisher, std::slice::from_ref(&event)).await;
        let message = take(&mut receiver, 1).await?.remove(0);
        let came = rig.read(&message).event;
        assert_eq!((came.id, &came.topic, &came.key), (event.id, &event.topic, &event.key));
        assert_eq!(came.payload, event.payload);
        for (name, value) in event.headers.iter() {
            assert_eq!(came.headers.get(name), Some(value), "{name} of {:?}", came.headers);
        }
        settle_all(&mut receiver, &[message]).await?;
    }
    Ok(())
}

/// A program that knows nothing of Relevo sent it.
pub async fn a_foreign_message_comes_in_through_the_mapping(rig: &Rig) -> Result<()> {
    let raw = Raw::new(br#"{"order":{"id":17,"nr":"o-9"}}"#.to_vec());
    rig.world.put(raw.header("eventType", "OrderPlaced")).await?;
    let mut foreign = Foreign::default();
    foreign.id = vec![Take::Json("/order/id".into())];
    foreign.source = vec![Take::Fixed("legacy".into())];
    foreign.key = vec![Take::Json("/order/nr".into())];
    let mut receiver = rig.receiver(10).await?;
    let message = take(&mut receiver, 1).await?.remove(0);
    let arrived = match message.event(&rig.world.binding(), &foreign) {
        Ok(arrived) => arrived,
        Err(malformed) => panic!("{malformed}: {message:?}"),
    };
    assert_eq!((arrived.source.as_str(), arrived.id.as_str()), ("legacy", "17"));
    assert_eq!(arrived.event.key.as_deref(), Some("o-9"));
    assert_eq!(arrived.event.event_type(), "OrderPlaced");
    settle_all(&mut receiver, &[message]).await
}

/// Header values that are no text, no id at all, an attribute that is nonsense: each is put away, the next one comes.
pub async fn a_malformed_message_stops_nobody(rig: &Rig) -> Result<()> {
    let prefix = rig.world.binding().prefix;
    let nonsense = [
        Raw::new("one").header("x-broken", vec![0xff, 0xfe]),
        Raw::new("two").header(&format!("{prefix}specversion"), "1.0"),
        Raw::new("three")
            .header(&format!("{prefix}specversion"), "9.9")
            .header(&format!("{prefix}id"), ""),
        Raw::new("four").header("x-long", "v".repeat(20_000)),
    ];
    let count = nonsense.len();
    for raw in nonsense {
        rig.world.put(raw).await?;
    }
    let good = Raw::new("good").header("x-event-id", "good-1");
    rig.world.put(good).await?;
    let mut receiver = rig.receiver(10).await?;
    let mut foreign = Foreign::default();
    // Without the broker's own words for it, so that an id must be in the message.
    foreign.id.retain(|take| matches!(take, Take::Header(_)));
    let mut dead = 0;
    for message in take(&mut receiver, count + 1).await? {
        match message.event(&rig.world.binding(), &foreign) {
            Ok(arrived) => {
                assert_eq!(arrived.id, "good-1");
                settle_all(&mut receiver, &[message]).await?;
            }
            Err(malformed) => {
                dead += 1;
                let reason = malformed.to_string();
                receiver.settle(&[(message.tag, Settle::Dead { reason })]).await?;
            }
        }
    }
    assert_eq!(dead, count);
    let letters = eventually("the dead letters", async || {
        Some(rig.world.dead().await.ok()?).filter(|dead| dead.len() >= count)
    })
    .await;
    let mut payloads: Vec<&[u8]> = letters.iter().map(|letter| letter.payload.as_slice()).collect();
    payloads.sort_unstable();
    assert_eq!(payloads, [&b"four"[..], b"one", b"three", b"two"]);
    Ok(())
}
