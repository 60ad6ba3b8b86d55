//! Other programs at the same topics.

use crate::{config, consumer, open, python, run, shared, store, take, topic};
use relevo_core::broker::cloudevents::Binding;
use relevo_core::broker::{Foreign, Incoming, Receiver};
use relevo_core::event::{Event, NewEvent};
use serde_json::{Value, json};

#[test]
fn the_cloudevents_sdk_reads_what_is_published_and_writes_what_is_consumed() {
    run(async || {
        let Some(server) = shared().await else { return };
        let topic = topic(&server, 3).await;
        let new = NewEvent::json(&topic, &json!({"title": "año ñandú 🦀"}))
            .unwrap()
            .key("Straße 7")
            .event_type("ticket.created.v2")
            .tenant("acme")
            .correlation_id("flow-1")
            .header("source", "/shop")
            .header("time", "2026-01-02T03:04:05.678Z")
            .header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
        let event = Event::stored(new, chrono::Utc::now());
        store(config(&server), std::slice::from_ref(&event)).await;
        let bootstrap = server.bootstrap();
        let Some(said) = python(&["read", &bootstrap, &topic, "1"]) else { return };
        let (seen, id) = (&said[0], event.id.to_string());
        for (name, value) in [
            ("specversion", "1.0"),
            ("id", id.as_str()),
            ("source", "/shop"),
            ("type", "ticket.created.v2"),
            ("subject", "Straße 7"),
            ("partitionkey", "Straße 7"),
            ("datacontenttype", "application/json"),
            ("tenant", "acme"),
            ("correlationid", "flow-1"),
        ] {
            assert_eq!(seen["attributes"][name], value, "{seen}");
        }
        assert_eq!(seen["time"], "2026-01-02T03:04:05.678000+00:00");
        assert_eq!(
            (&seen["data"], &seen["key"]),
            (&json!({"title": "año ñandú 🦀"}), &json!("Straße 7"))
        );
        for (name, value) in [("x-event-id", id.as_str()), ("x-correlation-id", "flow-1")] {
            assert_eq!(seen["headers"][name], value, "{seen}");
        }
        let mut receiver = open(config(&server), consumer(&topic)).await;
        python(&["write", &bootstrap, &topic]);
        let messages = eventually_foreign(&mut receiver, &id).await;
        let arrived = messages.event(&Binding::KAFKA, &Foreign::default()).unwrap();
        assert_eq!((arrived.source.as_str(), arrived.id.as_str()), ("/python", "py-1"));
        assert_eq!(arrived.event.key.as_deref(), Some("t-7"));
        assert_eq!(arrived.event.event_type(), "ticket.closed");
        assert_eq!(arrived.event.content_type(), "application/json");
        assert_eq!(arrived.event.json::<Value>().unwrap()["title"], "año ñandú 🦀");
    });
}

/// The first message that is not ours.
async fn eventually_foreign(receiver: &mut Box<dyn Receiver>, own: &str) -> Incoming {
    loop {
        let message = take(receiver, 1).await.remove(0);
        if message.header("x-event-id") != Some(own) {
            return message;
        }
    }
}
