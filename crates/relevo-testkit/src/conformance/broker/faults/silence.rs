//! A connection on which nothing comes through any more, and nobody says so.

use crate::conformance::broker::rig::{QUIET, drain, ids, next, settle_all, take};
use crate::conformance::broker::{Consuming, Fault, Rig};
use crate::eventually::PATIENCE;
use relevo_core::broker::{Incoming, Received, Receiver, Source};
use relevo_core::event::{Event, EventId};
use relevo_core::{Error, Kind, Result};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The broker's silence is noticed after about so long.
const SILENCE: Duration = Duration::from_secs(2);

/// No adapter takes longer to close, with time to spare for a busy machine.
const CLOSE_LIMIT: Duration = Duration::from_secs(60);

/// A receiver with a message in hand.
struct Holding {
    receiver: Box<dyn Receiver>,
    source: Source,
    held: Vec<Incoming>,
    event: Event,
}

/// With room for so many messages. Those that hold one before it have no room for another, so this one is its.
async fn holding(rig: &Rig, room: usize, n: usize) -> Result<Holding> {
    let consuming = Consuming::at_most(room).broker_dead_after(SILENCE);
    let mut receiver = rig.world.subscriber(consuming)?.open().await?;
    let event = rig.event(n);
    rig.store(&rig.world.publisher()?, std::slice::from_ref(&event)).await;
    let (source, held) = next(&mut receiver, 1).await?;
    Ok(Holding { receiver, source, held, event })
}

/// It ends, and does not pretend to have settled.
async fn ends(mut holding: Holding, what: &str) -> Result<()> {
    let ended = tokio::time::timeout(PATIENCE, async {
        while holding.receiver.next(10).await.is_ok() {
            tokio::task::yield_now().await;
        }
    });
    let late = |_| Error::new(Kind::Timeout, format!("a receiver that {what} does not notice"));
    ended.await.map_err(late)?;
    let settled = settle_all(&mut holding.receiver, &holding.held).await;
    assert!(settled.is_err(), "one that {what} made a settlement that nobody heard");
    Ok(())
}

/// Whether it waits for messages, is full, or is paused: it ends, and the next one gets everything. One that mends
/// itself goes on.
pub async fn a_receiver_whose_connection_falls_silent_notices_and_nothing_is_lost(
    rig: &Rig,
) -> Result<()> {
    if rig.world.mends_itself() {
        return goes_on(rig).await;
    }
    let full = holding(rig, 1, 0).await?;
    let mut paused = holding(rig, 1, 1).await?;
    let waiting = holding(rig, 50, 2).await?;
    paused.receiver.pause(&paused.source).await?;
    let all = [&full, &paused, &waiting].map(|one| one.event.id);
    rig.world.fault(Fault::Forgotten).await?;
    tokio::try_join!(
        ends(full, "is full"),
        ends(paused, "is paused"),
        ends(waiting, "waits for messages"),
    )?;
    let mut receiver = rig.receiver(50).await?;
    drain(rig, &mut receiver, &all).await?;
    receiver.close().await
}

/// It gives up on the broker long before it would call it dead.
pub async fn a_receiver_closes_while_nothing_answers(rig: &Rig) -> Result<()> {
    let consuming = Consuming::at_most(50).broker_dead_after(PATIENCE * 2);
    let mut receiver = rig.world.subscriber(consuming)?.open().await?;
    let events = rig.events(0..3);
    rig.store(&rig.world.publisher()?, &events).await;
    take(&mut receiver, events.len()).await?;
    rig.world.fault(Fault::Forgotten).await?;
    // Some tell that nobody answered, others have nobody to tell it to.
    let closed = tokio::time::timeout(CLOSE_LIMIT, receiver.close()).await;
    assert!(closed.is_ok(), "it does not end within {CLOSE_LIMIT:?}");
    // Now the broker learns of it, too.
    rig.world.fault(Fault::Cut).await?;
    let mut next_one = rig.receiver(50).await?;
    drain(rig, &mut next_one, &ids(&events)).await?;
    next_one.close().await
}

/// By itself, on connections that it makes anew: what comes later comes, and everything is settled in the end. Where a
/// settlement meets the silence, the receiver ends, and the next one gets it again.
async fn goes_on(rig: &Rig) -> Result<()> {
    let Holding { mut receiver, held, .. } = holding(rig, 50, 0).await?;
    rig.world.fault(Fault::Forgotten).await?;
    let later = rig.events(1..11);
    rig.store(&rig.world.publisher()?, &later).await;
    let mut missing: BTreeSet<EventId> = ids(&later).into_iter().collect();
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < PATIENCE, "{} of {} do not come", missing.len(), later.len());
        let step = step(rig, &mut receiver, &mut missing).await;
        if step.is_err() {
            receiver = rig.receiver(50).await?;
            continue;
        }
        if missing.is_empty() {
            // If it is still its own to settle.
            drop(settle_all(&mut receiver, &held).await);
            if rig.world.unsettled().await? == 0 {
                return receiver.close().await;
            }
        }
    }
}

/// Takes and settles what comes within a short time.
async fn step(
    rig: &Rig,
    receiver: &mut Box<dyn Receiver>,
    missing: &mut BTreeSet<EventId>,
) -> Result<()> {
    let Ok(received) = tokio::time::timeout(QUIET, receiver.next(50)).await else { return Ok(()) };
    let Received::Messages { messages, .. } = received? else { return Ok(()) };
    for message in &messages {
        missing.remove(&rig.read(message).event.id);
    }
    settle_all(receiver, &messages).await
}
