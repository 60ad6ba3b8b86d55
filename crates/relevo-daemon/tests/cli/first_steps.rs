//! From nothing to an event that explains itself.

use crate::support::{Scratch, end, end_with_input, is_private};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

#[test]
fn init_migrate_publish_tail_status_and_why_need_no_options() {
    let scratch = Scratch::empty();
    assert!(scratch.ok(&["init"]).contains("relevo migrate"));
    assert!(scratch.ok(&["config", "check"]).contains("the configuration is valid"));
    assert!(scratch.ok(&["migrate"]).contains("the schema is ready"));
    assert!(scratch.ok(&["migrate"]).contains("up to date"));
    assert!(scratch.ok(&["tail"]).contains("no events"));
    assert!(scratch.ok(&["status"]).contains("no subscriptions"));
    let id = scratch.publish("order.placed", "order-1", r#"{"total": 12}"#);
    let line = scratch.ok(&["tail"]);
    assert!(
        line.contains(&id) && line.contains("order.placed  order-1  {\"total\": 12}"),
        "{line}"
    );
    let why = scratch.ok(&["why", &id]);
    assert!(
        why.contains("order.placed, key order-1")
            && why.contains("no subscription reads this log yet"),
        "{why}"
    );
    assert!(scratch.ok(&["doctor"]).contains("no problems"));
}

#[test]
fn init_writes_a_file_for_its_owner_only_and_never_replaces_one_unasked() {
    let scratch = Scratch::empty();
    scratch.ok(&["init", "--store", "postgres://ana:s3cret@db/shop"]);
    assert!(is_private(&scratch.path("relevo.toml")));
    let before = std::fs::read_to_string(scratch.path("relevo.toml")).unwrap();
    assert!(scratch.fails(5, &["init"]).contains("--force"));
    assert_eq!(std::fs::read_to_string(scratch.path("relevo.toml")).unwrap(), before);
    let shown = scratch.ok(&["config", "check"]);
    assert!(shown.contains("postgres://ana:***@db/shop") && !shown.contains("s3cret"), "{shown}");
    scratch.ok(&["init", "--force"]);
    assert!(
        std::fs::read_to_string(scratch.path("relevo.toml")).unwrap().contains("sqlite:relevo.db")
    );
}

#[test]
fn the_example_is_a_configuration_that_checks() {
    let scratch = Scratch::empty();
    let example = scratch.ok(&["config", "example"]);
    scratch.write("all.toml", example);
    let checked = scratch.json(&["config", "check", "-c", "all.toml"]);
    assert_eq!(checked["subscriptions"][0]["name"], "notify");
}

#[test]
fn a_store_is_named_by_option_then_file_then_variable_then_the_file_here() {
    let scratch = Scratch::with_store();
    scratch.ok(&["migrate", "--store", "sqlite:option.db"]);
    scratch.ok(&["migrate", "--store", "sqlite:variable.db"]);
    scratch.write(
        "other.toml",
        "[store.a]\nurl = \"sqlite:option.db\"\n[store.b]\nurl = \"sqlite:variable.db\"\n",
    );
    scratch.ok(&["publish", "in.option", "1", "--store", "sqlite:option.db"]);
    scratch.ok(&["publish", "in.variable", "1", "--store", "sqlite:variable.db"]);
    scratch.ok(&["publish", "in.file", "1"]);
    let topic = |args: &[&str], variable: &str| {
        let args: Vec<&str> = ["tail", "--json"].iter().chain(args).copied().collect();
        let ended = end(scratch.command(&args).env("RELEVO_STORE", variable));
        let event: Value = serde_json::from_str(&ended.out)
            .unwrap_or_else(|e| panic!("{e}: {}{}", ended.out, ended.err));
        event["topic"].as_str().unwrap().to_owned()
    };
    assert_eq!(topic(&["--store", "sqlite:option.db"], "sqlite:variable.db"), "in.option");
    assert_eq!(topic(&["-c", "relevo.toml"], "sqlite:variable.db"), "in.file");
    assert_eq!(topic(&[], "sqlite:variable.db"), "in.variable");
    assert_eq!(topic(&[], ""), "in.file");
    assert_eq!(topic(&["-c", "other.toml", "--store", "b"], ""), "in.variable");
    assert!(scratch.fails(2, &["tail", "-c", "other.toml"]).contains("--store a or --store b"));
    let ended = end(scratch
        .command(&["tail", "--json"])
        .env("RELEVO__STORE__MAIN__URL", "sqlite:option.db"));
    assert!(ended.out.contains("in.option"), "{}{}", ended.out, ended.err);
}

#[test]
fn where_the_variable_and_a_file_differ_it_is_said_which_one_is_used() {
    let scratch = Scratch::with_store();
    scratch.ok(&["migrate", "--store", "sqlite:variable.db"]);
    let said = |args: &[&str], variable: &str| {
        let ended = end(scratch.command(args).env("RELEVO_STORE", variable));
        assert_eq!(ended.code, 0, "{args:?}\n{}{}", ended.out, ended.err);
        ended.err
    };
    let other = "sqlite:variable.db";
    for args in
        [&["status"][..], &["publish", "a", "1"], &["doctor"], &["migrate"], &["config", "check"]]
    {
        let err = said(args, other);
        assert_eq!(
            err,
            "note: the store is sqlite:variable.db (RELEVO_STORE), not sqlite:relevo.db (relevo.toml)\n",
            "{args:?}"
        );
    }
    let err = said(&["status", "-c", "relevo.toml"], other);
    assert_eq!(
        err,
        "note: the store is sqlite:relevo.db (relevo.toml), not sqlite:variable.db (RELEVO_STORE)\n"
    );
    let err = said(&["status", "-c", "relevo.toml", "--store", other], "");
    assert!(err.contains("sqlite:variable.db (--store), not sqlite:relevo.db"), "{err}");
    // What agrees, or is asked for by name, is no news; and a program reads JSON.
    assert_eq!(said(&["status"], "sqlite:relevo.db"), "");
    assert_eq!(said(&["status", "--store", "main"], other), "");
    assert_eq!(said(&["status", "--store", "sqlite:relevo.db"], other), "");
    let note: Value = serde_json::from_str(&said(&["status", "--json"], other)).unwrap();
    assert!(note["note"].as_str().unwrap().contains("RELEVO_STORE"), "{note}");
}

#[test]
fn the_daemon_takes_the_same_store_as_every_other_command() {
    let scratch = Scratch::empty();
    let two = "[store.a]\nurl = \"sqlite:a.db\"\n[store.b]\nurl = \"sqlite:b.db\"\n[broker.out]\nurl = \"stdout:\"\n\
               [subscription.s]\nstore = \"a\"\n";
    scratch.write("relevo.toml", two);
    let ended = end(scratch.command(&["run"]).env("RELEVO_STORE", "sqlite:c.db"));
    assert_eq!(ended.code, 2, "{}", ended.err);
    assert!(ended.err.contains("RELEVO_STORE can stand in for the only store"), "{}", ended.err);
}

#[test]
fn a_payload_comes_from_an_argument_a_file_or_standard_input() {
    let scratch = Scratch::with_store();
    let file = scratch.write("order.json", r#"{"from": "file"}"#);
    scratch.ok(&["publish", "a", r#"{"from": "argument"}"#, "--header", "tenant=acme"]);
    scratch.ok(&["publish", "a", "--file", &file]);
    let ended =
        end_with_input(scratch.command(&["publish", "a", "--json"]), br#"{"from": "input"}"#);
    let printed: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!((ended.code, printed["topic"].as_str()), (0, Some("a")));
    // `--json` only says how to answer: what follows it is the payload.
    scratch.ok(&["publish", "a", "--json", r#"{"from": "after --json"}"#]);
    let events: Vec<Value> = scratch
        .ok(&["tail", "--json"])
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let from: Vec<&str> =
        events.iter().map(|event| event["payload"]["from"].as_str().unwrap()).collect();
    assert_eq!(from, ["argument", "file", "input", "after --json"]);
    assert_eq!(events[0]["headers"]["tenant"], "acme");
    assert_eq!(events[0]["content_type"], "application/json");
}

#[test]
fn bytes_that_are_no_text_are_published_and_shown_as_bytes() {
    let scratch = Scratch::with_store();
    let file = scratch.write("scan", [0xff, 0xfe, 0x00]);
    scratch.ok(&["publish", "scan.stored", "--file", &file, "--content-type", "image/png"]);
    assert!(scratch.ok(&["tail"]).contains("<3 bytes> fffe00"));
    assert_eq!(scratch.json(&["tail"])["payload_base64"], "//4A");
}

#[test]
fn tail_shows_the_last_events_that_match() {
    let scratch = Scratch::with_store();
    for n in 1..=30 {
        let topic = if n % 10 == 0 { "ticket.closed" } else { "order.placed" };
        scratch.publish(topic, &format!("k-{}", n % 3), &n.to_string());
    }
    let payloads = |args: &[&str]| -> Vec<i64> {
        let args: Vec<&str> = ["tail", "--json"].iter().chain(args).copied().collect();
        let read =
            |line: &str| serde_json::from_str::<Value>(line).unwrap()["payload"].as_i64().unwrap();
        scratch.ok(&args).lines().map(read).collect()
    };
    assert_eq!(payloads(&["-n", "3"]), [28, 29, 30]);
    assert_eq!(payloads(&["--topic", "ticket.*"]), [10, 20, 30]);
    assert_eq!(payloads(&["--topic", "ticket.#", "-n", "2"]), [20, 30]);
    assert_eq!(payloads(&["--key", "k-0", "-n", "2"]), [27, 30]);
}

#[test]
fn tail_follows_what_comes() {
    let scratch = Scratch::with_store();
    scratch.publish("order.placed", "k", "1");
    let mut child = scratch
        .command(&["tail", "-n", "1", "--follow", "--json", "--topic", "order.*"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || {
        serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap()["payload"]
            .as_i64()
            .unwrap()
    };
    assert_eq!(next(), 1);
    scratch.publish("ticket.closed", "k", "2");
    scratch.publish("order.placed", "k", "3");
    assert_eq!(next(), 3);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_reader_that_has_read_enough_is_no_error() {
    let scratch = Scratch::with_store();
    let mut child = scratch
        .command(&["config", "example"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn hostile_text_never_reaches_the_terminal_as_it_is() {
    let scratch = Scratch::with_store();
    let key = "k\u{202e}gnp";
    let ended = end_with_input(
        scratch.command(&["publish", "a", "--key", key, "--content-type", "text/plain"]),
        b"x\x1b[2Jy",
    );
    assert_eq!(ended.code, 0, "{}", ended.err);
    let id = ended.out.trim().to_owned();
    for out in [scratch.ok(&["tail"]), scratch.ok(&["why", &id]), scratch.ok(&["tail", "--json"])] {
        assert!(!out.contains('\x1b') && !out.contains('\u{202e}'), "{out:?}");
    }
    assert_eq!(scratch.json(&["tail"])["key"], key);
}

#[test]
fn what_is_printed_fits_the_terminal() {
    let scratch = Scratch::with_store();
    scratch.publish("order.placed", "order-1", &format!("{:?}", "long ".repeat(100)));
    scratch.ok(&["subscriptions", "add", "billing", "--topic", "order.*"]);
    scratch.ok(&["subscriptions", "add", "a-subscription-with-a-rather-long-name"]);
    scratch.ok(&[
        "subscriptions",
        "pause",
        "billing",
        "--reason",
        "the bank does not answer since this morning",
    ]);
    for columns in [80, 120] {
        for args in
            [["tail", "-n5"], ["status", "-cx"], ["doctor", "-cx"], ["subscriptions", "list"]]
        {
            let args: Vec<&str> = args.into_iter().filter(|arg| *arg != "-cx").collect();
            let ended = end(scratch.command(&args).env("COLUMNS", columns.to_string()));
            let widest = ended.out.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= columns, "relevo {args:?} at {columns}:\n{}", ended.out);
        }
    }
}
