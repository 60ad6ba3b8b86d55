//! What arrives: everything, in order, at its place; nothing while its source is paused or gone.

use super::id_of;
use crate::conformance::broker::rig::{assert_quiet, drain, ids, next, publish, settle_all, take};
use crate::conformance::broker::{Consuming, Rig};
use crate::eventually::PATIENCE;
use relevo_core::Result;
use relevo_core::broker::{Confirm, Incoming, Received, Source};
use relevo_core::event::{Event, EventId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// As long as a pause is watched.
const PAUSE: Duration = Duration::from_millis(500);

/// Everything, with its bytes.
pub async fn what_is_published_arrives(rig: &Rig) -> Result<()> {
    let events = rig.events(0..120);
    rig.store(&rig.world.publisher()?, &events).await;
    let mut expected: BTreeMap<EventId, &Event> = events.iter().map(|one| (one.id, one)).collect();
    let mut receiver = rig.receiver(30).await?;
    while !expected.is_empty() {
        let (_, messages) = next(&mut receiver, 50).await?;
        for message in &messages {
            let event = expected.remove(&id_of(rig, message));
            assert_eq!(event.map(|event| &event.payload), Some(&message.payload), "{message:?}");
        }
        settle_all(&mut receiver, &messages).await?;
    }
    assert_quiet(&mut receiver).await;
    receiver.close().await
}

/// One after the other, as they were confirmed.
pub async fn events_of_a_key_arrive_in_their_order(rig: &Rig) -> Result<()> {
    let publisher = rig.world.publisher()?;
    let mut expected: BTreeMap<String, Vec<EventId>> = BTreeMap::new();
    for n in 0..30 {
        let wave: Vec<_> = ["a", "b", "c"].map(|key| rig.keyed(key, n)).into_iter().collect();
        rig.store(&publisher, &wave).await;
        for event in wave {
            expected.entry(event.key.clone().unwrap_or_default()).or_default().push(event.id);
        }
    }
    let mut receiver = rig.receiver(20).await?;
    let mut came: BTreeMap<String, Vec<EventId>> = BTreeMap::new();
    // One by one, and several at once.
    for most in (1..=7).cycle() {
        let (_, messages) = next(&mut receiver, most).await?;
        for event in messages.iter().map(|message| rig.read(message).event) {
            came.entry(event.key.clone().unwrap_or_default()).or_default().push(event.id);
        }
        settle_all(&mut receiver, &messages).await?;
        if came.values().map(Vec::len).sum::<usize>() >= 90 {
            break;
        }
    }
    assert_eq!(came, expected);
    Ok(())
}

/// Callers wait for several things at once and drop what lost.
pub async fn a_call_of_next_that_is_dropped_loses_nothing(rig: &Rig) -> Result<()> {
    let publisher = rig.world.publisher()?;
    let mut receiver = rig.receiver(100).await?;
    // The first call that is dropped, for certain.
    assert_quiet(&mut receiver).await;
    let events = rig.events(0..60);
    let sent = events.clone();
    let publishing = tokio::spawn(async move {
        for event in &sent {
            let confirms = publish(&publisher, std::slice::from_ref(event)).await;
            assert_eq!(confirms, [Confirm::Stored]);
        }
    });
    let mut came = Vec::new();
    let began = Instant::now();
    while came.len() < events.len() {
        assert!(began.elapsed() < PATIENCE, "{} of {} came", came.len(), events.len());
        let patience = Duration::from_micros(50 + 97 * (came.len() as u64 % 40));
        let Ok(received) = tokio::time::timeout(patience, receiver.next(3)).await else { continue };
        let Received::Messages { messages, .. } = received? else { continue };
        came.extend(messages.iter().map(|message| id_of(rig, message)));
        settle_all(&mut receiver, &messages).await?;
    }
    assert!(publishing.await.is_ok());
    let distinct: BTreeSet<EventId> = came.iter().copied().collect();
    assert_eq!(distinct, ids(&events).into_iter().collect());
    assert_eq!(came.len(), events.len(), "each came once");
    Ok(())
}

/// Every delivery of a message names the same place, and no other message names it.
pub async fn a_message_keeps_its_place(rig: &Rig) -> Result<()> {
    rig.store(&rig.world.publisher()?, &rig.events(0..10)).await;
    let mut places: Vec<BTreeMap<EventId, String>> = Vec::new();
    for _ in 0..2 {
        let mut receiver = rig.receiver(50).await?;
        let messages = take(&mut receiver, 10).await?;
        let place = |m: &Incoming| (id_of(rig, m), m.position.clone().unwrap_or_default());
        places.push(messages.iter().map(place).collect());
        receiver.close().await?;
    }
    assert_eq!(places[0], places[1]);
    let distinct: BTreeSet<&String> = places[0].values().collect();
    assert_eq!((distinct.len(), distinct.contains(&String::new())), (10, false));
    Ok(())
}

/// Its messages wait, none is lost.
pub async fn a_paused_source_gives_nothing_until_it_is_resumed(rig: &Rig) -> Result<()> {
    let publisher = rig.world.publisher()?;
    let before = rig.events(0..5);
    rig.store(&publisher, &before).await;
    let mut receiver = rig.receiver(20).await?;
    let (source, messages) = next(&mut receiver, 1).await?;
    let mut came: BTreeSet<EventId> = messages.iter().map(|m| id_of(rig, m)).collect();
    receiver.pause(&source).await?;
    settle_all(&mut receiver, &messages).await?;
    let key = rig.read(&messages[0]).event.key.unwrap_or_default();
    let after: Vec<_> = (5..10).map(|n| rig.keyed(&key, n)).collect();
    for event in &after {
        rig.store(&publisher, std::slice::from_ref(event)).await;
    }
    // Other sources of the destination, where it has several, go on.
    while let Ok(received) = tokio::time::timeout(PAUSE, receiver.next(10)).await {
        let Received::Messages { source: other, messages } = received? else { continue };
        assert_ne!(other, source, "a paused source gave {messages:?}");
        came.extend(messages.iter().map(|m| id_of(rig, m)));
        settle_all(&mut receiver, &messages).await?;
    }
    assert!(after.iter().all(|event| !came.contains(&event.id)));
    receiver.resume(&source).await?;
    let all = ids(&before).into_iter().chain(ids(&after));
    let left: Vec<EventId> = all.filter(|id| !came.contains(id)).collect();
    drain(rig, &mut receiver, &left).await?;
    Ok(())
}

/// Those of the paused one come when it is resumed.
pub async fn while_a_source_is_paused_the_others_go_on(rig: &Rig) -> Result<()> {
    const WAVE: usize = 40;
    let (subscriber, topics) = rig.world.several_sources(Consuming::at_most(200)).await?;
    let publisher = rig.world.publisher()?;
    // The second wave goes where the first went, each event to the same place.
    let event = |n: usize| rig.keyed_to(&topics[n % topics.len()], &format!("k{}", n % WAVE), n);
    let first: Vec<Event> = (0..WAVE).map(event).collect();
    let second: Vec<Event> = (WAVE..2 * WAVE).map(event).collect();
    rig.store(&publisher, &first).await;
    let mut receiver = subscriber.open().await?;
    let mut sources: BTreeMap<EventId, Source> = BTreeMap::new();
    while sources.len() < WAVE {
        let (source, messages) = next(&mut receiver, 50).await?;
        sources.extend(messages.iter().map(|message| (id_of(rig, message), source.clone())));
        settle_all(&mut receiver, &messages).await?;
    }
    let paused = sources[&first[0].id].clone();
    receiver.pause(&paused).await?;
    rig.store(&publisher, &second).await;
    let pairs = first.iter().zip(&second);
    let (waits, mut goes_on): (Vec<_>, Vec<_>) =
        pairs.partition(|(before, _)| sources[&before.id] == paused);
    assert!(!goes_on.is_empty(), "all of it is of one source");
    while !goes_on.is_empty() {
        let (source, messages) = next(&mut receiver, 50).await?;
        assert_ne!(source, paused, "a paused source gave {messages:?}");
        let came: BTreeSet<EventId> = messages.iter().map(|m| id_of(rig, m)).collect();
        goes_on.retain(|(_, event)| !came.contains(&event.id));
        settle_all(&mut receiver, &messages).await?;
    }
    assert_quiet(&mut receiver).await;
    receiver.resume(&paused).await?;
    let left: Vec<EventId> = waits.iter().map(|(_, event)| event.id).collect();
    let came = drain(rig, &mut receiver, &left).await?;
    assert_eq!(came.len(), left.len(), "each came once");
    receiver.close().await
}

/// They are told, or they end; they do not wait forever.
pub async fn a_deleted_destination_ends_its_receivers(rig: &Rig) -> Result<()> {
    rig.store(&rig.world.publisher()?, &rig.events(0..2)).await;
    let mut receiver = rig.receiver(10).await?;
    take(&mut receiver, 2).await?;
    rig.world.delete().await?;
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < PATIENCE * 2, "nobody told the receiver");
        let received = tokio::time::timeout(PATIENCE * 2, receiver.next(1)).await;
        match received {
            Ok(Err(_)) => return Ok(()),
            Ok(Ok(Received::Messages { messages, .. })) => panic!("from nowhere: {messages:?}"),
            Ok(Ok(_)) => {}
            Err(_) => panic!("nobody told the receiver"),
        }
    }
}
