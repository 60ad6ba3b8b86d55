//! The documentation's table of what stores can do is what they declare.
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

use relevo_core::NewEvent;
use relevo_core::dead_letters::Operate;
use relevo_core::inbox::TxDriver;
use relevo_core::outbox::adopt::{Mapping, Role, TableName};
use relevo_core::outbox::{Capabilities, PublishIn, Store};
use relevo_stores::memory::MemoryStore;
use relevo_stores::postgres::{Options, PostgresStore};
use relevo_stores::sqlite::{SqliteStore, SqlxSqlite};
use relevo_testkit::conformance::{CAPABILITIES, StoreHarness, capability_table};
use relevo_tests::adopt::{AdoptedHarness, Database, Kind};
use relevo_tests::stores::Folder;
use sqlx::SqlitePool;
use sqlx::sqlite::SqliteConnectOptions;
use std::time::Duration;

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

/// A table where nothing tells which of two transactions inserted first.
async fn adopted_without_order() -> Capabilities {
    let db = Database::fresh(Kind::Sqlite).await.unwrap();
    let columns = "id text PRIMARY KEY, topic text NOT NULL, payload blob NOT NULL, sent text";
    db.run(&format!("CREATE TABLE jots ({columns}) WITHOUT ROWID")).await;
    let mapping = Mapping::new(TableName::parse("jots").unwrap()).with(Role::PublishedAt, "sent");
    let (table, _) = db.adopt("jots", mapping).await.unwrap();
    table.capabilities()
}

/// What an adopted table cannot do, or not every one, though its database can, whichever that is.
fn adopted_cannot() -> Vec<&'static str> {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let ordered = runtime.block_on(AdoptedHarness(Kind::Sqlite).fresh()).unwrap();
    let adopted = [ordered.store().capabilities(), runtime.block_on(adopted_without_order())];
    assert_eq!(adopted.each_ref().map(|has| has.key_order), [true, false]);
    let (_, sqlite) = shipped().into_iter().find(|(name, _)| *name == "sqlite").unwrap();
    let lost = CAPABILITIES
        .iter()
        .filter(|(_, _, can)| can(&sqlite) && adopted.iter().any(|has| !can(has)));
    lost.map(|(name, ..)| *name).collect()
}

#[test]
fn every_no_has_its_reason() {
    let page = page("stores.md");
    let cannot = |has: &Capabilities| {
        let noes = CAPABILITIES.iter().filter(|(_, _, can)| !can(has));
        noes.map(|(name, ..)| *name).collect::<Vec<_>>()
    };
    let shipped = shipped().into_iter().map(|(store, has)| (store, cannot(&has)));
    let noes: Vec<(&str, Vec<&str>)> = shipped.chain([("adopted", adopted_cannot())]).collect();
    for (store, name) in
        noes.iter().flat_map(|(store, noes)| noes.iter().map(move |no| (store, no)))
    {
        let reason = format!("**{store}, no `{name}`**");
        assert!(page.contains(&reason), "docs/stores.md gives no reason for {reason}");
    }
    let asked: usize = noes.iter().map(|(_, noes)| noes.len()).sum();
    let reasons = page.matches(", no `").count();
    assert_eq!(asked, reasons, "docs/stores.md gives a reason for what is a yes");
}

/// No `parallel_effects` on SQLite, in its own words.
#[tokio::test]
async fn handlers_on_sqlite_write_one_at_a_time() {
    let folder = Folder::fresh().unwrap();
    let file = folder.path().join("relevo.db");
    SqliteStore::open(&file.to_string_lossy()).unwrap().migrate().await.unwrap();
    let options =
        SqliteConnectOptions::new().filename(&file).busy_timeout(Duration::from_millis(50));
    let driver = SqlxSqlite::new(SqlitePool::connect_with(options).await.unwrap());
    let (mut one, mut two) = (driver.acquire().await.unwrap(), driver.acquire().await.unwrap());
    let first = driver.begin(&mut one, Duration::from_secs(60)).await.unwrap();
    let refused = driver.begin(&mut two, Duration::from_secs(60)).await.unwrap_err();
    assert!(refused.to_string().contains("database is locked"), "{refused}");
    SqlxSqlite::commit(first).await.unwrap();
    let second = driver.begin(&mut two, Duration::from_secs(60)).await.unwrap();
    SqlxSqlite::commit(second).await.unwrap();
}

/// No `shared_by_processes` and no `durable` in memory: there is nothing that another could open, then or later.
#[tokio::test]
async fn what_is_in_memory_is_in_no_other_store() {
    let (store, other) = (MemoryStore::new(), MemoryStore::new());
    let mut tx = store.begin();
    store.outbox().publish(&mut tx, NewEvent::bytes("a.b", "x")).await.unwrap();
    tx.commit().unwrap();
    assert_eq!(store.peek(0, 10).await.unwrap().len(), 1);
    assert_eq!(other.peek(0, 10).await.unwrap().len(), 0);
}
