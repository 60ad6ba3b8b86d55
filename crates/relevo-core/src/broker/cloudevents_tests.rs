#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use super::super::{Foreign, Tag, Take};
use super::*;
use crate::event::NewEvent;
use chrono::Utc;

const ALL: [Binding; 4] = [Binding::HTTP, Binding::NATS, Binding::KAFKA, Binding::AMQP];

fn arriving(headers: Vec<(String, String)>, payload: &[u8]) -> Incoming {
    let mut message = Incoming::new(Tag(1), "queue.topic", payload.to_vec());
    message.headers = headers;
    message
}

#[test]
fn an_event_comes_back_as_it_was_sent_by_every_binding() {
    let event = NewEvent::bytes("ticket.created", b"{}".to_vec())
        .key("Straße 7 %41")
        .tenant("acme \"x\"")
        .correlation_id("c 1")
        .event_type("created")
        .header("causation-id", "e0")
        .header("source", "shop")
        .header("time", "2026-01-02T03:04:05Z")
        .header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        .header("x-own", "7")
        .header("x-event-id", "forged");
    let event = Event::stored(event, Utc::now());
    for binding in ALL {
        let arrived = arriving(owned(write(&event, "other", &binding)), b"{}")
            .event(&binding, &Foreign::default())
            .unwrap();
        assert_eq!((arrived.source.as_str(), arrived.id), ("shop", event.id.to_string()));
        assert_eq!(arrived.event.id, event.id);
        assert_eq!((&arrived.event.topic, &arrived.event.key), (&event.topic, &event.key));
        assert_eq!(arrived.event.headers, event.headers, "{binding:?}");
    }
}

#[test]
fn attributes_are_named_as_each_binding_says() {
    let event = Event::stored(NewEvent::bytes("a.b", vec![]).key("k €"), Utc::now());
    let get = |binding: &Binding, name: &str| {
        let headers = write(&event, "shop", binding);
        headers.into_iter().find(|(other, _)| other == name).map(|(_, value)| value)
    };
    assert_eq!(get(&Binding::HTTP, "ce-subject").as_deref(), Some("k%20%E2%82%AC"));
    assert_eq!(get(&Binding::NATS, "ce-subject").as_deref(), Some("k%20%E2%82%AC"));
    assert_eq!(get(&Binding::KAFKA, "ce_subject").as_deref(), Some("k €"));
    assert_eq!(get(&Binding::AMQP, "cloudEvents_subject").as_deref(), Some("k €"));
    assert_eq!(get(&Binding::AMQP, "cloudEvents_specversion").as_deref(), Some("1.0"));
    assert_eq!(get(&Binding::AMQP, "x-event-id"), Some(event.id.to_string()));
}

#[test]
fn a_foreign_message_comes_in_through_the_mapping() {
    let mut message =
        arriving(vec![("X-Trace".into(), "t".into())], br#"{"order":{"id":17,"nr":"o-9"}}"#);
    message.key = Some("broker key".into());
    let foreign = Foreign {
        id: vec![Take::Header("absent".into()), Take::Json("/order/id".into())],
        source: vec![Take::Fixed("legacy".into())],
        topic: vec![Take::Fixed("order.placed".into())],
        key: vec![Take::Json("/order/nr".into())],
        event_type: vec![],
    };
    let arrived = message.event(&Binding::AMQP, &foreign).unwrap();
    assert_eq!((arrived.source.as_str(), arrived.id.as_str()), ("legacy", "17"));
    assert_eq!(arrived.event.topic, "order.placed");
    assert_eq!(arrived.event.key.as_deref(), Some("o-9"));
    assert_eq!(arrived.event.headers.get("X-Trace"), Some("t"));
    let again = message.event(&Binding::AMQP, &foreign).unwrap();
    assert_eq!(arrived.event.id, again.event.id, "the same message has the same id every time");
}

#[test]
fn a_message_without_an_id_is_no_event() {
    let refused = arriving(vec![], b"x").event(&Binding::NATS, &Foreign::default()).unwrap_err();
    assert!(refused.to_string().contains("no id"), "{refused}");
    let mut placed = arriving(vec![], b"x");
    placed.position = Some("orders/3@17".into());
    assert_eq!(placed.event(&Binding::KAFKA, &Foreign::default()).unwrap().id, "orders/3@17");
}

#[test]
fn a_message_out_of_bounds_is_no_event() {
    let headers = vec![("x-event-id".into(), "1".into()), ("big".into(), "v".repeat(20_000))];
    let refused = arriving(headers, b"x").event(&Binding::AMQP, &Foreign::default()).unwrap_err();
    assert!(refused.to_string().contains("R0014"), "{refused}");
}

#[test]
fn encoding_is_undone_and_never_panics() {
    for text in ["", "plain", "Euro € 😀", "100%", "%zz", "a\r\nb", "%E2%82", "\"q\""] {
        assert_eq!(decode(&encode(text, true)), text);
    }
    assert_eq!(decode("%E2%82"), "%E2%82", "half a character stays as it is");
    assert_eq!(encode("Euro € 😀", true), "Euro%20%E2%82%AC%20%F0%9F%98%80");
}

#[test]
fn an_empty_id_is_no_id() {
    let headers = [("ce_specversion", "1.0"), ("ce_id", ""), ("ce_source", "")];
    let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let refused = arriving(headers, b"x").event(&Binding::KAFKA, &Foreign::default()).unwrap_err();
    assert!(refused.to_string().contains("no id"), "{refused}");
}

/// A message of these headers as it is read by a binding, its id aside.
fn read_by(binding: &Binding, headers: &[(&str, &str)]) -> Read {
    let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    read(&arriving(headers.iter().map(own).collect(), b""), binding)
}

fn written(event: NewEvent, binding: &Binding) -> Vec<(String, String)> {
    owned(write(&Event::stored(event, chrono::DateTime::UNIX_EPOCH), "shop", binding))
}

fn value<'h>(headers: &'h [(String, String)], name: &str) -> Option<&'h str> {
    headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
}

#[test]
fn what_an_event_does_not_say_is_said_for_it_or_left_out() {
    let headers = written(NewEvent::bytes("a.b", vec![]), &Binding::KAFKA);
    assert_eq!(value(&headers, "ce_source"), Some("shop"));
    assert_eq!(value(&headers, "ce_type"), Some("a.b"));
    assert_eq!(value(&headers, "ce_time"), Some("1970-01-01T00:00:00.000Z"));
    let names: Vec<_> = headers.iter().map(|(name, _)| name.as_str()).collect();
    let always = ["ce_specversion", "ce_id", "ce_source", "ce_type", "ce_time", "ce_topic"];
    assert_eq!((&names[..6], &names[6..]), (&always[..], &["x-event-id"][..]));
}

#[test]
fn a_header_whose_name_is_taken_travels_by_another_and_comes_back() {
    let taken = ["Ce-Id", "CE_ID", "CLOUDEVENTS:x", "X-Event-Id", "X-Correlation-Id"];
    for (binding, by_another) in [
        (Binding::HTTP, [true, false, false, true, true]),
        (Binding::KAFKA, [true, true, false, true, true]),
        (Binding::AMQP, [false, false, true, true, true]),
    ] {
        for (name, by_another) in taken.into_iter().zip(by_another) {
            let headers = written(NewEvent::bytes("a", vec![]).header(name, "own"), &binding);
            let travels = if by_another { format!("x-event-header-{name}") } else { name.into() };
            assert_eq!(value(&headers, &travels), Some("own"), "{binding:?}");
            let back = read(&arriving(headers, b""), &binding).headers;
            assert_eq!(back.get(name), Some("own"), "{binding:?}");
        }
    }
}

#[test]
fn a_reserved_name_does_not_come_in_by_another() {
    let read = read_by(&Binding::HTTP, &[("X-Event-Header-Tenant", "forged")]);
    assert_eq!(read.headers.get(header::TENANT), None);
    assert_eq!(read.headers.get("X-Event-Header-Tenant"), Some("forged"));
    let read = read_by(&Binding::HTTP, &[("Relevo-Inbox", "c"), ("relevo-inbox-answer", "a")]);
    assert!(read.headers.is_empty(), "{read:?}");
}

#[test]
fn a_value_is_written_as_its_binding_can_carry_it() {
    for (binding, text, line) in [
        (Binding::HTTP, "%E2%82%AC 5%", "a%09b%7F"),
        (Binding::NATS, "€ 5%", "a%09b%7F"),
        (Binding::KAFKA, "€ 5%", "a%09b%7F"),
    ] {
        let event = NewEvent::bytes("a", vec![]).header("x", "€ 5%").header("y", "a\tb\u{7f}");
        let headers = written(event.header("z", "c\u{7f}"), &binding);
        assert_eq!(value(&headers, "x"), Some(text), "{binding:?}");
        assert_eq!(value(&headers, "y"), Some(line), "{binding:?}");
        assert_eq!(value(&headers, "z"), Some("c%7F"), "{binding:?}");
    }
}

#[test]
fn without_a_version_it_is_no_cloudevent() {
    let read = read_by(&Binding::KAFKA, &[("ce_id", "1"), ("ce_source", "s")]);
    assert_eq!((read.id, read.source), (None, None));
    assert_eq!(read.headers.get("ce_id"), Some("1"));
}

#[test]
fn attributes_are_read_in_any_case_and_by_other_prefixes() {
    for (binding, version, id) in [
        (Binding::HTTP, "CE-SpecVersion", "Ce-ID"),
        (Binding::KAFKA, "ce-specversion", "ce-id"),
        (Binding::AMQP, "cloudEvents:specversion", "cloudevents_id"),
    ] {
        let read = read_by(&binding, &[(id, "1"), (version, "1.0")]);
        assert_eq!(read.id.as_deref(), Some("1"), "{binding:?}");
        assert!(read.headers.is_empty(), "{binding:?}");
    }
}

#[test]
fn what_is_quoted_or_encoded_is_so_only_in_attributes_of_bindings_that_do_it() {
    let quoted = r#""a \"b\" \\ %41""#;
    let key = |binding: &Binding, value: &str| {
        let version = format!("{}specversion", binding.prefix);
        let subject = format!("{}subject", binding.prefix);
        read_by(binding, &[(&version, "1.0"), (&subject, value)]).key.unwrap()
    };
    assert_eq!(key(&Binding::HTTP, quoted), r#"a "b" \ A"#);
    assert_eq!(key(&Binding::HTTP, "\""), "\"");
    assert_eq!(key(&Binding::KAFKA, quoted), quoted);
    let plain = read_by(&Binding::HTTP, &[("x", "%41")]);
    assert_eq!(plain.headers.get("x"), Some("%41"));
}

#[test]
fn the_partition_key_goes_before_the_subject_whichever_comes_first() {
    let (version, key) = (("ce_specversion", "1.0"), ("ce_partitionkey", "key"));
    let subject = ("ce_subject", "subject");
    for headers in [[version, key, subject], [version, subject, key]] {
        assert_eq!(read_by(&Binding::KAFKA, &headers).key.as_deref(), Some("key"));
    }
}

#[test]
fn attributes_that_relevo_does_not_know_are_kept() {
    let read = read_by(&Binding::KAFKA, &[("ce_specversion", "1.0"), ("ce_Region", "eu")]);
    assert_eq!(read.headers.iter().collect::<Vec<_>>(), [("ce-region", "eu")]);
}

#[test]
fn the_content_type_is_the_brokers_then_the_attributes_then_the_headers() {
    let (version, plain) = (("ce_specversion", "1.0"), ("Content-Type", "plain"));
    let attribute = ("ce_datacontenttype", "attribute");
    let content_type = |headers: &[(&str, &str)]| {
        let read = read_by(&Binding::KAFKA, headers);
        read.headers.get(header::CONTENT_TYPE).map(str::to_owned)
    };
    assert_eq!(content_type(&[plain]).as_deref(), Some("plain"));
    assert_eq!(content_type(&[version, plain, attribute]).as_deref(), Some("attribute"));
    assert_eq!(content_type(&[version, attribute, plain]).as_deref(), Some("attribute"));
    let mut message = arriving(vec![("content-type".into(), "plain".into())], b"");
    message.content_type = Some("broker".into());
    let read = read(&message, &Binding::KAFKA);
    assert_eq!(read.headers.get(header::CONTENT_TYPE), Some("broker"));
}

#[test]
fn the_conversation_is_what_the_attribute_says_or_else_the_plain_header() {
    let (version, plain) = (("ce_specversion", "1.0"), ("X-Correlation-Id", "plain"));
    let attribute = ("ce_correlationid", "attribute");
    for (headers, known_by) in [
        (vec![plain], "plain"),
        (vec![version, attribute, plain], "attribute"),
        (vec![version, plain, attribute], "attribute"),
    ] {
        let read = read_by(&Binding::KAFKA, &headers);
        let headers: Vec<_> = read.headers.iter().collect();
        assert_eq!(headers, [(header::CORRELATION_ID, known_by)]);
    }
}

#[test]
fn a_trace_is_read_in_any_case_and_the_events_id_is_no_header() {
    let read =
        read_by(&Binding::NATS, &[("TraceParent", "p"), ("TRACESTATE", "s"), ("X-Event-Id", "1")]);
    let headers: Vec<_> = read.headers.iter().collect();
    assert_eq!(headers, [(header::TRACEPARENT, "p"), (header::TRACESTATE, "s")]);
}

#[test]
fn only_two_hexadecimal_digits_after_a_percent_sign_are_an_encoding() {
    for (text, means) in
        [("%41%", "A%"), ("%4", "%4"), ("%+1", "%+1"), ("%e2%82%ac", "€"), ("41", "41")]
    {
        assert_eq!(decode(text), means);
    }
    assert_eq!(encode("a \"b\" 5%\u{7f}€", false), "a \"b\" 5%%7F%E2%82%AC");
}
