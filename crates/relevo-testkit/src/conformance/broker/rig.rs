use super::world::{BrokerWorld, Consuming};
use crate::eventually::{PATIENCE, eventually};
use relevo_core::broker::{
    Arrived, Confirm, Foreign, Incoming, Publisher, Received, Receiver, Settle, Source, Tag,
};
use relevo_core::event::{Event, EventId, NewEvent};
use relevo_core::{Error, Kind, Result};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// Nothing that comes within this time is taken as nothing that comes.
pub(super) const QUIET: Duration = Duration::from_millis(400);

/// A world, and the hands that cases are written with.
pub struct Rig {
    /// The world.
    pub world: Box<dyn BrokerWorld>,
}

impl Rig {
    pub(super) fn new(world: Box<dyn BrokerWorld>) -> Self {
        Self { world }
    }

    /// An event to the destination, of a key of its own.
    pub(super) fn event(&self, n: usize) -> Event {
        self.keyed(&format!("key-{n}"), n)
    }

    pub(super) fn events(&self, numbers: std::ops::Range<usize>) -> Vec<Event> {
        numbers.map(|n| self.event(n)).collect()
    }

    pub(super) fn keyed(&self, key: &str, n: usize) -> Event {
        self.keyed_to(&self.world.topic(), key, n)
    }

    /// The same to another topic of the destination.
    pub(super) fn keyed_to(&self, topic: &str, key: &str, n: usize) -> Event {
        let event = NewEvent::bytes(topic, format!("payload {n}").into_bytes());
        Event::stored(event.key(key), chrono::Utc::now())
    }

    /// An event of so many bytes, of a key of its own.
    pub(super) fn sized(&self, n: usize, bytes: usize) -> Event {
        let event = NewEvent::bytes(self.world.topic(), vec![b'x'; bytes]);
        Event::stored(event.key(format!("key-{n}")), chrono::Utc::now())
    }

    /// An event that leads nowhere.
    pub(super) fn astray(&self, n: usize) -> Event {
        let event = NewEvent::bytes(self.world.unroutable(), format!("astray {n}").into_bytes());
        Event::stored(event.key(format!("astray-{n}")), chrono::Utc::now())
    }

    pub(super) async fn receiver(&self, max_unsettled: usize) -> Result<Box<dyn Receiver>> {
        self.world.subscriber(Consuming::at_most(max_unsettled))?.open().await
    }

    /// Publishes what must be stored.
    pub(super) async fn store(&self, publisher: &Arc<dyn Publisher>, events: &[Event]) {
        let confirms = publish(publisher, events).await;
        assert!(confirms.iter().all(|confirm| *confirm == Confirm::Stored), "{confirms:?}");
    }

    /// Publishes until everything is stored, as the relay does.
    pub(super) async fn store_in_the_end(&self, publisher: &Arc<dyn Publisher>, events: &[Event]) {
        let began = std::time::Instant::now();
        let mut left: Vec<Event> = events.to_vec();
        while !left.is_empty() {
            let confirms = publish(publisher, &left).await;
            assert!(began.elapsed() < PATIENCE * 2, "not stored: {confirms:?}");
            let mut answers = confirms.into_iter();
            left.retain(|_| answers.next() != Some(Confirm::Stored));
            if !left.is_empty() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }

    /// Waits until the broker has so many: what was sent is there, whoever has heard of it.
    pub(super) async fn until_stored(&self, count: usize) {
        eventually(&format!("{count} stored messages"), async || {
            self.world.stored().await.is_ok_and(|stored| stored >= count).then_some(())
        })
        .await;
    }

    /// Waits until the broker knows that everything is settled. Nobody consumes meanwhile.
    pub(super) async fn until_settled(&self) {
        eventually("everything is settled", async || {
            self.world.unsettled().await.is_ok_and(|unsettled| unsettled == 0).then_some(())
        })
        .await;
    }

    /// The event that a message carries.
    pub(super) fn read(&self, message: &Incoming) -> Arrived {
        match message.event(&self.world.binding(), &Foreign::default()) {
            Ok(arrived) => arrived,
            Err(malformed) => panic!("{malformed}: {message:?}"),
        }
    }
}

pub(super) async fn publish(publisher: &Arc<dyn Publisher>, events: &[Event]) -> Vec<Confirm> {
    let events: Vec<&Event> = events.iter().collect();
    let confirms = publisher.publish(&events).await;
    assert_eq!(confirms.len(), events.len(), "one answer for each message");
    confirms
}

/// Publishes while the case goes on.
pub(super) fn publishing(
    publisher: &Arc<dyn Publisher>,
    events: &[Event],
) -> JoinHandle<Vec<Confirm>> {
    let (publisher, events) = (publisher.clone(), events.to_vec());
    tokio::spawn(async move { publish(&publisher, &events).await })
}

/// What a task found out; its failure is the case's.
pub(super) async fn joined<T>(task: JoinHandle<T>) -> T {
    match task.await {
        Ok(found) => found,
        Err(error) => panic!("{error}"),
    }
}

/// The next messages, within patience.
pub(super) async fn next(
    receiver: &mut Box<dyn Receiver>,
    max: usize,
) -> Result<(Source, Vec<Incoming>)> {
    let late = |_| Error::new(Kind::Timeout, "no message came");
    match tokio::time::timeout(PATIENCE, receiver.next(max)).await.map_err(late)?? {
        Received::Messages { source, messages } => {
            assert!(!messages.is_empty() && messages.len() <= max, "{} of {max}", messages.len());
            Ok((source, messages))
        }
        other => Err(Error::new(Kind::StoreFailed, format!("not a message: {other:?}"))),
    }
}

/// So many messages, none of them settled.
pub(super) async fn take(receiver: &mut Box<dyn Receiver>, count: usize) -> Result<Vec<Incoming>> {
    let mut taken = Vec::new();
    while taken.len() < count {
        taken.extend(next(receiver, count - taken.len()).await?.1);
    }
    Ok(taken)
}

/// Takes and settles until every event has come; what came, copies and all, in its order.
pub(super) async fn drain(
    rig: &Rig,
    receiver: &mut Box<dyn Receiver>,
    expected: &[EventId],
) -> Result<Vec<EventId>> {
    let mut missing: BTreeSet<EventId> = expected.iter().copied().collect();
    let mut came = Vec::new();
    while !missing.is_empty() {
        let (_, messages) = next(receiver, 50).await?;
        for message in &messages {
            let id = rig.read(message).event.id;
            missing.remove(&id);
            came.push(id);
        }
        settle_all(receiver, &messages).await?;
    }
    Ok(came)
}

pub(super) async fn settle_all(
    receiver: &mut Box<dyn Receiver>,
    messages: &[Incoming],
) -> Result<()> {
    let done: Vec<(Tag, Settle)> =
        messages.iter().map(|message| (message.tag, Settle::Done)).collect();
    receiver.settle(&done).await
}

/// What comes until nothing does for a while, none of it settled.
pub(super) async fn hold(receiver: &mut Box<dyn Receiver>) -> Result<Vec<Incoming>> {
    let mut held = next(receiver, 50).await?.1;
    while let Ok(received) = tokio::time::timeout(QUIET, receiver.next(50)).await {
        if let Received::Messages { messages, .. } = received? {
            held.extend(messages);
        }
    }
    Ok(held)
}

/// Nothing comes for a while.
pub(super) async fn assert_quiet(receiver: &mut Box<dyn Receiver>) {
    if let Ok(came) = tokio::time::timeout(QUIET, receiver.next(10)).await {
        panic!("nothing should have come: {came:?}");
    }
}

pub(super) fn ids(events: &[Event]) -> Vec<EventId> {
    events.iter().map(|event| event.id).collect()
}
