//! Another language publishes by SQL, inside its own transaction, and the relay delivers it.
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

use relevo_core::dead_letters::Operate;
use relevo_core::event::{Event, EventId};
use relevo_stores::postgres::PostgresStore;
use relevo_testkit::services::{self, Postgres};
use relevo_tests::engine::run;
use relevo_tests::script::Script;
use relevo_tests::world::{PgHandlers, PostgresWorld, effects, relay, stop};
use serde_json::Value;
use std::process::Command;

fn publish(python: &std::path::Path, url: &str) -> Value {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/python/publish.py");
    let output = Command::new(python).args([script, url]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "publish.py failed:\n{errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn event(events: &[(i64, Event)], id: &Value) -> Event {
    let id: EventId = id.as_str().unwrap().parse().unwrap();
    events.iter().find(|(_, event)| event.id == id).map(|(_, event)| event.clone()).unwrap()
}

#[test]
fn python_publishes_inside_its_own_transaction_on_every_version() {
    for major in Postgres::MAJORS {
        let Some(python) = services::require(services::python()) else { return };
        let Some(server) = services::require(Postgres::shared(major)) else { continue };
        let url = server.create_database().unwrap();
        run(async || {
            let world = PostgresWorld::at(&url, &url, PgHandlers::TokioPostgres).await;
            let said = publish(&python, &url);
            check(&said, &PostgresStore::connect(&url).await.unwrap()).await;
            let running = relay(&world, "s", &Script::done()).await;
            let rows = effects(&world, 4).await;
            assert!(rows.iter().any(|row| row.payload.contains("ñandú 🦀")), "{rows:?}");
            stop(running).await;
        });
    }
}

async fn check(said: &Value, store: &PostgresStore) {
    let events = store.peek(0, 100).await.unwrap();
    assert_eq!(events.len(), 4, "what rolled back is not there: {events:?}");
    let created = event(&events, &said["ids"]["committed"]);
    assert_eq!((created.topic.as_str(), created.key.as_deref()), ("ticket.created", Some("t-1")));
    assert_eq!(created.json::<Value>().unwrap()["title"], "año ñandú 🦀");
    assert_eq!(created.headers.get("tenant"), Some("acme"));
    assert_eq!(created.headers.get("correlation-id"), Some("c-1"));
    assert_eq!(created.content_type(), "application/json");
    assert_eq!(event(&events, &said["ids"]["outer"]).topic, "ticket.outer");
    let scan = event(&events, &said["ids"]["bytes"]);
    assert_eq!(scan.payload.as_ref(), (0..=255).collect::<Vec<u8>>());
    assert_eq!((scan.content_type(), scan.key.as_deref()), ("image/png", None));
    assert_eq!(event(&events, &said["ids"]["plain"]).payload.as_ref(), b"plain");
    for (what, word) in [("payload", "payload"), ("topic", "topic"), ("key", "key")] {
        let message =
            said["refused"][what].as_str().unwrap_or_else(|| panic!("{what} was not refused"));
        assert!(message.contains(word), "{what}: {message}");
    }
    assert_eq!(said["first_time"], serde_json::json!([true, true, false]));
}
