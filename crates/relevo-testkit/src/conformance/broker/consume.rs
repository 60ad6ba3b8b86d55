//! What arrives, how much of it at once, and what becomes of it.

use super::Rig;
use super::rig::{assert_quiet, drain, hold, ids, next, settle_all, take};
use super::world::{Consuming, Raw};
use crate::eventually;
use crate::eventually::PATIENCE;
use relevo_core::Result;
use relevo_core::broker::{Incoming, Received, Receiver, Settle, dead_header};
use relevo_core::event::EventId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// As long as a pause is watched.
const PAUSE: Duration = Duration::from_millis(500);

fn id_of(rig: &Rig, message: &Incoming) -> EventId {
    rig.read(message).event.id
}

/// Everything, with its bytes.
pub async fn what_is_published_arrives(rig: &Rig) -> Result<()> {
    let events = rig.events(0..120);
    rig.store(&rig.world.publisher()?, &events).await;
    let mut receiver = rig.receiver(30).await?;
    let came = drain(rig, &mut receiver, &ids(&events)).await?;
    assert_eq!(came.len(), events.len(), "each came once");
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
    for _ in 0..90 {
        let message = take(&mut receiver, 1).await?.remove(0);
        let event = rig.read(&message).event;
        came.entry(event.key.clone().unwrap_or_default()).or_default().push(event.id);
        settle_all(&mut receiver, &[message]).await?;
    }
    assert_eq!(came, expected);
    Ok(())
}

/// A slow consumer: what it does not take waits at the broker.
pub async fn no_more_than_the_limit_is_unsettled(rig: &Rig) -> Result<()> {
    let events = rig.events(0..40);
    rig.store(&rig.world.publisher()?, &events).await;
    let mut receiver = rig.receiver(7).await?;
    let mut held = take(&mut receiver, 7).await?;
    assert_quiet(&mut receiver).await;
    let mut came: BTreeSet<EventId> = held.iter().map(|message| id_of(rig, message)).collect();
    while came.len() < events.len() {
        settle_all(&mut receiver, &held[..2]).await?;
        held.drain(..2);
        let room = 2.min(events.len() - came.len());
        let more = take(&mut receiver, room).await?;
        came.extend(more.iter().map(|message| id_of(rig, message)));
        held.extend(more);
        assert!(held.len() <= 7);
    }
    settle_all(&mut receiver, &held).await?;
    receiver.close().await
}

/// What fits into so many bytes: a receiver that got too many ends, and the next one does not.
async fn held_within(rig: &Rig, bytes: usize) -> Result<(Box<dyn Receiver>, Vec<Incoming>)> {
    let subscriber = rig.world.subscriber(Consuming::at_most(100).bytes(bytes))?;
    let began = Instant::now();
    loop {
        let mut receiver = subscriber.open().await?;
        match hold(&mut receiver).await {
            Ok(held) => return Ok((receiver, held)),
            Err(error) if began.elapsed() > PATIENCE => return Err(error),
            Err(_) => receiver.close().await?,
        }
    }
}

fn bytes_of(messages: &[Incoming]) -> usize {
    messages.iter().map(|message| message.payload.len()).sum()
}

/// A slow consumer of large messages: what is too much waits at the broker, and comes when there is room.
pub async fn no_more_bytes_than_the_limit_are_unsettled(rig: &Rig) -> Result<()> {
    const LIMIT: usize = 100_000;
    let events: Vec<_> = (0..40).map(|n| rig.sized(n, 30_000)).collect();
    rig.store(&rig.world.publisher()?, &events).await;
    let (mut receiver, mut held) = held_within(rig, LIMIT).await?;
    let mut came: BTreeSet<EventId> = held.iter().map(|message| id_of(rig, message)).collect();
    while came.len() < events.len() {
        assert!(bytes_of(&held) <= LIMIT && !held.is_empty(), "{} bytes", bytes_of(&held));
        settle_all(&mut receiver, &held).await?;
        held = hold(&mut receiver).await?;
        came.extend(held.iter().map(|message| id_of(rig, message)));
    }
    assert_eq!(came, ids(&events).into_iter().collect());
    settle_all(&mut receiver, &held).await?;
    assert_quiet(&mut receiver).await;
    receiver.close().await
}

/// It must get through, or nothing behind it does.
pub async fn a_message_over_the_limit_comes_alone(rig: &Rig) -> Result<()> {
    let events: Vec<_> = (0..3).map(|n| rig.sized(n, 30_000)).collect();
    rig.store(&rig.world.publisher()?, &events).await;
    let (mut receiver, mut held) = held_within(rig, 20_000).await?;
    let mut came = BTreeSet::new();
    loop {
        assert_eq!(held.len(), 1, "one at a time");
        came.insert(id_of(rig, &held[0]));
        settle_all(&mut receiver, &held).await?;
        if came.len() == events.len() {
            return receiver.close().await;
        }
        held = hold(&mut receiver).await?;
    }
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
    drain(rig, &mut receiver, &ids(&more)).await?;
    receiver.close().await?;
    assert_eq!(rig.world.dead().await?, []);
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

/// Others go on meanwhile.
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
    settle_all(&mut receiver, &[again]).await?;
    let others = rig.events(1..4);
    rig.store(&publisher, &others).await;
    drain(rig, &mut receiver, &ids(&others)).await?;
    Ok(())
}

/// Where the broker keeps the place.
pub async fn a_retry_comes_before_what_followed_it(rig: &Rig) -> Result<()> {
    let publisher = rig.world.publisher()?;
    let events: Vec<_> = (0..3).map(|n| rig.keyed("k", n)).collect();
    for event in &events {
        rig.store(&publisher, std::slice::from_ref(event)).await;
    }
    let mut receiver = rig.receiver(1).await?;
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
    assert_eq!(letter.text("x-event-id"), Some(id_of(rig, &messages[1]).to_string()));
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

async fn gives_back(
    rig: &Rig,
    end: impl AsyncFnOnce(Box<dyn Receiver>) -> Result<()>,
) -> Result<()> {
    let events = rig.events(0..20);
    rig.store(&rig.world.publisher()?, &events).await;
    let mut receiver = rig.receiver(50).await?;
    let held = take(&mut receiver, 20).await?;
    settle_all(&mut receiver, &held[..3]).await?;
    let settled: BTreeSet<EventId> = held[..3].iter().map(|m| id_of(rig, m)).collect();
    end(receiver).await?;
    let left: Vec<EventId> = ids(&events).into_iter().filter(|id| !settled.contains(id)).collect();
    let mut next_one = rig.receiver(50).await?;
    let began = Instant::now();
    drain(rig, &mut next_one, &left).await?;
    assert!(began.elapsed() < PATIENCE, "given back after {:?}", began.elapsed());
    Ok(())
}

/// At once, to the next one.
pub async fn a_receiver_that_closes_gives_everything_back(rig: &Rig) -> Result<()> {
    gives_back(rig, async |receiver| receiver.close().await).await
}

/// As a process that dies does.
pub async fn a_receiver_that_is_dropped_gives_everything_back(rig: &Rig) -> Result<()> {
    gives_back(rig, async |receiver| {
        drop(receiver);
        Ok(())
    })
    .await
}

/// Callers wait for several things at once and drop what lost.
pub async fn a_call_of_next_that_is_dropped_loses_nothing(rig: &Rig) -> Result<()> {
    let publisher = rig.world.publisher()?;
    let mut receiver = rig.receiver(100).await?;
    let events = rig.events(0..60);
    let sent = events.clone();
    let publishing = tokio::spawn(async move {
        for event in &sent {
            let confirms = super::rig::publish(&publisher, std::slice::from_ref(event)).await;
            assert_eq!(confirms, [relevo_core::broker::Confirm::Stored]);
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

/// Each message goes to one of them, each has a share, and none is left.
pub async fn two_consumers_share_the_work(rig: &Rig) -> Result<()> {
    let mut receivers = [rig.receiver(5).await?, rig.receiver(5).await?];
    let publisher = rig.world.publisher()?;
    let mut events = Vec::new();
    let mut came: Vec<EventId> = Vec::new();
    let mut shares = [0, 0];
    let began = Instant::now();
    while came.len() < 80 || came.len() < events.len() || shares.contains(&0) {
        let late = || format!("{} of {} came, shares {shares:?}", came.len(), events.len());
        assert!(began.elapsed() < PATIENCE * 2, "{}", late());
        if came.len() == events.len() {
            // As long as one has had nothing, which a rebalance may take a while to change, there is more to share.
            let more = rig.events(events.len()..events.len() + 40);
            rig.store(&publisher, &more).await;
            events.extend(more);
        }
        for (receiver, share) in receivers.iter_mut().zip(&mut shares) {
            let wait = Duration::from_millis(100);
            let Ok(received) = tokio::time::timeout(wait, receiver.next(5)).await else { continue };
            let Received::Messages { messages, .. } = received? else { continue };
            *share += messages.len();
            came.extend(messages.iter().map(|message| id_of(rig, message)));
            settle_all(receiver, &messages).await?;
        }
    }
    let distinct: BTreeSet<EventId> = came.iter().copied().collect();
    assert_eq!(distinct, ids(&events).into_iter().collect());
    assert_eq!(came.len(), events.len(), "each went to one of them: {shares:?}");
    Ok(())
}

/// The other stands by, and takes over when the first goes.
pub async fn a_source_has_one_consumer_at_a_time(rig: &Rig) -> Result<()> {
    let subscriber = rig.world.subscriber(Consuming::at_most(4).exclusively())?;
    let mut receivers = vec![subscriber.open().await?];
    let publisher = rig.world.publisher()?;
    let events = rig.events(0..40);
    rig.store(&publisher, &events).await;
    let (first_source, held) = next(&mut receivers[0], 1).await?;
    receivers.push(subscriber.open().await?);
    let mut owners: BTreeMap<_, usize> = BTreeMap::from([(first_source.clone(), 0)]);
    let mut came: BTreeSet<EventId> = held.iter().map(|m| id_of(rig, m)).collect();
    settle_all(&mut receivers[0], &held).await?;
    let began = Instant::now();
    while came.len() < events.len() {
        assert!(began.elapsed() < PATIENCE * 2, "{} of {} came", came.len(), events.len());
        for (number, receiver) in receivers.iter_mut().enumerate() {
            let wait = Duration::from_millis(50);
            let Ok(received) = tokio::time::timeout(wait, receiver.next(4)).await else { continue };
            match received? {
                Received::Messages { source, messages } => {
                    let owner = *owners.entry(source.clone()).or_insert(number);
                    assert_eq!(owner, number, "{source} has two consumers at once");
                    came.extend(messages.iter().map(|m| id_of(rig, m)));
                    settle_all(receiver, &messages).await?;
                }
                Received::Revoked(source) => drop(owners.remove(&source)),
                _ => {}
            }
        }
    }
    receivers.remove(0).close().await?;
    let more = rig.events(40..50);
    rig.store(&publisher, &more).await;
    drain(rig, &mut receivers[0], &ids(&more)).await?;
    Ok(())
}

/// Also if the other is dropped with messages in hand: they come before what followed them.
pub async fn who_takes_over_begins_where_the_other_was(rig: &Rig) -> Result<()> {
    let subscriber = rig.world.subscriber(Consuming::at_most(4).exclusively())?;
    let publisher = rig.world.publisher()?;
    let mut first = subscriber.open().await?;
    let events: Vec<_> = (0..20).map(|n| rig.keyed("k", n)).collect();
    for event in &events {
        rig.store(&publisher, std::slice::from_ref(event)).await;
    }
    take(&mut first, 4).await?;
    let mut second = subscriber.open().await?;
    drop(first);
    let mut came = Vec::new();
    while came.len() < events.len() {
        let message = take(&mut second, 1).await?.remove(0);
        came.push(id_of(rig, &message));
        settle_all(&mut second, &[message]).await?;
    }
    assert_eq!(came, ids(&events));
    second.close().await
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
