#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use super::*;
use crate::broker::cloudevents;
use crate::error::ErrorClass;
use crate::event::header;

fn message(tag: u64, key: &str) -> Incoming {
    let event = Event::stored(NewEvent::bytes("a.b", b"x".to_vec()).key(key), chrono::Utc::now());
    let mut message = Incoming::new(Tag(tag), "a.b", b"x".to_vec());
    message.headers = cloudevents::owned(cloudevents::write(&event, "shop", &Binding::AMQP));
    message
}

fn meeting(messages: &[Incoming]) -> Meeting {
    Meeting::of("mailer".into(), messages, &Binding::AMQP, &Foreign::default())
}

fn landings(meeting: &Meeting) -> Vec<NewEvent> {
    meeting.landings(&EventId::fresh)
}

fn failed() -> Outcome {
    Outcome::Failed { class: ErrorClass::Transient, error: "no".into(), after: None }
}

/// Hands everything over; events of `bad` fail. Answers with the order of handing over.
fn work(meeting: &mut Meeting, bad: &[usize]) -> Vec<usize> {
    let mut handed = Vec::new();
    while let Some(index) = meeting.next() {
        handed.push(index);
        meeting.settle(index, if bad.contains(&index) { failed() } else { Outcome::Done });
    }
    handed
}

#[test]
fn what_was_seen_is_acknowledged_and_not_handed_over() {
    let mut meeting = meeting(&[message(1, "a"), message(2, "b")]);
    meeting.met(vec![Met::Seen, Met::New]);
    assert_eq!(work(&mut meeting, &[]), [1]);
    assert!(landings(&meeting).is_empty());
    assert_eq!(meeting.settled(), [(Tag(1), Settle::Done), (Tag(2), Settle::Done)]);
    assert_eq!(meeting.counts(), (1, 1, 0));
}

#[test]
fn after_a_failure_the_rest_of_its_key_lands_behind_it_and_other_keys_go_on() {
    let messages = [message(1, "a"), message(2, "b"), message(3, "a"), message(4, "b")];
    let mut meeting = meeting(&messages);
    meeting.met(vec![Met::New; 4]);
    assert_eq!(work(&mut meeting, &[0]), [0, 1, 3]);
    let landed = landings(&meeting);
    let answers: Vec<_> =
        landed.iter().map(|event| event.headers.get(header::INBOX_ANSWER).is_some()).collect();
    assert_eq!(answers, [true, false], "only the first was tried");
    let (own, id) = (landed[0].id.to_string(), landed[0].headers.get(header::INBOX_ID));
    assert_ne!(id, Some(own.as_str()), "a row of its own");
    assert_eq!(meeting.landed_keys(), ["a"]);
    assert_eq!(meeting.settled().len(), 4, "all of it is safe");
}

#[test]
fn what_comes_while_its_key_waits_lands_behind() {
    let mut meeting = meeting(&[message(1, "a"), message(2, "a"), message(3, "b")]);
    meeting.met(vec![Met::Behind, Met::New, Met::New]);
    assert_eq!(work(&mut meeting, &[]), [2], "the second of the key waits for the first");
    assert_eq!(landings(&meeting).len(), 2);
}

#[test]
fn a_failure_in_an_earlier_part_of_the_batch_holds_what_is_asked_about_later() {
    let mut meeting = meeting(&[message(1, "a"), message(2, "a")]);
    assert_eq!(meeting.to_meet(1).len(), 1);
    meeting.met(vec![Met::New]);
    assert_eq!(work(&mut meeting, &[0]), [0]);
    meeting.met(vec![Met::New]);
    assert_eq!(work(&mut meeting, &[]), [0_usize; 0]);
    assert_eq!(landings(&meeting).len(), 2);
}

#[test]
fn only_what_is_done_has_an_effect() {
    let mut meeting = meeting(&[message(1, "a"), message(2, "b")]);
    meeting.met(vec![Met::New; 2]);
    meeting.settle(0, failed());
    assert!(!meeting.has_effects());
    meeting.settle(1, Outcome::Done);
    assert!(meeting.has_effects());
}

#[test]
fn what_was_not_asked_about_is_not_settled() {
    let mut meeting = meeting(&[message(1, "a"), message(2, "b")]);
    meeting.met(vec![Met::New]);
    work(&mut meeting, &[]);
    assert_eq!(meeting.settled(), [(Tag(1), Settle::Done)]);
}

#[test]
fn a_malformed_message_lands_as_a_dead_letter_with_its_bytes_and_headers() {
    let mut odd = Incoming::new(Tag(1), "not a topic", b"\xff\x00".to_vec());
    odd.headers = vec![("x".into(), "kept".into()), ("bad name".into(), "also\nkept".into())];
    let again = meeting(&[odd.clone()]).to_meet(1);
    let mut meeting = meeting(&[odd]);
    assert_eq!(meeting.to_meet(1), again, "delivered twice it is the same message");
    meeting.met(vec![Met::New]);
    assert_eq!(meeting.next(), None, "no handler sees it");
    let [landed] = &landings(&meeting)[..] else { panic!("it did not land") };
    assert_eq!(&landed.payload[..], b"\xff\x00");
    assert_eq!(landed.headers.get("x"), Some("kept"));
    assert!(landed.headers.get(header::RAW_HEADERS).unwrap().contains("also"));
    assert!(landed.headers.get(header::INBOX_ANSWER).unwrap().contains("no id"));
}

#[test]
fn what_is_too_large_for_the_log_is_left_to_the_brokers_dead_letters() {
    let mut huge = message(1, "a");
    huge.payload = vec![0; 2 << 20].into();
    let mut meeting = meeting(&[huge]);
    meeting.met(vec![Met::New]);
    assert!(landings(&meeting).is_empty());
    assert!(
        matches!(&meeting.settled()[..], [(Tag(1), Settle::Dead { reason })] if reason.contains("R0010"))
    );
}

fn laden(bytes: usize) -> Incoming {
    let mut message = message(1, "a");
    message.headers.push(("x".into(), "v".repeat(bytes)));
    message
}

#[test]
fn an_event_with_many_headers_lands_however_long_its_error_is_written() {
    let mut meeting = meeting(&[laden(12 << 10)]);
    meeting.met(vec![Met::New]);
    let error = "\u{1b}".repeat(1000);
    let failed = Outcome::Failed { class: ErrorClass::Transient, error, after: None };
    meeting.settle(0, failed);
    assert_eq!(landings(&meeting).len(), 1);
    assert_eq!(meeting.settled(), [(Tag(1), Settle::Done)]);
}

#[test]
fn an_event_that_leaves_no_room_to_land_is_seen_by_no_handler() {
    // An event still, by its limits; with what landing adds it would be none.
    let message = laden((16 << 10) - 110);
    assert!(message.event(&Binding::AMQP, &Foreign::default()).is_ok());
    let mut meeting = meeting(&[message]);
    meeting.met(vec![Met::New]);
    assert_eq!(meeting.next(), None);
    let Some(Outcome::Dead { error, .. }) = meeting.malformed() else { panic!("it is an event") };
    assert!(error.contains("R0014"), "{error}");
    assert!(
        matches!(&meeting.settled()[..], [(Tag(1), Settle::Dead { reason })] if reason.contains("R0014"))
    );
}

#[test]
fn what_waits_since_an_earlier_part_of_the_batch_holds_what_is_asked_about_later() {
    let mut meeting = meeting(&[message(1, "a"), message(2, "a")]);
    meeting.met(vec![Met::Behind]);
    meeting.met(vec![Met::New]);
    assert_eq!(meeting.next(), None, "the first of its key landed in between");
}

#[test]
fn seen_done_and_landed_are_counted_apart() {
    let messages: Vec<_> = (1..=6).map(|tag| message(tag, &format!("key {tag}"))).collect();
    let mut meeting = meeting(&messages);
    assert_eq!(meeting.len(), 6);
    meeting.met(vec![Met::Seen, Met::Seen, Met::Behind, Met::New, Met::New, Met::New]);
    assert!(!meeting.has_failures());
    work(&mut meeting, &[4, 5]);
    assert_eq!(meeting.counts(), (2, 1, 3));
    assert!(meeting.has_failures());
    assert_eq!(meeting.delivery(), Some((Tag(1), 1)));
    assert_eq!(meeting.malformed(), None);
}

#[test]
fn what_is_left_to_the_broker_does_not_land_and_a_skip_is_told_apart() {
    let answered = |at_broker: bool| {
        let mut meeting = meeting(&[message(1, "a"), message(2, "b")]).left_to_broker(at_broker);
        meeting.met(vec![Met::New; 2]);
        meeting.settle(0, Outcome::Skip { reason: "not ours".into() });
        meeting.settle(1, Outcome::Done);
        meeting
    };
    let left = answered(true);
    assert!(landings(&left).is_empty());
    let skipped: Vec<_> = left.skipped().collect();
    assert_eq!(skipped, [(left.event(0).id, "not ours")]);
    assert_eq!(left.counts(), (0, 1, 0));
    let landed = answered(false);
    assert_eq!((landings(&landed).len(), landed.skipped().count()), (1, 0), "its log tells");
    assert_eq!(landed.counts(), (0, 1, 1));
}

#[test]
fn an_answer_of_the_inbox_has_to_fit_the_question() {
    let asked = meeting(&[message(1, "a"), message(2, "b")]).to_meet(2);
    assert!(Meeting::check(&asked, &[Met::New, Met::Seen]).is_ok());
    assert!(Meeting::check(&asked, &[Met::New]).is_err());
}
