//! How much is unsettled at once, in messages and in bytes.

use super::id_of;
use crate::conformance::broker::rig::{assert_quiet, drain, hold, ids, settle_all, take};
use crate::conformance::broker::run::say_skipped;
use crate::conformance::broker::{Consuming, Rig};
use crate::eventually::PATIENCE;
use relevo_core::Result;
use relevo_core::broker::{Incoming, Receiver};
use relevo_core::event::{Event, EventId};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

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

/// A consumer may hold so much, in bytes and, by its messages' size, in messages.
const WINDOW: u64 = 1 << 20;
const SIZE: usize = 16 << 10;
/// Eight times the window waits.
const WAITING: usize = 8 * WINDOW as usize / SIZE;
/// What is not messages: logins, heartbeats, a group's protocol.
const TALK: u64 = 128 << 10;

/// So long the broker says next to nothing before it counts as having said everything.
const REST: Duration = Duration::from_millis(700);

/// An event of bytes that nothing shrinks.
fn noise(rig: &Rig, n: usize) -> Event {
    let mut event = rig.event(n);
    let mut state = n as u64 + 1;
    let next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    event.payload = std::iter::repeat_with(next).take(SIZE).collect::<Vec<u8>>().into();
    event
}

/// What the broker has sent when it sends no more.
async fn sent_at_rest(rig: &Rig) -> u64 {
    let began = Instant::now();
    loop {
        let before = rig.world.sent_bytes().unwrap_or_default();
        tokio::time::sleep(REST).await;
        let after = rig.world.sent_bytes().unwrap_or_default();
        if after - before < SIZE as u64 {
            return after;
        }
        assert!(began.elapsed() < PATIENCE, "the broker sends and sends: {after} bytes");
    }
}

/// Counted on the wire: what it neither settles nor asks for stays at the broker, however much that is.
pub async fn a_consumer_that_stands_still_is_sent_no_more_than_its_window(rig: &Rig) -> Result<()> {
    let publisher = rig.world.publisher()?;
    let events: Vec<Event> = (0..WAITING).map(|n| noise(rig, n)).collect();
    for few in events.chunks(16) {
        rig.store(&publisher, few).await;
    }
    let Some(before) = rig.world.sent_bytes() else {
        let case = "a_consumer_that_stands_still_is_sent_no_more_than_its_window";
        say_skipped(rig.world.name(), "consume", case, "wire to count on");
        return Ok(());
    };
    let window = WINDOW as usize;
    let consuming = Consuming::at_most(window / SIZE).bytes(window);
    let mut receiver = rig.world.subscriber(consuming)?.open().await?;
    let ahead = if rig.world.reads_ahead() { WINDOW } else { 0 };
    let one = take(&mut receiver, 1).await?;
    bounded(rig, before, ahead + WINDOW).await;
    let mut held = hold(&mut receiver).await?;
    held.extend(one);
    assert!(bytes_of(&held) <= window, "{} bytes held", bytes_of(&held));
    let sent = bounded(rig, before, ahead + WINDOW).await;
    assert!(sent >= bytes_of(&held) as u64, "only {sent} bytes were counted");
    settle_all(&mut receiver, &held).await?;
    let had: BTreeSet<EventId> = held.iter().map(|message| id_of(rig, message)).collect();
    let left: Vec<EventId> = ids(&events).into_iter().filter(|id| !had.contains(id)).collect();
    drain(rig, &mut receiver, &left).await?;
    receiver.close().await
}

/// The broker has sent about so much since then, and sends no more.
async fn bounded(rig: &Rig, before: u64, most: u64) -> u64 {
    let sent = sent_at_rest(rig).await - before;
    // Headers and frames; a batch that a fetch cut off comes again with the next.
    let most = most * 5 / 4 + TALK;
    println!("{}: {sent} bytes of {most} were sent", rig.world.name());
    assert!(sent <= most, "{sent} bytes were sent, {most} are allowed");
    sent
}
