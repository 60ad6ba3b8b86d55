use super::stopping::{Step, Stop, Stopping};
use super::{Both, end};
use crate::script::{Act, Script};
use crate::world::{Terms, by_key, dead_letters, effects, member, quick, stop};
use async_trait::async_trait;
use relevo_core::Result;
use relevo_core::broker::{Confirm, Publisher, ToBroker};
use relevo_core::event::{Event, NewEvent, header};
use relevo_core::outbox::Subscription;
use relevo_core::relay::run::{Running, start};
use relevo_core::retry::RetryPolicy;
use relevo_testkit::eventually;
use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// No event is ever given up.
fn patient() -> Terms {
    let mut config = quick();
    let step = Duration::from_millis(20);
    config.retry = RetryPolicy::linear(step, step).max_attempts(1_000_000);
    config.into()
}

fn text(event: &Event) -> String {
    String::from_utf8_lossy(&event.payload).into_owned()
}

/// The log of the database: what landed, and what handlers published.
async fn log(both: &Both<'_>) -> Result<(Vec<Event>, Vec<Event>)> {
    let all = both.world.operate().peek(0, 1000).await?.into_iter().map(|(_, event)| event);
    Ok(all.partition(|event| event.headers.get(header::INBOX) == Some("once")))
}

/// The payloads of what landed, in their order.
async fn landed(both: &Both<'_>) -> Result<Vec<String>> {
    Ok(log(both).await?.0.iter().map(text).collect())
}

/// How many keys wait, of each subscription.
async fn parked(both: &Both<'_>) -> Result<Vec<i64>> {
    let status = both.world.operate().status().await?.subscriptions;
    Ok(status.iter().map(|one| one.parked_keys).collect())
}

/// Stores each when the database has the one before it, as landed or as an effect: no broker's delays change the order.
async fn store_in_turn(both: &Both<'_>, events: &[Event]) {
    for event in events {
        both.store(from_ref(event)).await;
        eventually("it landed or took effect", async || {
            let id = Some(event.id.to_string());
            let is_it = |landed: &Event| landed.headers.get(header::INBOX_ID) == id.as_deref();
            let landed = log(both).await.ok()?.0.iter().any(is_it);
            let worked = both.world.effects().await.iter().any(|row| row.event == event.id);
            (landed || worked).then_some(())
        })
        .await;
    }
}

/// The broker has nothing to deliver; for certain where nobody consumes.
pub(super) async fn assert_all_settled(both: &Both<'_>) {
    eventually("the broker was told of everything", async || {
        (both.broker.unsettled().await.ok()? == 0).then_some(())
    })
    .await;
}

/// Also while nobody consumes. Other keys go on, and what comes later of its own lands behind it.
pub async fn a_key_that_fails_waits_in_the_database_and_nothing_waits_at_the_broker(
    both: &Both<'_>,
) -> Result<()> {
    let (script, mended) = Script::bad_until_mended();
    let consuming = both.consume_on(both.subscriber()?, patient(), &script).await;
    let bad: Vec<_> = (0..4).map(|n| both.event("bad", n)).collect();
    let good = |text| both.event("good", text);
    store_in_turn(both, &[bad[0].clone(), good("g0"), bad[1].clone()]).await;
    store_in_turn(both, &[good("g1"), bad[2].clone()]).await;
    assert_eq!(by_key(&effects(&*both.world, 2).await)["good"], ["g0", "g1"]);
    assert_eq!(landed(both).await?, ["0", "1", "2"]);
    // What landed is parked by whoever tries it next, a moment later.
    eventually("its key is parked", async || (parked(both).await.ok()? == [1]).then_some(())).await;
    end(consuming).await;
    assert_all_settled(both).await;
    assert_eq!(parked(both).await?, [1]);
    mended.store(true, Ordering::SeqCst);
    let came = Stop::nowhere();
    let watched = Stopping(both.subscriber()?, came.clone());
    let consuming = both.consume_on(watched, patient(), &script).await;
    effects(&*both.world, 5).await;
    store_in_turn(both, &bad[3..]).await;
    let rows = effects(&*both.world, 6).await;
    assert_eq!(by_key(&rows)["bad"], ["0", "1", "2", "3"]);
    assert!(bad[1..].iter().all(|event| script.attempts(event.id) == 1), "it only waits");
    end(consuming).await;
    assert_all_settled(both).await;
    assert!(came.came().keys().eq(["3"]), "the rest did not come again: {:?}", came.came());
    Ok(())
}

/// The letter is in the database, with bytes, headers and reason; those that wait are not asked before.
pub async fn one_that_fails_to_the_end_is_a_dead_letter_and_those_behind_it_go_on_in_order(
    both: &Both<'_>,
) -> Result<()> {
    const BYTES: &[u8] = b"\xff\x00\x01";
    let script = Script::new(|event, _| match event.payload == BYTES {
        true => Act::Fail("the printer is on fire"),
        false => Act::Done,
    });
    let mut config = quick();
    config.retry = RetryPolicy::ladder([Duration::from_secs(1), Duration::from_secs(1)]);
    let consuming = both.consume_on(both.subscriber()?, config.into(), &script).await;
    let bad = NewEvent::bytes(both.broker.topic(), BYTES).key("k").header("own", "1");
    let bad = Event::stored(bad, chrono::Utc::now());
    let behind: Vec<_> = (0..3).map(|n| both.event("k", n)).collect();
    store_in_turn(both, from_ref(&bad)).await;
    store_in_turn(both, &behind).await;
    assert_eq!(by_key(&effects(&*both.world, 3).await)["k"], ["0", "1", "2"]);
    let letter = dead_letters(&*both.world, 1).await.remove(0);
    assert_eq!((letter.subscription.as_str(), letter.attempts), ("once", 3));
    assert!(letter.error.contains("the printer is on fire"), "{}", letter.error);
    let event = &letter.event;
    assert_eq!((&event.payload[..], &event.topic, &event.key), (BYTES, &bad.topic, &bad.key));
    assert_eq!(event.headers.get("own"), Some("1"));
    let (last, first) = (script.times(bad.id).pop(), script.times(behind[0].id)[0]);
    assert!(last < Some(first), "it was handed over while the one before it was undecided");
    end(consuming).await;
    assert_all_settled(both).await;
    assert!(both.broker.dead().await?.is_empty(), "the broker need not keep it");
    Ok(())
}

/// The first commits the landing and dies before it can tell the broker.
pub async fn what_landed_before_a_crash_is_known_when_it_comes_again(
    both: &Both<'_>,
) -> Result<()> {
    let (script, mended) = Script::bad_until_mended();
    let bad: Vec<_> = (0..2).map(|n| both.event("bad", n)).collect();
    let stop = Stop::at(Step::Committed, 1);
    let stopping = Stopping(both.subscriber()?, stop.clone());
    let first = both.consume_on(stopping, patient(), &script).await;
    store_in_turn(both, &bad[..1]).await;
    stop.reached().await;
    drop(first);
    let again = Stop::nowhere();
    let watched = Stopping(both.subscriber()?, again.clone());
    let second = both.consume_on(watched, patient(), &script).await;
    let copy = || again.came().contains_key("0");
    eventually("the broker delivers it again", async || copy().then_some(())).await;
    store_in_turn(both, &[bad[1].clone(), both.event("good", "g0")]).await;
    mended.store(true, Ordering::SeqCst);
    assert_eq!(by_key(&effects(&*both.world, 3).await)["bad"], ["0", "1"]);
    end(second).await;
    assert_all_settled(both).await;
    let landed = landed(both).await?;
    assert_eq!(landed.iter().filter(|text| *text == "0").count(), 1, "{landed:?}");
    assert_eq!(both.world.effects().await.len(), 3, "an effect twice");
    Ok(())
}

/// Without the type of its adapter.
struct AnyPublisher(Arc<dyn Publisher>);

#[async_trait]
impl Publisher for AnyPublisher {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    async fn publish(&self, events: &[&Event]) -> Vec<Confirm> {
        self.0.publish(events).await
    }

    fn publish_limit(&self) -> Option<Duration> {
        self.0.publish_limit()
    }

    fn largest_wave(&self) -> usize {
        self.0.largest_wave()
    }

    fn window(&self) -> Option<usize> {
        self.0.window()
    }
}

/// What handlers publish goes to the same broker, and so to the same consumer.
async fn relay_to_broker(both: &Both<'_>) -> Result<Running> {
    let to = Arc::new(ToBroker::new(AnyPublisher(both.publisher.clone())));
    start(both.world.store(), Subscription::new("out"), quick(), to, member("out")).await
}

/// Once for an effect at the first attempt and for one at a later one; never for an attempt that failed.
pub async fn what_a_handler_publishes_is_published_if_its_effect_is_there_and_only_then(
    both: &Both<'_>,
) -> Result<()> {
    let topic = both.broker.topic();
    let script = Script::new(move |event, attempt| {
        let text = text(event);
        let follower = NewEvent::bytes(topic.as_str(), format!("after {text}")).key(text.as_str());
        match (text.as_str(), attempt) {
            ("never", _) | ("late", 1) => Act::PublishAndFail(follower),
            ("soon" | "late", _) => Act::Publish(follower),
            _ => Act::Done,
        }
    });
    let relaying = relay_to_broker(both).await?;
    let consuming = both.consume_on(both.subscriber()?, quick().into(), &script).await;
    let events = ["soon", "late", "never"].map(|text| both.event(text, text));
    both.store(&events).await;
    assert_eq!(text(&dead_letters(&*both.world, 1).await[0].event), "never");
    effects(&*both.world, 4).await;
    // What comes twice publishes once.
    both.store(&events).await;
    store_in_turn(both, &[both.event("last", "last")]).await;
    // They may be in other partitions than the last one.
    assert_all_settled(both).await;
    stop(relaying).await;
    end(consuming).await;
    assert_all_settled(both).await;
    let mut published: Vec<String> = log(both).await?.1.iter().map(text).collect();
    published.sort();
    assert_eq!(published, ["after late", "after soon"]);
    let mut worked: Vec<_> = effects(&*both.world, 5).await;
    worked.sort_by(|one, other| one.payload.cmp(&other.payload));
    let worked: Vec<_> = worked.iter().map(|row| row.payload.as_str()).collect();
    assert_eq!(worked, ["after late", "after soon", "last", "late", "soon"]);
    Ok(())
}
