//! What failed for good, and how it comes back.

use crate::support::{Scratch, end, end_with_input};
use relevo_core::broker::Confirm;
use relevo_core::dead_letters::Operate;
use serde_json::Value;

/// A store with three dead letters of two keys.
fn with_dead_letters() -> Scratch {
    let scratch = Scratch::with_store();
    scratch.publish("order.placed", "order-1", r#"{"total": 1}"#);
    scratch.publish("order.paid", "order-1", r#"{"total": 2}"#);
    scratch.publish("order.placed", "order-2", r#"{"total": 3}"#);
    scratch.let_die("billing", 3);
    scratch
}

fn list(scratch: &Scratch, args: &[&str]) -> Vec<Value> {
    let args: Vec<&str> = ["dead-letters", "list"].iter().chain(args).copied().collect();
    scratch.json(&args).as_array().unwrap().clone()
}

fn first_id(scratch: &Scratch) -> String {
    list(scratch, &["--key", "order-2"])[0]["id"].to_string()
}

/// Works the subscription until nothing is waiting to be put back.
fn carry_out(scratch: &Scratch, operation: i64) {
    crate::support::block_on(scratch.work("billing", Confirm::Stored, async |store| {
        let progress = store.replay_progress(operation).await.unwrap();
        let status = store.status().await.unwrap();
        progress.waiting == 0 && status.subscriptions[0].parked_keys == 0
    }));
}

#[test]
fn dead_letters_are_listed_by_filter() {
    let scratch = with_dead_letters();
    assert_eq!(list(&scratch, &[]).len(), 3);
    assert_eq!(list(&scratch, &["--key", "order-1"]).len(), 2);
    assert_eq!(list(&scratch, &["--topic", "order.paid"]).len(), 1);
    assert_eq!(
        list(&scratch, &["--subscription", "billing", "--class", "poison", "--text", "422"]).len(),
        3
    );
    assert_eq!(list(&scratch, &["--class", "transient"]).len(), 0);
    assert_eq!(list(&scratch, &["--state", "archived"]).len(), 0);
    assert_eq!(list(&scratch, &["-n", "2"]).len(), 2);
    let last = list(&scratch, &["-n", "2"])[1]["id"].to_string();
    assert_eq!(list(&scratch, &["--before", &last]).len(), 1);
    let out = scratch.ok(&["dead-letters", "list"]);
    assert!(out.contains("422 no\\u{1b}[31m total") && !out.contains('\x1b'), "{out}");
    assert!(scratch.ok(&["dead-letters", "list", "--key", "none"]).contains("no dead letters"));
}

#[test]
fn a_dead_letter_is_shown_with_its_bytes_headers_and_reason() {
    let scratch = with_dead_letters();
    let id = first_id(&scratch);
    let out = scratch.ok(&["dead-letters", "show", &id]);
    for part in
        ["order-2", "poison: 422", "1 attempt", "content-type: application/json", "\"total\": 3"]
    {
        assert!(out.contains(part), "{part}\n{out}");
    }
    let shown = scratch.json(&["dead-letters", "show", &id]);
    assert_eq!(
        (shown["event"]["payload"]["total"].as_i64(), shown["state"].as_str()),
        (Some(3), Some("dead"))
    );
    assert!(scratch.fails(4, &["dead-letters", "show", "9999"]).contains("no dead letter 9999"));
}

#[test]
fn a_replay_is_counted_confirmed_and_carried_out_once() {
    let scratch = with_dead_letters();
    let refused = scratch.fails(5, &["dead-letters", "replay", "--key", "order-1"]);
    assert!(refused.contains("Replay 2 dead letters?") && refused.contains("--yes"), "{refused}");
    assert!(scratch.fails(2, &["dead-letters", "replay", "--yes"]).contains("--all"));
    assert!(
        scratch.fails(2, &["dead-letters", "replay", "--all", "--rate", "0"]).contains("--rate")
    );
    let progress = scratch.json(&["dead-letters", "replay", "--key", "order-1", "--yes"]);
    assert_eq!((progress["total"].as_i64(), progress["waiting"].as_i64()), (Some(2), Some(2)));
    assert_eq!(list(&scratch, &["--state", "requested"]).len(), 2);
    let again = scratch.fails(4, &["dead-letters", "replay", "--key", "order-1", "--yes"]);
    assert!(again.contains("not replayed again"), "{again}");
    let operation = progress["operation"].as_i64().unwrap();
    carry_out(&scratch, operation);
    let out = scratch.ok(&["dead-letters", "progress", &operation.to_string(), "--wait"]);
    assert!(out.contains("2 of 2 put back, 0 waiting"), "{out}");
    assert_eq!(list(&scratch, &[]).len(), 1);
}

#[test]
fn a_replay_can_be_waited_for() {
    let scratch = with_dead_letters();
    let waiting = scratch
        .command(&["dead-letters", "replay", "--all", "--rate", "1000", "--yes", "--wait"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    crate::support::block_on(scratch.work("billing", Confirm::Stored, async |store| {
        store.status().await.unwrap().subscriptions[0].dead_letters == 0
            && store.replay_progress(1).await.is_ok_and(|progress| progress.waiting == 0)
    }));
    let output = waiting.wait_with_output().unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && out.contains("3 of 3 put back"), "{out}");
}

#[test]
fn a_replay_can_be_cancelled_before_it_is_carried_out() {
    let scratch = with_dead_letters();
    let operation =
        scratch.json(&["dead-letters", "replay", "--all", "--yes"])["operation"].to_string();
    let out = scratch.ok(&["dead-letters", "cancel", &operation]);
    assert!(out.contains("0 of 3 put back, 0 waiting, 3 cancelled"), "{out}");
    assert_eq!(list(&scratch, &[]).len(), 3);
    scratch.fails(4, &["dead-letters", "cancel", "9999"]);
    scratch.fails(4, &["dead-letters", "progress", "9999"]);
}

#[test]
fn an_edited_copy_is_replayed_and_the_original_archived() {
    let scratch = with_dead_letters();
    let id = first_id(&scratch);
    scratch.write("fixed.json", r#"{"total": 4}"#);
    let refused = scratch.run(&["dead-letters", "edit", &id, "--payload", "fixed.json"]);
    assert_eq!(refused.code, 5);
    assert!(
        refused.out.contains("-   \"total\": 3") && refused.out.contains("+   \"total\": 4"),
        "{}",
        refused.out
    );
    let edited = scratch.json(&[
        "dead-letters",
        "edit",
        &id,
        "--payload",
        "fixed.json",
        "--header",
        "tenant=acme",
        "--yes",
    ]);
    assert_eq!(edited["archived"].to_string(), id);
    assert_eq!(scratch.json(&["dead-letters", "show", &id])["state"], "archived");
    let copy = list(&scratch, &["--state", "requested"]);
    assert_eq!((copy.len(), copy[0]["copy_of"].to_string()), (1, id.clone()));
    assert_eq!(copy[0]["event"]["payload"]["total"], 4);
    assert_eq!(copy[0]["event"]["headers"]["tenant"], "acme");
    assert!(
        scratch
            .fails(5, &["dead-letters", "edit", &id, "--payload", "fixed.json", "--yes"])
            .contains("R0030")
    );
}

#[test]
fn an_edit_that_changes_nothing_or_breaks_the_payload_is_refused() {
    let scratch = with_dead_letters();
    let id = first_id(&scratch);
    scratch.write("same.json", r#"{"total": 3}"#);
    scratch.write("broken.json", r#"{"total": "#);
    let edit = |args: &[&str]| {
        let args: Vec<&str> =
            ["dead-letters", "edit", &id, "--yes"].iter().chain(args).copied().collect();
        scratch.fails(2, &args)
    };
    assert!(edit(&["--payload", "same.json"]).contains("nothing changes"));
    assert!(edit(&["--payload", "broken.json"]).contains("R0011"));
    assert!(edit(&["--payload", "no-such-file"]).contains("cannot be read"));
    assert!(edit(&["--without-header", "tenant"]).contains("no header"));
    assert!(edit(&["--header", "bad name=x"]).contains("R0014"));
    assert!(edit(&[]).contains("no terminal"));
    let ended = end_with_input(
        scratch.command(&["dead-letters", "edit", &id, "--payload", "-", "--yes"]),
        b"{\"total\": 5}",
    );
    assert_eq!(ended.code, 0, "{}", ended.err);
}

#[test]
fn an_edit_opens_the_editor_of_the_user() {
    let scratch = with_dead_letters();
    let id = first_id(&scratch);
    let editor = r#"sed -i -e 's/"total": 3/"total": 7/' -e 's#application/json#application/vnd.shop+json#'"#;
    let ended = end(scratch.command(&["dead-letters", "edit", &id, "--yes"]).env("EDITOR", editor));
    assert_eq!(ended.code, 0, "{}", ended.err);
    assert!(
        ended.out.contains("+ content-type: application/vnd.shop+json")
            && ended.out.contains("+   \"total\": 7"),
        "{}",
        ended.out
    );
    let failed =
        end(scratch.command(&["dead-letters", "edit", "1", "--yes"]).env("EDITOR", "false"));
    assert_eq!(failed.code, 5, "{}", failed.err);
}

#[test]
fn archiving_sets_exactly_what_was_meant_aside() {
    let scratch = with_dead_letters();
    scratch.fails(5, &["dead-letters", "archive", "--key", "order-1"]);
    assert_eq!(
        scratch.json(&["dead-letters", "archive", "--key", "order-1", "--yes"])["archived"],
        2
    );
    assert_eq!(list(&scratch, &[]).len(), 1);
    assert_eq!(list(&scratch, &["--state", "all"]).len(), 3);
    scratch.fails(4, &["dead-letters", "archive", "--key", "order-1", "--yes"]);
    assert!(
        scratch.fails(2, &["dead-letters", "list", "--class", "poisn"]).contains("did you mean")
    );
}

#[test]
fn the_list_fits_the_terminal() {
    let scratch = with_dead_letters();
    for columns in [80, 120] {
        for args in [
            ["dead-letters", "list", "--state", "all"],
            ["dead-letters", "list", "--state", "dead"],
        ] {
            let ended = end(scratch.command(&args).env("COLUMNS", columns.to_string()));
            assert!(ended.out.lines().all(|line| line.chars().count() <= columns), "{}", ended.out);
            assert!(ended.out.contains("order-2"), "{}", ended.out);
        }
    }
}
