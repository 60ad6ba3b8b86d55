//! The cursor is the inbox: what a lane transaction records happens once, as a whole, under the token in force.

use super::hand::{death, park_key, skip};
use super::rig::{ids, keys_beside, numbered};
use super::{Hand, Read, Rig};
use relevo_core::dead_letters::Why;
use relevo_core::event::EventId;
use relevo_core::outbox::{EventRef, LaneChange, Position};
use relevo_core::{Kind, Result};
use std::time::Duration;

const HOUR: Option<Duration> = Some(Duration::from_secs(3600));

fn refs(reads: &[Read]) -> Vec<EventRef> {
    reads.iter().map(|read| read.at.clone()).collect()
}

fn refused(result: Result<()>) -> Option<Kind> {
    result.err().map(|error| error.kind())
}

/// A record moves the cursor, and only of its lane.
pub async fn a_record_moves_the_cursor_of_its_lane(rig: &Rig) -> Result<()> {
    let mut hand = rig.migrated().await?.hand("s", "k").await?;
    rig.commit(vec![numbered("k", 1), numbered("k", 2)]).await?;
    let reads = hand.read(2).await?;
    let mut change = hand.change();
    change.after = reads[0].after;
    hand.record(change).await?;
    assert_eq!(hand.load().await?.position, reads[0].after);
    hand.record(hand.change()).await?;
    assert_eq!(hand.load().await?.position, hand.read);
    let other = rig.hand("s", &other_lane("k")).await?;
    assert_eq!(other.position, Position::default());
    Ok(())
}

fn other_lane(key: &str) -> String {
    let other = |candidate: &String| {
        relevo_core::event::lane_of(candidate) != relevo_core::event::lane_of(key)
    };
    (0..).map(|n| format!("elsewhere-{n}")).find(other).unwrap_or_default()
}

/// A change with something of everything in it.
async fn full_change(rig: &Rig, hand: &mut Hand<'_>) -> Result<(LaneChange, Vec<EventId>)> {
    let keys = keys_beside("k", 4);
    let published =
        rig.commit(keys.iter().enumerate().map(|(n, key)| numbered(key, n)).collect()).await?;
    let reads = hand.read(4).await?;
    let mut change = hand.change();
    change.deaths = vec![death(&reads[0].at, "no good")];
    change.skips = vec![skip(&reads[1].at, "not wanted")];
    change.waiting = vec![reads[2].at.clone()];
    change.parked = vec![park_key(&keys[2], 1, HOUR)];
    change.delivered = 1;
    Ok((change, published))
}

async fn assert_nothing_of_it(rig: &Rig, hand: &Hand<'_>, events: &[EventId]) -> Result<()> {
    let state = hand.load().await?;
    assert_eq!(state.position, hand.position, "the cursor stands where it stood");
    assert!(state.parked.is_empty(), "no key is parked");
    assert!(hand.parked(&keys_beside("k", 4)[2]).await?.is_empty(), "nothing waits");
    assert!(rig.dead().await?.is_empty(), "there is no dead letter");
    assert!(!matches!(rig.why(events[1], "s").await?, Why::Skipped { .. }), "nothing is skipped");
    Ok(())
}

/// Whoever lost the lane records nothing: not the cursor, nor anything beside it.
pub async fn a_record_under_an_old_token_is_stale_and_leaves_nothing(rig: &Rig) -> Result<()> {
    let mut hand = rig.migrated().await?.hand("s", "k").await?;
    let (change, events) = full_change(rig, &mut hand).await?;
    let heir = Hand::take(rig, hand.lane.clone()).await?;
    assert_eq!(refused(hand.record(change).await), Some(Kind::Stale));
    assert_nothing_of_it(rig, &heir, &events).await
}

/// A record from another place than the cursor's is stale too.
pub async fn a_record_from_another_position_is_stale_and_leaves_nothing(rig: &Rig) -> Result<()> {
    let mut hand = rig.migrated().await?.hand("s", "k").await?;
    let (change, events) = full_change(rig, &mut hand).await?;
    let mut wrong = change.clone();
    wrong.before = Position { to: hand.read.to.or(Some(hand.read.from)), seq: 1, ..change.before };
    assert_eq!(refused(hand.record(wrong).await), Some(Kind::Stale));
    assert_nothing_of_it(rig, &hand, &events).await?;
    hand.record(change.clone()).await?;
    assert_eq!(
        refused(rig.store.record(&[change]).await),
        Some(Kind::Stale),
        "the same record again is stale"
    );
    assert_eq!(rig.dead().await?.len(), 1);
    Ok(())
}

/// Changes of several lanes happen together or not at all.
pub async fn changes_of_several_lanes_are_all_or_nothing(rig: &Rig) -> Result<()> {
    let mut hand = rig.migrated().await?.hand("s", "k").await?;
    let (change, events) = full_change(rig, &mut hand).await?;
    let other = rig.hand("s", &other_lane("k")).await?;
    let mut stale = LaneChange::moving(other.lane.clone(), other.token, other.position, hand.read);
    stale.token += 1;
    for changes in [[change.clone(), stale.clone()], [stale.clone(), change.clone()]] {
        assert_eq!(refused(rig.store.record(&changes).await), Some(Kind::Stale));
        assert_nothing_of_it(rig, &hand, &events).await?;
    }
    stale.token -= 1;
    rig.store.record(&[change, stale]).await?;
    assert_eq!((hand.load().await?.position, other.load().await?.position), (hand.read, hand.read));
    Ok(())
}

/// Of two records from the same place at the same time one happens.
pub async fn of_two_records_at_once_one_happens(rig: &Rig) -> Result<()> {
    let mut hand = rig.migrated().await?.hand("s", "k").await?;
    let (change, _) = full_change(rig, &mut hand).await?;
    let record = |change: LaneChange| {
        let store = rig.store.clone();
        tokio::spawn(async move { store.record(&[change]).await })
    };
    let mut recorded = 0;
    for task in (0..4).map(|_| record(change.clone())).collect::<Vec<_>>() {
        match task.await.unwrap_or_else(|error| panic!("a record panicked: {error}")) {
            Ok(()) => recorded += 1,
            // A store may also end one of them as a conflict; none of it happened then.
            Err(error) => {
                assert!(matches!(error.kind(), Kind::Stale | Kind::TransactionConflict), "{error}")
            }
        }
    }
    assert_eq!((recorded, rig.dead().await?.len()), (1, 1));
    Ok(())
}

/// A parked key keeps its attempts, deaths and when it is due by the store's clock.
pub async fn a_parked_key_is_due_by_the_stores_clock(rig: &Rig) -> Result<()> {
    let keys = keys_beside("k", 3);
    let mut hand = rig.migrated().await?.hand("s", "k").await?;
    rig.commit(keys.iter().map(|key| numbered(key, 0)).collect()).await?;
    let mut change = hand.change();
    let reads = hand.read(3).await?;
    change.after = hand.read;
    change.waiting = refs(&reads);
    let (mut later, mut held, now) = (
        park_key(&keys[0], 4, HOUR),
        park_key(&keys[1], 0, None),
        park_key(&keys[2], 1, Some(Duration::ZERO)),
    );
    (later.deaths, held.deaths) = (2, 7);
    change.parked = vec![later, held, now];
    hand.record(change).await?;
    let parked = hand.load().await?.parked;
    let of = |key: &str| parked.iter().find(|parked| parked.key == key).cloned();
    let later = of(&keys[0]).unwrap_or_else(|| panic!("{parked:?}"));
    assert_eq!((later.attempts, later.deaths), (4, 2));
    let wait = later.due_in.unwrap_or_default().as_secs_f64();
    assert!((3500.0..=3600.0).contains(&wait), "due in {wait} s");
    assert_eq!(
        of(&keys[1]).map(|key| (key.deaths, key.due_in)),
        Some((7, None)),
        "a held key is due when an operator acts"
    );
    assert_eq!(
        of(&keys[2]).and_then(|key| key.due_in).map(|wait| wait < Duration::from_millis(1)),
        Some(true)
    );
    Ok(())
}

/// Refs of several windows come in delivery order.
pub async fn what_waits_behind_a_key_comes_in_delivery_order(rig: &Rig) -> Result<()> {
    let mut hand = rig.migrated().await?.hand("s", "k").await?;
    let mut published = Vec::new();
    for round in 0..3 {
        published
            .extend(rig.commit((0..3).map(|n| numbered("k", 10 * round + n)).collect()).await?);
        let reads = hand.read(3).await?;
        let mut change = hand.change();
        change.waiting = refs(&reads).into_iter().rev().collect();
        change.parked = if round == 0 { vec![park_key("k", 1, HOUR)] } else { Vec::new() };
        hand.record(change).await?;
    }
    assert_eq!(hand.parked_ids("k").await?, published);
    let first = rig.store.read_parked(&hand.lane, "k", 2).await?;
    assert_eq!(first.iter().map(|parked| parked.at.id).collect::<Vec<_>>(), published[..2]);
    assert_eq!(first[0].event.payload, "0");
    Ok(())
}

/// An event that committed late waits behind those that were read before it, whatever its number.
pub async fn a_late_commit_waits_behind_what_was_read_before_it(rig: &Rig) -> Result<()> {
    let mut hand = rig.migrated().await?.hand("s", "k").await?;
    let mut late = rig.begin().await?;
    let low = late.publish(vec![numbered("k", 1)]).await?;
    let high = rig.commit(vec![numbered("k", 2)]).await?;
    let reads = hand.read(1).await?;
    hand.park(&reads, HOUR).await?;
    late.commit().await?;
    let reads = hand.read(1).await?;
    let mut change = hand.change();
    change.waiting = refs(&reads);
    hand.record(change).await?;
    assert_eq!(hand.parked_ids("k").await?, [high[0], low[0]]);
    Ok(())
}

/// A drain takes refs away and, with the last of them, the key.
pub async fn a_drain_removes_what_took_effect_and_then_the_key(rig: &Rig) -> Result<()> {
    let mut hand = rig.migrated().await?.hand("s", "k").await?;
    let published = rig.commit((0..3).map(|n| numbered("k", n)).collect()).await?;
    let reads = hand.read(3).await?;
    hand.park(&reads, HOUR).await?;
    let mut change = hand.still();
    change.settled = refs(&reads[..2]);
    change.parked = vec![park_key("k", 5, HOUR)];
    change.delivered = 2;
    hand.record(change).await?;
    assert_eq!(hand.parked_ids("k").await?, published[2..]);
    assert_eq!(hand.load().await?.parked.iter().map(|key| key.attempts).collect::<Vec<_>>(), [5]);
    assert_eq!(hand.drain("k").await?, published[2..]);
    let state = hand.load().await?;
    assert!(state.parked.is_empty() && hand.parked("k").await?.is_empty());
    assert_eq!(state.position, hand.read, "a drain moves no cursor");
    for id in published {
        assert_eq!(rig.why(id, "s").await?, Why::Delivered);
    }
    Ok(())
}

/// A key parked again keeps one row with the newest figures.
pub async fn a_key_parked_again_has_the_newest_figures(rig: &Rig) -> Result<()> {
    let mut hand = rig.migrated().await?.hand("s", "k").await?;
    rig.commit_one(numbered("k", 1)).await?;
    let reads = hand.read(1).await?;
    hand.park(&reads, HOUR).await?;
    for attempts in 2..5 {
        let mut change = hand.still();
        change.parked = vec![park_key("k", attempts, None)];
        hand.record(change).await?;
    }
    let parked = hand.load().await?.parked;
    assert_eq!(
        parked.iter().map(|key| (key.attempts, key.due_in)).collect::<Vec<_>>(),
        [(4, None)]
    );
    Ok(())
}

/// A ref that is there already means that somebody else was here.
pub async fn the_same_event_cannot_wait_twice(rig: &Rig) -> Result<()> {
    let mut hand = rig.migrated().await?.hand("s", "k").await?;
    let published = rig.commit(vec![numbered("k", 1)]).await?;
    let reads = hand.read(1).await?;
    hand.park(&reads, HOUR).await?;
    let mut change = hand.still();
    change.waiting = refs(&reads);
    assert_eq!(refused(hand.record(change).await), Some(Kind::Stale));
    assert_eq!(hand.parked_ids("k").await?, published);
    Ok(())
}

/// The same key of two subscriptions is parked by each for itself.
pub async fn subscriptions_park_a_key_each_for_itself(rig: &Rig) -> Result<()> {
    let mut one = rig.migrated().await?.hand("one", "k").await?;
    let mut two = rig.hand("two", "k").await?;
    rig.commit_one(numbered("k", 1)).await?;
    let reads = one.read(1).await?;
    one.park(&reads, HOUR).await?;
    two.read(1).await?;
    two.record(two.change()).await?;
    assert_eq!((one.load().await?.parked.len(), two.load().await?.parked.len()), (1, 0));
    assert!(two.parked("k").await?.is_empty());
    Ok(())
}

/// Keys are data: hostile ones are parked, listed and drained like any other.
pub async fn hostile_keys_are_parked_and_drained(rig: &Rig) -> Result<()> {
    rig.migrated().await?;
    for (n, key) in super::event::HOSTILE.iter().enumerate() {
        let mut hand = rig.hand(&format!("s{n}"), key).await?;
        let id = rig.commit_one(numbered(key, n)).await?;
        let read = hand.read_event(id).await?;
        hand.park(&[read], HOUR).await?;
        assert_eq!(hand.load().await?.parked.first().map(|parked| parked.key.as_str()), Some(*key));
        assert_eq!(hand.drain(key).await?, [id]);
    }
    Ok(())
}

/// A lane answers with at most as many parked keys as asked for, and one more to tell that there are more.
pub async fn a_lane_with_too_many_parked_keys_loads_one_more_than_asked(rig: &Rig) -> Result<()> {
    let keys = keys_beside("k", 6);
    let mut hand = rig.migrated().await?.hand("s", "k").await?;
    rig.commit(keys.iter().map(|key| numbered(key, 0)).collect()).await?;
    let reads = hand.read(6).await?;
    let mut change = hand.change();
    change.waiting = refs(&reads);
    change.parked = keys.iter().map(|key| park_key(key, 1, HOUR)).collect();
    hand.record(change).await?;
    let parked = async |most| {
        Ok::<_, relevo_core::Error>(
            rig.store.load_lane(&hand.lane, hand.token, most).await?.map(|s| s.parked.len()),
        )
    };
    assert_eq!(
        (parked(3).await?, parked(6).await?, parked(100).await?),
        (Some(4), Some(6), Some(6))
    );
    Ok(())
}

/// A skip is kept with its reason.
pub async fn a_skip_keeps_its_reason(rig: &Rig) -> Result<()> {
    let mut hand = rig.migrated().await?.hand("s", "k").await?;
    let reason = "not for us: '\"; 🦀";
    rig.commit(vec![numbered("k", 1), numbered("k", 2)]).await?;
    let reads = hand.read(2).await?;
    let mut change = hand.change();
    change.skips = vec![skip(&reads[0].at, reason)];
    change.delivered = 1;
    hand.record(change).await?;
    assert_eq!(rig.why(reads[0].at.id, "s").await?, Why::Skipped { reason: reason.to_owned() });
    assert_eq!(rig.why(reads[1].at.id, "s").await?, Why::Delivered);
    Ok(())
}

/// A take-over finds what the owner before it recorded, to the last ref.
pub async fn a_take_over_finds_the_lane_as_it_was_recorded(rig: &Rig) -> Result<()> {
    let mut hand = rig.migrated().await?.hand("s", "k").await?;
    let published = rig.commit((0..3).map(|n| numbered("k", n)).collect()).await?;
    let reads = hand.read(3).await?;
    hand.park(&reads, HOUR).await?;
    let before = hand.load().await?;
    let heir = Hand::take(rig, hand.lane.clone()).await?;
    let after = heir.load().await?;
    assert_eq!(
        (after.position, after.parked.len(), after.parked[0].attempts),
        (before.position, 1, 1)
    );
    assert_eq!(heir.parked_ids("k").await?, published);
    let mut reader = rig.reader("another").await?;
    assert_eq!(
        ids(&reader.until(&published, 10).await?),
        published,
        "and nobody else is touched by it"
    );
    Ok(())
}
