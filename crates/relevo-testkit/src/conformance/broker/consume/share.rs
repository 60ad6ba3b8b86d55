//! Several receivers: what one gives back the next one gets, and how they share.

use super::id_of;
use crate::conformance::broker::rig::{drain, ids, next, settle_all, take};
use crate::conformance::broker::{Consuming, Rig};
use crate::eventually::PATIENCE;
use relevo_core::Result;
use relevo_core::broker::{Incoming, Received, Receiver, Source};
use relevo_core::event::EventId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

async fn gives_back(
    rig: &Rig,
    end: impl AsyncFnOnce(Box<dyn Receiver>) -> Result<()>,
) -> Result<()> {
    let events = rig.events(0..20);
    rig.store(&rig.world.publisher()?, &events).await;
    // A broker that waits for its silence would wait longer than anybody here.
    let subscriber = rig.world.subscriber(Consuming::at_most(50).dead_after(PATIENCE * 2))?;
    let mut receiver = subscriber.open().await?;
    let held = take(&mut receiver, 20).await?;
    settle_all(&mut receiver, &held[..3]).await?;
    let settled: BTreeSet<EventId> = held[..3].iter().map(|m| id_of(rig, m)).collect();
    end(receiver).await?;
    let left: BTreeSet<EventId> =
        ids(&events).into_iter().filter(|id| !settled.contains(id)).collect();
    let mut next_one = subscriber.open().await?;
    let wanted: Vec<EventId> = left.iter().copied().collect();
    let came = drain(rig, &mut next_one, &wanted).await?;
    assert_eq!(came.len(), left.len(), "each came once");
    assert_eq!(came.into_iter().collect::<BTreeSet<_>>(), left);
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
        for number in 0..receivers.len() {
            let next = receivers[number].next(4);
            let wait = Duration::from_millis(50);
            let Ok(received) = tokio::time::timeout(wait, next).await else { continue };
            match received? {
                Received::Messages { source, messages } => {
                    let owner = owners.insert(source.clone(), number);
                    if let Some(other) = owner.filter(|owner| *owner != number) {
                        let (more, lost) = was_taken_away(&mut receivers[other], &source).await?;
                        came.extend(more.iter().map(|m| id_of(rig, m)));
                        owners.retain(|source, _| !lost.contains(source));
                    }
                    came.extend(messages.iter().map(|m| id_of(rig, m)));
                    settle_all(&mut receivers[number], &messages).await?;
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

/// Whoever had a source before another one got it is told so, with nothing of it before that. Answers what came to it of
/// others, and which of them it lost meanwhile.
async fn was_taken_away(
    receiver: &mut Box<dyn Receiver>,
    source: &Source,
) -> Result<(Vec<Incoming>, Vec<Source>)> {
    let (mut came, mut lost) = (Vec::new(), Vec::new());
    loop {
        let told = tokio::time::timeout(PATIENCE, receiver.next(4)).await;
        match told.unwrap_or_else(|_| panic!("{source} has two consumers at once"))? {
            Received::Revoked(gone) if gone == *source => return Ok((came, lost)),
            Received::Revoked(gone) => lost.push(gone),
            Received::Messages { source: of, messages } => {
                assert_ne!(of, *source, "it has two consumers at once");
                settle_all(receiver, &messages).await?;
                came.extend(messages);
            }
            _ => {}
        }
    }
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
