//! What cannot work is refused with a code, a reason and a way on.

use crate::support::{Scratch, end, end_with_input};
use serde_json::Value;

#[test]
fn no_store_at_all_teaches_the_ways_to_name_one() {
    let scratch = Scratch::empty();
    let error = scratch.fails(2, &["status"]);
    for part in ["--store sqlite:relevo.db", "RELEVO_STORE", "relevo init", "relevo explain R0028"]
    {
        assert!(error.contains(part), "{part}\n{error}");
    }
}

#[test]
fn a_wrong_url_is_refused_without_showing_its_password() {
    let scratch = Scratch::empty();
    for url in [
        "postgre://ana:s3cret@h/d",
        "mysql://ana:s3cret@h/d",
        "host=h password=s3cret",
        "relevo.db",
        "sqlite:",
        "postgres://ana:s3cret@[/d",
    ] {
        let error = scratch.fails(2, &["status", "--store", url]);
        assert!(error.starts_with("error R0001") && !error.contains("s3cret"), "{url}\n{error}");
    }
}

#[test]
fn a_server_that_is_not_there_is_told_without_its_password() {
    let scratch = Scratch::empty();
    let error = scratch.fails(3, &["status", "--store", "postgres://ana:s3cret@127.0.0.1:1/shop"]);
    assert!(error.starts_with("error R0002 (postgres)") && !error.contains("s3cret"), "{error}");
    let ended =
        scratch.run(&["status", "--json", "--store", "postgres://ana:s3cret@127.0.0.1:1/shop"]);
    let told: Value = serde_json::from_str(&ended.err).unwrap();
    assert_eq!(
        (told["error"]["code"].as_str(), told["error"]["adapter"].as_str()),
        (Some("R0002"), Some("postgres"))
    );
    assert!(ended.out.is_empty());
}

#[test]
fn a_file_that_is_not_there_is_not_made_by_looking() {
    let scratch = Scratch::empty();
    for args in [
        vec!["status"],
        vec!["tail"],
        vec!["publish", "a", "1"],
        vec!["dead-letters", "list"],
        vec!["why", "42"],
        vec!["doctor"],
    ] {
        let args: Vec<&str> = args.into_iter().chain(["--store", "sqlite:typo.db"]).collect();
        let ended = scratch.run(&args);
        assert_eq!(ended.code, 3, "{args:?} {}{}", ended.out, ended.err);
        assert!((ended.out + &ended.err).contains("R0020"), "{args:?}");
    }
    assert!(!scratch.path("typo.db").exists());
}

#[test]
fn a_store_without_tables_says_how_to_make_them() {
    let scratch = Scratch::empty();
    scratch.write("relevo.db", "");
    for args in [
        vec!["status"],
        vec!["publish", "a", "1"],
        vec!["tail"],
        vec!["why", "01990f6a-7d3c-7b53-9f0e-3f6f6f5f2a11"],
    ] {
        let args: Vec<&str> = args.into_iter().chain(["--store", "sqlite:relevo.db"]).collect();
        let error = scratch.fails(3, &args);
        assert!(
            error.starts_with("error R0007 (sqlite)") && error.contains("relevo migrate"),
            "{args:?}\n{error}"
        );
    }
}

#[test]
fn a_file_that_is_no_database_is_refused_and_left_alone() {
    let scratch = Scratch::empty();
    let text = "this is a letter to my grandmother, not a database\n".repeat(50);
    scratch.write("letter.txt", &text);
    let error = scratch.fails(3, &["migrate", "--store", "sqlite:letter.txt"]);
    assert!(error.starts_with("error R0020 (sqlite)"), "{error}");
    assert_eq!(std::fs::read_to_string(scratch.path("letter.txt")).unwrap(), text);
}

#[test]
fn an_unknown_key_is_told_with_its_line_and_a_suggestion() {
    let scratch = Scratch::empty();
    scratch.write(
        "relevo.toml",
        "[store.main]\nurl = \"sqlite:relevo.db\"\n\n[subscription.a]\ntpoics = [\"#\"]\n",
    );
    for args in [vec!["config", "check"], vec!["status"], vec!["run"]] {
        let error = scratch.fails(2, &args);
        assert!(
            error.contains("relevo.toml, line 5: unknown key \"tpoics\"; did you mean \"topics\"?"),
            "{error}"
        );
    }
    assert!(scratch.fails(2, &["config", "check", "-c", "none.toml"]).contains("relevo init"));
}

#[test]
fn every_wrong_value_of_a_configuration_is_told_at_once() {
    let scratch = Scratch::empty();
    scratch.write(
        "relevo.toml",
        "[store.main]\nurl = \"postgre://ana:s3cret@h/d\"\n[subscription.a]\nto = \"hook\"\nstart = \"tomorrow\"\n",
    );
    let error = scratch.fails(2, &["config", "check"]);
    for part in [
        "line 2: store.main.url",
        "line 4: subscription.a.to: there is no [broker.hook]",
        "line 5: subscription.a.start",
    ] {
        assert!(error.contains(part), "{part}\n{error}");
    }
    assert!(!error.contains("s3cret"));
}

#[test]
fn an_event_out_of_bounds_is_refused_by_name_before_anything_is_written() {
    let scratch = Scratch::with_store();
    let long = "x".repeat(300);
    for (args, code) in [
        (vec!["publish", "a b", "1"], "R0012"),
        (vec!["publish", "a.*", "1"], "R0012"),
        (vec!["publish", &long, "1"], "R0012"),
        (vec!["publish", "a", "1", "--key", ""], "R0013"),
        (vec!["publish", "a", "1", "--key", "a\nb"], "R0013"),
        (vec!["publish", "a", "1", "--header", "x y=1"], "R0014"),
        (vec!["publish", "a", "1", "--header", "traceparent=nonsense"], "R0014"),
        (vec!["publish", "a", "not json"], "R0011"),
        (vec!["publish", "a", "--file", "missing.json"], "R0040"),
    ] {
        let error = scratch.fails(2, &args);
        assert!(error.starts_with(&format!("error {code}")), "{args:?}\n{error}");
    }
    let big = vec![b'1'; (1 << 20) + 1];
    let ended = end_with_input(scratch.command(&["publish", "a"]), &big);
    assert!(ended.code == 2 && ended.err.starts_with("error R0010"), "{}", ended.err);
    let ended = end_with_input(scratch.command(&["publish", "a"]), &[0xff, 0xfe]);
    assert!(ended.code == 2 && ended.err.starts_with("error R0011"), "{}", ended.err);
    assert_eq!(scratch.json(&["status"])["last_seq"], 0);
    assert!(scratch.fails(2, &["publish", "a", "1", "--header", "novalue"]).contains("NAME=VALUE"));
    assert!(scratch.fails(2, &["publish", "a", "1", "--id", "7"]).contains("--id"));
}

#[test]
fn a_topic_filter_with_white_space_is_refused_wherever_one_is_read() {
    let scratch = Scratch::with_store();
    for args in [
        &["tail", "--topic", " order.*"][..],
        &["subscriptions", "add", "s", "--topic", "order. *"],
        &["subscriptions", "add", "s", "--topic", "order.*, ticket.*"],
    ] {
        let error = scratch.fails(2, args);
        assert!(error.starts_with("error R0012"), "{args:?}\n{error}");
        assert!(error.contains("did you mean \"order.*\"?"), "{args:?}\n{error}");
    }
    for args in [
        &["dead-letters", "list", "--topic", "order placed"][..],
        &["dead-letters", "replay", "--topic", "order.*"],
        &["dead-letters", "archive", "--topic", "order.*"],
    ] {
        let error = scratch.fails(2, args);
        assert!(error.starts_with("error R0012") && error.contains("one whole topic"), "{error}");
    }
    scratch.write(
        "spaced.toml",
        "[store.main]\nurl = \"sqlite:relevo.db\"\n[broker.out]\nurl = \"stdout:\"\n\
         [subscription.a]\ntopics = [\"order.* \"]\n",
    );
    let error = scratch.fails(2, &["config", "check", "-c", "spaced.toml"]);
    for part in ["line 6: subscription.a.topics", "did you mean \"order.*\"?"] {
        assert!(error.contains(part), "{part}\n{error}");
    }
    assert_eq!(scratch.json(&["subscriptions", "list"]), Value::Array(Vec::new()));
}

#[test]
fn a_mistyped_subscription_of_dead_letters_is_told_with_the_nearest_one() {
    let scratch = Scratch::with_store();
    scratch.ok(&["subscriptions", "add", "billing"]);
    assert_eq!(scratch.ok(&["dead-letters", "list", "-s", "billing"]), "no dead letters\n");
    for command in ["list", "replay", "archive"] {
        let error = scratch.fails(4, &["dead-letters", command, "-s", "biling"]);
        assert!(error.starts_with("error R0015") && error.contains("billing"), "{error}");
    }
}

#[test]
fn a_time_that_has_not_come_is_refused() {
    let scratch = Scratch::with_store();
    scratch.ok(&["subscriptions", "add", "billing"]);
    let ahead = "2999-01-01T00:00:00Z";
    for args in [
        &["subscriptions", "rewind", "billing", "--to", ahead, "--yes"][..],
        &["subscriptions", "add", "other", "--start", ahead],
    ] {
        let error = scratch.fails(2, args);
        assert!(error.contains("R0040") && error.contains("has not come yet"), "{error}");
    }
}

#[test]
fn no_hint_names_the_command_that_was_just_given() {
    let scratch = Scratch::empty();
    let error = scratch.fails(3, &["migrate", "--store", "sqlite:no/such/folder/x.db"]);
    assert!(error.contains("make it first") && !error.contains("relevo migrate"), "{error}");
    let error = scratch.fails(2, &["init", "--store", "sqlite:"]);
    assert!(error.starts_with("error R0001") && !scratch.path("relevo.toml").exists(), "{error}");
    scratch.ok(&["init"]);
    let error = scratch.fails(2, &["migrate", "--store", "relevo.db"]);
    assert!(error.contains("sqlite:FILE"), "{error}");
    let error = scratch.fails(2, &["publish", "a", "1", "--content-type", ""]);
    assert!(error.starts_with("error R0014"), "{error}");
}

#[test]
fn a_limit_can_be_lowered_by_the_configuration() {
    let scratch = Scratch::with_store();
    let ended = end(scratch
        .command(&["publish", "a", "\"12345\""])
        .env("RELEVO__LIMITS__PAYLOAD_BYTES", "5"));
    assert!(ended.code == 2 && ended.err.contains("the limit is 5"), "{}", ended.err);
}

#[test]
fn what_is_no_id_is_not_looked_for() {
    let scratch = Scratch::with_store();
    let error = scratch.fails(2, &["why", "order-1"]);
    assert!(error.contains("is not an event id"), "{error}");
    scratch.fails(2, &["dead-letters", "show", "x"]);
    let error = scratch.fails(4, &["explain", "R9999"]);
    assert!(error.contains("there is no code"), "{error}");
}

#[test]
fn a_mistyped_command_or_option_is_a_usage_error_with_a_suggestion() {
    let scratch = Scratch::empty();
    assert!(scratch.fails(2, &["stauts"]).contains("status"));
    assert!(scratch.fails(2, &["tail", "--folow"]).contains("--follow"));
}

#[cfg(unix)]
#[test]
fn a_file_that_may_not_be_written_is_told_as_such() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::with_store();
    // The super-user may write everything: a file opened read-only stands in for it.
    let file = scratch.path("relevo.db");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o444)).unwrap();
    let error = scratch.fails(3, &["publish", "a", "1", "--store", "sqlite:relevo.db?mode=ro"]);
    assert!(error.starts_with("error R0021 (sqlite)"), "{error}");
}

#[test]
fn doctor_ends_with_a_code_of_its_own_when_it_cannot_look() {
    let scratch = Scratch::empty();
    let ended = scratch.run(&["doctor", "--store", "sqlite:none.db", "--json"]);
    let told: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!((ended.code, told["healthy"].as_bool()), (3, Some(false)));
}
