//! Every event takes effect, once, in order, at each subscription that wants it; and so does what handlers publish.

use super::{Ref, keys_of_a_lane, why};
use crate::script::{Act, Script};
use crate::world::{by_key, effects, event, quick, relay, relay_with, stop};
use relevo_core::dead_letters::Why;
use relevo_core::event::{NewEvent, TopicFilter};
use relevo_core::outbox::Subscription;

/// Writers at work while the relay works.
pub async fn every_event_takes_effect_once_and_in_the_order_of_its_key(world: &Ref) {
    let running = relay(&**world, "s", &Script::done()).await;
    let write = |writer: usize| {
        let world = world.clone();
        tokio::spawn(async move {
            for n in 0..30 {
                let key = |k: usize| format!("w{writer}-{}", (n + k) % 5);
                world.publish(vec![event(&key(0), 2 * n), event(&key(2), 2 * n + 1)]).await;
            }
        })
    };
    for writer in (0..4).map(write).collect::<Vec<_>>() {
        writer.await.unwrap_or_else(|error| panic!("a writer failed: {error}"));
    }
    let rows = effects(&**world, 4 * 30 * 2).await;
    for (key, payloads) in by_key(&rows) {
        let order: Vec<usize> =
            payloads.iter().filter_map(|payload| payload.parse().ok()).collect();
        assert!(order.is_sorted(), "{key}: {order:?}");
        assert_eq!(order.len(), 12, "{key}");
    }
    stop(running).await;
}

/// A backlog is worked off.
pub async fn what_was_published_before_the_relay_started_takes_effect_too(world: &Ref) {
    world.publish((0..150).map(|n| event(&format!("key-{}", n % 10), n)).collect()).await;
    let running = relay(&**world, "s", &Script::done()).await;
    let rows = effects(&**world, 150).await;
    assert!(by_key(&rows).values().all(|payloads| payloads.len() == 15));
    stop(running).await;
}

/// Filtered events are passed over and counted.
pub async fn a_subscription_gets_only_the_topics_it_wants(world: &Ref) {
    let topics = TopicFilter::parse("ticket.*").unwrap_or_else(|error| panic!("{error}"));
    let subscription = Subscription::new("s").topics([topics]);
    let running = relay_with(&**world, subscription, quick(), &Script::done(), "relay").await;
    let event = |topic: &str| NewEvent::bytes(topic, topic.to_owned()).key("k");
    let ids = world
        .publish(vec![event("user.created"), event("ticket.created"), event("ticket.a.b")])
        .await;
    world.publish(vec![event("ticket.closed")]).await;
    let rows = effects(&**world, 2).await;
    assert_eq!(by_key(&rows)["k"], ["ticket.created", "ticket.closed"]);
    assert!(matches!(why(world, ids[0], "s").await, Why::FilteredOut { .. }));
    assert_eq!(running.counts().filtered, 2);
    stop(running).await;
}

/// Each subscription has its own effects.
pub async fn two_subscriptions_have_their_effects_each(world: &Ref) {
    let one = relay(&**world, "one", &Script::done()).await;
    let two = relay(&**world, "two", &Script::done()).await;
    world.publish((0..20).map(|n| event("k", n)).collect()).await;
    let rows = effects(&**world, 40).await;
    let mut numbers: Vec<usize> = rows.iter().filter_map(|row| row.payload.parse().ok()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..20).flat_map(|n| [n, n]).collect::<Vec<_>>());
    stop(one).await;
    stop(two).await;
}

/// A chain of events through handlers.
pub async fn what_a_handler_publishes_is_delivered_in_turn(world: &Ref) {
    let script = Script::new(|event, _| match event.json::<u32>() {
        Ok(0) | Err(_) => Act::Done,
        Ok(n) => Act::Publish(
            NewEvent::bytes("thing.happened", (n - 1).to_string()).key("chain").caused_by(event),
        ),
    });
    let running = relay(&**world, "s", &script).await;
    world.publish(vec![event("chain", 5)]).await;
    let rows = effects(&**world, 6).await;
    assert_eq!(by_key(&rows)["chain"], ["5", "4", "3", "2", "1", "0"]);
    stop(running).await;
}

/// What a failed attempt published went with it.
pub async fn what_a_failed_handler_published_never_was(world: &Ref) {
    let next = || NewEvent::bytes("thing.happened", "next").key("next");
    let script = Script::new(move |event, attempt| match (&event.payload[..], attempt) {
        (b"first", 1) => Act::PublishAndFail(next()),
        (b"first", _) => Act::Publish(next()),
        _ => Act::Done,
    });
    let running = relay(&**world, "s", &script).await;
    // Alone, and as one of several in a shared transaction.
    world.publish(vec![event("k", "first")]).await;
    effects(&**world, 2).await;
    let keys = keys_of_a_lane(3);
    world.publish(keys.iter().map(|key| event(key, "first")).collect()).await;
    let rows = effects(&**world, 8).await;
    assert_eq!(by_key(&rows)["next"].len(), 4);
    stop(running).await;
}
