#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use super::*;
use crate::broker::Tag;
use crate::error::Kind;

fn at(ms: u64) -> Instant {
    Instant::at(Duration::from_millis(ms))
}

fn bounds(batch: usize, queue: usize, concurrency: usize) -> Bounds {
    Bounds { batch, queue, concurrency }
}

/// An intake whose receiver is there.
fn connected(bounds: Bounds) -> Intake {
    let mut intake = Intake::new(bounds);
    assert!(matches!(intake.poll(at(0))[..], [Action::Open]));
    intake.handle(at(0), Input::Opened(Ok(())));
    intake
}

fn messages(tags: std::ops::RangeInclusive<u64>) -> Vec<Incoming> {
    tags.map(|tag| Incoming::new(Tag(tag), "a.b", b"x".to_vec())).collect()
}

fn receive(intake: &mut Intake, source: &str, tags: std::ops::RangeInclusive<u64>) {
    let received = Received::Messages { source: Source::named(source), messages: messages(tags) };
    intake.handle(at(0), Input::Received(received));
}

/// The batches that are to be worked: number and tags.
fn work(actions: &[Action]) -> Vec<(u64, Vec<u64>)> {
    let work = actions.iter().filter_map(|action| match action {
        Action::Work { batch, messages } => {
            Some((*batch, messages.iter().map(|message| message.tag.0).collect()))
        }
        _ => None,
    });
    work.collect()
}

fn settled(actions: &[Action]) -> Vec<u64> {
    let settled = actions.iter().filter_map(|action| match action {
        Action::Settle(settled) => Some(settled.iter().map(|(tag, _)| tag.0)),
        _ => None,
    });
    settled.flatten().collect()
}

fn done(
    intake: &mut Intake,
    now: Instant,
    batch: u64,
    tags: std::ops::RangeInclusive<u64>,
) -> Vec<Action> {
    let result = Ok(tags.clone().map(|tag| (Tag(tag), Settle::Done)).collect());
    intake.handle(now, Input::Worked { batch, messages: messages(tags), result });
    intake.poll(now)
}

fn trouble() -> Error {
    Error::new(Kind::Unreachable, "no answer")
}

#[test]
fn one_batch_of_a_source_at_a_time_and_settled_when_it_is_committed() {
    let mut intake = connected(bounds(2, 10, 8));
    receive(&mut intake, "q", 1..=3);
    let actions = intake.poll(at(0));
    assert_eq!(work(&actions), [(1, vec![1, 2])]);
    assert!(settled(&actions).is_empty(), "nothing is told before the commit");
    assert!(work(&intake.poll(at(0))).is_empty(), "the third waits for the batch before it");
    let actions = done(&mut intake, at(0), 1, 1..=2);
    assert_eq!((settled(&actions), work(&actions)), (vec![1, 2], vec![(2, vec![3])]));
}

#[test]
fn sources_take_turns() {
    let mut intake = connected(bounds(1, 10, 1));
    receive(&mut intake, "a", 1..=3);
    receive(&mut intake, "b", 11..=12);
    assert_eq!(work(&intake.poll(at(0))), [(1, vec![1])]);
    assert_eq!(work(&done(&mut intake, at(0), 1, 1..=1)), [(2, vec![11])]);
    assert_eq!(work(&done(&mut intake, at(0), 2, 11..=11)), [(3, vec![2])]);
}

#[test]
fn a_batch_is_worked_again_after_a_pause_that_grows() {
    let mut intake = connected(bounds(5, 10, 1));
    receive(&mut intake, "q", 1..=1);
    let mut now = at(0);
    for (batch, pause) in [(1, 100), (2, 200), (3, 400)] {
        assert_eq!(work(&intake.poll(now)), [(batch, vec![1])]);
        let result = Err(trouble());
        intake.handle(now, Input::Worked { batch, messages: messages(1..=1), result });
        assert!(intake.poll(now).is_empty());
        assert_eq!(intake.wake_at(), Some(now + Duration::from_millis(pause)));
        now = now + Duration::from_millis(pause);
    }
    assert_eq!(work(&intake.poll(now)), [(4, vec![1])]);
    assert_eq!(settled(&done(&mut intake, now, 4, 1..=1)), [1]);
}

#[test]
fn what_a_long_transaction_left_over_is_worked_next_and_the_rest_is_settled_at_once() {
    let mut intake = connected(bounds(3, 10, 1));
    receive(&mut intake, "q", 1..=4);
    intake.poll(at(0));
    let result = Ok(vec![(Tag(1), Settle::Done)]);
    intake.handle(at(0), Input::Worked { batch: 1, messages: messages(1..=3), result });
    let actions = intake.poll(at(0));
    assert_eq!((settled(&actions), work(&actions)), (vec![1], vec![(2, vec![2, 3])]));
}

/// The answer to batch 1, whose second of three messages is to be tried again in a second.
fn second_fails(intake: &mut Intake) -> Vec<Action> {
    intake.poll(at(0));
    let again = Settle::RetryAfter(Duration::from_secs(1));
    let result = Ok(vec![(Tag(1), Settle::Done), (Tag(2), again)]);
    intake.handle(at(0), Input::Worked { batch: 1, messages: messages(1..=3), result });
    intake.poll(at(0))
}

#[test]
fn what_is_tried_again_goes_back_to_its_broker_and_the_rest_is_worked() {
    let mut intake = connected(bounds(3, 10, 1));
    receive(&mut intake, "q", 1..=4);
    let actions = second_fails(&mut intake);
    assert_eq!((settled(&actions), work(&actions)), (vec![1, 2], vec![(2, vec![3])]));
}

#[test]
fn what_keeps_its_place_waits_here_and_all_that_follows_behind_it() {
    let mut intake = connected(bounds(3, 10, 1)).keeping_place(true);
    receive(&mut intake, "q", 1..=4);
    let actions = second_fails(&mut intake);
    assert_eq!((settled(&actions), work(&actions)), (vec![1], vec![]), "the rest waits");
    assert_eq!(intake.wake_at(), Some(at(1000)));
    let actions = intake.poll(at(1000));
    let [Action::Work { messages, .. }] = &actions[..] else { panic!("{actions:?}") };
    let deliveries: Vec<_> = messages.iter().map(|one| (one.tag.0, one.deliveries)).collect();
    assert_eq!(deliveries, [(2, 2), (3, 1)]);
}

#[test]
fn a_full_source_is_paused_and_goes_on_when_half_of_it_is_worked() {
    let mut intake = connected(bounds(1, 2, 1));
    receive(&mut intake, "q", 1..=3);
    assert_eq!(intake.wants(), None, "no room");
    let actions = intake.poll(at(0));
    assert!(matches!(&actions[..], [Action::Pause(_), Action::Work { .. }]), "{actions:?}");
    assert!(!resumes(&done(&mut intake, at(0), 1, 1..=1)), "two still wait");
    assert!(resumes(&done(&mut intake, at(0), 2, 2..=2)));
    assert_eq!(intake.wants(), Some(1));
}

fn resumes(actions: &[Action]) -> bool {
    actions.iter().any(|action| matches!(action, Action::Resume(_)))
}

#[test]
fn what_a_lost_connection_held_is_forgotten_and_never_settled_over_the_next() {
    let mut intake = connected(bounds(5, 10, 8));
    receive(&mut intake, "q", 1..=2);
    intake.poll(at(0));
    intake.handle(at(0), Input::Lost(trouble()));
    assert!(matches!(intake.poll(at(0))[..], [Action::Close]));
    assert_eq!(intake.wake_at(), Some(at(100)));
    assert!(matches!(intake.poll(at(100))[..], [Action::Open]));
    intake.handle(at(100), Input::Opened(Ok(())));
    receive(&mut intake, "q", 1..=2);
    assert_eq!(work(&intake.poll(at(100))), [(2, vec![1, 2])]);
    assert!(settled(&done(&mut intake, at(100), 1, 1..=2)).is_empty(), "tags of the old one");
    assert_eq!(settled(&done(&mut intake, at(100), 2, 1..=2)), [1, 2]);
}

#[test]
fn a_source_that_comes_back_has_still_one_batch_at_a_time() {
    let mut intake = connected(bounds(1, 10, 8));
    receive(&mut intake, "q", 1..=1);
    assert_eq!(work(&intake.poll(at(0))), [(1, vec![1])]);
    intake.handle(at(0), Input::Received(Received::Revoked(Source::named("q"))));
    receive(&mut intake, "q", 11..=12);
    assert_eq!(work(&intake.poll(at(0))), [(2, vec![11])]);
    let actions = done(&mut intake, at(0), 1, 1..=1);
    assert!(actions.is_empty(), "the end of the old batch says nothing about the new: {actions:?}");
}

#[test]
fn a_connection_is_tried_again_after_a_pause_that_grows_to_its_bound() {
    let mut intake = Intake::new(Bounds::default());
    let (mut now, mut pauses) = (at(0), Vec::new());
    for _ in 0..8 {
        assert!(matches!(intake.poll(now)[..], [Action::Open]));
        intake.handle(now, Input::Opened(Err(trouble())));
        let next = intake.wake_at().unwrap();
        pauses.push(next.since(now).as_millis());
        now = next;
    }
    assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
}

#[test]
fn stopping_settles_what_is_under_way_and_nothing_more() {
    let mut intake = connected(bounds(1, 10, 1));
    receive(&mut intake, "q", 1..=2);
    intake.poll(at(0));
    intake.handle(at(0), Input::Stop);
    assert!(intake.poll(at(0)).is_empty());
    assert_eq!((intake.wants(), intake.is_finished()), (None, false));
    let actions = done(&mut intake, at(0), 1, 1..=1);
    assert_eq!(settled(&actions), [1]);
    assert!(matches!(actions.last(), Some(Action::Close)));
    assert!(intake.is_finished());
}

#[test]
fn stopping_without_a_connection_needs_none() {
    let mut intake = Intake::new(Bounds::default());
    intake.poll(at(0));
    intake.handle(at(0), Input::Opened(Err(trouble())));
    intake.handle(at(0), Input::Stop);
    assert!(intake.poll(at(0)).is_empty());
    assert!(intake.is_finished());
}

#[test]
fn a_receiver_that_comes_after_the_stop_is_closed() {
    let mut intake = Intake::new(Bounds::default());
    intake.poll(at(0));
    intake.handle(at(0), Input::Stop);
    assert!(intake.poll(at(0)).is_empty());
    intake.handle(at(0), Input::Opened(Ok(())));
    assert!(matches!(intake.poll(at(0))[..], [Action::Close]));
    assert!(intake.is_finished());
}

#[test]
fn messages_are_asked_for_until_as_many_wait_as_all_sources_may_have() {
    let mut intake = connected(bounds(1, 4, 2));
    receive(&mut intake, "a", 1..=7);
    assert_eq!(intake.wants(), Some(1));
    receive(&mut intake, "b", 8..=8);
    assert_eq!(intake.wants(), None);
}

#[test]
fn what_a_lost_connection_still_brings_is_not_taken_in() {
    let mut intake = connected(bounds(1, 4, 2));
    intake.handle(at(0), Input::Lost(trouble()));
    receive(&mut intake, "a", 1..=1);
    assert_eq!(intake.waiting(), 0);
}

/// Source `a` is to be worked again at 100 ms, `b` is being worked.
fn one_waits_while_another_is_worked(concurrency: usize) -> Intake {
    let mut intake = connected(bounds(1, 10, concurrency));
    receive(&mut intake, "a", 1..=1);
    receive(&mut intake, "b", 2..=2);
    intake.poll(at(0));
    let result = Err(trouble());
    intake.handle(at(0), Input::Worked { batch: 1, messages: messages(1..=1), result });
    intake.poll(at(0));
    intake
}

#[test]
fn nobody_is_woken_for_a_batch_that_has_no_place_or_after_the_stop() {
    assert_eq!(one_waits_while_another_is_worked(2).wake_at(), Some(at(100)));
    assert_eq!(one_waits_while_another_is_worked(1).wake_at(), None, "no place");
    let mut intake = one_waits_while_another_is_worked(2);
    intake.handle(at(0), Input::Stop);
    intake.poll(at(0));
    assert_eq!((intake.wake_at(), intake.is_finished()), (None, false));
}

#[test]
fn stopping_waits_for_what_is_under_way_though_the_connection_is_lost() {
    let mut intake = connected(bounds(1, 10, 1));
    receive(&mut intake, "a", 1..=1);
    intake.poll(at(0));
    intake.handle(at(0), Input::Lost(trouble()));
    intake.handle(at(0), Input::Stop);
    intake.poll(at(0));
    assert!(!intake.is_finished(), "a handler is at work");
    done(&mut intake, at(0), 1, 1..=1);
    assert!(intake.is_finished());
}
