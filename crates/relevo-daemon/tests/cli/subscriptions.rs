//! Subscriptions: added, paused, resumed, rewound, removed.

use crate::support::Scratch;
use serde_json::Value;

fn state(scratch: &Scratch, id: &str, subscription: &str) -> String {
    let answer = scratch.json(&["why", id]);
    let all = answer["subscriptions"].as_array().unwrap();
    let found = all
        .iter()
        .find(|it| it["subscription"] == subscription)
        .unwrap_or_else(|| panic!("{answer}"));
    found["state"].as_str().unwrap().to_owned()
}

fn listed(scratch: &Scratch) -> Vec<Value> {
    scratch.json(&["subscriptions", "list"]).as_array().unwrap().clone()
}

#[test]
fn a_paused_subscription_is_shown_as_such_until_it_is_resumed() {
    let scratch = Scratch::with_store();
    scratch.ok(&["subscriptions", "add", "billing"]);
    scratch.ok(&["subscriptions", "pause", "billing", "--reason", "the bank is down"]);
    let paused = listed(&scratch)[0]["paused"].as_str().unwrap().to_owned();
    assert!(paused.starts_with("ana at ") && paused.ends_with(": the bank is down"), "{paused}");
    assert!(scratch.ok(&["status"]).contains("relevo subscriptions resume billing"));
    scratch.ok(&["subscriptions", "resume", "billing"]);
    assert!(listed(&scratch)[0]["paused"].is_null());
}

#[test]
fn rewinding_asks_first_and_then_delivers_again() {
    let scratch = Scratch::with_store();
    let id = scratch.publish("order.placed", "order-1", "1");
    scratch.deliver("billing");
    assert_eq!(state(&scratch, &id, "billing"), "delivered");
    assert!(
        scratch
            .fails(5, &["subscriptions", "rewind", "billing", "--to", "beginning"])
            .contains("--yes")
    );
    assert_eq!(state(&scratch, &id, "billing"), "delivered");
    scratch.ok(&["subscriptions", "rewind", "billing", "--to", "beginning", "--yes"]);
    assert_eq!(listed(&scratch)[0]["backlog"], 1);
    scratch.ok(&["subscriptions", "rewind", "billing", "--to", "now", "--yes"]);
    assert_eq!(listed(&scratch)[0]["backlog"], 0);
    let error = scratch.fails(2, &["subscriptions", "rewind", "billing", "--to", "yesterday"]);
    assert!(error.contains("2026-01-31T08:00:00Z"), "{error}");
}

#[test]
fn removing_asks_first_and_leaves_dead_letters() {
    let scratch = Scratch::with_store();
    scratch.publish("order.placed", "order-1", "1");
    scratch.let_die("billing", 1);
    assert!(scratch.fails(5, &["subscriptions", "remove", "billing"]).contains("--yes"));
    scratch.ok(&["subscriptions", "remove", "billing", "--yes"]);
    assert!(listed(&scratch).is_empty());
    assert_eq!(scratch.json(&["dead-letters", "list"]).as_array().unwrap().len(), 1);
}

#[test]
fn an_unknown_subscription_is_refused_with_the_nearest_name() {
    let scratch = Scratch::with_store();
    scratch.ok(&["subscriptions", "add", "billing"]);
    for args in [
        vec!["subscriptions", "pause", "biling"],
        vec!["subscriptions", "resume", "biling"],
        vec!["subscriptions", "rewind", "biling", "--to", "now", "--yes"],
        vec!["subscriptions", "remove", "biling", "--yes"],
    ] {
        let error = scratch.fails(4, &args);
        assert!(
            error.starts_with("error R0015") && error.contains("did you mean \"billing\"?"),
            "{error}"
        );
    }
    assert!(scratch.fails(2, &["subscriptions", "add", "billing"]).contains("already"));
    assert!(scratch.fails(2, &["subscriptions", "add", "a b"]).contains("not a name"));
    assert!(scratch.fails(2, &["subscriptions", "add", "x", "--topic", "a..b"]).contains("R0012"));
}
