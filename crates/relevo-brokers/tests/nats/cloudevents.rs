//! CloudEvents 1.0 in binary mode as the NATS protocol binding has it, against tables written by hand from that text:
//! the other side is the bare client, and no constant of ours names anything.

use super::{consumer, next, open, publish, streams};
use async_nats::HeaderMap;
use relevo_brokers::nats::{NatsConfig, NatsPublisher};
use relevo_core::broker::cloudevents::Binding;
use relevo_core::broker::{Confirm, Foreign, Settle};
use relevo_core::event::{Event, NewEvent};
use relevo_testkit::services::{Nats, require};

/// Every attribute, `datacontenttype` like the others, with `ce-` before its name (3.1.3.1). In values, spaces, double
/// quotes, percent signs and what is not printable ASCII are percent-encoded, byte by byte and in capitals (3.1.3.2).
const ATTRIBUTES: [(&str, &str); 12] = [
    ("ce-specversion", "1.0"),
    ("ce-id", "01920000-0000-7000-8000-000000000001"),
    ("ce-source", "/shop"),
    ("ce-type", "ticket.created.v2"),
    ("ce-datacontenttype", "application/json;%20charset=utf-8"),
    ("ce-time", "2026-01-02T03:04:05.678Z"),
    ("ce-subject", "Stra%C3%9Fe%207%20%22100%25%22%20%F0%9F%98%80"),
    // Extensions: the first by the specification's "partitioning", the last two by its "correlation".
    ("ce-partitionkey", "Stra%C3%9Fe%207%20%22100%25%22%20%F0%9F%98%80"),
    ("ce-topic", "ticket.created"),
    ("ce-tenant", "acme%20GmbH"),
    ("ce-correlationid", "flow-1"),
    ("ce-causationid", "cause-0"),
];

/// What travels beside the attributes, by names of its own; `STREAM` stands for the name of the test's stream.
const BESIDE: [(&str, &str); 9] = [
    ("Nats-Msg-Id", "01920000-0000-7000-8000-000000000001"),
    ("Nats-Expected-Stream", "STREAM"),
    ("content-type", "application/json; charset=utf-8"),
    ("x-event-id", "01920000-0000-7000-8000-000000000001"),
    ("x-correlation-id", "flow-1"),
    ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ("tracestate", "vendor=1"),
    ("x-own", "ü 1"),
    ("x-event-header-ce-id", "forged"),
];

fn with_every_attribute() -> Event {
    let new = NewEvent::bytes("ticket.created", br#"{"n":1}"#.to_vec())
        .id("01920000-0000-7000-8000-000000000001".parse().unwrap())
        .key("Straße 7 \"100%\" 😀")
        .content_type("application/json; charset=utf-8")
        .event_type("ticket.created.v2")
        .tenant("acme GmbH")
        .correlation_id("flow-1")
        .header("causation-id", "cause-0")
        .header("source", "/shop")
        .header("time", "2026-01-02T03:04:05.678Z")
        .header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        .header("tracestate", "vendor=1")
        .header("x-own", "ü 1")
        .header("ce-id", "forged");
    Event::stored(new, chrono::Utc::now())
}

#[tokio::test]
async fn a_bare_client_finds_every_attribute_where_the_specification_has_it_and_nothing_else() {
    let Some(server) = require(Nats::shared()) else { return };
    let (context, name) = streams(&server).await;
    let config = NatsConfig::to(&server.url()).unwrap().stream(&*name).subject_prefix(&*name);
    let confirms = publish(&NatsPublisher::new(config), &[with_every_attribute()]).await;
    assert_eq!(confirms, [Confirm::Stored]);
    let stream = context.get_stream(&name).await.unwrap();
    let message = stream.get_raw_message(1).await.unwrap();
    let found = message.headers.iter().flat_map(|(name, values)| {
        values.iter().map(|value| (name.to_string(), value.as_str().to_owned()))
    });
    let mut found: Vec<(String, String)> = found.collect();
    let expected = ATTRIBUTES.into_iter().chain(BESIDE).map(|(header, value)| {
        let value = if value == "STREAM" { &name } else { value };
        (header.to_owned(), value.to_owned())
    });
    let mut expected: Vec<(String, String)> = expected.collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
    assert_eq!(message.subject.as_str(), format!("{name}.ticket.created"));
    assert_eq!(&message.payload[..], br#"{"n":1}"#);
}

/// One event in both forms that receivers must understand: encoded more than need be and in small letters; and as older
/// versions of the specification had it, in double quotes. The binding takes header names in any case.
const WRITTEN_BY_OTHERS: [[(&str, &str); 8]; 2] = [
    [
        ("ce-specversion", "1.0"),
        ("ce-id", "other%201"),
        ("ce-source", "/others"),
        ("ce-type", "ticket.%63losed"),
        ("ce-datacontenttype", "text/plain;%20charset=utf-8"),
        ("ce-time", "2026-01-02T03:04:05Z"),
        ("ce-partitionkey", "Stra%c3%9fe%20%227%22"),
        ("ce-sequence", "42"),
    ],
    [
        ("CE-SPECVERSION", "1.0"),
        ("Ce-Id", "\"other 1\""),
        ("Ce-Source", "/others"),
        ("Ce-Type", "ticket.closed"),
        ("Ce-Datacontenttype", "\"text/plain; charset=utf-8\""),
        ("Ce-Time", "2026-01-02T03:04:05Z"),
        ("Ce-Partitionkey", "\"Stra%C3%9Fe \\\"7\\\"\""),
        ("Ce-Sequence", "\"42\""),
    ],
];

#[tokio::test]
async fn what_a_bare_client_writes_is_read_in_every_form_that_the_specification_has() {
    let Some(server) = require(Nats::shared()) else { return };
    let (context, name) = streams(&server).await;
    let mut receiver = open(&server, consumer(&name)).await;
    for written in WRITTEN_BY_OTHERS {
        let mut headers = HeaderMap::new();
        for (name, value) in written {
            headers.insert(name, value);
        }
        let sent = context.publish_with_headers(format!("{name}.x"), headers, "!".into()).await;
        sent.unwrap().await.unwrap();
        let message = next(&mut receiver, 1).await.remove(0);
        let arrived = message.event(&Binding::NATS, &Foreign::default()).unwrap();
        assert_eq!((arrived.source.as_str(), arrived.id.as_str()), ("/others", "other 1"));
        assert_eq!(arrived.event.key.as_deref(), Some("Straße \"7\""));
        let headers: Vec<(&str, &str)> = arrived.event.headers.iter().collect();
        let expected = [
            ("ce-sequence", "42"),
            ("content-type", "text/plain; charset=utf-8"),
            ("source", "/others"),
            ("time", "2026-01-02T03:04:05Z"),
            ("type", "ticket.closed"),
        ];
        assert_eq!(headers, expected);
        receiver.settle(&[(message.tag, Settle::Done)]).await.unwrap();
    }
}
