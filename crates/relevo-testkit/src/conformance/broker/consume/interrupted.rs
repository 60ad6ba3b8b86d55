//! A settlement that nobody waits for until its end.

use super::id_of;
use crate::conformance::broker::rig::{QUIET, drain, ids, settle_all, take};
use crate::conformance::broker::{Fault, Rig};
use crate::eventually;
use relevo_core::Result;
use relevo_core::broker::{Incoming, Receiver, Settle, Tag};
use relevo_core::event::{Event, EventId};
use std::collections::BTreeSet;

/// So many messages are in hand, which is all that may be.
const IN_HAND: usize = 20;
/// So many of them are settled, in one call.
const SETTLED: usize = 10;
/// One of those is dead, where the case wants that.
const DEAD: usize = 4;

/// A full hand. The way to the dead letters is open: a letter has gone there before.
async fn full_hand(rig: &Rig) -> Result<(Box<dyn Receiver>, Vec<Incoming>)> {
    let mut receiver = rig.receiver(IN_HAND).await?;
    let publisher = rig.world.publisher()?;
    rig.store(&publisher, &rig.events(0..1)).await;
    let first = take(&mut receiver, 1).await?;
    let reason = "the first".to_owned();
    receiver.settle(&[(first[0].tag, Settle::Dead { reason })]).await?;
    rig.store(&publisher, &rig.events(1..1 + IN_HAND)).await;
    let held = take(&mut receiver, IN_HAND).await?;
    Ok((receiver, held))
}

fn settlements(held: &[Incoming], with_dead: bool) -> Vec<(Tag, Settle)> {
    let settle = |at: usize| match with_dead && at == DEAD {
        true => Settle::Dead { reason: "the second".into() },
        false => Settle::Done,
    };
    held[..SETTLED].iter().enumerate().map(|(at, message)| (message.tag, settle(at))).collect()
}

/// Begins to settle while the broker's answers wait, and is gone before they come. A dead letter is stored, and
/// confirmed, before its message is settled, so with one there is always something to wait for.
async fn settle_and_drop(
    rig: &Rig,
    receiver: &mut Box<dyn Receiver>,
    held: &[Incoming],
    with_dead: bool,
) -> Result<()> {
    rig.world.fault(Fault::HoldsAnswers).await?;
    let told = settlements(held, with_dead);
    let settling = receiver.settle(&told);
    let dropped = tokio::time::timeout(QUIET, settling).await.is_err();
    assert!(
        dropped || !with_dead || !rig.world.capabilities().windowed,
        "settled before the dead letter was confirmed"
    );
    rig.world.fault(Fault::None).await
}

async fn is_dead(rig: &Rig, id: EventId) -> Result<bool> {
    let letters = rig.world.dead().await?;
    Ok(letters.iter().any(|letter| letter.text("x-event-id") == Some(id.to_string())))
}

fn ids_of(rig: &Rig, messages: &[Incoming]) -> Vec<EventId> {
    messages.iter().map(|message| id_of(rig, message)).collect()
}

/// What was not to be settled comes again, and so does the dead one, if its letter is not there.
pub async fn a_settlement_that_is_dropped_loses_nothing(rig: &Rig) -> Result<()> {
    let (mut receiver, held) = full_hand(rig).await?;
    settle_and_drop(rig, &mut receiver, &held, true).await?;
    drop(receiver);
    let mut next_one = rig.receiver(IN_HAND).await?;
    let came = drain(rig, &mut next_one, &ids_of(rig, &held[SETTLED..])).await?;
    let dead = id_of(rig, &held[DEAD]);
    if !came.contains(&dead) && !is_dead(rig, dead).await? {
        drain(rig, &mut next_one, &[dead]).await?;
    }
    next_one.close().await
}

/// By the same receiver: then it is settled, whatever of it was before, and its place is free for others.
pub async fn a_settlement_that_is_dropped_can_be_made_again(rig: &Rig) -> Result<()> {
    let (mut receiver, held) = full_hand(rig).await?;
    settle_and_drop(rig, &mut receiver, &held, true).await?;
    receiver.settle(&settlements(&held, true)).await?;
    let dead = id_of(rig, &held[DEAD]);
    eventually("the dead letter", async || is_dead(rig, dead).await.ok()?.then_some(())).await;
    let (more, last) = (rig.events(100..100 + SETTLED), rig.events(200..200 + IN_HAND));
    let came = comes_into_free_places(rig, &mut receiver, &more).await?;
    // In their order: a broker that counts places knows of no settlement behind one that is missing.
    settle_all(&mut receiver, &held[SETTLED..]).await?;
    // Once more, with nothing to wait for but the answers to the settlements.
    settle_and_drop(rig, &mut receiver, &came, false).await?;
    settle_all(&mut receiver, &came).await?;
    comes_into_free_places(rig, &mut receiver, &last).await?;
    receiver.close().await?;
    let mut next_one = rig.receiver(IN_HAND).await?;
    let came = drain(rig, &mut next_one, &ids(&last)).await?;
    assert_eq!(came.len(), last.len(), "what is settled does not come again");
    next_one.close().await?;
    // Also what would come much later.
    rig.until_settled().await;
    Ok(())
}

/// All of them come, and nothing else.
async fn comes_into_free_places(
    rig: &Rig,
    receiver: &mut Box<dyn Receiver>,
    events: &[Event],
) -> Result<Vec<Incoming>> {
    rig.store(&rig.world.publisher()?, events).await;
    let came = take(receiver, events.len()).await?;
    let distinct: BTreeSet<EventId> = ids_of(rig, &came).into_iter().collect();
    assert_eq!(distinct, ids(events).into_iter().collect());
    Ok(came)
}
