//! What failed for good is kept byte for byte, with its reason, and found again.

use super::Rig;
use super::event::{HOSTILE, hostile_events};
use super::hand::{death, park_key};
use super::rig::{assert_same, keys_beside, numbered};
use relevo_core::dead_letters::{DeadFilter, DeadLetter, DeadLetterId, DeadState};
use relevo_core::event::{NewEvent, lane_of};
use relevo_core::outbox::Retention;
use relevo_core::{ErrorClass, Kind, Result};
use std::time::Duration;

/// The event comes back as it was published, with class, message, attempts and times.
pub async fn a_dead_letter_keeps_the_event_and_the_reason(rig: &Rig) -> Result<()> {
    rig.migrated().await?;
    for (n, event) in hostile_events().into_iter().enumerate() {
        let key = event.key.clone().unwrap_or_default();
        let mut hand = rig.hand(&format!("s{n}"), &key).await?;
        rig.commit_one(event.clone()).await?;
        let read = hand.read_event(event.id).await?;
        let mut change = hand.change();
        let error = HOSTILE[n % HOSTILE.len()];
        let mut died = death(&read.at, error);
        died.class = ErrorClass::Poison;
        change.deaths = vec![died];
        hand.record(change).await?;
        let mut filter = only(&format!("s{n}"));
        filter.event = Some(event.id);
        let letters = rig.operate.dead_letters(&filter, None, 10).await?;
        assert_eq!(letters.len(), 1);
        assert_same(&letters[0].event, &event);
        assert_letter(&letters[0], error, lane_of(&key));
    }
    Ok(())
}

fn assert_letter(letter: &DeadLetter, error: &str, lane: u16) {
    assert_eq!(
        (letter.class, letter.error.as_str(), letter.attempts),
        (ErrorClass::Poison, error, 3)
    );
    assert_eq!((letter.lane, letter.state, letter.copy_of), (lane, DeadState::Dead, None));
    assert!(letter.first_failed_at <= letter.died_at, "{letter:?}");
    assert!((chrono::Utc::now() - letter.died_at).num_seconds().abs() < 60, "{letter:?}");
}

pub(super) fn only(subscription: &str) -> DeadFilter {
    let mut filter = DeadFilter::default();
    filter.subscription = Some(subscription.to_owned());
    filter
}

/// An event that was parked first dies with its bytes, and knows when it first failed.
pub async fn a_parked_event_that_dies_knows_when_it_first_failed(rig: &Rig) -> Result<()> {
    let mut hand = rig.migrated().await?.hand("s", "k").await?;
    let event = numbered("k", 1).header("x", "y");
    rig.commit_one(event.clone()).await?;
    let reads = hand.read(1).await?;
    hand.park(&reads, Some(Duration::ZERO)).await?;
    rig.let_time_pass().await;
    let mut change = hand.still();
    change.parked = vec![park_key("k", 2, Some(Duration::ZERO))];
    hand.record(change).await?;
    rig.let_time_pass().await;
    let mut change = hand.still();
    change.deaths = vec![death(&reads[0].at, "no good")];
    change.settled = vec![reads[0].at.clone()];
    change.unparked = vec!["k".into()];
    hand.record(change).await?;
    let letters = rig.dead().await?;
    assert_eq!(letters.len(), 1);
    assert_same(&letters[0].event, &event);
    let took = letters[0].died_at - letters[0].first_failed_at;
    assert!(took.num_milliseconds() >= 30, "it failed first {took} before it died");
    assert!(hand.load().await?.parked.is_empty() && hand.parked("k").await?.is_empty());
    Ok(())
}

/// Several events of one batch die together, each with its own letter.
pub async fn events_that_die_together_have_a_letter_each(rig: &Rig) -> Result<()> {
    let mut hand = rig.migrated().await?.hand("s", "k").await?;
    let published = rig.commit((0..3).map(|n| numbered("k", n)).collect()).await?;
    let reads = hand.read(3).await?;
    hand.bury(&reads).await?;
    let mut letters = rig.dead().await?;
    assert!(letters.windows(2).all(|two| two[0].id > two[1].id), "newest first");
    letters.reverse();
    assert_eq!(letters.iter().map(|letter| letter.event.id).collect::<Vec<_>>(), published);
    Ok(())
}

async fn three_kinds(rig: &Rig) -> Result<()> {
    let keys = keys_beside("k", 2);
    let mut hand = rig.migrated().await?.hand("s", "k").await?;
    let events = [
        NewEvent::bytes("ticket.created", "1").key(&*keys[0]),
        NewEvent::bytes("ticket.closed", "2").key(&*keys[0]),
        NewEvent::bytes("ticket.created", "3").key(&*keys[1]),
    ];
    rig.commit(events.to_vec()).await?;
    let reads = hand.read(3).await?;
    let mut change = hand.change();
    change.deaths = reads
        .iter()
        .zip(["the 100%_sure way", "timed out", "timed out"])
        .map(|(read, error)| death(&read.at, error))
        .collect();
    change.deaths[2].class = ErrorClass::Poison;
    hand.record(change).await
}

/// Each field of a filter narrows the list.
pub async fn a_filter_finds_the_letters_it_means(rig: &Rig) -> Result<()> {
    three_kinds(rig).await?;
    let all = rig.dead().await?;
    let found = async |set: &dyn Fn(&mut DeadFilter)| -> Result<Vec<String>> {
        let mut filter = DeadFilter::default();
        set(&mut filter);
        let letters = rig.operate.dead_letters(&filter, None, 100).await?;
        Ok(letters
            .iter()
            .map(|letter| String::from_utf8_lossy(&letter.event.payload).into_owned())
            .collect())
    };
    assert_eq!(found(&|f| f.topic = Some("ticket.created".into())).await?, ["3", "1"]);
    assert_eq!(found(&|f| f.key = Some("k".into())).await?, ["2", "1"]);
    assert_eq!(found(&|f| f.class = Some(ErrorClass::Poison)).await?, ["3"]);
    assert_eq!(found(&|f| f.text = Some("timed".into())).await?, ["3", "2"]);
    assert_eq!(
        found(&|f| f.text = Some("100%_sure".into())).await?,
        ["1"],
        "the text is no pattern"
    );
    assert_eq!(found(&|f| f.text = Some("%".into())).await?, ["1"], "the text is no pattern");
    assert_eq!(found(&|f| f.ids = vec![all[0].id, all[2].id]).await?, ["3", "1"]);
    assert_eq!(found(&|f| f.event = Some(all[1].event.id)).await?, ["2"]);
    assert_eq!(found(&|f| f.subscription = Some("s".into())).await?, ["3", "2", "1"]);
    assert!(found(&|f| f.subscription = Some("another".into())).await?.is_empty());
    assert!(found(&|f| f.state = Some(DeadState::Archived)).await?.is_empty());
    Ok(())
}

/// The list is read in pages, newest first.
pub async fn the_list_of_dead_letters_is_read_in_pages(rig: &Rig) -> Result<()> {
    three_kinds(rig).await?;
    let all: Vec<DeadLetterId> = rig.dead().await?.iter().map(|letter| letter.id).collect();
    let first = rig.operate.dead_letters(&DeadFilter::default(), None, 2).await?;
    let second = rig.operate.dead_letters(&DeadFilter::default(), Some(first[1].id), 2).await?;
    assert_eq!(first.iter().chain(&second).map(|letter| letter.id).collect::<Vec<_>>(), all);
    Ok(())
}

/// Archived letters are set aside and no longer replayed.
pub async fn an_archived_letter_is_set_aside(rig: &Rig) -> Result<()> {
    three_kinds(rig).await?;
    let mut filter = DeadFilter::default();
    filter.topic = Some("ticket.created".into());
    assert_eq!(rig.operate.archive(&filter).await?, 2);
    assert_eq!(rig.operate.archive(&filter).await?, 0, "once");
    assert_eq!(rig.dead().await?.len(), 1);
    filter.state = Some(DeadState::Archived);
    assert_eq!(rig.operate.dead_letters(&filter, None, 10).await?.len(), 2);
    assert_eq!(rig.operate.replay(&DeadFilter::default(), None).await?.total, 1);
    Ok(())
}

/// Archiving the letter a key is held for lets the key go on.
pub async fn archiving_releases_a_held_key(rig: &Rig) -> Result<()> {
    let mut hand = rig.migrated().await?.hand("s", "k").await?;
    let published = rig.commit(vec![numbered("k", 1), numbered("k", 2)]).await?;
    let reads = hand.read(2).await?;
    let mut change = hand.change();
    change.deaths = vec![death(&reads[0].at, "no good")];
    change.waiting = vec![reads[1].at.clone()];
    change.parked = vec![park_key("k", 0, None)];
    hand.record(change).await?;
    assert_eq!(hand.carry_out_requests().await?, 0, "nobody asked for anything yet");
    assert_eq!(rig.operate.archive(&only("s")).await?, 1);
    assert_eq!(hand.carry_out_requests().await?, 1);
    let due = hand.load().await?.parked;
    assert_eq!(
        due.iter().map(|key| (key.key.as_str(), key.due_in.is_some())).collect::<Vec<_>>(),
        [("k", true)]
    );
    assert_eq!(hand.drain("k").await?, published[1..]);
    assert_eq!(hand.carry_out_requests().await?, 0);
    Ok(())
}

/// Dead letters older than their retention go, others stay.
pub async fn dead_letters_past_their_retention_go(rig: &Rig) -> Result<()> {
    three_kinds(rig).await?;
    let mut retention = Retention::default();
    assert_eq!(rig.store.upkeep(&retention).await?.dead_letters_dropped, 0);
    assert_eq!(rig.dead().await?.len(), 3);
    retention.dead_letters = Duration::ZERO;
    rig.let_time_pass().await;
    assert_eq!(rig.store.upkeep(&retention).await?.dead_letters_dropped, 3);
    assert!(rig.dead().await?.is_empty());
    Ok(())
}

/// A replay of what is not there is refused by name.
pub async fn a_letter_that_is_not_there_cannot_be_replayed(rig: &Rig) -> Result<()> {
    rig.migrated().await?;
    let mut filter = DeadFilter::default();
    filter.ids = vec![4711];
    assert_eq!(
        rig.operate.replay(&filter, None).await.err().map(|error| error.kind()),
        Some(Kind::ReplayRefused)
    );
    let edited = rig.operate.replay_edited(4711, "x".into(), Default::default()).await;
    assert_eq!(edited.err().map(|error| error.kind()), Some(Kind::ReplayRefused));
    Ok(())
}
