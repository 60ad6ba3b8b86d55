//! `relevo adopt check`: what it says of a table, and that it only looks.

use crate::support::Scratch;

const TABLE: &str = "CREATE TABLE \"Messages\" (\"MessageId\" INTEGER PRIMARY KEY, \"RoutingKey\" TEXT, \"Body\" TEXT,
    \"OccurredAt\" TEXT, \"ProcessedAt\" TEXT)";

fn with_table(sql: &str) -> Scratch {
    let scratch = Scratch::empty();
    rusqlite::Connection::open(scratch.path("app.db")).unwrap().execute_batch(sql).unwrap();
    scratch
}

const STORE: [&str; 2] = ["--store", "sqlite:app.db"];

fn check<'a>(more: &[&'a str]) -> Vec<&'a str> {
    ["adopt", "check"].iter().chain(more).chain(&STORE).copied().collect()
}

#[test]
fn what_it_proposes_is_a_configuration_that_fits() {
    let scratch = with_table(TABLE);
    let said = scratch.ok(&check(&["Messages"]));
    for part in ["order   kept per key", "loss    none", "missing: CREATE INDEX", "no key"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let (_, mapping) = said.split_once("\n\n").unwrap();
    assert!(mapping.contains("published_at = \"ProcessedAt\""), "{said}");
    let around = "[store.main]\nurl = \"sqlite:app.db\"\n[broker.out]\nurl = \"stdout:\"\n[subscription.m]\nadopt = \"messages\"\n";
    scratch.write("relevo.toml", format!("{around}{mapping}"));
    scratch.ok(&["config", "check"]);
    let json = scratch.json(&["adopt", "check", "messages"]);
    assert_eq!((json["fits"].as_bool(), json["sound_order"].as_bool()), (Some(true), Some(true)));
    let tables = "SELECT count(*) FROM sqlite_schema WHERE name LIKE 'relevo%'";
    let conn = rusqlite::Connection::open(scratch.path("app.db")).unwrap();
    assert_eq!(conn.query_row(tables, [], |row| row.get::<_, i64>(0)).unwrap(), 0);
}

#[test]
fn what_does_not_fit_is_told_with_its_reason() {
    let scratch = with_table(TABLE);
    let said = scratch.run(&check(&["Messages", "--preset", "ticketflow"]));
    assert_eq!(said.code, 1, "{}{}", said.out, said.err);
    assert!(said.out.contains("PROBLEM  it has no column \"Id\" (id)"), "{}", said.out);
    let said = scratch.fails(3, &check(&["messages"]));
    assert!(said.contains("did you mean \"Messages\"?"), "{said}");
    let said = scratch.fails(2, &check(&["Messages", "--preset", "smartedfy"]));
    assert!(said.contains("did you mean \"smartedify\"?"), "{said}");
    scratch.fails(3, &["adopt", "check", "x", "--store", "sqlite:nowhere.db"]);
    assert!(!scratch.path("nowhere.db").exists());
}

/// Whoever asks needs no configuration: what the columns mean lies beside the table once it was adopted.
#[test]
fn why_answers_for_a_row_that_nobody_has_claimed() {
    let scratch = with_table(TABLE);
    let sql = "INSERT INTO \"Messages\" VALUES (7, 'a.b', '{}', '2026-01-01T00:00:00Z', NULL)";
    rusqlite::Connection::open(scratch.path("app.db")).unwrap().execute_batch(sql).unwrap();
    let said = scratch.ok(&check(&["Messages"]));
    let (_, mapping) = said.split_once("\n\n").unwrap();
    let around = "[store.main]\nurl = \"sqlite:app.db\"\n[broker.out]\nurl = \"stdout:\"\n[subscription.m]\nadopt = \"messages\"\n";
    scratch.write("relevo.toml", format!("{around}{mapping}"));
    scratch.ok(&["migrate"]);
    scratch.fails(2, &["why", "7"]);
    let file = scratch.path("app.db");
    crate::support::block_on(async {
        let store =
            relevo_stores::sqlite::SqliteStore::open_existing(file.to_str().unwrap()).unwrap();
        let config = relevo_daemon::config::Config::load(&scratch.path("relevo.toml")).unwrap();
        store.adopt("messages", config.adopted["messages"].mapping.clone()).await.unwrap();
    });
    std::fs::remove_file(scratch.path("relevo.toml")).unwrap();
    let ask = ["why", "7", "--store", "sqlite:app.db"];
    let said = scratch.ok(&ask);
    for part in ["row 7 of the adopted table Messages", "a.b", "no subscription relays this table"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    let json = scratch.json(&ask);
    assert_eq!(json["found"], "in_table");
    assert_eq!(json["subscriptions"][0]["state"], "not_relayed", "{json}");
    let event = json["event"].as_str().unwrap();
    assert_eq!(scratch.json(&["why", event, "--store", "sqlite:app.db"])["row"], "7");
    scratch.fails(2, &["why", "8", "--store", "sqlite:app.db"]);
}
