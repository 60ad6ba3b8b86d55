//! CloudEvents 1.0 in binary mode as the AMQP protocol binding has it, against tables written by hand from that text:
//! the other side is the bare client, and no constant of ours names anything.

use crate::{admin, fresh, one, publish, run, topology};
use lapin::options::{BasicGetOptions, BasicPublishOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use relevo_brokers::rabbitmq::topology::RabbitMqTopology;
use relevo_brokers::rabbitmq::{BINDING, RabbitMqConfig, RabbitMqPublisher, RabbitMqSubscriber};
use relevo_core::broker::{Confirm, Foreign, Settle, Subscriber, Topology};
use relevo_core::event::{Event, NewEvent};
use relevo_testkit::eventually;
use serde_json::json;
use std::collections::BTreeMap;

/// Every attribute but `datacontenttype`, which is the property `content-type` (3.1.1). Before each name stands
/// `cloudEvents_`, which is preferred to the form with a colon because JMS can select by it (3.1.3.1); values are
/// canonical strings (3.1.3.2), in UTF-8 and without any encoding.
const ATTRIBUTES: [(&str, &str); 11] = [
    ("cloudEvents_specversion", "1.0"),
    ("cloudEvents_id", "01920000-0000-7000-8000-000000000001"),
    ("cloudEvents_source", "/shop"),
    ("cloudEvents_type", "ticket.created.v2"),
    ("cloudEvents_time", "2026-01-02T03:04:05.678Z"),
    ("cloudEvents_subject", "Straße 7 \"100%\""),
    // Extensions: the first by the specification's "partitioning", the last two by its "correlation".
    ("cloudEvents_partitionkey", "Straße 7 \"100%\""),
    ("cloudEvents_topic", "ticket.created"),
    ("cloudEvents_tenant", "acme GmbH"),
    ("cloudEvents_correlationid", "flow-1"),
    ("cloudEvents_causationid", "cause-0"),
];

/// What travels beside the attributes, by names of its own.
const BESIDE: [(&str, &str); 6] = [
    ("x-event-id", "01920000-0000-7000-8000-000000000001"),
    ("x-correlation-id", "flow-1"),
    ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ("tracestate", "vendor=1"),
    ("x-own", "ü 1"),
    ("x-event-header-cloudEvents_id", "forged"),
];

fn with_every_attribute() -> Event {
    let new = NewEvent::bytes("ticket.created", br#"{"n":1}"#.to_vec())
        .id("01920000-0000-7000-8000-000000000001".parse().unwrap())
        .key("Straße 7 \"100%\"")
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
        .header("cloudEvents_id", "forged");
    Event::stored(new, chrono::Utc::now())
}

/// A classic queue: quorum queues put a header of their own beside ours.
fn tickets() -> RabbitMqTopology {
    topology(json!({
        "exchanges": {"events": {}},
        "queues": {"tickets": {"kind": "classic", "bind": {"events": ["ticket.#"]}}},
    }))
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

/// As text where they are text; other types show.
fn told(headers: &FieldTable) -> BTreeMap<&str, String> {
    let told = |value: &AMQPValue| match value {
        AMQPValue::LongString(text) => text.to_string(),
        other => format!("{other:?}"),
    };
    headers.inner().iter().map(|(name, value)| (name.as_str(), told(value))).collect()
}

async fn bare(url: &str) -> (Connection, Channel) {
    let connection = Connection::connect(url, ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    (connection, channel)
}

#[test]
fn a_bare_client_finds_every_attribute_where_the_specification_has_it_and_nothing_else() {
    run(async || {
        let Some((server, url)) = fresh().await else { return };
        admin(&server, &url, &tickets()).apply(false).await.unwrap();
        let config = RabbitMqConfig::to(&url).unwrap().exchange("events");
        let confirms = publish(&RabbitMqPublisher::new(config), &[with_every_attribute()]).await;
        assert_eq!(confirms, [Confirm::Stored]);
        let (_connection, channel) = bare(&url).await;
        let delivery = eventually("the message", async || {
            let options = BasicGetOptions { no_ack: true };
            Some(channel.basic_get("tickets".into(), options).await.ok()??.delivery)
        })
        .await;
        let expected = ATTRIBUTES.into_iter().chain(BESIDE);
        let expected: BTreeMap<&str, String> =
            expected.map(|(name, value)| (name, value.to_owned())).collect();
        let headers = delivery.properties.headers().clone().unwrap_or_default();
        assert_eq!(told(&headers), expected);
        let properties = BasicProperties::default()
            .with_content_type("application/json; charset=utf-8".into())
            .with_headers(headers)
            .with_delivery_mode(2)
            .with_correlation_id("flow-1".into())
            .with_message_id("01920000-0000-7000-8000-000000000001".into())
            .with_timestamp(1_767_323_045)
            .with_type("ticket.created.v2".into());
        assert_eq!(delivery.properties, properties);
        assert_eq!(delivery.data, br#"{"n":1}"#);
        assert_eq!(delivery.routing_key.as_str(), "ticket.created");
    });
}

/// Receivers must understand both separators and, for every attribute, AMQP's own type beside the string.
fn written_by_others() -> [FieldTable; 2] {
    let own_types = [
        ("cloudEvents:specversion", text("1.0")),
        ("cloudEvents:id", text("other-1")),
        ("cloudEvents:source", text("/others")),
        ("cloudEvents:type", text("ticket.closed")),
        ("cloudEvents:time", AMQPValue::Timestamp(1_767_323_045)),
        ("cloudEvents:partitionkey", text("Straße 7")),
        ("cloudEvents:sequence", AMQPValue::LongLongInt(42)),
        ("cloudEvents:urgent", AMQPValue::Boolean(true)),
    ];
    let strings = [
        ("cloudEvents_specversion", text("1.0")),
        ("cloudEvents_id", text("other-1")),
        ("cloudEvents_source", text("/others")),
        ("cloudEvents_type", text("ticket.closed")),
        ("cloudEvents_time", text("2026-01-02T03:04:05Z")),
        ("cloudEvents_partitionkey", text("Straße 7")),
        ("cloudEvents_sequence", text("42")),
        ("cloudEvents_urgent", text("true")),
    ];
    [own_types, strings].map(|attributes| {
        let mut table = FieldTable::default();
        for (name, value) in attributes {
            table.insert(name.into(), value);
        }
        table
    })
}

#[test]
fn what_a_bare_client_writes_is_read_in_every_form_that_the_specification_has() {
    run(async || {
        let Some((server, url)) = fresh().await else { return };
        admin(&server, &url, &tickets()).apply(false).await.unwrap();
        let (_connection, channel) = bare(&url).await;
        let subscriber = RabbitMqSubscriber::new(RabbitMqConfig::to(&url).unwrap(), "tickets");
        let mut receiver = subscriber.open().await.unwrap();
        for headers in written_by_others() {
            let properties = BasicProperties::default()
                .with_content_type("text/plain".into())
                .with_headers(headers);
            let (exchange, options) = ("events".into(), BasicPublishOptions::default());
            let sent =
                channel.basic_publish(exchange, "ticket.x".into(), options, b"!", properties);
            sent.await.unwrap();
            let message = one(&mut receiver).await;
            let arrived = message.event(&BINDING, &Foreign::default()).unwrap();
            assert_eq!((arrived.source.as_str(), arrived.id.as_str()), ("/others", "other-1"));
            assert_eq!(arrived.event.key.as_deref(), Some("Straße 7"));
            let headers: Vec<(&str, &str)> = arrived.event.headers.iter().collect();
            let expected = [
                ("ce-sequence", "42"),
                ("ce-urgent", "true"),
                ("content-type", "text/plain"),
                ("source", "/others"),
                ("time", "2026-01-02T03:04:05Z"),
                ("type", "ticket.closed"),
            ];
            assert_eq!(headers, expected);
            receiver.settle(&[(message.tag, Settle::Done)]).await.unwrap();
        }
    });
}
