#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use super::*;

fn message(headers: &[(&str, &str)], payload: &str) -> Incoming {
    let mut message = Incoming::new(Tag(1), "queue.topic", payload.as_bytes().to_vec());
    message.headers = headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
    message
}

fn arrived(message: &Incoming) -> Arrived {
    message.event(&Binding::KAFKA, &Foreign::default()).unwrap()
}

fn fixed(text: &str) -> Vec<Take> {
    vec![Take::Fixed(text.into())]
}

#[test]
fn a_header_is_found_in_any_case_and_the_first_counts() {
    let message = message(&[("X-Own", "1"), ("x-own", "2")], "");
    assert_eq!((message.header("x-OWN"), message.header("x-ow")), (Some("1"), None));
}

#[test]
fn an_attribute_is_taken_from_where_the_mapping_says() {
    let payload = r#"{"a":{"text":"t","number":1.5,"no":null,"empty":""}}"#;
    let mut from = message(&[("H", "header"), ("e", "")], payload);
    from.key = Some("key".into());
    from.message_id = Some("message id".into());
    from.position = Some("position".into());
    let json = |pointer: &str| Take::Json(pointer.into());
    for (take, text) in [
        (Take::Header("h".into()), Some("header")),
        (Take::Header("e".into()), None),
        (json("/a/text"), Some("t")),
        (json("/a/number"), Some("1.5")),
        (json("/a/no"), None),
        (json("/a/empty"), None),
        (json("/b"), None),
        (Take::MessageId, Some("message id")),
        (Take::Key, Some("key")),
        (Take::Position, Some("position")),
        (Take::Topic, Some("queue.topic")),
        (Take::Fixed("f".into()), Some("f")),
    ] {
        assert_eq!(take.from(&from).as_deref(), text, "{take:?}");
    }
    assert_eq!(json("/a").from(&message(&[], "{no json")), None);
}

#[test]
fn a_message_is_known_by_what_says_most_about_it() {
    let mut from = message(&[("id", "of debezium"), ("x-event-id", "of the event")], "");
    from.message_id = Some("of the message".into());
    from.position = Some("of the place".into());
    assert_eq!(arrived(&from).id, "of the event");
    from.headers.pop();
    assert_eq!(arrived(&from).id, "of the message");
    from.message_id = None;
    assert_eq!(arrived(&from).id, "of debezium");
    from.headers.pop();
    assert_eq!(arrived(&from).id, "of the place");
}

#[test]
fn what_nobody_says_is_as_the_broker_has_it() {
    let mut from = message(&[("x-event-id", "1")], "bytes");
    (from.key, from.stored_at) = (Some("k".into()), DateTime::from_timestamp(7, 0));
    let Arrived { event, source, .. } = arrived(&from);
    assert_eq!((event.topic.as_str(), event.key.as_deref()), ("queue.topic", Some("k")));
    assert_eq!(
        (source.as_str(), event.headers.get(header::SOURCE)),
        (&*from.topic, Some(&*from.topic))
    );
    assert_eq!((event.headers.get(header::TYPE), &event.payload[..]), (None, &b"bytes"[..]));
    assert_eq!(Some(event.created_at), from.stored_at);
}

#[test]
fn what_a_cloudevent_says_goes_before_the_mapping_and_the_broker() {
    let attributes = ["id", "source", "topic", "partitionkey", "type"];
    let mut from = message(&[("ce_specversion", "1.0")], "");
    from.key = Some("broker".into());
    from.headers.extend(attributes.map(|name| (format!("ce_{name}"), "said".to_owned())));
    let mut foreign = Foreign::default();
    (foreign.id, foreign.source) = (fixed("mapped"), fixed("mapped"));
    (foreign.topic, foreign.key) = (fixed("mapped"), fixed("mapped"));
    foreign.event_type = fixed("mapped");
    let told = |from: &Incoming| {
        let Arrived { event, source, id, .. } = from.event(&Binding::KAFKA, &foreign).unwrap();
        let kind = event.event_type().to_owned();
        [id, source, event.topic, event.key.unwrap(), kind]
    };
    assert_eq!(told(&from), ["said"; 5]);
    from.headers.clear();
    assert_eq!(told(&from), ["mapped"; 5]);
}

#[test]
fn the_type_of_a_foreign_message_is_in_the_usual_header() {
    let from = message(&[("x-event-id", "1"), ("eventType", "placed")], "");
    assert_eq!(arrived(&from).event.event_type(), "placed");
}

#[test]
fn an_id_that_is_no_uuid_makes_one_with_its_source_that_never_changes() {
    let id = EventId::fresh();
    assert_eq!(event_id("shop", &id.to_string()), id);
    // The MD5 of both parted by a zero, as version 3: copies that come years later must be the same event.
    assert_eq!(event_id("shop", "17").to_string(), "8214a10b-9259-3949-85eb-d98c9d31e60f");
    assert_ne!(event_id("shop1", "7"), event_id("shop", "17"));
}

#[test]
fn only_the_same_topic_headers_and_bytes_are_the_same_message() {
    let print = |topic: &str, headers: &[(&str, &str)], payload: &str| {
        let mut message = message(headers, payload);
        message.topic = topic.into();
        message.fingerprint()
    };
    let one = print("a.b", &[("n", "v")], "x");
    assert_eq!(one, "no-id:d710285dd22a06edfa8a46fbab36cd64");
    for other in [
        print("a.c", &[("n", "v")], "x"),
        print("a.b", &[("m", "v")], "x"),
        print("a.b", &[("n", "w")], "x"),
        print("a.b", &[("n", "v")], "y"),
        print("a.b", &[("nv", "")], "x"),
        print("a.b", &[], "x"),
    ] {
        assert_ne!(other, one);
    }
}

#[test]
fn a_raw_message_keeps_what_an_event_can_carry() {
    let id = EventId::fresh();
    let mut from = message(&[("own", "1"), (header::INBOX, "forged")], "x");
    from.key = Some("k".into());
    let raw = from.raw(id);
    assert_eq!((raw.id, raw.topic.as_str(), &raw.payload[..]), (id, "queue.topic", &b"x"[..]));
    assert_eq!(raw.key.as_deref(), Some("k"));
    let odd = r#"[["relevo-inbox","forged"]]"#;
    let headers: Vec<_> = raw.headers.iter().collect();
    assert_eq!(headers, [("own", "1"), (header::RAW_HEADERS, odd)]);
    (from.topic, from.key) = ("not a topic".into(), Some("a\nkey".into()));
    from.headers.clear();
    let raw = from.raw(id);
    assert_eq!((raw.topic.as_str(), raw.key, raw.headers.is_empty()), (UNNAMED, None, true));
}

#[test]
fn headers_that_no_event_can_carry_are_kept_up_to_a_bound_and_in_one_line() {
    let odd = message(&[("bad name", &"€".repeat(20_000))], "").raw(EventId::fresh());
    let kept = odd.headers.get(header::RAW_HEADERS).unwrap();
    assert!(kept.starts_with(r#"[["bad name","€€"#) && kept.chars().count() == RAW_CHARS);
    for control in ["\n", "\u{1b}"] {
        let raw = message(&[("x", control)], "").raw(EventId::fresh());
        assert!(Limits::default().check(&raw).is_ok(), "{control:?}");
        let kept = raw.headers.get(header::RAW_HEADERS).unwrap();
        let read: Vec<(String, String)> = serde_json::from_str(kept).unwrap();
        assert_eq!(read, [("x".to_owned(), control.to_owned())]);
    }
}

#[test]
fn what_is_no_event_says_why_and_stays_so() {
    let refused = Malformed::new("it is odd");
    assert_eq!(refused.to_string(), "not an event: it is odd");
    assert_eq!(refused.class(), ErrorClass::Poison);
}

#[test]
fn a_source_is_told_by_its_name() {
    assert_eq!(Source::named("orders/3").to_string(), "orders/3");
}
