//! Retries left to the broker: nothing lands.

use super::{Ref, end, send, settled};
use crate::script::{Act, Script};
use crate::world::{Terms, by_key, effects, event, quick};
use async_trait::async_trait;
use relevo_brokers::memory::{MemoryBroker, MemorySubscriber, Message, QueueConfig};
use relevo_core::Result;
use relevo_core::broker::cloudevents::Binding;
use relevo_core::broker::{
    Capabilities, Confirm, Incoming, Received, Receiver, Subscriber, dead_header,
};
use relevo_core::dead_letters::DeadFilter;
use relevo_core::event::TopicFilter;
use relevo_core::inbox::Consuming;
use relevo_core::retry::RetryPolicy;
use relevo_testkit::eventually;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const STEP: Duration = Duration::from_millis(20);

/// A queue with one for its dead letters.
fn broker() -> MemoryBroker {
    let broker = MemoryBroker::new();
    broker.declare("dead", Vec::new(), QueueConfig::default());
    broker.declare("q", vec![TopicFilter::all()], QueueConfig::default().dead_letters("dead"));
    broker
}

async fn consume(
    world: &Ref,
    subscriber: impl Subscriber,
    policy: RetryPolicy,
    script: &Script,
) -> Consuming {
    let terms = Terms { at_broker: Some(policy), ..quick().into() };
    let consuming = world.consume("q", Box::new(subscriber), terms, script).await;
    consuming.unwrap_or_else(|| panic!("this world cannot consume"))
}

fn for_ever() -> RetryPolicy {
    RetryPolicy::linear(STEP, STEP).max_attempts(1_000_000)
}

/// Fails for the payload 0 until it is mended.
fn until_mended() -> (Arc<AtomicBool>, Script) {
    let mended = Arc::new(AtomicBool::new(false));
    let seen = mended.clone();
    let script = Script::new(move |event, _| match event.payload == "0" {
        true if !seen.load(Ordering::SeqCst) => Act::Fail("not yet"),
        _ => Act::Done,
    });
    (mended, script)
}

/// Neither the log nor the dead letters know of anything.
async fn assert_nothing_landed(world: &Ref) {
    let landed = world.operate().peek(0, 10).await.unwrap_or_else(|error| panic!("{error}"));
    assert!(landed.is_empty(), "{landed:?}");
    let letters = world.operate().dead_letters(&DeadFilter::default(), None, 10).await;
    let letters = letters.unwrap_or_else(|error| panic!("{error}"));
    assert!(letters.is_empty(), "{letters:?}");
}

/// What is in the queue for dead letters.
async fn put_away(broker: &MemoryBroker) -> Incoming {
    let receiver = broker.subscriber("dead").open().await;
    let mut receiver = receiver.unwrap_or_else(|error| panic!("{error}"));
    let received = tokio::time::timeout(relevo_testkit::PATIENCE, receiver.next(1)).await;
    match received.unwrap_or_else(|_| panic!("nothing was put away")) {
        Ok(Received::Messages { mut messages, .. }) => messages.remove(0),
        other => panic!("{other:?}"),
    }
}

/// The others of its batch, and of its key, take effect meanwhile.
pub async fn what_fails_goes_back_to_the_broker_and_nothing_of_it_lands(world: &Ref) {
    let (mended, script) = until_mended();
    overtaken(world, &mended, script).await;
}

/// Its own transaction, begun at its first use, leaves nothing either.
pub async fn a_slow_handler_leaves_to_the_broker_what_fails_too(world: &Ref) {
    let (mended, script) = until_mended();
    overtaken(world, &mended, script.slow()).await;
}

async fn overtaken(world: &Ref, mended: &AtomicBool, script: Script) {
    let broker = broker();
    let events: Vec<_> = (0..6).map(|n| event(&format!("k{}", n % 2), n)).collect();
    send(&broker, events.clone()).await;
    let consuming = consume(world, broker.subscriber("q"), for_ever(), &script).await;
    effects(&**world, 5).await;
    eventually("it alone waits at the broker", async || (broker.depth("q") == 1).then_some(()))
        .await;
    mended.store(true, Ordering::SeqCst);
    let rows = effects(&**world, 6).await;
    assert_eq!(by_key(&rows)["k0"], ["2", "4", "0"], "the broker does not keep its place");
    settled(&broker, "q").await;
    send(&broker, events).await;
    send(&broker, vec![event("other", "last")]).await;
    assert_eq!(effects(&**world, 7).await[6].payload, "last", "copies have no second effect");
    assert_nothing_landed(world).await;
    end(consuming).await;
}

/// Deliveries are attempts: one, and one after each step.
pub async fn a_ladder_at_the_broker_ends_in_its_dead_letters(world: &Ref) {
    let script = Script::new(|event, _| match &event.payload[..] {
        b"0" => Act::Fail("the printer is on fire"),
        _ => Act::Done,
    });
    let broker = broker();
    let ladder = RetryPolicy::ladder([STEP, STEP]);
    let consuming = consume(world, broker.subscriber("q"), ladder, &script).await;
    let ids = send(&broker, vec![event("k", 0)]).await;
    let letter = put_away(&broker).await;
    assert_eq!((script.attempts(ids[0]), &letter.payload[..]), (3, &b"0"[..]));
    let reason = letter.header(dead_header::REASON).unwrap_or_default();
    assert!(reason.contains("attempt 3") && reason.contains("on fire"), "{reason}");
    send(&broker, vec![event("k", 1)]).await;
    effects(&**world, 1).await;
    settled(&broker, "q").await;
    assert_nothing_landed(world).await;
    end(consuming).await;
}

/// Alone and among others.
pub async fn what_is_no_event_goes_to_the_brokers_dead_letters(world: &Ref) {
    let broker = broker();
    let odd = Message::new("thing.happened", &b"\xff\x00"[..])
        .header("ce_specversion", "1.0")
        .header("ce_id", "1")
        .header("traceparent", "nonsense");
    assert_eq!(broker.put(odd.clone()), Confirm::Stored);
    send(&broker, vec![event("k", 0)]).await;
    let consuming = consume(world, broker.subscriber("q"), for_ever(), &Script::done()).await;
    effects(&**world, 1).await;
    assert_eq!(broker.put(odd), Confirm::Stored);
    eventually("both are put away", async || (broker.depth("dead") == 2).then_some(())).await;
    let letter = put_away(&broker).await;
    assert_eq!(&letter.payload[..], b"\xff\x00");
    assert!(letter.header(dead_header::REASON).is_some_and(|why| why.contains("traceparent")));
    settled(&broker, "q").await;
    assert_nothing_landed(world).await;
    end(consuming).await;
}

/// A skip is done with, and holds nobody of its key up.
pub async fn a_skip_does_not_land_where_failures_are_the_brokers(world: &Ref) {
    let script = Script::new(|event, _| match &event.payload[..] {
        b"0" => Act::Skip("not for us"),
        b"1" => Act::ForGood("never"),
        _ => Act::Done,
    });
    let broker = broker();
    let consuming = consume(world, broker.subscriber("q"), for_ever(), &script).await;
    let ids = send(&broker, (0..3).map(|n| event("k", n)).collect()).await;
    assert_eq!(effects(&**world, 1).await[0].event, ids[2]);
    assert_eq!(&put_away(&broker).await.payload[..], b"1");
    settled(&broker, "q").await;
    assert_nothing_landed(world).await;
    end(consuming).await;
}

/// As Kafka's partitions do.
struct KeepsPlaces(MemorySubscriber);

#[async_trait]
impl Subscriber for KeepsPlaces {
    fn name(&self) -> &'static str {
        "orderly"
    }

    fn capabilities(&self) -> Capabilities {
        let mut can = self.0.capabilities();
        can.order_on_retry = true;
        can
    }

    fn binding(&self) -> Binding {
        self.0.binding()
    }

    async fn open(&self) -> Result<Box<dyn Receiver>> {
        self.0.open().await
    }
}

/// Its whole source waits: the price of that order.
pub async fn a_broker_that_keeps_places_keeps_the_order_through_retries(world: &Ref) {
    let (mended, script) = until_mended();
    let broker = broker();
    let ids = send(&broker, (0..150).map(|n| event(&format!("k{}", n % 2), n)).collect()).await;
    let subscriber = KeepsPlaces(broker.subscriber("q"));
    let consuming = consume(world, subscriber, for_ever(), &script).await;
    eventually("some attempts", async || (script.attempts(ids[0]) > 4).then_some(())).await;
    assert_eq!(world.effects().await, [], "nothing overtakes it");
    mended.store(true, Ordering::SeqCst);
    let rows = effects(&**world, 150).await;
    let order: Vec<usize> = rows.iter().filter_map(|row| row.payload.parse().ok()).collect();
    assert_eq!(order, (0..150).collect::<Vec<_>>());
    settled(&broker, "q").await;
    assert_nothing_landed(world).await;
    end(consuming).await;
}
