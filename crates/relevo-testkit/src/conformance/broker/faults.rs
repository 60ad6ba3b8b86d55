//! The way between adapter and broker breaks, falls silent, loses answers.

mod silence;

pub use silence::*;

use super::Rig;
use super::rig::{assert_quiet, drain, ids, joined, publish, publishing, settle_all, take};
use super::world::Fault;
use crate::eventually::{PATIENCE, eventually};
use relevo_core::broker::{Confirm, Incoming, Publisher, Receiver};
use relevo_core::event::{Event, EventId};
use relevo_core::{Error, ErrorClass, Kind, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
        rig.until_stored(4).await;
    }
    rig.world.fault(Fault::None).await?;
    rig.store_in_the_end(&publisher, std::slice::from_ref(&event)).await;
    let copies = if rig.world.capabilities().drops_duplicates { 1 } else { 2 };
    assert_eq!(rig.world.stored().await?, 3 + copies);
    let mut receiver = rig.receiver(50).await?;
    drain(rig, &mut receiver, &[event.id]).await?;
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

/// Cut again and again, between the storing and its confirm and wherever else: what was confirmed is there.
pub async fn a_connection_that_breaks_loses_nothing(rig: &Rig) -> Result<()> {
    let publisher = rig.world.publisher_within(1000, 16 << 20)?;
    let mut confirmed: Vec<EventId> = Vec::new();
    for round in 0..3 {
        let before = rig.events(round * 100..round * 100 + 20);
        rig.store_in_the_end(&publisher, &before).await;
        confirmed.extend(ids(&before));
        let unheard = rig.events(round * 100 + 20..round * 100 + 70);
        confirmed.extend(cut_before_the_answers(rig, &publisher, &unheard).await?);
    }
    confirmed.extend(cut_while_publishing(rig, &publisher).await?);
    let last = rig.events(1000..1001);
    rig.store_in_the_end(&publisher, &last).await;
    confirmed.extend(ids(&last));
    let mut receiver = rig.receiver(100).await?;
    drain(rig, &mut receiver, &confirmed).await?;
    Ok(())
}

/// The broker has them all when the connection breaks, and nobody has heard of it: unknown is what that is called,
/// unless the adapter asks again, and then each is stored once.
async fn cut_before_the_answers(
    rig: &Rig,
    publisher: &Arc<dyn Publisher>,
    events: &[Event],
) -> Result<Vec<EventId>> {
    let before = rig.world.stored().await?;
    rig.world.fault(Fault::HoldsAnswers).await?;
    let task = publishing(publisher, events);
    if rig.world.capabilities().windowed {
        rig.until_stored(before + events.len()).await;
    }
    rig.world.fault(Fault::Cut).await?;
    rig.world.fault(Fault::None).await?;
    let confirms = joined(task).await;
    if rig.world.mends_itself() || !rig.world.capabilities().windowed {
        assert_eq!(confirms, vec![Confirm::Stored; events.len()]);
        assert_eq!(rig.world.stored().await?, before + events.len(), "each is stored once");
        return Ok(ids(events));
    }
    let unknown = confirms.iter().filter(|confirm| matches!(confirm, Confirm::Unknown { .. }));
    assert_eq!(unknown.count(), events.len(), "stored, and nobody heard of it: {confirms:?}");
    Ok(Vec::new())
}

/// Lanes that publish until they are told to stop, and what they heard.
#[derive(Default)]
struct Lanes {
    stop: AtomicBool,
    confirmed: Mutex<Vec<EventId>>,
}

impl Lanes {
    fn confirmed(&self) -> MutexGuard<'_, Vec<EventId>> {
        self.confirmed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn publish(&self, rig: &Rig, publisher: &Arc<dyn Publisher>, first: usize) {
        let mut next = first;
        while !self.stop.load(Ordering::SeqCst) {
            let batch = rig.events(next..next + 20);
            next += 20;
            let confirms = publish(publisher, &batch).await;
            let stored = batch.iter().zip(&confirms).filter(|(_, c)| **c == Confirm::Stored);
            self.confirmed().extend(stored.map(|(event, _)| event.id));
            tokio::task::yield_now().await;
        }
    }

    /// Each cut comes when publishing works again after the one before.
    async fn cut(&self, rig: &Rig) -> Result<()> {
        for _ in 0..5 {
            let heard = self.confirmed().len();
            eventually("publishing goes on", async || {
                (self.confirmed().len() >= heard + 40).then_some(())
            })
            .await;
            rig.world.fault(Fault::Cut).await?;
        }
        self.stop.store(true, Ordering::SeqCst);
        Ok(())
    }
}

async fn cut_while_publishing(rig: &Rig, publisher: &Arc<dyn Publisher>) -> Result<Vec<EventId>> {
    let lanes = Lanes::default();
    let ((), (), (), cut) = tokio::join!(
        lanes.publish(rig, publisher, 10_000),
        lanes.publish(rig, publisher, 20_000),
        lanes.publish(rig, publisher, 30_000),
        lanes.cut(rig),
    );
    cut?;
    Ok(std::mem::take(&mut *lanes.confirmed()))
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

/// What was sent may be stored; what comes later is, has the whole window, and gets its own answers.
pub async fn a_publish_dropped_in_the_middle_harms_no_later_one(rig: &Rig) -> Result<()> {
    let publisher = rig.world.publisher_within(40, 16 << 20)?;
    rig.store(&publisher, &rig.events(0..1)).await;
    for round in 1..4 {
        let first = round * 100;
        drop_before_the_answers(rig, &publisher, &rig.events(first..first + 40)).await?;
        own_answers(rig, &publisher, first + 40).await;
    }
    for round in 1..30 {
        let events = rig.events(1000 + round * 100..1000 + round * 100 + 40);
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
    assert!(rig.world.stored().await? >= after.len());
    if rig.world.capabilities().consumes {
        drain(rig, &mut rig.receiver(100).await?, &ids(&after)).await?;
    }
    Ok(())
}

/// The broker has the messages, and nobody has heard its answers.
async fn drop_before_the_answers(
    rig: &Rig,
    publisher: &Arc<dyn Publisher>,
    events: &[Event],
) -> Result<()> {
    let before = rig.world.stored().await?;
    rig.world.fault(Fault::HoldsAnswers).await?;
    let task = publishing(publisher, events);
    if rig.world.capabilities().windowed {
        rig.until_stored(before + events.len()).await;
    }
    task.abort();
    let dropped = task.await.is_err_and(|error| error.is_cancelled());
    assert!(dropped, "it was over before it was dropped");
    rig.world.fault(Fault::None).await
}

/// As many as the window has room for: one of them leads nowhere, where that is refused.
async fn own_answers(rig: &Rig, publisher: &Arc<dyn Publisher>, first: usize) {
    let mut events = rig.events(first..first + 40);
    let refuses = rig.world.capabilities().refuses_unroutable;
    if refuses {
        events[7] = rig.astray(first);
    }
    let confirms = publish(publisher, &events).await;
    for (at, confirm) in confirms.iter().enumerate() {
        match confirm {
            Confirm::Refused { class: ErrorClass::Permanent, .. } if refuses && at == 7 => {}
            other => assert!(*other == Confirm::Stored && !(refuses && at == 7), "{at}: {other:?}"),
        }
    }
}

/// Neither the close nor the publish waits forever, and nothing is called stored. What the broker has may be stored:
/// that is unknown, and not down.
pub async fn closing_while_nothing_answers_comes_to_an_end(rig: &Rig) -> Result<()> {
    for (round, fault) in [Fault::Silence, Fault::WithholdsAnswers].into_iter().enumerate() {
        let publisher = rig.world.publisher()?;
        let first = round * 10;
        rig.store(&publisher, &rig.events(first..first + 1)).await;
        let before = rig.world.stored().await?;
        rig.world.fault(fault.clone()).await?;
        let blocked = publishing(&publisher, &rig.events(first + 1..first + 5));
        let is_sent = fault == Fault::WithholdsAnswers && rig.world.capabilities().windowed;
        match is_sent {
            true => rig.until_stored(before + 4).await,
            false => tokio::time::sleep(Duration::from_millis(100)).await,
        }
        let late = |_| Error::new(Kind::Timeout, "it waits forever");
        tokio::time::timeout(PATIENCE, publisher.close()).await.map_err(late)?;
        let confirms = tokio::time::timeout(PATIENCE, joined(blocked)).await.map_err(late)?;
        assert!(confirms.iter().all(|confirm| *confirm != Confirm::Stored), "{confirms:?}");
        let is_unknown = |confirm: &Confirm| matches!(confirm, Confirm::Unknown { .. });
        assert!(!is_sent || confirms.iter().all(is_unknown), "{confirms:?}");
        rig.world.fault(Fault::None).await?;
    }
    Ok(())
}
