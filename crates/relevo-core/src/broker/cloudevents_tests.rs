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
