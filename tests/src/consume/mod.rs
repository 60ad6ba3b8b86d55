//! Consuming from a broker with effects done once: what is promised, seen in the application's own table.

mod at_broker;
mod foreign;

pub use at_broker::*;
pub use foreign::*;

use crate::script::{Act, Script};
use crate::world::{Terms, World, by_key, dead_letters, effects, event, quick, relay, stop};
use relevo_brokers::memory::{MemoryBroker, Message, QueueConfig};
use relevo_core::broker::{Confirm, Publisher};
use relevo_core::dead_letters::{Answer, DeadFilter, Why};
use relevo_core::event::{Event, EventId, NewEvent, TopicFilter};
use relevo_core::inbox::Consuming;
use relevo_core::retry::RetryPolicy;
use relevo_testkit::eventually;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The one list of these cases; hands it to the macro named first, after the tokens that belong to it.
#[macro_export]
macro_rules! consume_cases {
    ([$($then:tt)*] $($own:tt)*) => {
        $($then)*! { [$($own)*]
            every_message_takes_effect_once_and_in_the_order_of_its_key,
            a_copy_of_a_message_has_no_second_effect,
            a_failing_event_lands_and_its_key_waits_while_other_keys_go_on,
            what_failed_is_rolled_back_before_it_lands,
            a_ladder_counts_the_first_attempt_and_ends_in_a_dead_letter,
            a_replayed_dead_letter_is_handed_over_as_its_publisher_knew_it,
            what_failed_for_good_is_not_handed_over_again,
            a_skip_leaves_its_reason_and_no_effect,
            a_panic_in_a_shared_batch_harms_only_its_own_attempt,
            a_hang_in_a_shared_batch_harms_only_its_own_attempt,
            a_malformed_message_is_a_dead_letter_with_its_bytes,
            what_a_handler_publishes_is_delivered_in_turn,
            what_a_failed_handler_published_never_was,
            what_landed_is_for_its_consumer_alone,
            two_consumers_have_their_effects_each,
            a_slow_handler_takes_effect_once_too,
            a_restarted_broker_loses_nothing_and_doubles_nothing,
            a_stopped_consumer_leaves_the_rest_to_the_next,
            what_fails_goes_back_to_the_broker_and_nothing_of_it_lands,
            a_slow_handler_leaves_to_the_broker_what_fails_too,
            a_ladder_at_the_broker_ends_in_its_dead_letters,
            what_is_no_event_goes_to_the_brokers_dead_letters,
            a_skip_does_not_land_where_failures_are_the_brokers,
            a_broker_that_keeps_places_keeps_the_order_through_retries,
            a_foreign_message_takes_effect_once_through_its_mapping,
            the_same_id_of_another_source_is_another_event,
        }
    };
}

/// A module of the given name with a `#[test]` for each case, each in a fresh world.
#[macro_export]
macro_rules! consume_tests {
    ($name:ident, $world:expr) => {
        mod $name {
            use super::*;
            $crate::consume_cases! { [$crate::world_case_tests] consume $world }
        }
    };
}

type Ref = Arc<dyn World>;

/// A broker with a queue for each name, each getting everything.
fn broker(queues: &[&str]) -> MemoryBroker {
    let broker = MemoryBroker::new();
    for queue in queues {
        broker.declare(queue, vec![TopicFilter::all()], QueueConfig::default());
    }
    broker
}

/// Publishes as a relay does.
async fn send(broker: &MemoryBroker, events: Vec<NewEvent>) -> Vec<EventId> {
    let ids = events.iter().map(|event| event.id).collect();
    let events: Vec<Event> =
        events.into_iter().map(|event| Event::stored(event, chrono::Utc::now())).collect();
    let confirms = broker.publisher().publish(&events.iter().collect::<Vec<_>>()).await;
    assert!(confirms.iter().all(|confirm| *confirm == Confirm::Stored), "{confirms:?}");
    ids
}

async fn consume(world: &Ref, broker: &MemoryBroker, queue: &str, script: &Script) -> Consuming {
    let subscriber = Box::new(broker.subscriber(queue));
    let consuming = world.consume(queue, subscriber, quick().into(), script).await;
    consuming.unwrap_or_else(|| panic!("this world cannot consume"))
}

async fn end(consuming: Consuming) {
    let stopped = consuming.stop(Duration::from_secs(20)).await;
    stopped.unwrap_or_else(|error| panic!("it does not stop: {error}"));
}

/// Everything the broker had is settled.
async fn settled(broker: &MemoryBroker, queue: &str) {
    eventually("an empty queue", async || (broker.depth(queue) == 0).then_some(())).await;
}

/// Several keys, each in its order.
pub async fn every_message_takes_effect_once_and_in_the_order_of_its_key(world: &Ref) {
    let broker = broker(&["q"]);
    send(&broker, (0..100).map(|n| event(&format!("k{}", n % 7), n)).collect()).await;
    let consuming = consume(world, &broker, "q", &Script::done()).await;
    send(&broker, (100..200).map(|n| event(&format!("k{}", n % 7), n)).collect()).await;
    let rows = effects(&**world, 200).await;
    for (key, payloads) in by_key(&rows) {
        let order: Vec<usize> = payloads.iter().filter_map(|text| text.parse().ok()).collect();
        assert!(order.is_sorted(), "{key}: {order:?}");
    }
    settled(&broker, "q").await;
    end(consuming).await;
}

/// The inbox absorbs what comes twice.
pub async fn a_copy_of_a_message_has_no_second_effect(world: &Ref) {
    let broker = broker(&["q"]);
    let events: Vec<_> = (0..20).map(|n| event("k", n)).collect();
    send(&broker, events.clone()).await;
    let consuming = consume(world, &broker, "q", &Script::done()).await;
    effects(&**world, 20).await;
    send(&broker, events).await;
    send(&broker, vec![event("other", "last")]).await;
    let rows = effects(&**world, 21).await;
    assert_eq!(rows[20].payload, "last");
    settled(&broker, "q").await;
    end(consuming).await;
}

/// An attempt's transaction holds the inbox's row of its message. No server's patience with idle sessions is needed to
/// get at it again.
///
/// # Panics
/// If the failed message is not settled.
pub async fn what_failed_is_rolled_back_before_it_lands(world: &Ref) {
    let script = Script::new(|_, _| Act::Fail("not today"));
    let broker = broker(&["q"]);
    let terms = Terms { idle_limit: Duration::from_secs(3600), ..quick().into() };
    let consuming = world.consume("q", Box::new(broker.subscriber("q")), terms, &script).await;
    let consuming = consuming.unwrap_or_else(|| panic!("this world cannot consume"));
    send(&broker, vec![event("k", 0)]).await;
    settled(&broker, "q").await;
    end(consuming).await;
}

/// The broker is told that all is well: what failed is safe in the consumer's own log.
pub async fn a_failing_event_lands_and_its_key_waits_while_other_keys_go_on(world: &Ref) {
    let (script, mended) = Script::bad_until_mended();
    let mut config = quick();
    let step = Duration::from_millis(20);
    config.retry = RetryPolicy::linear(step, step).max_attempts(100_000);
    let broker = broker(&["q"]);
    let subscriber = Box::new(broker.subscriber("q"));
    let consuming = world.consume("q", subscriber, config.into(), &script).await;
    let consuming = consuming.unwrap_or_else(|| panic!("this world cannot consume"));
    let ids = send(&broker, vec![event("bad", 0), event("good", 0), event("bad", 1)]).await;
    effects(&**world, 1).await;
    settled(&broker, "q").await;
    send(&broker, vec![event("bad", 2), event("good", 1)]).await;
    let rows = effects(&**world, 2).await;
    assert!(!by_key(&rows).contains_key("bad"), "the failing event left no effect");
    settled(&broker, "q").await;
    mended.store(true, Ordering::SeqCst);
    let rows = effects(&**world, 5).await;
    assert_eq!(by_key(&rows)["bad"], ["0", "1", "2"]);
    assert_eq!(
        rows.iter().find(|row| row.payload == "1" && row.key == "bad").map(|row| row.event),
        Some(ids[2])
    );
    assert_eq!(script.attempts(ids[2]), 1, "what waits is not attempted");
    freed(world, &broker, &script).await;
    end(consuming).await;
}

/// Once nothing of the key waits any more, its messages take effect as they come.
async fn freed(world: &Ref, broker: &MemoryBroker, script: &Script) {
    let before = world.effects().await.len();
    for n in 3..30 {
        let ids = send(broker, vec![event("bad", n)]).await;
        let rows = effects(&**world, before + n - 2).await;
        assert_eq!(rows.last().map(|row| row.event), Some(ids[0]));
        if log_is_quiet(world).await {
            return assert_eq!(script.attempts(ids[0]), 1);
        }
    }
    panic!("the key waits for ever");
}

/// The newest message of the log landed before the newest effect.
async fn log_is_quiet(world: &Ref) -> bool {
    let landed = world.operate().peek(0, 1000).await.unwrap_or_else(|error| panic!("{error}"));
    let rows = world.effects().await;
    landed.last().map(|(_, event)| event.payload.clone())
        != rows.last().map(|row| row.payload.clone().into())
}

/// Three attempts in all: the one when it came, and two from the log.
pub async fn a_ladder_counts_the_first_attempt_and_ends_in_a_dead_letter(world: &Ref) {
    let script = Script::new(|event, _| {
        if event.payload == "0" { Act::Fail("the printer is on fire") } else { Act::Done }
    });
    let broker = broker(&["q"]);
    let consuming = consume(world, &broker, "q", &script).await;
    let ids = send(&broker, vec![event("k", 0), event("k", 1)]).await;
    let rows = effects(&**world, 1).await;
    assert_eq!((rows[0].event, script.attempts(ids[0])), (ids[1], 3));
    let letter = &dead_letters(&**world, 1).await[0];
    assert_eq!((letter.attempts, letter.subscription.as_str()), (3, "q"));
    assert_eq!(
        (&letter.event.payload[..], letter.event.topic.as_str()),
        (&b"0"[..], "thing.happened")
    );
    assert!(letter.error.contains("the printer is on fire"), "{}", letter.error);
    end(consuming).await;
}

/// Same id, and the handler is really asked again.
pub async fn a_replayed_dead_letter_is_handed_over_as_its_publisher_knew_it(world: &Ref) {
    let mended = Arc::new(AtomicBool::new(false));
    let seen = mended.clone();
    let script = Script::new(move |_, _| {
        if seen.load(Ordering::SeqCst) { Act::Done } else { Act::ForGood("not today") }
    });
    let broker = broker(&["q"]);
    let consuming = consume(world, &broker, "q", &script).await;
    let ids = send(&broker, vec![event("k", 0)]).await;
    dead_letters(&**world, 1).await;
    assert_eq!(script.attempts(ids[0]), 1, "for good means for good");
    mended.store(true, Ordering::SeqCst);
    let replayed = world.operate().replay(&DeadFilter::default(), None).await;
    replayed.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(effects(&**world, 1).await[0].event, ids[0]);
    end(consuming).await;
}

/// And it holds nobody back.
pub async fn what_failed_for_good_is_not_handed_over_again(world: &Ref) {
    let script =
        Script::new(
            |event, _| {
                if event.payload == "0" { Act::ForGood("no good") } else { Act::Done }
            },
        );
    let broker = broker(&["q"]);
    let consuming = consume(world, &broker, "q", &script).await;
    let ids = send(&broker, vec![event("k", 0), event("k", 1), event("k", 2)]).await;
    let rows = effects(&**world, 2).await;
    assert_eq!(by_key(&rows)["k"], ["1", "2"]);
    assert_eq!(script.attempts(ids[0]), 1);
    assert!(dead_letters(&**world, 1).await[0].error.contains("no good"));
    end(consuming).await;
}

/// Nothing is silent.
pub async fn a_skip_leaves_its_reason_and_no_effect(world: &Ref) {
    let script =
        Script::new(
            |event, _| {
                if event.payload == "0" { Act::Skip("not for us") } else { Act::Done }
            },
        );
    let broker = broker(&["q"]);
    let consuming = consume(world, &broker, "q", &script).await;
    let ids = send(&broker, vec![event("k", 0), event("k", 1)]).await;
    effects(&**world, 1).await;
    assert_eq!(script.attempts(ids[0]), 1);
    let landed = world.operate().peek(0, 10).await.unwrap_or_else(|error| panic!("{error}"));
    let id = landed.first().unwrap_or_else(|| panic!("the skip left no trace")).1.id;
    eventually("the reason", async || match world.operate().why(id).await.ok()? {
        Answer::Known { subscriptions, .. } => subscriptions
            .iter()
            .any(|(name, why)| {
                name == "q"
                    && matches!(why, Why::Skipped { reason } if reason.contains("not for us"))
            })
            .then_some(()),
        _ => None,
    })
    .await;
    end(consuming).await;
}

/// The others of its batch take effect.
pub async fn a_panic_in_a_shared_batch_harms_only_its_own_attempt(world: &Ref) {
    let script =
        Script::new(
            |event, attempt| {
                if event.payload == "3" && attempt < 3 { Act::Panic } else { Act::Done }
            },
        );
    one_bad_attempt(world, script).await;
}

/// The others of its batch take effect.
pub async fn a_hang_in_a_shared_batch_harms_only_its_own_attempt(world: &Ref) {
    let script =
        Script::new(
            |event, attempt| {
                if event.payload == "3" && attempt == 1 { Act::Hang } else { Act::Done }
            },
        );
    one_bad_attempt(world, script.limit(Duration::from_millis(500))).await;
}

async fn one_bad_attempt(world: &Ref, script: Script) {
    let broker = broker(&["q"]);
    send(&broker, (0..10).map(|n| event(&format!("k{n}"), n)).collect()).await;
    let consuming = consume(world, &broker, "q", &script).await;
    effects(&**world, 10).await;
    settled(&broker, "q").await;
    end(consuming).await;
}

/// No id, no event: nobody can work on it, and nothing of it is lost.
pub async fn a_malformed_message_is_a_dead_letter_with_its_bytes(world: &Ref) {
    let broker = broker(&["q"]);
    let consuming = consume(world, &broker, "q", &Script::done()).await;
    let mut odd = Message::new("thing.happened", &b"\xff\x00\x01"[..]);
    // Known by nothing: not even by its place.
    odd.headers = vec![
        ("ce_specversion".into(), "1.0".into()),
        ("ce_id".into(), "1".into()),
        ("traceparent".into(), "nonsense".into()),
    ];
    assert_eq!(broker.put(odd), Confirm::Stored);
    send(&broker, vec![event("k", 1)]).await;
    effects(&**world, 1).await;
    let letter = &dead_letters(&**world, 1).await[0];
    assert_eq!((&letter.event.payload[..], letter.attempts), (&b"\xff\x00\x01"[..], 1));
    assert!(letter.error.contains("traceparent"), "{}", letter.error);
    settled(&broker, "q").await;
    end(consuming).await;
}

/// Through the outbox, in the same transaction.
pub async fn what_a_handler_publishes_is_delivered_in_turn(world: &Ref) {
    let publishes = |event: &Event, _| match event.topic.as_str() {
        "thing.happened" => {
            Act::Publish(NewEvent::bytes("thing.followed", "f").key("f").caused_by(event))
        }
        _ => Act::Done,
    };
    let broker = broker(&["q"]);
    let consuming = consume(world, &broker, "q", &Script::new(publishes)).await;
    let running = relay(&**world, "follow", &Script::done()).await;
    send(&broker, vec![event("k", 0)]).await;
    let rows = effects(&**world, 2).await;
    assert_eq!(rows.iter().filter(|row| row.payload == "f").count(), 1);
    stop(running).await;
    end(consuming).await;
}

/// A failed attempt leaves nothing but its landing.
pub async fn what_a_failed_handler_published_never_was(world: &Ref) {
    let fails_once = |event: &Event, attempt| match (event.topic.as_str(), attempt) {
        ("thing.happened", 1) => {
            Act::PublishAndFail(NewEvent::bytes("thing.followed", "ghost").key("f"))
        }
        _ => Act::Done,
    };
    let broker = broker(&["q"]);
    let consuming = consume(world, &broker, "q", &Script::new(fails_once)).await;
    let running = relay(&**world, "follow", &Script::done()).await;
    send(&broker, vec![event("k", 0)]).await;
    world.publish(vec![event("end", "end")]).await;
    let rows = effects(&**world, 2).await;
    assert!(rows.iter().all(|row| row.payload != "ghost"), "{rows:?}");
    stop(running).await;
    end(consuming).await;
}

/// A subscription to everything does not get what landed.
pub async fn what_landed_is_for_its_consumer_alone(world: &Ref) {
    let script = Script::new(|_, attempt| if attempt == 1 { Act::Fail("once") } else { Act::Done });
    let everything = Script::done();
    let running = relay(&**world, "everything", &everything).await;
    let broker = broker(&["q"]);
    let consuming = consume(world, &broker, "q", &script).await;
    let ids = send(&broker, vec![event("k", 0)]).await;
    effects(&**world, 1).await;
    let own = world.publish(vec![event("k", "own")]).await;
    effects(&**world, 2).await;
    assert_eq!((everything.attempts(ids[0]), everything.attempts(own[0])), (0, 1));
    let landed = world.operate().peek(0, 10).await.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(everything.attempts(landed[0].1.id), 0);
    stop(running).await;
    end(consuming).await;
}

/// Two queues, two consumers, one database: the inbox tells them apart.
pub async fn two_consumers_have_their_effects_each(world: &Ref) {
    let broker = broker(&["mail", "metrics"]);
    let fails =
        || Script::new(|_, attempt| if attempt == 1 { Act::Fail("once") } else { Act::Done });
    let (mail, metrics) = (fails(), fails());
    let first = consume(world, &broker, "mail", &mail).await;
    let second = consume(world, &broker, "metrics", &metrics).await;
    let ids = send(&broker, vec![event("k", 0), event("k", 1)]).await;
    let rows = effects(&**world, 4).await;
    assert_eq!(rows.iter().filter(|row| row.event == ids[0]).count(), 2);
    assert_eq!((mail.attempts(ids[0]), metrics.attempts(ids[0])), (2, 2));
    end(first).await;
    end(second).await;
}

/// A transaction of its own, begun at its first use; a copy still has no second effect.
pub async fn a_slow_handler_takes_effect_once_too(world: &Ref) {
    let script = Script::new(|event, attempt| match (&event.payload[..], attempt) {
        (b"1", 1) => Act::Fail("once"),
        _ => Act::Done,
    });
    let broker = broker(&["q"]);
    let events: Vec<_> = (0..6).map(|n| event(&format!("k{}", n % 2), n)).collect();
    send(&broker, events.clone()).await;
    send(&broker, events).await;
    let consuming = consume(world, &broker, "q", &script.slow()).await;
    let rows = effects(&**world, 6).await;
    assert_eq!(by_key(&rows)["k1"], ["1", "3", "5"]);
    settled(&broker, "q").await;
    end(consuming).await;
}

/// What was unsettled comes again, and is known.
pub async fn a_restarted_broker_loses_nothing_and_doubles_nothing(world: &Ref) {
    let broker = broker(&["q"]);
    let consuming = consume(world, &broker, "q", &Script::done()).await;
    for part in 0..6 {
        let events = (0..25).map(|n| event(&format!("k{}", n % 5), part * 25 + n)).collect();
        send(&broker, events).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
        broker.restart();
    }
    let rows = effects(&**world, 150).await;
    for (key, payloads) in by_key(&rows) {
        let order: Vec<usize> = payloads.iter().filter_map(|text| text.parse().ok()).collect();
        assert!(order.is_sorted(), "{key}: {order:?}");
    }
    settled(&broker, "q").await;
    end(consuming).await;
}

/// Stopped in the middle, another goes on.
pub async fn a_stopped_consumer_leaves_the_rest_to_the_next(world: &Ref) {
    let broker = broker(&["q"]);
    send(&broker, (0..300).map(|n| event(&format!("k{}", n % 5), n)).collect()).await;
    let consuming = consume(world, &broker, "q", &Script::done()).await;
    eventually("a beginning", async || (!world.effects().await.is_empty()).then_some(())).await;
    end(consuming).await;
    let next = consume(world, &broker, "q", &Script::done()).await;
    let rows = effects(&**world, 300).await;
    assert_eq!(by_key(&rows).len(), 5);
    settled(&broker, "q").await;
    end(next).await;
}
