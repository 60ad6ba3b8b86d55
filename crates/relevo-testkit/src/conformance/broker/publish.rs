//! What a confirm means, and what is refused.

use super::Rig;
use super::rig::{QUIET, drain, ids, joined, publish, publishing, settle_all, take};
use super::world::Fault;
use crate::{PATIENCE, eventually};
use relevo_core::broker::Confirm;
use relevo_core::event::{Event, NewEvent};
use relevo_core::{Error, ErrorClass, Kind, Result};
use std::collections::BTreeSet;
use std::time::Duration;

fn class_of(confirm: &Confirm) -> Option<ErrorClass> {
    match confirm {
        Confirm::Refused { class, .. } => Some(*class),
        _ => None,
    }
}

/// As many as were confirmed are there.
pub async fn what_is_confirmed_is_stored(rig: &Rig) -> Result<()> {
    let publisher = rig.world.publisher()?;
    for round in 0..4 {
        rig.store(&publisher, &rig.events(round * 25..round * 25 + 25)).await;
        assert_eq!(rig.world.stored().await?, (round + 1) * 25);
    }
    Ok(())
}

/// Nothing in, nothing out.
pub async fn an_empty_batch_has_no_answers(rig: &Rig) -> Result<()> {
    assert_eq!(publish(&rig.world.publisher()?, &[]).await, []);
    Ok(())
}

/// Several lanes publish by one publisher at once.
pub async fn batches_at_once_are_all_stored(rig: &Rig) -> Result<()> {
    let publisher = rig.world.publisher()?;
    let lane = |batch: usize| publishing(&publisher, &rig.events(batch * 50..batch * 50 + 50));
    let tasks: Vec<_> = (0..20).map(lane).collect();
    for task in tasks {
        assert_eq!(joined(task).await, vec![Confirm::Stored; 50]);
    }
    assert_eq!(rig.world.stored().await?, 1000);
    Ok(())
}

/// Refused, so that it becomes a dead letter instead of nothing.
pub async fn a_message_that_leads_nowhere_is_refused_for_good(rig: &Rig) -> Result<()> {
    let publisher = rig.world.publisher()?;
    let confirms = publish(&publisher, &[rig.astray(1)]).await;
    assert_eq!(class_of(&confirms[0]), Some(ErrorClass::Permanent), "{confirms:?}");
    rig.store(&publisher, &rig.events(0..1)).await;
    assert_eq!(rig.world.stored().await?, 1);
    Ok(())
}

/// Stored and refused ones in one batch, and in batches at once: nobody gets another's answer.
pub async fn each_message_gets_its_own_answer(rig: &Rig) -> Result<()> {
    let publisher = rig.world.publisher()?;
    let leads_nowhere = |n: usize| n % 7 == 3 || (20..25).contains(&(n % 40));
    let mut tasks = Vec::new();
    let mut stored = Vec::new();
    for batch in 0..8 {
        let numbers = batch * 100..batch * 100 + 100;
        let events: Vec<Event> = numbers
            .clone()
            .map(|n| if leads_nowhere(n) { rig.astray(n) } else { rig.event(n) })
            .collect();
        stored.extend(
            numbers.zip(ids(&events)).filter(|(n, _)| !leads_nowhere(*n)).map(|(_, id)| id),
        );
        tasks.push(publishing(&publisher, &events));
    }
    for (batch, task) in tasks.into_iter().enumerate() {
        for (at, confirm) in joined(task).await.iter().enumerate() {
            let expected = leads_nowhere(batch * 100 + at).then_some(ErrorClass::Permanent);
            assert_eq!(class_of(confirm), expected, "message {at} of batch {batch}: {confirm:?}");
            assert!(expected.is_some() || *confirm == Confirm::Stored, "{confirm:?}");
        }
    }
    assert_eq!(rig.world.stored().await?, stored.len());
    Ok(())
}

/// Nothing is confirmed that nobody stores; the same publisher goes on when the destination is back.
pub async fn a_deleted_destination_confirms_nothing_until_it_is_back(rig: &Rig) -> Result<()> {
    let publisher = rig.world.publisher()?;
    rig.store(&publisher, &rig.events(0..3)).await;
    rig.world.delete().await?;
    let confirms = publish(&publisher, &rig.events(3..6)).await;
    assert!(confirms.iter().all(|confirm| *confirm != Confirm::Stored), "{confirms:?}");
    rig.world.recreate().await?;
    let again = rig.events(6..9);
    rig.store_in_the_end(&publisher, &again).await;
    assert!(rig.world.stored().await? >= again.len());
    if rig.world.capabilities().consumes {
        drain(rig, &mut rig.receiver(10).await?, &ids(&again)).await?;
    }
    Ok(())
}

/// Trying again later makes sense.
pub async fn a_full_destination_refuses_until_there_is_room(rig: &Rig) -> Result<()> {
    rig.world.bound(5).await?;
    let publisher = rig.world.publisher()?;
    // Some brokers let a few more in before they notice.
    let mut stored = BTreeSet::new();
    let mut refused = None;
    for n in 0..50 {
        let event = rig.event(n);
        match &publish(&publisher, std::slice::from_ref(&event)).await[0] {
            Confirm::Stored => drop(stored.insert(event.id)),
            confirm => {
                refused = Some((event, confirm.clone()));
                break;
            }
        }
    }
    let Some((event, confirm)) = refused else { panic!("50 messages in a place for 5") };
    assert_eq!(class_of(&confirm), Some(ErrorClass::Transient), "{confirm:?}");
    assert!(stored.len() >= 5, "{} in a place for 5", stored.len());
    assert_eq!(rig.world.stored().await?, stored.len(), "what is refused is not there");
    let mut receiver = rig.receiver(10).await?;
    let messages = take(&mut receiver, stored.len().min(10)).await?;
    settle_all(&mut receiver, &messages).await?;
    rig.store_in_the_end(&publisher, &[event]).await;
    Ok(())
}

/// Poison, and its neighbours are stored.
pub async fn an_oversize_payload_is_poison_without_harm_to_its_neighbours(rig: &Rig) -> Result<()> {
    let publisher = rig.world.publisher()?;
    let huge = NewEvent::bytes(rig.world.topic(), vec![b'x'; rig.world.oversize()]).key("huge");
    let mut events = rig.events(0..9);
    events.insert(4, Event::stored(huge, chrono::Utc::now()));
    let confirms = publish(&publisher, &events).await;
    assert_eq!(class_of(&confirms[4]), Some(ErrorClass::Poison), "{confirms:?}");
    let others: Vec<&Confirm> = confirms.iter().filter(|c| class_of(c).is_none()).collect();
    assert_eq!(others, vec![&Confirm::Stored; 9]);
    assert_eq!(rig.world.stored().await?, 9);
    Ok(())
}

/// As after a crash: both copies are confirmed, whatever the broker makes of the second.
pub async fn the_same_id_may_be_published_twice(rig: &Rig) -> Result<()> {
    let publisher = rig.world.publisher()?;
    let event = rig.event(1);
    for _ in 0..2 {
        rig.store(&publisher, std::slice::from_ref(&event)).await;
    }
    let copies = rig.world.stored().await?;
    let expected = if rig.world.capabilities().drops_duplicates { 1 } else { 2 };
    assert_eq!(copies, expected);
    Ok(())
}

/// Ten copies, one message.
pub async fn a_second_copy_of_an_id_is_dropped(rig: &Rig) -> Result<()> {
    let events = rig.events(0..20);
    for _ in 0..10 {
        // Another process, as after a crash.
        rig.store(&rig.world.publisher()?, &events).await;
    }
    assert_eq!(rig.world.stored().await?, 20);
    Ok(())
}

/// Counted at the broker, which answers nobody: what it has is all that was sent without a confirm. As many go out as
/// the window has room for, and no more.
async fn fills(rig: &Rig, window: (usize, usize), events: &[Event], room: usize) -> Result<()> {
    let publisher = rig.world.publisher_within(window.0, window.1)?;
    rig.store(&publisher, &[rig.event(0)]).await;
    rig.world.fault(Fault::WithholdsAnswers).await?;
    let lanes: Vec<_> = events.chunks(20).map(|lane| publishing(&publisher, lane)).collect();
    rig.until_stored(1 + room).await;
    for _ in 0..3 {
        tokio::time::sleep(QUIET).await;
        assert_eq!(rig.world.stored().await? - 1, room, "unconfirmed in a window for {room}");
    }
    rig.world.fault(Fault::None).await?;
    for lane in lanes {
        // Everybody gets an answer when the connection is gone.
        joined(lane).await;
    }
    rig.store_in_the_end(&publisher, events).await;
    Ok(())
}

/// Over all lanes together, and not fewer either.
pub async fn no_more_messages_than_the_window_are_unconfirmed(rig: &Rig) -> Result<()> {
    fills(rig, (7, 16 << 20), &rig.events(1..81), 7).await
}

/// Three of these fit, a fourth does not.
pub async fn no_more_bytes_than_the_window_are_unconfirmed(rig: &Rig) -> Result<()> {
    let events: Vec<_> = (1..81).map(|n| rig.sized(n, 3000)).collect();
    fills(rig, (1000, 10_240), &events, 3).await
}

/// It waits for room no longer than for a confirm. A relay that waits as long as the adapter says hears of each message
/// whether it was sent.
pub async fn what_gets_no_turn_in_time_is_down_and_never_sent(rig: &Rig) -> Result<()> {
    let publisher = rig.world.publisher_waiting(5, Duration::from_secs(3))?;
    rig.store_in_the_end(&publisher, &[rig.event(0)]).await;
    let before = rig.world.stored().await?;
    rig.world.fault(Fault::WithholdsAnswers).await?;
    let events = rig.events(1..21);
    let publishing = publish(&publisher, &events);
    let late = |_| Error::new(Kind::Timeout, "it takes longer than it says");
    let limit = publisher.publish_limit().unwrap_or(PATIENCE);
    let confirms = tokio::time::timeout(limit, publishing).await.map_err(late)?;
    let (sent, unsent) = confirms.split_at(5);
    assert!(sent.iter().all(|c| matches!(c, Confirm::Unknown { .. })), "{confirms:?}");
    assert!(unsent.iter().all(|c| matches!(c, Confirm::Down { .. })), "{confirms:?}");
    assert_eq!(rig.world.stored().await? - before, sent.len());
    rig.world.fault(Fault::None).await?;
    rig.store_in_the_end(&publisher, &events).await;
    Ok(())
}

/// Down, at once.
pub async fn publishing_after_the_close_is_down(rig: &Rig) -> Result<()> {
    let publisher = rig.world.publisher()?;
    let before = rig.events(0..3);
    rig.store(&publisher, &before).await;
    publisher.close().await;
    let confirms = publish(&publisher, &rig.events(3..5)).await;
    assert!(confirms.iter().all(|c| matches!(c, Confirm::Down { .. })), "{confirms:?}");
    assert_eq!(rig.world.stored().await?, before.len());
    if rig.world.capabilities().consumes {
        let mut receiver = rig.receiver(10).await?;
        drain(rig, &mut receiver, &ids(&before)).await?;
    }
    Ok(())
}

/// A graceful stop: what was sent gets its confirm, however late that comes; what was not sent is down.
pub async fn closing_hands_over_what_is_on_its_way(rig: &Rig) -> Result<()> {
    let publisher = rig.world.publisher_within(50, 16 << 20)?;
    rig.store(&publisher, &rig.events(0..1)).await;
    rig.world.fault(Fault::HoldsAnswers).await?;
    let sent = publishing(&publisher, &rig.events(1..51));
    rig.until_stored(51).await;
    // The window is full, so these wait for room.
    let waiting = publishing(&publisher, &rig.events(51..71));
    let closed = publisher.clone();
    let mut closing = tokio::spawn(async move { closed.close().await });
    let over = tokio::time::timeout(QUIET, &mut closing).await;
    assert!(over.is_err() && !sent.is_finished(), "closed with 50 messages on their way");
    rig.world.fault(Fault::None).await?;
    joined(closing).await;
    assert_eq!(joined(sent).await, vec![Confirm::Stored; 50]);
    assert_eq!(rig.world.stored().await?, 51 + handed_over(&joined(waiting).await));
    Ok(())
}

/// How many were stored; the others were never sent.
fn handed_over(confirms: &[Confirm]) -> usize {
    let is_held_back = |confirm: &Confirm| matches!(confirm, Confirm::Down { .. });
    let (stored, others): (Vec<_>, Vec<_>) =
        confirms.iter().partition(|confirm| **confirm == Confirm::Stored);
    assert!(others.iter().all(|confirm| is_held_back(confirm)), "sent without a word: {others:?}");
    stored.len()
}

/// Whenever it comes: each message is stored or down.
pub async fn closing_in_the_middle_leaves_nothing_unknown(rig: &Rig) -> Result<()> {
    let publisher = rig.world.publisher()?;
    rig.store(&publisher, &rig.events(0..1)).await;
    let lane = |batch: usize| publishing(&publisher, &rig.events(batch * 50..batch * 50 + 50));
    let tasks: Vec<_> = (1..=20).map(lane).collect();
    publisher.close().await;
    let mut stored = 1;
    for task in tasks {
        stored += handed_over(&joined(task).await);
    }
    assert_eq!(rig.world.stored().await?, stored);
    Ok(())
}

/// Also by several at once.
pub async fn closing_twice_is_closing_once(rig: &Rig) -> Result<()> {
    let publisher = rig.world.publisher()?;
    rig.store(&publisher, &rig.events(0..1)).await;
    tokio::join!(publisher.close(), publisher.close());
    publisher.close().await;
    eventually("another publisher works", async || {
        let other = rig.world.publisher().ok()?;
        (publish(&other, &rig.events(1..2)).await[0] == Confirm::Stored).then_some(())
    })
    .await;
    Ok(())
}
