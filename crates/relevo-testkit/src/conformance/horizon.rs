//! Nothing is brought again whose proof is gone, and no proof goes that may still be needed.

use super::dead_letters::only;
use super::hand::{death, park_key};
use super::rig::{ids, numbered};
use super::{Hand, Reader, Rig};
use relevo_core::dead_letters::Unproven;
use relevo_core::event::{EventId, Headers, NewEvent, TopicFilter};
use relevo_core::outbox::{Retention, Start, Subscription};
use relevo_core::{Error, Kind, Result};
use std::time::Duration;

fn to_a_broker(name: &str) -> Subscription {
    Subscription::new(name).destination("a broker").outside(true)
}

/// A consumer of the broker did this event: its inbox row is there.
async fn done_by_a_consumer(rig: &Rig, event: EventId) -> Result<()> {
    let first = rig.under_test.first_time("billing", "shop", &event.to_string()).await?;
    assert!(first, "nobody did it before");
    Ok(())
}

/// Is the proof still there? If not, this asks for it to be made anew.
async fn is_proven(rig: &Rig, event: EventId) -> Result<bool> {
    Ok(!rig.under_test.first_time("billing", "shop", &event.to_string()).await?)
}

/// One round of upkeep that keeps events and dead letters for so long, and inbox rows as briefly as may be.
async fn clean_up(rig: &Rig, events: Duration, dead_letters: Duration) -> Result<()> {
    let mut retention = Retention::default();
    (retention.events, retention.dead_letters) = (events, dead_letters);
    retention.inbox = Duration::ZERO;
    rig.let_time_pass().await;
    rig.store.upkeep(&retention).await?;
    Ok(())
}

/// Lets inbox rows go, and dead letters that no key waits for. The log stays: somebody has still to read it.
async fn forget(rig: &Rig) -> Result<()> {
    rig.store.subscribe(&Subscription::new("slow")).await?;
    clean_up(rig, Duration::ZERO, Duration::ZERO).await
}

/// An event that went to a broker and was done there, and whose proof is gone.
async fn forgotten<'r>(rig: &'r Rig, to: Subscription) -> Result<(Reader<'r>, EventId)> {
    let mut reader = rig.migrated().await?.reader_of(to).await?;
    let event = rig.commit_one(numbered("k", 1)).await?;
    reader.until(&[event], 10).await?;
    reader.record().await?;
    done_by_a_consumer(rig, event).await?;
    forget(rig).await?;
    Ok((reader, event))
}

fn refusal<T>(answer: Result<T>, named: &str) -> Error {
    let Err(error) = answer else { panic!("it should be refused, because of {named}") };
    assert_eq!(error.kind(), Kind::ProofGone, "{error}");
    for part in [named, "inbox rows up to", "--even-if-done-before"] {
        assert!(error.message().contains(part), "{part}: {error}");
    }
    error
}

/// A rewind that would bring an event again whose proof is gone is refused and moves nothing; every process knows it.
pub async fn a_rewind_behind_the_horizon_is_refused(rig: &Rig) -> Result<()> {
    let (mut reader, event) = forgotten(rig, to_a_broker("out")).await?;
    let (_, elsewhere) = rig.under_test.another().await?;
    refusal(elsewhere.rewind("out", Start::Beginning).await, &event.to_string());
    let long_ago = Start::Time(chrono::DateTime::UNIX_EPOCH);
    refusal(rig.operate.rewind("out", long_ago).await, &event.to_string());
    let next = rig.commit_one(numbered("k", 2)).await?;
    assert_eq!(ids(&reader.until(&[next], 10).await?), [next], "it goes on where it stood");
    reader.record().await
}

/// Whoever knows better says so, and gets everything again.
pub async fn a_rewind_behind_the_horizon_is_carried_out_for_who_insists(rig: &Rig) -> Result<()> {
    let (_, event) = forgotten(rig, to_a_broker("out")).await?;
    rig.operate.rewind_with("out", Start::Beginning, Unproven::Repeat).await?;
    let mut again = rig.reader_of(to_a_broker("out")).await?;
    assert_eq!(ids(&again.until(&[event], 10).await?), [event]);
    Ok(())
}

/// What was published after the horizon has its proof: a rewind to there is allowed.
pub async fn a_rewind_to_what_is_proven_is_allowed(rig: &Rig) -> Result<()> {
    let (mut reader, _) = forgotten(rig, to_a_broker("out")).await?;
    reader.rest().await?;
    rig.beat("out", "reader").await?;
    rig.let_time_pass().await;
    let time = chrono::Utc::now();
    rig.let_time_pass().await;
    let second = rig.commit_one(numbered("k", 2)).await?;
    done_by_a_consumer(rig, second).await?;
    rig.operate.rewind("out", Start::Time(time)).await?;
    let mut again = rig.reader_of(to_a_broker("out")).await?;
    assert!(ids(&again.until(&[second], 10).await?).ends_with(&[second]));
    Ok(())
}

/// What a subscription does not want is not brought again, proven or not.
pub async fn what_a_subscription_does_not_want_needs_no_proof(rig: &Rig) -> Result<()> {
    let out = to_a_broker("out").topics([TopicFilter::parse("other.*")?]);
    forgotten(rig, out.clone()).await?;
    rig.operate.rewind("out", Start::Beginning).await?;
    let mut reader = rig.reader_of(out).await?;
    let wanted = rig.commit_one(NewEvent::bytes("other.thing", "").key("k")).await?;
    reader.until(&[wanted], 10).await?;
    reader.record().await?;
    done_by_a_consumer(rig, wanted).await?;
    forget(rig).await?;
    refusal(rig.operate.rewind("out", Start::Beginning).await, &wanted.to_string());
    Ok(())
}

/// The cursor of a direct handler is its inbox: a rewind repeats effects on purpose, whatever the inbox knows.
pub async fn a_direct_handler_is_rewound_without_proof(rig: &Rig) -> Result<()> {
    let (_, event) = forgotten(rig, Subscription::new("direct")).await?;
    rig.operate.rewind("direct", Start::Beginning).await?;
    let mut again = rig.reader("direct").await?;
    assert_eq!(ids(&again.until(&[event], 10).await?), [event]);
    Ok(())
}

/// A held key's dead letter of this subscription: it outlives its retention, and the inbox's.
async fn held_and_forgotten<'r>(rig: &'r Rig, of: Subscription) -> Result<(Hand<'r>, i64)> {
    let mut hand = rig.migrated().await?.hand_of(of.clone(), "k").await?;
    let event = rig.commit_one(numbered("k", 1)).await?;
    let read = hand.read_event(event).await?;
    let mut change = hand.change();
    change.deaths = vec![death(&read.at, "nobody knows whether it arrived")];
    change.parked = vec![park_key("k", 0, None)];
    hand.record(change).await?;
    done_by_a_consumer(rig, event).await?;
    // Every lane is up to date: nothing is on its way any more.
    rig.operate.rewind(&of.name, Start::Now).await?;
    forget(rig).await?;
    let letter = rig.dead().await?[0].id;
    Ok((rig.hand_of(of, "k").await?, letter))
}

/// A dead letter may have arrived after all; where the proof is gone it is not sent again unasked.
pub async fn a_dead_letter_behind_the_horizon_is_not_replayed(rig: &Rig) -> Result<()> {
    let (mut hand, letter) = held_and_forgotten(rig, to_a_broker("out")).await?;
    let named = format!("dead letter {letter},");
    refusal(rig.operate.replay(&only("out"), None).await, &named);
    assert_eq!(rig.dead().await?.len(), 1, "it stays dead");
    assert_eq!(hand.carry_out_requests().await?, 0, "and nothing was asked for");
    let asked = rig.operate.replay_with(&only("out"), None, Unproven::Repeat).await?;
    assert_eq!((asked.total, hand.carry_out_requests().await?), (1, 1));
    Ok(())
}

/// An edited copy has an id that no inbox ever met: the horizon does not concern it, nor when it dies in its turn.
pub async fn an_edited_copy_needs_no_proof(rig: &Rig) -> Result<()> {
    let (mut hand, letter) = held_and_forgotten(rig, to_a_broker("out")).await?;
    let copy = rig.operate.replay_edited(letter, "mended".into(), Headers::default()).await?;
    assert_eq!(hand.carry_out_requests().await?, 1);
    let parked = hand.parked("k").await?;
    assert_eq!(parked[0].at.id, copy);
    let mut change = hand.still();
    change.deaths = vec![death(&parked[0].at, "no good either")];
    change.settled = vec![parked[0].at.clone()];
    change.parked = vec![park_key("k", 0, None)];
    hand.record(change).await?;
    assert_eq!(rig.operate.replay(&only("out"), None).await?.total, 1);
    Ok(())
}

/// A direct handler's dead letter had no effect: it needs no proof.
pub async fn a_direct_handlers_dead_letter_needs_no_proof(rig: &Rig) -> Result<()> {
    held_and_forgotten(rig, Subscription::new("direct")).await?;
    assert_eq!(rig.operate.replay(&only("direct"), None).await?.total, 1);
    Ok(())
}

/// As long as an event or a dead letter is kept, and some time more, so is the proof, also if less was asked for.
pub async fn proof_is_kept_longer_than_what_can_be_brought_again(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader_of(to_a_broker("out")).await?;
    let event = rig.commit_one(numbered("k", 1)).await?;
    reader.until(&[event], 10).await?;
    reader.record().await?;
    done_by_a_consumer(rig, event).await?;
    rig.store.subscribe(&Subscription::new("slow")).await?;
    let hour = Duration::from_secs(3600);
    for (events, dead_letters) in [(hour, Duration::ZERO), (Duration::ZERO, hour)] {
        clean_up(rig, events, dead_letters).await?;
        assert!(is_proven(rig, event).await?, "{events:?} and {dead_letters:?} are not over");
    }
    forget(rig).await?;
    assert!(!is_proven(rig, event).await?, "nothing is kept any more");
    Ok(())
}

/// What a rewind brings again keeps its proof until it has arrived.
pub async fn proof_stays_while_a_rewind_is_under_way(rig: &Rig) -> Result<()> {
    let mut reader = rig.migrated().await?.reader_of(to_a_broker("out")).await?;
    let event = rig.commit_one(numbered("k", 1)).await?;
    reader.until(&[event], 10).await?;
    reader.record().await?;
    done_by_a_consumer(rig, event).await?;
    rig.operate.rewind("out", Start::Beginning).await?;
    forget(rig).await?;
    assert!(is_proven(rig, event).await?, "it is on its way");
    let mut again = rig.reader_of(to_a_broker("out")).await?;
    again.until(&[event], 10).await?;
    again.record().await?;
    forget(rig).await?;
    assert!(!is_proven(rig, event).await?, "it has arrived, and was old enough");
    Ok(())
}

/// What a replay brings again keeps its proof until it has arrived, or was cancelled.
pub async fn proof_stays_while_a_replay_is_under_way(rig: &Rig) -> Result<()> {
    let mut hand = rig.migrated().await?.hand_of(to_a_broker("out"), "k").await?;
    let event = rig.commit_one(numbered("k", 1)).await?;
    let read = hand.read_event(event).await?;
    hand.bury(&[read]).await?;
    done_by_a_consumer(rig, event).await?;
    rig.operate.rewind("out", Start::Now).await?;
    let mut hand = rig.hand_of(to_a_broker("out"), "k").await?;
    rig.operate.replay(&only("out"), None).await?;
    forget(rig).await?;
    assert!(is_proven(rig, event).await?, "its replay was asked for");
    assert_eq!(hand.carry_out_requests().await?, 1);
    forget(rig).await?;
    assert!(is_proven(rig, event).await?, "it waits behind its key");
    hand.drain("k").await?;
    forget(rig).await?;
    assert!(!is_proven(rig, event).await?, "it has arrived, and was old enough");
    Ok(())
}
