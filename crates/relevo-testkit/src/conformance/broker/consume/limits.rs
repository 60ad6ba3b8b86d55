//! How much is unsettled at once, in messages and in bytes.

use super::id_of;
use crate::conformance::broker::rig::{assert_quiet, hold, ids, settle_all, take};
use crate::conformance::broker::{Consuming, Rig};
use crate::eventually::PATIENCE;
use relevo_core::Result;
use relevo_core::broker::{Incoming, Receiver};
use relevo_core::event::EventId;
use std::collections::BTreeSet;
use std::time::Instant;

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
    let mut most = 0;
    while came.len() < events.len() {
        assert!(bytes_of(&held) <= LIMIT && !held.is_empty(), "{} bytes", bytes_of(&held));
        most = most.max(held.len());
        settle_all(&mut receiver, &held).await?;
        held = hold(&mut receiver).await?;
        came.extend(held.iter().map(|message| id_of(rig, message)));
    }
    assert_eq!(came, ids(&events).into_iter().collect());
    assert_eq!(most, 3, "as many as there is room for");
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
