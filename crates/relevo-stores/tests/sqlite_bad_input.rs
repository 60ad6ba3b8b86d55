//! Files that are locked, moved, read-only, full, or no database: each has its code.
#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

mod sqlite_support;

use relevo_core::Kind;
use relevo_core::dead_letters::{Level, Operate};
use relevo_core::outbox::{Store, Subscription};
use relevo_stores::sqlite::SqliteStore;
use sqlite_support::*;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

fn kind_of<T>(result: relevo_core::Result<T>) -> Kind {
    match result {
        Ok(_) => panic!("this should have been refused"),
        Err(error) => {
            assert!(error.message().len() > 20, "it says what happened and what to do: {error}");
            error.kind()
        }
    }
}

#[test]
fn a_url_that_names_no_file_is_refused() {
    for url in [
        "sqlite::memory:",
        ":memory:",
        "sqlite:",
        "postgres://localhost/x",
        "sqlite:x.db?journal=off",
    ] {
        assert_eq!(kind_of(SqliteStore::open(url)), Kind::InvalidUrl, "{url}");
    }
}

#[test]
fn what_cannot_be_opened_says_why() {
    let scratch = Scratch::new();
    assert_eq!(kind_of(SqliteStore::open(scratch.folder().to_str().unwrap())), Kind::FileMoved);
    assert_eq!(
        kind_of(SqliteStore::open(scratch.path("no/such/folder.db").to_str().unwrap())),
        Kind::FileMoved
    );
    assert_eq!(kind_of(SqliteStore::open_existing(&scratch.url())), Kind::FileMoved);
    assert!(!scratch.path("log.db").exists(), "looking makes no file");
    let text = scratch.path("notes.txt");
    std::fs::write(
        &text,
        "this is a text, and a rather long one at that: no database starts like this".repeat(20),
    )
    .unwrap();
    let error = SqliteStore::open(text.to_str().unwrap()).unwrap_err();
    assert_eq!(error.kind(), Kind::FileMoved);
    assert!(error.message().contains("not an SQLite database"), "{error}");
}

/// Another process that holds the write lock: this test binary again, told so by the environment.
#[test]
fn lock_holder() {
    let Some(path) = std::env::var_os("RELEVO_TEST_LOCK") else { return };
    let conn = rusqlite::Connection::open(path).unwrap();
    conn.execute_batch("BEGIN IMMEDIATE").unwrap();
    println!("\nlocked");
    std::io::stdin().lines().next();
}

#[tokio::test]
async fn a_file_locked_by_another_process_is_named_and_works_again_afterwards() {
    let scratch = Scratch::new();
    let store = scratch.store().await;
    publish(&store, "k", 1).await;
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "lock_holder", "--nocapture"])
        .env("RELEVO_TEST_LOCK", scratch.path("log.db"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(out.any(|line| line.unwrap() == "locked"));
    assert_eq!(kind_of(store.publish_now(event("a", "k")).await), Kind::FileLocked);
    assert_eq!(store.peek(0, 10).await.unwrap().len(), 1, "readers go on meanwhile");
    drop(child.stdin.take());
    child.wait().unwrap();
    publish(&store, "k", 1).await;
}

#[cfg(unix)]
#[tokio::test]
async fn a_file_moved_replaced_or_deleted_under_the_store_is_noticed() {
    let scratch = Scratch::new();
    let store = scratch.store().await;
    publish(&store, "k", 1).await;
    let (path, away) = (scratch.path("log.db"), scratch.path("away.db"));
    std::fs::rename(&path, &away).unwrap();
    assert_eq!(kind_of(store.publish_now(event("a", "k")).await), Kind::FileMoved);
    assert_eq!(kind_of(store.peek(0, 1).await), Kind::FileMoved);
    assert_eq!(store.doctor().await.unwrap()[0].level, Level::Problem);
    std::fs::copy(&away, &path).unwrap();
    assert_eq!(
        kind_of(store.publish_now(event("a", "k")).await),
        Kind::FileMoved,
        "another file of the same name"
    );
    std::fs::rename(&away, &path).unwrap();
    publish(&store, "k", 1).await;
    std::fs::remove_file(&path).unwrap();
    assert_eq!(kind_of(store.subscribe(&Subscription::new("s")).await), Kind::FileMoved);
}

#[tokio::test]
async fn a_read_only_file_can_be_read_and_says_so_when_written() {
    let scratch = Scratch::new();
    publish(&scratch.store().await, "k", 1).await;
    let store = SqliteStore::open(&format!("{}?mode=ro", scratch.url())).unwrap();
    assert_eq!(store.peek(0, 10).await.unwrap().len(), 1);
    assert_eq!(kind_of(store.publish_now(event("a", "k")).await), Kind::FileReadOnly);
}

/// The limit on pages stands for a disk without room: SQLite reports both alike.
#[tokio::test]
async fn a_full_disk_is_named_and_nothing_of_the_transaction_stays() {
    let scratch = Scratch::new();
    let store = scratch.store().await;
    let mut conn = scratch.connect();
    let pages: i64 = conn.query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
    conn.execute_batch(&format!("PRAGMA max_page_count = {}", pages + 20)).unwrap();
    let tx = conn.transaction().unwrap();
    let large = || relevo_core::NewEvent::bytes("a", vec![0; 100_000]);
    let error = store.outbox().publish_sync(&tx, large()).unwrap_err();
    assert_eq!(error.kind(), Kind::DiskFull, "{error}");
    drop(tx);
    assert_eq!(store.peek(0, 10).await.unwrap().len(), 0);
}

/// A real file system without room, where the machine lets us make one.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_store_on_a_full_file_system_works_again_once_there_is_room() {
    let scratch = Scratch::new();
    let disk = scratch.path("disk");
    std::fs::create_dir(&disk).unwrap();
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(&disk).output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        eprintln!("NOT RUN: a small file system cannot be mounted here (needs root)");
        return;
    }
    let result = tokio::spawn(fill_and_free(disk.clone())).await;
    assert!(Command::new("umount").arg("-l").arg(&disk).status().unwrap().success());
    result.unwrap();
}

#[cfg(target_os = "linux")]
async fn fill_and_free(disk: std::path::PathBuf) {
    let store = SqliteStore::open(disk.join("log.db").to_str().unwrap()).unwrap();
    store.migrate().await.unwrap();
    publish(&store, "k", 1).await;
    let ballast = disk.join("ballast");
    std::fs::write(&ballast, vec![0; 400_000]).unwrap();
    let large = || relevo_core::NewEvent::bytes("a", vec![7; 600_000]);
    assert_eq!(kind_of(store.publish_now(large()).await), Kind::DiskFull);
    assert_eq!(store.peek(0, 10).await.unwrap().len(), 1, "nothing of it stays");
    std::fs::remove_file(&ballast).unwrap();
    publish(&store, "k", 1).await;
    assert_eq!(store.peek(0, 10).await.unwrap().len(), 2);
}
