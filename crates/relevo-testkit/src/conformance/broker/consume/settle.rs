//! What becomes of a message once it is settled: gone, tried again, or put away as dead.

use super::id_of;
use crate::conformance::broker::rig::{assert_quiet, drain, ids, settle_all, take};
use crate::conformance::broker::{Consuming, Raw, Rig};
use crate::eventually;
use crate::eventually::PATIENCE;
use relevo_core::Result;
use relevo_core::broker::{Settle, dead_header};
use relevo_core::event::EventId;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// In one call, in two, and in different ways.
pub async fn settling_twice_does_nothing(rig: &Rig) -> Result<()> {
    let publisher = rig.world.publisher()?;
    rig.store(&publisher, &rig.events(0..3)).await;
    let mut receiver = rig.receiver(10).await?;
    let messages = take(&mut receiver, 3).await?;
    let tag = messages[0].tag;
    receiver.settle(&[(tag, Settle::Done), (tag, Settle::Done)]).await?;
    receiver.settle(&[(tag, Settle::RetryAfter(Duration::ZERO))]).await?;
    receiver.settle(&[(tag, Settle::Dead { reason: "late".into() })]).await?;
    settle_all(&mut receiver, &messages).await?;
    assert_quiet(&mut receiver).await;
    let more = rig.events(3..5);
    rig.store(&publisher, &more).await;
    let came = drain(rig, &mut receiver, &ids(&more)).await?;
    assert_eq!(came.len(), more.len(), "only what is new comes");
    receiver.close().await?;
    assert_eq!(rig.world.dead().await?, []);
    Ok(())
}

/// The last first, two of them to come again, after what followed them or before it: each is known by its own id, and
/// once settled is gone.
pub async fn deliveries_out_of_order_are_settled_each_for_itself(rig: &Rig) -> Result<()> {
    let publisher = rig.world.publisher()?;
    let events: Vec<_> = (0..6).map(|n| rig.keyed("k", n)).collect();
    for event in &events {
        rig.store(&publisher, std::slice::from_ref(event)).await;
    }
    let mut receiver = rig.receiver(20).await?;
    let first = take(&mut receiver, 6).await?;
    let soon = Settle::RetryAfter(Duration::from_millis(300));
    for (place, message) in first.iter().enumerate().rev() {
        let settle = if [0, 3].contains(&place) { soon.clone() } else { Settle::Done };
        receiver.settle(&[(message.tag, settle)]).await?;
    }
    let later = rig.keyed("k", 6);
    rig.store(&publisher, std::slice::from_ref(&later)).await;
    let mut came = BTreeSet::new();
    // A broker that keeps places hands out what followed when this is settled.
    for _ in 0..3 {
        let message = take(&mut receiver, 1).await?.remove(0);
        let id = id_of(rig, &message);
        assert_eq!(message.redelivered, id != later.id, "{message:?}");
        came.insert(id);
        settle_all(&mut receiver, &[message]).await?;
    }
    assert_eq!(came, BTreeSet::from([events[0].id, events[3].id, later.id]));
    assert_quiet(&mut receiver).await;
    receiver.close().await?;
    assert_quiet(&mut rig.receiver(20).await?).await;
    Ok(())
}

/// Not to the next consumer either.
pub async fn what_is_settled_does_not_come_again(rig: &Rig) -> Result<()> {
    let events = rig.events(0..20);
    rig.store(&rig.world.publisher()?, &events).await;
    let mut receiver = rig.receiver(50).await?;
    let messages = take(&mut receiver, 20).await?;
    settle_all(&mut receiver, &messages[..10]).await?;
    receiver.close().await?;
    let settled: BTreeSet<EventId> = messages[..10].iter().map(|m| id_of(rig, m)).collect();
    let mut receiver = rig.receiver(50).await?;
    let again = take(&mut receiver, 10).await?;
    assert!(again.iter().all(|message| !settled.contains(&id_of(rig, message))));
    settle_all(&mut receiver, &again).await?;
    assert_quiet(&mut receiver).await;
    Ok(())
}

/// Others go on meanwhile, unless the broker keeps the place.
pub async fn a_retry_comes_again_and_not_too_early(rig: &Rig) -> Result<()> {
    let publisher = rig.world.publisher()?;
    let first = rig.event(0);
    rig.store(&publisher, std::slice::from_ref(&first)).await;
    let mut receiver = rig.receiver(10).await?;
    let message = take(&mut receiver, 1).await?.remove(0);
    let (delay, began) = (Duration::from_secs(1), Instant::now());
    receiver.settle(&[(message.tag, Settle::RetryAfter(delay))]).await?;
    let again = take(&mut receiver, 1).await?.remove(0);
    assert_eq!(id_of(rig, &again), first.id);
    assert!(began.elapsed() >= delay, "again after {:?}", began.elapsed());
    assert_eq!(again.payload, first.payload);
    assert_eq!(rig.read(&again).event.topic, first.topic);
    let waits = PATIENCE * 4;
    let settle = match rig.world.capabilities().order_on_retry {
        true => Settle::Done,
        false => Settle::RetryAfter(waits),
    };
    receiver.settle(&[(again.tag, settle)]).await?;
    let others = rig.events(1..4);
    rig.store(&publisher, &others).await;
    let came = drain(rig, &mut receiver, &ids(&others)).await?;
    assert_eq!(came.len(), others.len(), "what is to come in {waits:?} came with them");
    Ok(())
}

/// Who settled it is gone when it is due: another gets it, and no earlier.
pub async fn a_retry_waits_at_the_broker_and_outlives_its_receiver(rig: &Rig) -> Result<()> {
    let event = rig.event(0);
    rig.store(&rig.world.publisher()?, std::slice::from_ref(&event)).await;
    let subscriber = rig.world.subscriber(Consuming::at_most(10).delays_at_broker())?;
    let mut receiver = subscriber.open().await?;
    let message = take(&mut receiver, 1).await?.remove(0);
    let (delay, began) = (Duration::from_secs(2), Instant::now());
    receiver.settle(&[(message.tag, Settle::RetryAfter(delay))]).await?;
    receiver.close().await?;
    let mut other = subscriber.open().await?;
    let again = take(&mut other, 1).await?.remove(0);
    assert!(began.elapsed() >= delay, "again after {:?}", began.elapsed());
    assert_eq!((id_of(rig, &again), &again.payload), (event.id, &event.payload));
    assert!(again.redelivered && again.deliveries >= 2, "{again:?}");
    settle_all(&mut other, &[again]).await?;
    other.close().await?;
    rig.until_settled().await;
    Ok(())
}

/// Where the broker keeps the place.
pub async fn a_retry_comes_before_what_followed_it(rig: &Rig) -> Result<()> {
    let publisher = rig.world.publisher()?;
    let events: Vec<_> = (0..3).map(|n| rig.keyed("k", n)).collect();
    for event in &events {
        rig.store(&publisher, std::slice::from_ref(event)).await;
    }
    // There is room for all of them: it is their place that they wait for.
    let mut receiver = rig.receiver(10).await?;
    let message = take(&mut receiver, 1).await?.remove(0);
    receiver.settle(&[(message.tag, Settle::RetryAfter(Duration::from_millis(500)))]).await?;
    let mut came = Vec::new();
    for _ in 0..3 {
        let message = take(&mut receiver, 1).await?.remove(0);
        came.push(id_of(rig, &message));
        settle_all(&mut receiver, &[message]).await?;
    }
    assert_eq!(came, ids(&events));
    Ok(())
}

/// Put away for good, and told from whom.
pub async fn a_dead_message_keeps_its_bytes_headers_and_reason(rig: &Rig) -> Result<()> {
    let events = rig.events(0..3);
    rig.store(&rig.world.publisher()?, &events).await;
    let mut receiver = rig.receiver(10).await?;
    let messages = take(&mut receiver, 3).await?;
    let reason = "no such order: \"17\"";
    receiver.settle(&[(messages[1].tag, Settle::Dead { reason: reason.into() })]).await?;
    settle_all(&mut receiver, &messages).await?;
    let letter = eventually("the dead letter", async || rig.world.dead().await.ok()?.pop()).await;
    assert_eq!(letter.payload, messages[1].payload);
    assert_eq!(letter.text(dead_header::REASON).as_deref(), Some(reason));
    assert!(letter.text(dead_header::FROM).is_some_and(|from| !from.is_empty()), "{letter:?}");
    assert_eq!(letter.text(dead_header::TOPIC), Some(messages[1].topic.clone()));
    assert_eq!(letter.text("x-event-id"), Some(id_of(rig, &messages[1]).to_string()));
    for (name, value) in &messages[1].headers {
        assert_eq!(letter.text(name).as_ref(), Some(value), "{name} in {letter:?}");
    }
    assert_quiet(&mut receiver).await;
    receiver.close().await?;
    assert_eq!(rig.world.dead().await?.len(), 1);
    Ok(())
}

/// Every header, byte for byte, and the broker's own key where it has one.
pub async fn a_dead_message_of_another_program_is_as_it_came(rig: &Rig) -> Result<()> {
    let raw = Raw::new(&b"\x00\xff bytes"[..])
        .key("naïve ☃")
        .header("x-plain", "as it is")
        .header("X-Mixed-Case", "naïve ☃ \u{1f600}")
        .header("x-spaces", "a  b");
    rig.world.put(raw.clone()).await?;
    let mut receiver = rig.receiver(10).await?;
    let message = take(&mut receiver, 1).await?.remove(0);
    receiver.settle(&[(message.tag, Settle::Dead { reason: "größe".into() })]).await?;
    let letter = eventually("the dead letter", async || rig.world.dead().await.ok()?.pop()).await;
    assert_eq!(letter.payload, raw.payload);
    for (name, value) in &raw.headers {
        let found: Vec<_> = letter.headers.iter().filter(|(other, _)| other == name).collect();
        assert_eq!(found, [&(name.clone(), value.clone())], "{letter:?}");
    }
    assert_eq!(letter.key, raw.key.filter(|_| message.key.is_some()));
    Ok(())
}
