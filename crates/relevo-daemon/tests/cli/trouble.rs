//! What stands still says so, since when, and what lets it go on.

use crate::support::{Destination, Scratch, block_on, eventually};
use relevo_core::ErrorClass;
use relevo_core::broker::Confirm;
use relevo_core::dead_letters::Operate;
use relevo_core::outbox::Subscription;
use relevo_core::relay::AfterDead;
use relevo_core::retry::RetryPolicy;
use serde_json::Value;
use std::time::Duration;

#[test]
fn doctor_and_status_name_a_destination_that_is_down() {
    let scratch = Scratch::with_store();
    scratch.publish("order.placed", "order-1", "1");
    block_on(async {
        let down = Destination::Answers(Confirm::Down { error: "connection refused".into() });
        let about = Subscription::new("billing").destination("shop (http://shop)");
        let running = scratch.start_as(about, down, RetryPolicy::default()).await;
        eventually(&scratch.store(), async |store| {
            let status = store.status().await.unwrap();
            status.subscriptions[0].members.iter().any(|it| it.note["breaker"].is_object())
        })
        .await;
        let doctor = scratch.run(&["doctor"]);
        let status = scratch.ok(&["status"]);
        let json = scratch.json(&["status"]);
        running.stop(Duration::from_secs(30)).await.unwrap();
        assert_eq!(doctor.code, 1, "{}", doctor.out);
        for told in [&doctor.out, &status] {
            for part in
                ["shop (http://shop) has been down for", "connection refused", "correct its url"]
            {
                assert!(told.contains(part), "{part}\n{told}");
            }
        }
        assert!(status.contains("breaker open") && !status.contains("working"), "{status}");
        let note = &json["subscriptions"][0]["members"][0]["note"]["breaker"];
        assert!(note["open_s"].is_number() && note["reason"] == "connection refused", "{json}");
    });
    // Whoever found it down is gone: nobody knows any more.
    assert!(!scratch.ok(&["doctor"]).contains("has been down"));
}

#[test]
fn an_event_behind_a_held_dead_letter_says_behind_which_and_what_releases_it() {
    let scratch = Scratch::with_store();
    let dead = scratch.publish("order.placed", "order-1", "1");
    let next = scratch.publish("order.paid", "order-1", "2");
    let last = scratch.publish("order.sent", "order-1", "3");
    let held = || Subscription::new("billing").after_dead(AfterDead::Hold);
    let once = || RetryPolicy::default().max_attempts(1);
    block_on(async {
        let refused =
            Confirm::Refused { class: ErrorClass::Poison, error: "422".into(), after: None };
        let running = scratch.start_as(held(), Destination::Answers(refused), once()).await;
        eventually(&scratch.store(), async |store| {
            store.status().await.unwrap().subscriptions[0].parked_events == 2
        })
        .await;
        running.stop(Duration::from_secs(30)).await.unwrap();
    });
    let told = scratch.ok(&["why", &next]);
    for part in [format!("held behind {dead}").as_str(), "dead letter 1 (poison: 422)"] {
        assert!(told.contains(part), "{part}\n{told}");
    }
    let state: Value = scratch.json(&["why", &last])["subscriptions"][0].take();
    assert_eq!((&state["state"], &state["before"]), (&"held".into(), &1.into()), "{state}");
    assert!(scratch.ok(&["why", &last]).contains("with 1 event of its key before it"));
    // What it says lets the key go on, literally.
    let release = told.split('`').find(|it| it.contains("archive")).unwrap().to_owned();
    let args: Vec<&str> = release.split(' ').skip(1).chain(["--yes"]).collect();
    scratch.ok(&args);
    block_on(async {
        let stored = Destination::Answers(Confirm::Stored);
        let running = scratch.start_as(held(), stored, once()).await;
        eventually(&scratch.store(), async |store| {
            store.status().await.unwrap().subscriptions[0].parked_keys == 0
        })
        .await;
        running.stop(Duration::from_secs(30)).await.unwrap();
    });
    assert_eq!(scratch.json(&["why", &last])["subscriptions"][0]["state"], "delivered");
}
