//! What fails for good, and what operators do with it.

use super::{Ref, why};
use crate::script::{Act, Script};
use crate::world::{by_key, dead_letters, effects, event, quick, relay, relay_with, stop};
use relevo_core::dead_letters::{DeadFilter, Why};
use relevo_core::event::Headers;
use relevo_core::outbox::Subscription;
use relevo_core::relay::AfterDead;
use relevo_core::{ErrorClass, Kind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Three attempts, then a dead letter; the key goes on.
pub async fn a_ladder_ends_in_a_dead_letter_with_its_reason(world: &Ref) {
    let script = Script::new(|event, _| {
        if event.payload == "0" { Act::Fail("the printer is on fire") } else { Act::Done }
    });
    let running = relay(&**world, "s", &script).await;
    let ids = world.publish(vec![event("k", 0), event("k", 1)]).await;
    let rows = effects(&**world, 1).await;
    assert_eq!((rows[0].event, script.attempts(ids[0])), (ids[1], 3));
    let letters = dead_letters(&**world, 1).await;
    let letter = &letters[0];
    assert_eq!(
        (letter.event.id, letter.attempts, letter.class),
        (ids[0], 3, ErrorClass::Transient)
    );
    assert!(letter.error.contains("the printer is on fire"), "{}", letter.error);
    assert_eq!((letter.event.payload.as_ref(), letter.subscription.as_str()), (&b"0"[..], "s"));
    stop(running).await;
}

/// A panic is a failure like any other.
pub async fn an_event_that_always_panics_ends_as_a_dead_letter(world: &Ref) {
    let script = Script::new(|event, _| if event.payload == "0" { Act::Panic } else { Act::Done });
    let running = relay(&**world, "s", &script).await;
    world.publish((0..5).map(|n| event("k", n)).collect()).await;
    let rows = effects(&**world, 4).await;
    assert_eq!(by_key(&rows)["k"], ["1", "2", "3", "4"]);
    let letters = dead_letters(&**world, 1).await;
    assert!(letters[0].error.starts_with(Kind::HandlerPanicked.code()), "{}", letters[0].error);
    assert!(letters[0].error.contains("as the script says"), "{}", letters[0].error);
    stop(running).await;
}

/// `after_dead = hold`.
pub async fn after_a_dead_letter_a_held_key_waits_for_an_operator(world: &Ref) {
    let script =
        Script::new(
            |event, _| if event.payload == "0" { Act::ForGood("no good") } else { Act::Done },
        );
    let hold = Subscription::new("s").after_dead(AfterDead::Hold);
    let running = relay_with(&**world, hold, quick(), &script, "relay").await;
    let ids = world.publish(vec![event("k", 0), event("k", 1)]).await;
    dead_letters(&**world, 1).await;
    world.publish(vec![event("other", 0), event("k", 2), event("else", 1)]).await;
    let rows = effects(&**world, 1).await;
    assert_eq!(rows[0].key, "else", "other keys go on");
    let held_by = why(world, ids[1], "s").await;
    assert!(matches!(&held_by, Why::Held { event, .. } if *event == ids[0]), "{held_by:?}");
    let mut held = DeadFilter::default();
    held.key = Some("k".into());
    world.operate().archive(&held).await.unwrap_or_else(|error| panic!("{error}"));
    let rows = effects(&**world, 3).await;
    assert_eq!(by_key(&rows)["k"], ["1", "2"]);
    stop(running).await;
}

/// A replay is a new attempt with the same id.
pub async fn a_replayed_dead_letter_takes_effect_with_the_same_id(world: &Ref) {
    let mended = Arc::new(AtomicBool::new(false));
    let seen = mended.clone();
    let script = Script::new(move |event, _| {
        if event.key.as_deref() == Some("k") && !seen.load(Ordering::SeqCst) {
            Act::ForGood("broken")
        } else {
            Act::Done
        }
    });
    let running = relay(&**world, "s", &script).await;
    let ids = world.publish((0..3).map(|n| event("k", n)).collect()).await;
    dead_letters(&**world, 3).await;
    mended.store(true, Ordering::SeqCst);
    let asked = world.operate().replay(&DeadFilter::default(), None).await;
    let asked = asked.unwrap_or_else(|error| panic!("{error}"));
    let rows = effects(&**world, 3).await;
    assert_eq!(
        rows.iter().map(|row| row.event).collect::<Vec<_>>(),
        ids,
        "in order among themselves"
    );
    let progress =
        world.operate().replay_progress(asked.operation).await.unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((progress.total, progress.replayed), (3, 3));
    stop(running).await;
}

/// An edited copy has an id of its own.
pub async fn an_edited_copy_takes_effect_instead_of_its_original(world: &Ref) {
    let script = Script::new(|event, _| {
        if event.payload == "bad" { Act::ForGood("cannot be read") } else { Act::Done }
    });
    let running = relay(&**world, "s", &script).await;
    let ids = world.publish(vec![event("k", "bad")]).await;
    let letter = dead_letters(&**world, 1).await[0].id;
    let copy = world.operate().replay_edited(letter, "good".into(), Headers::default()).await;
    let copy = copy.unwrap_or_else(|error| panic!("{error}"));
    let rows = effects(&**world, 1).await;
    assert_eq!(
        (rows[0].event, rows[0].payload.as_str(), rows[0].key.as_str()),
        (copy, "good", "k")
    );
    assert_ne!(copy, ids[0]);
    stop(running).await;
}
