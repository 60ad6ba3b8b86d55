//! What goes, what stays, and who holds it.

use crate::support::Scratch;
use serde_json::Value;

fn holder(scratch: &Scratch, name: &str) -> Value {
    let plan = scratch.json(&["retention"]);
    let holders = plan["holders"].as_array().unwrap().clone();
    holders.into_iter().find(|it| it["subscription"] == name).unwrap()
}

#[test]
fn whoever_holds_the_log_is_named_with_the_reason() {
    let scratch = Scratch::with_store();
    scratch.publish("order.placed", "order-1", "1");
    assert!(scratch.ok(&["retention"]).contains("nobody subscribes: all of the log is kept"));
    scratch.ok(&["subscriptions", "add", "audit"]);
    let audit = holder(&scratch, "audit");
    assert_eq!(
        (audit["events"].as_i64(), audit["state"].as_str()),
        (Some(1), Some("nobody works it"))
    );
    scratch.ok(&["subscriptions", "pause", "audit", "--reason", "moving house"]);
    let table = scratch.ok(&["retention"]);
    assert!(table.contains("paused (ana") && table.contains("moving house"), "{table}");
    assert_eq!(scratch.json(&["retention"])["droppable_events"], 0);
}

#[test]
fn what_is_past_its_time_goes_at_once_when_asked_and_nothing_else() {
    let scratch = Scratch::with_store();
    let config = std::fs::read_to_string(scratch.path("relevo.toml")).unwrap();
    scratch.write("relevo.toml", format!("{config}\n[retention]\nevents = \"1ms\"\n"));
    for n in 0..3 {
        scratch.publish("order.placed", "order-1", &n.to_string());
    }
    scratch.ok(&["subscriptions", "add", "slow"]);
    scratch.deliver("billing");
    for _ in 0..3 {
        let applied = scratch.json(&["retention", "--apply"]);
        assert_eq!(applied["applied"]["rows_dropped"], 0, "{applied}");
    }
    assert_eq!(holder(&scratch, "slow")["events"], 3);
    scratch.ok(&["subscriptions", "remove", "slow", "--yes"]);
    // How far everybody is was noted by the rounds before.
    let mut dropped = 0;
    for _ in 0..50 {
        dropped +=
            scratch.json(&["retention", "--apply"])["applied"]["rows_dropped"].as_i64().unwrap();
        if dropped > 0 {
            break;
        }
    }
    assert_eq!(dropped, 3);
    assert_eq!(scratch.ok(&["tail"]).trim(), "no events");
    let told = scratch.ok(&["retention", "--apply"]);
    assert!(told.contains("gone    about 0 events, 0 dead letters"), "{told}");
}
