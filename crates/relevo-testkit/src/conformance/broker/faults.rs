//! The way between adapter and broker breaks, falls silent, loses answers.

use super::Rig;
use super::rig::{assert_quiet, drain, ids, publish, settle_all, take};
use super::world::Fault;
use crate::eventually::PATIENCE;
use relevo_core::broker::{Confirm, Incoming, Receiver};
use relevo_core::event::EventId;
use relevo_core::{Error, Kind, Result};
use std::collections::BTreeSet;
use std::time::Duration;

/// The message may be stored: nobody claims to know, unless the adapter asked again; then it is stored once. Published
/// again it is there, once or twice, never not.
pub async fn an_answer_that_got_lost_is_unknown_and_the_event_is_published_again(
    rig: &Rig,
) -> Result<()> {
    let publisher = rig.world.publisher()?;
    rig.store(&publisher, &rig.events(0..3)).await;
    rig.world.fault(Fault::LosesAnswerTo("payload 7".into())).await?;
    let event = rig.event(7);
    let confirms = publish(&publisher, std::slice::from_ref(&event)).await;
    if rig.world.mends_itself() {
        assert_eq!(confirms, [Confirm::Stored]);
        assert_eq!(rig.world.stored().await?, 4, "sent again, stored once");
    } else {
        assert!(matches!(confirms[..], [Confirm::Unknown { .. }]), "{confirms:?}");
    }
    rig.world.fault(Fault::None).await?;
    rig.store_in_the_end(&publisher, std::slice::from_ref(&event)).await;
    let mut receiver = rig.receiver(50).await?;
    let came = drain(rig, &mut receiver, &[event.id]).await?;
    assert!(came.contains(&event.id));
    Ok(())
}

/// Down is said of everything, nothing waits forever, and the same publisher goes on afterwards.
pub async fn while_the_broker_cannot_be_reached_everything_is_down(rig: &Rig) -> Result<()> {
    let publisher = rig.world.publisher()?;
    rig.store(&publisher, &rig.events(0..2)).await;
    rig.world.fault(Fault::Unreachable).await?;
    // The first one may meet the connection while it breaks.
    let first = publish(&publisher, &rig.events(2..4)).await;
    assert!(first.iter().all(|confirm| *confirm != Confirm::Stored), "{first:?}");
    for _ in 0..2 {
        let confirms = publish(&publisher, &rig.events(4..7)).await;
        assert!(confirms.iter().all(|c| matches!(c, Confirm::Down { .. })), "{confirms:?}");
    }
    rig.world.fault(Fault::None).await?;
    rig.store_in_the_end(&publisher, &rig.events(7..9)).await;
    // A publisher that was made in bad times works in good ones.
    rig.world.fault(Fault::Unreachable).await?;
    let late = rig.world.publisher()?;
    let confirms = publish(&late, &rig.events(9..10)).await;
    assert!(matches!(confirms[..], [Confirm::Down { .. }]), "{confirms:?}");
    rig.world.fault(Fault::None).await?;
    rig.store_in_the_end(&late, &rig.events(10..11)).await;
    Ok(())
}

/// Cut again and again while publishing: what was confirmed is there.
pub async fn a_connection_that_breaks_loses_nothing(rig: &Rig) -> Result<()> {
    let publisher = rig.world.publisher()?;
    let mut confirmed: Vec<EventId> = Vec::new();
    for round in 0..5 {
        let publishing = publisher.clone();
        let batches: Vec<_> =
            (0..4).map(|b| rig.events((round * 4 + b) * 50..(round * 4 + b) * 50 + 50)).collect();
        let sent = batches.clone();
        let task = tokio::spawn(async move {
            let mut answers = Vec::new();
            for batch in &sent {
                answers.push(publish(&publishing, batch).await);
            }
            answers
        });
        tokio::time::sleep(Duration::from_millis(5 * round as u64)).await;
        rig.world.fault(Fault::Cut).await?;
        for (events, confirms) in batches.iter().zip(task.await.unwrap_or_default()) {
            let stored = events.iter().zip(&confirms).filter(|(_, c)| **c == Confirm::Stored);
            confirmed.extend(stored.map(|(event, _)| event.id));
        }
    }
    let last = rig.events(1000..1001);
    rig.store_in_the_end(&publisher, &last).await;
    confirmed.extend(ids(&last));
    let mut receiver = rig.receiver(100).await?;
    drain(rig, &mut receiver, &confirmed).await?;
    Ok(())
}

/// What it held comes again, to whoever opens next. One that mends itself keeps what it holds and settles it.
pub async fn a_receiver_whose_connection_breaks_ends_and_the_next_gets_all(
    rig: &Rig,
) -> Result<()> {
    let events = rig.events(0..10);
    rig.store(&rig.world.publisher()?, &events).await;
    let mut receiver = rig.receiver(50).await?;
    let held = take(&mut receiver, 10).await?;
    rig.world.fault(Fault::Cut).await?;
    if rig.world.mends_itself() {
        return settles_after_all(rig, receiver, &held).await;
    }
    // It ends; it must not pretend to have settled.
    let late = |_| Error::new(Kind::Timeout, "the receiver does not notice");
    let ended = tokio::time::timeout(PATIENCE, async {
        loop {
            match receiver.next(10).await {
                Err(_) => break true,
                Ok(_) => tokio::task::yield_now().await,
            }
        }
    });
    assert!(ended.await.map_err(late)?);
    assert!(settle_all(&mut receiver, &held).await.is_err(), "a settlement that nobody heard");
    drop(receiver);
    let mut receiver = rig.receiver(50).await?;
    drain(rig, &mut receiver, &ids(&events)).await?;
    Ok(())
}

/// What it says to have settled is settled, and what follows comes.
async fn settles_after_all(
    rig: &Rig,
    mut receiver: Box<dyn Receiver>,
    held: &[Incoming],
) -> Result<()> {
    settle_all(&mut receiver, held).await?;
    let more = rig.events(10..15);
    rig.store(&rig.world.publisher()?, &more).await;
    let came = drain(rig, &mut receiver, &ids(&more)).await?;
    assert_eq!(came.len(), more.len(), "nothing comes twice");
    receiver.close().await?;
    assert_quiet(&mut rig.receiver(50).await?).await;
    Ok(())
}

/// What was sent may be stored; what comes later is.
pub async fn a_publish_dropped_in_the_middle_harms_no_later_one(rig: &Rig) -> Result<()> {
    let publisher = rig.world.publisher()?;
    rig.store(&publisher, &rig.events(0..1)).await;
    for round in 1..30 {
        let events = rig.events(round * 100..round * 100 + 40);
        let patience = Duration::from_micros(150 * round as u64);
        drop(tokio::time::timeout(patience, publish(&publisher, &events)).await);
    }
    rig.world.fault(Fault::Silence).await?;
    let silent = rig.events(5000..5010);
    let dropped = tokio::time::timeout(Duration::from_millis(300), publish(&publisher, &silent));
    let said = dropped.await.unwrap_or_default();
    assert!(said.iter().all(|confirm| *confirm != Confirm::Stored), "{said:?}");
    rig.world.fault(Fault::None).await?;
    let after = rig.events(6000..6020);
    rig.store_in_the_end(&publisher, &after).await;
    let distinct: BTreeSet<EventId> = ids(&after).into_iter().collect();
    assert!(rig.world.stored().await? >= distinct.len());
    Ok(())
}

/// Neither the close nor the publish waits forever, and nothing is called stored.
pub async fn closing_while_nothing_answers_comes_to_an_end(rig: &Rig) -> Result<()> {
    let publisher = rig.world.publisher()?;
    rig.store(&publisher, &rig.events(0..1)).await;
    rig.world.fault(Fault::Silence).await?;
    let (publishing, events) = (publisher.clone(), rig.events(1..5));
    let blocked = tokio::spawn(async move { publish(&publishing, &events).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let late = |_| Error::new(Kind::Timeout, "it waits forever");
    tokio::time::timeout(PATIENCE, publisher.close()).await.map_err(late)?;
    let confirms = tokio::time::timeout(PATIENCE, blocked).await.map_err(late)?.unwrap_or_default();
    assert!(confirms.iter().all(|c| *c != Confirm::Stored) && confirms.len() == 4, "{confirms:?}");
    rig.world.fault(Fault::None).await
}
