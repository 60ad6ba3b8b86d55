//! The documentation's table of what stores can do is what they declare.
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

use relevo_core::outbox::{Capabilities, Store};
use relevo_stores::memory::MemoryStore;
use relevo_stores::postgres::{Options, PostgresStore};
use relevo_stores::sqlite::SqliteStore;
use relevo_testkit::conformance::{CAPABILITIES, capability_table};
use relevo_tests::stores::Folder;

fn shipped() -> Vec<(&'static str, Capabilities)> {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _entered = runtime.enter();
    let folder = Folder::fresh().unwrap();
    let file = folder.path().join("relevo.db");
    let stores: [Box<dyn Store>; 3] = [
        Box::new(PostgresStore::open("postgres://localhost/unused", Options::default()).unwrap()),
        Box::new(SqliteStore::open(&file.to_string_lossy()).unwrap()),
        Box::new(MemoryStore::new()),
    ];
    stores.iter().map(|store| (store.name(), store.capabilities())).collect()
}

fn page(name: &str) -> String {
    let path = format!("{}/../docs/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn the_pages_have_the_table_that_the_stores_declare() {
    let table = capability_table(&shipped());
    for name in ["stores.md", "adding-a-store.md"] {
        assert!(page(name).contains(&table), "docs/{name} should contain:\n\n{table}");
    }
}

#[test]
fn every_capability_is_in_the_table() {
    let serde = serde_json::to_value(Capabilities::default()).unwrap();
    let mut fields: Vec<&String> = serde.as_object().unwrap().keys().collect();
    let mut listed: Vec<&str> = CAPABILITIES.iter().map(|(name, ..)| *name).collect();
    fields.sort();
    listed.sort();
    assert_eq!(fields, listed);
}

#[test]
fn every_no_has_its_reason() {
    let page = page("stores.md");
    let (mut asked, reasons) = (0, page.matches(", no `").count());
    for (store, has) in shipped() {
        for (name, _, can) in CAPABILITIES.iter().filter(|(_, _, can)| !can(&has)) {
            assert!(!can(&has));
            let reason = format!("**{store}, no `{name}`**");
            assert!(page.contains(&reason), "docs/stores.md gives no reason for {reason}");
            asked += 1;
        }
    }
    assert_eq!(asked, reasons, "docs/stores.md gives a reason for what is a yes");
}
