//! Help that teaches, pages, completions, and JSON that parses everywhere.

use crate::support::Scratch;
use serde_json::Value;

/// Every command that does not have further ones below it.
const COMMANDS: [&[&str]; 32] = [
    &["demo"],
    &["init"],
    &["config", "check"],
    &["config", "example"],
    &["migrate"],
    &["run"],
    &["adopt", "check"],
    &["topology", "plan"],
    &["topology", "apply"],
    &["topology", "check"],
    &["publish"],
    &["tail"],
    &["status"],
    &["why"],
    &["subscriptions", "list"],
    &["subscriptions", "add"],
    &["subscriptions", "pause"],
    &["subscriptions", "resume"],
    &["subscriptions", "rewind"],
    &["subscriptions", "remove"],
    &["dead-letters", "list"],
    &["dead-letters", "show"],
    &["dead-letters", "replay"],
    &["dead-letters", "progress"],
    &["dead-letters", "cancel"],
    &["dead-letters", "edit"],
    &["dead-letters", "archive"],
    &["retention"],
    &["doctor"],
    &["explain"],
    &["completions"],
    &["man"],
];

#[test]
fn every_command_has_help_with_an_example_and_the_common_options() {
    let scratch = Scratch::empty();
    for command in COMMANDS {
        let args: Vec<&str> = command.iter().copied().chain(["--help"]).collect();
        let help = scratch.ok(&args);
        assert!(help.contains("--store <URL>") && help.contains("--json"), "{command:?}\n{help}");
        let example = format!("  relevo {}", command.join(" "));
        assert!(
            help.contains("Example") && help.contains(&example),
            "{command:?} shows no example\n{help}"
        );
    }
}

#[test]
fn every_command_is_in_the_manual_of_the_command_line() {
    let manual = include_str!("../../../../docs/cli.md");
    for command in COMMANDS {
        let title = format!("relevo {}", command.join(" "));
        assert!(manual.contains(&title), "docs/cli.md does not show {title}");
    }
}

#[test]
fn the_exit_codes_are_in_the_help() {
    let help = Scratch::empty().ok(&["--help"]);
    assert!(help.contains("Exit codes:") && help.contains("  5  not done"), "{help}");
}

#[test]
fn every_answer_is_json_where_it_is_asked_for() {
    let scratch = Scratch::empty();
    for args in [
        vec!["init"],
        vec!["config", "check"],
        vec!["config", "example"],
        vec!["migrate"],
        vec!["migrate", "--print"],
        vec!["publish", "a", "1"],
        vec!["tail"],
        vec!["status"],
        vec!["subscriptions", "add", "billing"],
        vec!["subscriptions", "list"],
        vec!["subscriptions", "pause", "billing"],
        vec!["subscriptions", "resume", "billing"],
        vec!["subscriptions", "rewind", "billing", "--to", "now", "--yes"],
        vec!["dead-letters", "list"],
        vec!["retention"],
        vec!["retention", "--apply"],
        vec!["doctor"],
        vec!["explain"],
        vec!["explain", "R0007"],
        vec!["man", "pages"],
        vec!["subscriptions", "remove", "billing", "--yes"],
    ] {
        scratch.json(&args);
    }
    let ended = scratch.run(&["dead-letters", "archive", "--all", "--json"]);
    let told: Value = serde_json::from_str(&ended.err).unwrap();
    assert_eq!((ended.code, told["error"]["code"].as_str()), (4, Some("R0029")));
}

#[test]
fn explain_shows_the_page_of_a_code() {
    let scratch = Scratch::empty();
    let page = scratch.ok(&["explain", "R0007"]);
    assert!(page.contains("R0007") && page.contains("relevo migrate"), "{page}");
    assert!(scratch.ok(&["explain"]).contains("R0040"));
}

#[test]
fn migrate_prints_its_sql_without_asking_a_server() {
    let scratch = Scratch::empty();
    let sql = scratch.ok(&["migrate", "--print", "--store", "postgres://nobody@127.0.0.1:1/none"]);
    assert!(sql.contains("CREATE SCHEMA IF NOT EXISTS relevo") && sql.contains("GRANT"), "{sql}");
    let sql = scratch.ok(&["migrate", "--print", "--store", "sqlite:none.db"]);
    assert!(sql.contains("relevo_outbox"), "{sql}");
    assert!(!scratch.path("none.db").exists());
}

#[test]
fn completions_and_manual_pages_are_made_from_the_same_definition() {
    let scratch = Scratch::empty();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(scratch.ok(&["completions", shell]).contains("dead-letters"), "{shell}");
    }
    scratch.ok(&["man", "man1"]);
    for page in ["relevo.1", "relevo-publish.1", "relevo-dead-letters-replay.1"] {
        assert!(scratch.path("man1").join(page).exists(), "{page}");
    }
}
