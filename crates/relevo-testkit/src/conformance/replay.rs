//! Dead letters come back: in order, at a rate, once, or as an edited copy.

use super::dead_letters::only;
use super::hand::{death, park_key};
use super::rig::numbered;
use super::{Hand, Rig};
use crate::eventually;
use relevo_core::dead_letters::{DeadFilter, DeadLetter, DeadLetterId, DeadState};
use relevo_core::event::{EventId, Headers};
use relevo_core::outbox::Start;
use relevo_core::{Kind, Result};
use std::time::{Duration, Instant};

/// So many events of one key, all dead.
async fn all_dead<'r>(rig: &'r Rig, count: usize) -> Result<(Hand<'r>, Vec<EventId>)> {
    let mut hand = rig.migrated().await?.hand("s", "k").await?;
    let published = rig
        .commit((0..count).map(|n| numbered("k", n).header("n", n.to_string())).collect())
        .await?;
    let reads = hand.read(count).await?;
    hand.bury(&reads).await?;
    Ok((hand, published))
}

async fn in_state(rig: &Rig, state: DeadState) -> Result<Vec<DeadLetter>> {
    let mut filter = DeadFilter::default();
    filter.state = Some(state);
    rig.operate.dead_letters(&filter, None, 100).await
}

fn letters(ids: Vec<DeadLetterId>) -> DeadFilter {
    let mut filter = DeadFilter::default();
    filter.ids = ids;
    filter
}

/// A replay is a wish until the lane's owner carries it out.
pub async fn a_replay_is_carried_out_by_the_lanes_owner(rig: &Rig) -> Result<()> {
    let (mut hand, published) = all_dead(rig, 1).await?;
    let asked = rig.operate.replay(&only("s"), None).await?;
    assert_eq!((asked.total, asked.waiting, asked.replayed, asked.cancelled), (1, 1, 0, 0));
    assert_eq!(in_state(rig, DeadState::Requested).await?.len(), 1);
    assert!(hand.parked("k").await?.is_empty(), "nothing happens before the owner acts");
    assert_eq!(hand.carry_out_requests().await?, 1);
    assert_eq!(hand.carry_out_requests().await?, 0, "a request is due until it is carried out");
    let progress = rig.operate.replay_progress(asked.operation).await?;
    assert_eq!(
        (progress.total, progress.waiting, progress.replayed, progress.cancelled),
        (1, 0, 1, 0)
    );
    let parked = hand.load().await?.parked;
    assert_eq!(
        parked.iter().map(|key| (key.key.as_str(), key.attempts)).collect::<Vec<_>>(),
        [("k", 0)]
    );
    assert_eq!(
        parked[0].due_in.map(|wait| wait < Duration::from_millis(1)),
        Some(true),
        "due at once"
    );
    assert_eq!(hand.drain("k").await?, published, "the same id, a new attempt");
    assert_eq!(in_state(rig, DeadState::Replayed).await?.len(), 1);
    Ok(())
}

/// Replayed events are in order among themselves, whatever the order in which they were asked for.
pub async fn replayed_events_are_in_order_among_themselves(rig: &Rig) -> Result<()> {
    let (mut hand, published) = all_dead(rig, 4).await?;
    let ids: Vec<DeadLetterId> = rig.dead().await?.iter().map(|letter| letter.id).collect();
    for id in [ids[0], ids[2], ids[1], ids[3]] {
        rig.operate.replay(&letters(vec![id]), None).await?;
        hand.carry_out_requests().await?;
    }
    assert_eq!(hand.parked_ids("k").await?, published);
    Ok(())
}

/// A replayed event comes before anything of its key that still waits.
pub async fn a_replayed_event_comes_before_what_still_waits(rig: &Rig) -> Result<()> {
    let mut hand = rig.migrated().await?.hand("s", "k").await?;
    let published = rig.commit((0..3).map(|n| numbered("k", n)).collect()).await?;
    let reads = hand.read(3).await?;
    let mut change = hand.change();
    change.deaths = vec![death(&reads[0].at, "no good")];
    change.waiting = reads[1..].iter().map(|read| read.at.clone()).collect();
    change.parked = vec![park_key("k", 3, Some(Duration::from_secs(3600)))];
    hand.record(change).await?;
    let later = rig.commit(vec![numbered("k", 9)]).await?;
    let reads = hand.read(1).await?;
    let mut change = hand.change();
    change.waiting = reads.iter().map(|read| read.at.clone()).collect();
    hand.record(change).await?;
    rig.operate.replay(&only("s"), None).await?;
    hand.carry_out_requests().await?;
    let order: Vec<EventId> = published.into_iter().chain(later).collect();
    assert_eq!(hand.parked_ids("k").await?, order);
    assert_eq!(
        hand.load()
            .await?
            .parked
            .first()
            .and_then(|key| key.due_in)
            .map(|wait| wait < Duration::from_secs(1)),
        Some(true)
    );
    Ok(())
}

/// Replaying twice is refused, and carrying a request out twice changes nothing.
pub async fn replaying_twice_is_refused_or_harmless(rig: &Rig) -> Result<()> {
    let (mut hand, published) = all_dead(rig, 1).await?;
    let id = rig.dead().await?[0].id;
    rig.operate.replay(&letters(vec![id]), None).await?;
    let twice =
        async || rig.operate.replay(&letters(vec![id]), None).await.err().map(|error| error.kind());
    assert_eq!(twice().await, Some(Kind::ReplayRefused), "it is asked for already");
    assert_eq!(rig.operate.replay(&only("s"), None).await?.total, 0, "a filter finds it no more");
    let request = rig.beat("s", "x").await?.requests[0].id;
    for _ in 0..2 {
        let mut change = hand.still();
        change.replayed = vec![request];
        hand.record(change).await?;
        assert_eq!(hand.parked_ids("k").await?, published);
    }
    assert_eq!(twice().await, Some(Kind::ReplayRefused), "it is replayed already");
    assert_eq!(hand.drain("k").await?, published);
    assert!(rig.dead().await?.is_empty());
    let mut change = hand.still();
    change.replayed = vec![request];
    hand.record(change).await?;
    assert!(hand.parked("k").await?.is_empty(), "a request carried out before puts nothing back");
    Ok(())
}

/// A replayed event that fails again is a letter of its own.
pub async fn a_replayed_event_may_die_again(rig: &Rig) -> Result<()> {
    let (mut hand, published) = all_dead(rig, 1).await?;
    rig.operate.replay(&only("s"), None).await?;
    hand.carry_out_requests().await?;
    let parked = hand.parked("k").await?;
    let mut change = hand.still();
    change.deaths = vec![death(&parked[0].at, "still no good")];
    change.settled = vec![parked[0].at.clone()];
    change.unparked = vec!["k".into()];
    hand.record(change).await?;
    let dead = rig.dead().await?;
    assert_eq!(
        dead.iter().map(|letter| (letter.event.id, letter.error.as_str())).collect::<Vec<_>>(),
        [(published[0], "still no good")]
    );
    assert_eq!(in_state(rig, DeadState::Replayed).await?.len(), 1);
    rig.operate.replay(&letters(vec![dead[0].id]), None).await?;
    hand.carry_out_requests().await?;
    assert_eq!(hand.drain("k").await?, published);
    Ok(())
}

/// What dies after a replay was asked for is not part of it.
pub async fn the_set_of_a_replay_is_frozen_when_it_is_asked_for(rig: &Rig) -> Result<()> {
    let (mut hand, published) = all_dead(rig, 2).await?;
    let asked = rig.operate.replay(&only("s"), None).await?;
    rig.commit_one(numbered("k", 7)).await?;
    let reads = hand.read(1).await?;
    hand.bury(&reads).await?;
    while hand.carry_out_requests().await? > 0 {}
    assert_eq!(hand.parked_ids("k").await?, published);
    assert_eq!(rig.operate.replay_progress(asked.operation).await?.total, 2);
    assert_eq!(rig.dead().await?.len(), 1);
    Ok(())
}

/// A set too large to name one by one ends at its newest number.
pub async fn a_filter_that_ends_at_a_number_leaves_out_what_died_later(rig: &Rig) -> Result<()> {
    let (mut hand, published) = all_dead(rig, 2).await?;
    let mut seen = only("s");
    seen.up_to = rig.dead().await?.first().map(|letter| letter.id);
    rig.commit_one(numbered("k", 7)).await?;
    let reads = hand.read(1).await?;
    hand.bury(&reads).await?;
    assert_eq!(rig.operate.dead_letters(&seen, None, 100).await?.len(), 2);
    assert_eq!(rig.operate.replay(&seen, None).await?.total, 2);
    while hand.carry_out_requests().await? > 0 {}
    assert_eq!(hand.parked_ids("k").await?, published);
    assert_eq!(rig.dead().await?.len(), 1);
    Ok(())
}

/// A rate spreads a replay over time.
pub async fn a_replay_keeps_to_its_rate(rig: &Rig) -> Result<()> {
    let (mut hand, published) = all_dead(rig, 4).await?;
    let began = Instant::now();
    let asked = rig.operate.replay(&only("s"), Some(5.0)).await?;
    assert_eq!((asked.total, asked.waiting), (4, 4));
    let mut done = 0;
    while done < 4 {
        assert!(began.elapsed() < crate::PATIENCE, "the rest never became due");
        done += hand.carry_out_requests().await?;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // The last of four at five a second is due after three fifths of a second.
    assert!(
        began.elapsed() >= Duration::from_millis(550),
        "all were due after {:?}",
        began.elapsed()
    );
    assert_eq!(hand.parked_ids("k").await?, published);
    Ok(())
}

/// A cancel takes out what was not put back yet.
pub async fn a_cancelled_replay_leaves_the_rest_dead(rig: &Rig) -> Result<()> {
    let (mut hand, published) = all_dead(rig, 3).await?;
    let asked = rig.operate.replay(&only("s"), Some(0.001)).await?;
    assert_eq!(hand.carry_out_requests().await?, 1, "only the first is due");
    let cancelled = rig.operate.cancel_replay(asked.operation).await?;
    assert_eq!(
        (cancelled.total, cancelled.waiting, cancelled.replayed, cancelled.cancelled),
        (3, 0, 1, 2)
    );
    assert_eq!(rig.operate.replay_progress(asked.operation).await?, cancelled);
    assert_eq!(rig.dead().await?.len(), 2, "they are dead again, and can be replayed again");
    assert_eq!(rig.operate.replay(&only("s"), None).await?.total, 2);
    eventually("both are put back", async || {
        hand.carry_out_requests().await.ok().filter(|count| *count == 0)
    })
    .await;
    assert_eq!(hand.parked_ids("k").await?, published);
    Ok(())
}

/// A request of a cancelled replay that an owner still carries out puts nothing back.
pub async fn a_request_cancelled_meanwhile_puts_nothing_back(rig: &Rig) -> Result<()> {
    let (mut hand, _) = all_dead(rig, 1).await?;
    let asked = rig.operate.replay(&only("s"), None).await?;
    let request = rig.beat("s", "x").await?.requests[0].id;
    rig.operate.cancel_replay(asked.operation).await?;
    let mut change = hand.still();
    change.replayed = vec![request];
    hand.record(change).await?;
    assert!(hand.parked("k").await?.is_empty());
    assert_eq!(rig.dead().await?.len(), 1);
    Ok(())
}

/// An unknown operation is an error, not an empty answer.
pub async fn an_unknown_replay_is_refused(rig: &Rig) -> Result<()> {
    rig.migrated().await?;
    assert!(rig.operate.replay_progress(4711).await.is_err());
    assert!(rig.operate.cancel_replay(4711).await.is_err());
    Ok(())
}

/// An edited copy travels under an id of its own; the original is archived.
pub async fn an_edited_copy_has_its_own_id_and_bytes(rig: &Rig) -> Result<()> {
    let (mut hand, published) = all_dead(rig, 2).await?;
    let original = rig.dead().await?[1].clone();
    assert_eq!(original.event.id, published[0]);
    let headers: Headers = [("edited", "yes 'ñ'")].into_iter().collect();
    let payload = vec![0xff, 0x00, 0x27];
    let copy =
        rig.operate.replay_edited(original.id, payload.clone().into(), headers.clone()).await?;
    assert_ne!(copy, original.event.id);
    assert_eq!(
        in_state(rig, DeadState::Archived)
            .await?
            .iter()
            .map(|letter| letter.id)
            .collect::<Vec<_>>(),
        [original.id]
    );
    assert_eq!(hand.carry_out_requests().await?, 1);
    let parked = hand.parked("k").await?;
    assert_eq!(parked.len(), 1);
    let event = &parked[0].event;
    assert_eq!((event.id, &event.payload[..], &event.headers), (copy, &payload[..], &headers));
    assert_eq!((&event.topic, &event.key), (&original.event.topic, &original.event.key));
    rig.operate.replay(&only("s"), None).await?;
    hand.carry_out_requests().await?;
    assert_eq!(hand.drain("k").await?, [copy, published[1]], "at the place of its original");
    Ok(())
}

/// An edited copy that dies says whose copy it is, with the edited bytes.
pub async fn an_edited_copy_that_dies_is_still_a_copy(rig: &Rig) -> Result<()> {
    let (mut hand, _) = all_dead(rig, 1).await?;
    let original = rig.dead().await?[0].id;
    let copy = rig.operate.replay_edited(original, "edited".into(), Headers::default()).await?;
    hand.carry_out_requests().await?;
    let parked = hand.parked("k").await?;
    let mut change = hand.still();
    change.deaths = vec![death(&parked[0].at, "no better")];
    change.settled = vec![parked[0].at.clone()];
    change.unparked = vec!["k".into()];
    hand.record(change).await?;
    let dead = rig.dead().await?;
    assert_eq!(dead.len(), 1);
    assert_eq!(
        (dead[0].event.id, &dead[0].event.payload[..], dead[0].copy_of),
        (copy, &b"edited"[..], Some(original))
    );
    Ok(())
}

/// After a rewind the log brings the original again, while its edited copy waits at the same place: neither takes the
/// other's.
pub async fn an_edited_copy_and_its_original_wait_at_one_place(rig: &Rig) -> Result<()> {
    let (mut hand, published) = all_dead(rig, 1).await?;
    let original = rig.dead().await?[0].id;
    let copy = rig.operate.replay_edited(original, "edited".into(), Headers::default()).await?;
    hand.carry_out_requests().await?;
    rig.operate.rewind("s", Start::Beginning).await?;
    let mut hand = rig.hand("s", "k").await?;
    let reads = hand.read(1).await?;
    hand.park(&reads, Some(Duration::ZERO)).await?;
    let mut waiting = hand.drain("k").await?;
    waiting.sort_unstable();
    let mut both = [published[0], copy];
    both.sort_unstable();
    assert_eq!(waiting, both);
    Ok(())
}

/// Editing keeps to the limits, and only a dead letter is edited.
pub async fn an_edit_out_of_bounds_is_refused(rig: &Rig) -> Result<()> {
    let (_, _) = all_dead(rig, 1).await?;
    let id = rig.dead().await?[0].id;
    let large =
        rig.operate.replay_edited(id, vec![0; (1 << 20) + 1].into(), Headers::default()).await;
    assert_eq!(large.err().map(|error| error.kind()), Some(Kind::PayloadTooLarge));
    let headers: Headers = [("x", "line\nbreak")].into_iter().collect();
    let control = rig.operate.replay_edited(id, "".into(), headers).await;
    assert_eq!(control.err().map(|error| error.kind()), Some(Kind::InvalidHeaders));
    assert_eq!(rig.dead().await?.len(), 1, "the original is as it was");
    rig.operate.archive(&only("s")).await?;
    let archived = rig.operate.replay_edited(id, "".into(), Headers::default()).await;
    assert_eq!(archived.err().map(|error| error.kind()), Some(Kind::ReplayRefused));
    Ok(())
}

/// A replay lets a held key go on.
pub async fn a_replay_releases_a_held_key(rig: &Rig) -> Result<()> {
    let mut hand = rig.migrated().await?.hand("s", "k").await?;
    let published = rig.commit(vec![numbered("k", 1), numbered("k", 2)]).await?;
    let reads = hand.read(2).await?;
    let mut change = hand.change();
    change.deaths = vec![death(&reads[0].at, "no good")];
    change.waiting = vec![reads[1].at.clone()];
    change.parked = vec![park_key("k", 0, None)];
    hand.record(change).await?;
    rig.operate.replay(&only("s"), None).await?;
    assert_eq!(hand.carry_out_requests().await?, 1);
    assert!(hand.load().await?.parked.iter().all(|key| key.due_in.is_some()));
    assert_eq!(hand.drain("k").await?, published);
    Ok(())
}

/// Requests of one subscription are not shown to another.
pub async fn a_request_is_shown_to_its_own_subscription(rig: &Rig) -> Result<()> {
    let (_, _) = all_dead(rig, 1).await?;
    rig.hand("other", "k").await?;
    rig.operate.replay(&only("s"), None).await?;
    assert!(rig.beat("other", "x").await?.requests.is_empty());
    let requests = rig.beat("s", "x").await?.requests;
    assert_eq!(requests.iter().map(|request| request.key.as_str()).collect::<Vec<_>>(), ["k"]);
    Ok(())
}

/// A letter of a removed subscription has nowhere to go.
pub async fn a_letter_of_a_removed_subscription_is_not_replayed(rig: &Rig) -> Result<()> {
    all_dead(rig, 1).await?;
    rig.operate.remove("s").await?;
    let id = rig.dead().await?[0].id;
    match rig.operate.replay(&letters(vec![id]), None).await {
        Ok(progress) => assert_eq!(progress.total, 0),
        Err(error) => assert!(
            matches!(error.kind(), Kind::ReplayRefused | Kind::UnknownSubscription),
            "{error}"
        ),
    }
    assert_eq!(rig.dead().await?.len(), 1, "it stays dead");
    Ok(())
}
