//! Why is this event where it is? One case for each answer.

use super::Rig;
use super::dead_letters::only;
use super::hand::{MEMBER, death, park_key};
use super::rig::numbered;
use crate::eventually;
use relevo_core::Result;
use relevo_core::dead_letters::{Answer, Why};
use relevo_core::event::{EventId, TopicFilter};
use relevo_core::outbox::{LEFT_OUT, Retention, Start, Subscription};
use std::time::Duration;

/// An id that nobody published.
pub async fn an_event_that_was_never_published_is_unknown(rig: &Rig) -> Result<()> {
    rig.migrated().await?;
    let answer = rig.operate.why(EventId::fresh()).await?;
    assert!(
        matches!(&answer, Answer::Unknown { suspects, past_retention: false } if suspects.is_empty()),
        "{answer:?}"
    );
    Ok(())
}

/// A rolled back event is unknown, like one that never was.
pub async fn a_rolled_back_event_is_unknown(rig: &Rig) -> Result<()> {
    rig.migrated().await?;
    let mut writer = rig.begin().await?;
    let id = writer.publish(vec![numbered("k", 1)]).await?[0];
    writer.roll_back().await?;
    assert!(matches!(rig.operate.why(id).await?, Answer::Unknown { past_retention: false, .. }));
    Ok(())
}

/// An event inside an open transaction is unknown; the transaction is a suspect where the store can see others'.
pub async fn an_event_inside_an_open_transaction_is_unknown_yet(rig: &Rig) -> Result<()> {
    rig.migrated().await?;
    let mut writer = rig.begin().await?;
    let id = writer.publish(vec![numbered("k", 1)]).await?[0];
    let answer = rig.operate.why(id).await?;
    let Answer::Unknown { suspects, past_retention: false } = &answer else { panic!("{answer:?}") };
    if rig.store.capabilities().concurrent_writers && rig.store.capabilities().shared_by_processes {
        assert_eq!(suspects.len(), 1, "the session that holds it back is named: {answer:?}");
        assert!(
            suspects[0].pid > 0 && suspects[0].open_s >= 0.0 && !suspects[0].state.is_empty(),
            "{answer:?}"
        );
    }
    writer.commit().await?;
    assert!(matches!(rig.operate.why(id).await?, Answer::Known { .. }));
    Ok(())
}

/// What a known event carries.
pub async fn a_known_event_is_described(rig: &Rig) -> Result<()> {
    rig.migrated().await?.store.subscribe(&Subscription::new("s")).await?;
    rig.store.subscribe(&Subscription::new("t")).await?;
    let event = numbered("k", 1);
    let id = rig.commit_one(event.clone()).await?;
    let answer = rig.operate.why(id).await?;
    let Answer::Known { topic, key, lane, seq, subscriptions, .. } = &answer else {
        panic!("{answer:?}")
    };
    assert_eq!((topic, key, *lane), (&event.topic, &event.key, relevo_core::event::lane_of("k")));
    assert!(seq.is_some_and(|seq| seq > 0));
    let mut names: Vec<&str> = subscriptions.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["s", "t"]);
    Ok(())
}

/// Nobody has read it yet and nobody has its lane.
pub async fn an_event_in_a_lane_that_nobody_has_waits_for_a_worker(rig: &Rig) -> Result<()> {
    rig.migrated().await?.store.subscribe(&Subscription::new("s")).await?;
    let mut other = rig.reader("other").await?;
    let id = rig.commit_one(numbered("k", 1)).await?;
    // Another subscription reads: where the log has ticks, there is one that sees the event now.
    other.until(&[id], 10).await?;
    let why = rig.why(id, "s").await?;
    assert_eq!(why, Why::NobodyWorks { lane: relevo_core::event::lane_of("k") });
    Ok(())
}

/// Its lane has an owner, who will get to it.
pub async fn an_event_in_a_lane_that_is_leased_names_the_owner(rig: &Rig) -> Result<()> {
    let mut hand = rig.migrated().await?.hand("s", "k").await?;
    let id = rig.commit_one(numbered("k", 1)).await?;
    let fresh = rig.why(id, "s").await?;
    assert!(matches!(fresh, Why::WaitsForTick | Why::LaneLeased { .. }), "{fresh:?}");
    hand.read(1).await?;
    let why = rig.why(id, "s").await?;
    let Why::LaneLeased { lane, owner, silent_s } = &why else { panic!("{why:?}") };
    assert_eq!((*lane, owner.as_str()), (hand.lane.lane, MEMBER));
    assert!((0.0..60.0).contains(silent_s), "{silent_s}");
    Ok(())
}

/// Recorded past it: delivered, also in the middle of a window.
pub async fn an_event_the_cursor_is_past_was_delivered(rig: &Rig) -> Result<()> {
    let mut hand = rig.migrated().await?.hand("s", "k").await?;
    let published = rig.commit(vec![numbered("k", 1), numbered("k", 2)]).await?;
    let reads = hand.read(2).await?;
    let mut change = hand.change();
    change.after = reads[0].after;
    hand.record(change).await?;
    assert_eq!(rig.why(published[0], "s").await?, Why::Delivered);
    assert!(matches!(rig.why(published[1], "s").await?, Why::LaneLeased { .. }));
    hand.record(hand.change()).await?;
    assert_eq!(rig.why(published[1], "s").await?, Why::Delivered);
    Ok(())
}

/// An event that commits late is not taken for delivered because the cursor is past its number.
pub async fn a_late_event_below_the_cursor_was_not_delivered(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("s").await?;
    let mut late = rig.begin().await?;
    let id = late.publish(vec![numbered("k", 1)]).await?[0];
    let other = rig.commit_one(numbered("k2", 2)).await?;
    reader.until(&[other], 10).await?;
    reader.record().await?;
    late.commit().await?;
    let why = rig.why(id, "s").await?;
    assert!(matches!(why, Why::WaitsForTick | Why::LaneLeased { .. }), "{why:?}");
    reader.until(&[id], 10).await?;
    reader.record().await?;
    assert_eq!(rig.why(id, "s").await?, Why::Delivered);
    Ok(())
}

/// The first of a parked key, and those behind it.
pub async fn a_parked_event_says_until_when_and_why(rig: &Rig) -> Result<()> {
    let mut hand = rig.migrated().await?.hand("s", "k").await?;
    let published = rig.commit((0..3).map(|n| numbered("k", n)).collect()).await?;
    let reads = hand.read(3).await?;
    hand.park(&reads, Some(Duration::from_secs(3600))).await?;
    let first = rig.why(published[0], "s").await?;
    let Why::Parked { attempts: 1, due: Some(due), class, error } = &first else {
        panic!("{first:?}")
    };
    assert_eq!((class.as_str(), error.as_str()), ("transient", "failed 1 times"));
    assert!((*due - chrono::Utc::now()).num_minutes() >= 58, "{due}");
    let third = rig.why(published[2], "s").await?;
    let Why::ParkedBehind { event, before: 2, due: Some(_), error } = &third else {
        panic!("{third:?}")
    };
    assert_eq!((*event, error.as_str()), (published[0], "failed 1 times"));
    let mut change = hand.still();
    change.parked = vec![park_key("k", 0, None)];
    hand.record(change).await?;
    let held = rig.why(published[0], "s").await?;
    assert!(matches!(held, Why::Parked { due: None, .. }), "{held:?}");
    Ok(())
}

/// Behind a dead letter that holds its key, an event names it: until that one is replayed or archived it stays there.
pub async fn an_event_behind_a_held_dead_letter_names_it(rig: &Rig) -> Result<()> {
    let mut hand = rig.migrated().await?.hand("s", "k").await?;
    let published = rig.commit((0..3).map(|n| numbered("k", n)).collect()).await?;
    let reads = hand.read(3).await?;
    let mut change = hand.change();
    change.deaths = vec![death(&reads[0].at, "no good")];
    change.waiting = reads[1..].iter().map(|read| read.at.clone()).collect();
    change.parked = vec![park_key("k", 0, None)];
    hand.record(change).await?;
    let letter = rig.dead().await?[0].id;
    let held = |before| Why::Held {
        dead_letter: letter,
        event: published[0],
        before,
        class: "permanent".into(),
        error: "no good".into(),
    };
    assert_eq!(rig.why(published[1], "s").await?, held(0));
    assert_eq!(rig.why(published[2], "s").await?, held(1));
    rig.operate.archive(&only("s")).await?;
    hand.carry_out_requests().await?;
    let why = rig.why(published[1], "s").await?;
    assert!(matches!(why, Why::Parked { due: Some(_), .. }), "{why:?}");
    Ok(())
}

/// A dead letter names its number and what became of it.
pub async fn a_dead_event_names_its_letter(rig: &Rig) -> Result<()> {
    let mut hand = rig.migrated().await?.hand("s", "k").await?;
    let id = rig.commit_one(numbered("k", 1)).await?;
    let reads = hand.read(1).await?;
    let mut change = hand.change();
    change.deaths = vec![death(&reads[0].at, "no good")];
    hand.record(change).await?;
    let letter = rig.dead().await?[0].id;
    let state = async |state: &str| -> Result<()> {
        let wanted = Why::Dead {
            dead_letter: letter,
            dead_state: state.into(),
            class: "permanent".into(),
            error: "no good".into(),
        };
        assert_eq!(rig.why(id, "s").await?, wanted);
        Ok(())
    };
    state("dead").await?;
    let asked = rig.operate.replay(&only("s"), None).await?;
    state("requested").await?;
    rig.operate.cancel_replay(asked.operation).await?;
    rig.operate.archive(&only("s")).await?;
    state("archived").await
}

/// A replayed event is parked until it is worked, and delivered then.
pub async fn a_replayed_event_is_no_longer_dead(rig: &Rig) -> Result<()> {
    let mut hand = rig.migrated().await?.hand("s", "k").await?;
    let id = rig.commit_one(numbered("k", 1)).await?;
    let reads = hand.read(1).await?;
    hand.bury(&reads).await?;
    rig.operate.replay(&only("s"), None).await?;
    hand.carry_out_requests().await?;
    let why = rig.why(id, "s").await?;
    assert!(matches!(why, Why::Parked { .. }), "{why:?}");
    hand.drain("k").await?;
    assert_eq!(rig.why(id, "s").await?, Why::Delivered);
    Ok(())
}

/// A paused subscription says who paused it.
pub async fn an_event_of_a_paused_subscription_says_who_paused_it(rig: &Rig) -> Result<()> {
    let mut hand = rig.migrated().await?.hand("s", "k").await?;
    let published = rig.commit(vec![numbered("k", 1)]).await?;
    hand.read(1).await?;
    hand.record(hand.change()).await?;
    rig.operate.pause("s", "ana, for the migration").await?;
    assert_eq!(
        rig.why(published[0], "s").await?,
        Why::Delivered,
        "what is delivered stays delivered"
    );
    let id = rig.commit_one(numbered("k", 2)).await?;
    let why = rig.why(id, "s").await?;
    let Why::Paused { by, then: None } = &why else { panic!("{why:?}") };
    assert!(by.contains("ana, for the migration"), "{why:?}");
    Ok(())
}

/// While its subscription is paused no attempt is due, whatever a key is parked for: the pause comes first.
pub async fn a_parked_event_of_a_paused_subscription_says_the_pause_first(rig: &Rig) -> Result<()> {
    let mut hand = rig.migrated().await?.hand("s", "k").await?;
    let published = rig.commit(vec![numbered("k", 1), numbered("k", 2)]).await?;
    let reads = hand.read(2).await?;
    hand.park(&reads, Some(Duration::from_secs(3600))).await?;
    let parked = [rig.why(published[0], "s").await?, rig.why(published[1], "s").await?];
    assert!(matches!(&parked, [Why::Parked { .. }, Why::ParkedBehind { .. }]), "{parked:?}");
    rig.operate.pause("s", "ana, for the migration").await?;
    for (id, before) in published.iter().zip(parked.clone()) {
        let paused =
            Why::Paused { by: "ana, for the migration".into(), then: Some(Box::new(before)) };
        assert_eq!(rig.why(*id, "s").await?, paused);
    }
    rig.operate.resume("s").await?;
    assert_eq!(rig.why(published[0], "s").await?, parked[0]);
    Ok(())
}

/// The owner's breaker is open.
pub async fn an_event_whose_destination_is_down_shows_the_breaker(rig: &Rig) -> Result<()> {
    let mut hand = rig.migrated().await?.hand("s", "k").await?;
    let id = rig.commit_one(numbered("k", 1)).await?;
    hand.read(1).await?;
    rig.beat_with(
        "s",
        MEMBER,
        r#"{"breaker":{"reason":"connection refused","open_s":60},"stopped":{}}"#,
    )
    .await?;
    let why = rig.why(id, "s").await?;
    assert!(
        matches!(&why, Why::BreakerOpen { reason, open_s } if reason == "connection refused" && *open_s >= 60.0),
        "{why:?}"
    );
    rig.beat_with("s", MEMBER, r#"{"breaker":null,"stopped":{}}"#).await?;
    assert!(matches!(rig.why(id, "s").await?, Why::LaneLeased { .. }));
    Ok(())
}

/// The subscription does not want the topic.
pub async fn an_event_that_a_subscription_does_not_want_is_filtered_out(rig: &Rig) -> Result<()> {
    let topics = vec![TopicFilter::parse("ticket.*")?, TopicFilter::parse("user.#")?];
    rig.migrated().await?.store.subscribe(&Subscription::new("s").topics(topics)).await?;
    let id = rig.commit_one(numbered("k", 1)).await?;
    assert_eq!(
        rig.why(id, "s").await?,
        Why::FilteredOut { topics: vec!["ticket.*".into(), "user.#".into()] }
    );
    Ok(())
}

/// The subscription starts after it.
pub async fn an_event_from_before_a_subscriptions_start_says_so(rig: &Rig) -> Result<()> {
    rig.migrated().await?;
    let id = rig.commit_one(numbered("k", 1)).await?;
    rig.store.subscribe(&Subscription::new("s").start(Start::Now)).await?;
    assert_eq!(rig.why(id, "s").await?, Why::BeforeStart);
    Ok(())
}

/// An operator moved the subscription past it: nobody had it, and nobody will, unless it is moved back.
pub async fn an_event_left_out_by_a_rewind_says_so_until_it_is_brought_again(
    rig: &Rig,
) -> Result<()> {
    let mut hand = rig.migrated().await?.hand("s", "k").await?;
    let had = rig.commit_one(numbered("k", 1)).await?;
    hand.read(1).await?;
    hand.record(hand.change()).await?;
    let left_out = rig.commit_one(numbered("k", 2)).await?;
    rig.operate.rewind("s", Start::Now).await?;
    let skipped = Why::Skipped { reason: LEFT_OUT.to_owned() };
    assert_eq!(rig.why(left_out, "s").await?, skipped);
    assert_eq!(rig.why(had, "s").await?, Why::Delivered, "what was delivered stays delivered");
    rig.operate.rewind("s", Start::Beginning).await?;
    let again = rig.why(left_out, "s").await?;
    assert!(!matches!(again, Why::Skipped { .. } | Why::Delivered), "{again:?}");
    let mut hand = rig.hand("s", "k").await?;
    hand.read(2).await?;
    hand.record(hand.change()).await?;
    assert_eq!(rig.why(left_out, "s").await?, Why::Delivered);
    Ok(())
}

/// An id from before what retention dropped.
pub async fn an_event_that_retention_dropped_is_past_retention(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader("s").await?;
    let count = 2 * rig.under_test.rows_of_a_segment() + 3;
    let first = rig.commit_one(numbered("k", 0)).await?;
    for from in (0..count).step_by(500) {
        rig.commit((from..count.min(from + 500)).map(|n| numbered("k", n)).collect()).await?;
    }
    let mut retention = Retention::default();
    retention.events = Duration::ZERO;
    eventually("retention drops the first event", async || {
        reader.rest().await.ok()?;
        reader.record().await.ok()?;
        rig.store.upkeep(&retention).await.ok()?;
        let answer = rig.operate.why(first).await.ok()?;
        matches!(answer, Answer::Unknown { past_retention: true, .. }).then_some(())
    })
    .await;
    Ok(())
}
