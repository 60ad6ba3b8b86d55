//! Outbox tables of somebody else's.

use super::super::adopt::written;
use super::read;
use relevo_core::outbox::adopt::Role;

const ADOPTED: &str = r#"
[store.main]
url = "sqlite:app.db"
[broker.out]
url = "stdout:"
[adopt.tickets]
preset = "smartedify"
[adopt.tickets.columns]
error_class = ""
sequence = "position"
[subscription.tickets]
adopt = "tickets"
"#;

#[test]
fn an_adopted_table_is_a_preset_and_what_differs_from_it() {
    let config = read(ADOPTED).unwrap();
    assert_eq!(config.subscriptions["tickets"].adopt.as_deref(), Some("tickets"));
    let mapping = &config.adopted["tickets"].mapping;
    assert_eq!(mapping.table.to_string(), "outbox_events");
    assert_eq!(mapping.column(Role::ErrorClass), None);
    assert_eq!(mapping.column(Role::Sequence), Some("position"));
    assert_eq!(mapping.column(Role::PublishedAt), Some("published_at"));
}

#[test]
fn a_mapping_that_is_written_out_is_read_as_it_was() {
    let text = format!(
        "{}\n[adopt.words]\ntable = \"a.b\"\ndelete = false\ntopic = \"x.y\"\nkey_path = \"a.b\"
[adopt.words.status]\ncolumn = \"s\\\"t\"\npending = [\"N\"]\npublished = \"P\"\ndead = \"D\"
[adopt.words.dead_letters]\ntable = \"d\"\ncolumns = {{ error = \"why\" }}\n",
        ADOPTED
    );
    let config = read(&text).unwrap();
    for (name, adopted) in &config.adopted {
        let own = written(name, Some("main"), &adopted.mapping);
        let text = format!("[store.main]\nurl = \"sqlite:app.db\"\n{own}");
        let again = read(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        // A preset's column that is not there is not there in what is written out either.
        assert_eq!(again.adopted[name], *adopted, "{own}");
    }
}

#[test]
fn what_cannot_be_meant_of_an_adopted_table_is_told() {
    for (from, to, told) in [
        ("smartedify", "smartedfy", "did you mean \"smartedify\"?"),
        ("sequence = \"position\"", "sequense = \"position\"", "did you mean \"sequence\"?"),
        (
            "[adopt.tickets.columns]",
            "dead_leters = {}\n[adopt.tickets.columns]",
            "did you mean \"dead_letters\"?",
        ),
        (
            "adopt = \"tickets\"",
            "adopt = \"ticket\"",
            "there is no [adopt.ticket]; did you mean \"tickets\"?",
        ),
        ("adopt = \"tickets\"", "adopt = \"tickets\"\ntopics = [\"a\"]", "relayed whole"),
        ("preset = \"smartedify\"", "", "table is missing"),
        (
            "[subscription.tickets]",
            "[subscription.more]\nadopt = \"tickets\"\n[subscription.tickets]",
            "relayed by subscription more already",
        ),
        ("preset = \"smartedify\"", "preset = \"smartedify\"\ndelete = true", "deleted and marked"),
        (
            "preset = \"smartedify\"",
            "preset = \"smartedify\"\nkey_path = \"a\"\ntopic = \"b\"\ntopic_prefix = \"c\"",
            "keep one",
        ),
        (
            "preset = \"smartedify\"",
            "preset = \"smartedify\"\nstatus = { column = \"s\", pending = [\"N\"] }",
            "published is missing",
        ),
    ] {
        let text = ADOPTED.replacen(from, to, 1);
        let error = read(&text).unwrap_err().to_string();
        assert!(error.contains(told), "{told}: {error}");
    }
}
