//! Every state an event can be in, produced and asked about.

use crate::support::{Destination, Scratch, block_on, eventually};
use relevo_core::ErrorClass;
use relevo_core::broker::Confirm;
use relevo_core::dead_letters::Operate;
use relevo_core::outbox::{Retention, Store};
use relevo_core::retry::RetryPolicy;
use serde_json::Value;
use std::time::Duration;

/// What `why` says of an event for one subscription: its state with all fields.
fn why(scratch: &Scratch, id: &str, subscription: &str) -> Value {
    let answer = scratch.json(&["why", id]);
    let all = answer["subscriptions"].as_array().unwrap();
    all.iter()
        .find(|it| it["subscription"] == subscription)
        .unwrap_or_else(|| panic!("{answer}"))
        .clone()
}

fn patient() -> RetryPolicy {
    RetryPolicy::ladder([Duration::from_secs(3600)])
}

#[test]
fn each_state_of_a_subscription_is_told_apart() {
    let scratch = Scratch::with_store();
    let id = scratch.publish("order.placed", "order-1", "1");
    scratch.ok(&["subscriptions", "add", "billing"]);
    scratch.ok(&["subscriptions", "add", "tickets", "--topic", "ticket.*"]);
    scratch.ok(&["subscriptions", "add", "late", "--start", "now"]);
    assert_eq!(why(&scratch, &id, "billing")["state"], "nobody_works");
    assert_eq!(why(&scratch, &id, "tickets")["state"], "filtered_out");
    assert_eq!(why(&scratch, &id, "late")["state"], "before_start");
    scratch.ok(&["subscriptions", "pause", "billing", "--reason", "audit"]);
    assert_eq!(why(&scratch, &id, "billing")["state"], "paused");
    assert!(scratch.ok(&["why", &id]).contains("paused by ana"));
    scratch.ok(&["subscriptions", "resume", "billing"]);
    scratch.deliver("billing");
    assert_eq!(why(&scratch, &id, "billing")["state"], "delivered");
    scratch.let_die("refusing", 1);
    assert_eq!(why(&scratch, &id, "refusing")["state"], "dead");
    assert!(scratch.ok(&["why", &id]).contains("relevo dead-letters show 1"));
}

#[test]
fn a_failed_event_is_parked_until_a_time_and_its_followers_behind_it() {
    let scratch = Scratch::with_store();
    let first = scratch.publish("order.placed", "order-1", "1");
    let second = scratch.publish("order.paid", "order-1", "2");
    let refused =
        Confirm::Refused { class: ErrorClass::Transient, error: "503".into(), after: None };
    block_on(async {
        let running = scratch.start("billing", Destination::Answers(refused), patient()).await;
        eventually(&scratch.store(), async |store| {
            store.status().await.unwrap().subscriptions[0].parked_events == 2
        })
        .await;
        running.stop(Duration::from_secs(10)).await.unwrap();
    });
    let parked = why(&scratch, &first, "billing");
    assert_eq!((parked["state"].as_str(), parked["attempts"].as_i64()), (Some("parked"), Some(1)));
    assert!(parked["due"].is_string(), "{parked}");
    let behind = why(&scratch, &second, "billing");
    assert_eq!(
        (behind["state"].as_str(), behind["event"].as_str()),
        (Some("parked_behind"), Some(&*first))
    );
    let told = scratch.ok(&["why", &second]);
    assert!(told.contains(&format!("parked behind {first}")) && told.contains("(in "), "{told}");
    scratch.ok(&["subscriptions", "pause", "billing", "--reason", "audit"]);
    let paused = why(&scratch, &first, "billing");
    assert_eq!((&paused["state"], &paused["then"]["state"]), (&"paused".into(), &"parked".into()));
    let told = scratch.ok(&["why", &first]);
    let place = |part: &str| told.find(part).unwrap_or_else(|| panic!("{part}\n{told}"));
    assert!(place("paused by ana at ") < place("relevo subscriptions resume billing"), "{told}");
    assert!(
        place("relevo subscriptions resume billing") < place("parked after 1 attempt"),
        "{told}"
    );
}

#[test]
fn an_event_in_the_hands_of_a_process_names_it() {
    let scratch = Scratch::with_store();
    let id = scratch.publish("order.placed", "order-1", "1");
    block_on(async {
        let running = scratch.start("billing", Destination::Hangs, patient()).await;
        eventually(&scratch.store(), async |store| {
            store.status().await.unwrap().subscriptions[0].lanes_owned == 64
        })
        .await;
        let told = why(&scratch, &id, "billing");
        assert_eq!(told["state"], "lane_leased", "{told}");
        assert!(told["owner"].as_str().unwrap().starts_with("test-"), "{told}");
        // It hangs, as it should; ending it in time is not asked for.
        assert!(running.stop(Duration::from_millis(10)).await.is_err());
    });
}

#[test]
fn a_destination_that_is_down_is_told_as_such() {
    let scratch = Scratch::with_store();
    let id = scratch.publish("order.placed", "order-1", "1");
    block_on(async {
        let down = Confirm::Down { error: "connection refused".into() };
        let running = scratch.start("billing", Destination::Answers(down), patient()).await;
        eventually(&scratch.store(), async |_| {
            why(&scratch, &id, "billing")["state"] == "breaker_open"
        })
        .await;
        assert!(scratch.ok(&["why", &id]).contains("the destination is down"));
        running.stop(Duration::from_secs(10)).await.unwrap();
    });
}

#[test]
fn an_event_that_retention_has_dropped_is_said_to_be_past_it() {
    let scratch = Scratch::with_store();
    let id = scratch.publish("order.placed", "order-1", "1");
    scratch.deliver("billing");
    block_on(async {
        let store = scratch.store();
        let mut retention = Retention::default();
        retention.events = Duration::ZERO;
        eventually(&store, async |store| {
            store.upkeep(&retention).await.unwrap();
            scratch.run(&["why", &id]).code == 4
        })
        .await;
    });
    let ended = scratch.run(&["why", &id]);
    assert!(ended.out.contains("retention"), "{}", ended.out);
}

#[test]
fn an_event_nobody_knows_is_said_to_be_unknown() {
    let scratch = Scratch::with_store();
    let ended = scratch.run(&["why", "01990f6a-7d3c-7b53-9f0e-3f6f6f5f2a11"]);
    assert_eq!(ended.code, 4);
    assert!(ended.out.contains("never published here"), "{}", ended.out);
    let ended = scratch.run(&["why", "01990f6a-7d3c-7b53-9f0e-3f6f6f5f2a11", "--json"]);
    let answer: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!((ended.code, answer["found"].as_str()), (4, Some("unknown")));
}
