//! One line per store: every case of the suite, against each.

use relevo_testkit::store_conformance;
use relevo_tests::alone::said_by;
use relevo_tests::stores::{MemoryHarness, SqliteHarness};

store_conformance!(memory, MemoryHarness);
store_conformance!(sqlite_sqlx, SqliteHarness::Sqlx);
store_conformance!(sqlite_rusqlite, SqliteHarness::Rusqlite);

#[test]
fn a_case_that_a_store_cannot_do_says_so_and_one_that_has_nothing_left_out_says_nothing() {
    let case = "outbox::another_process_reads_the_same_log";
    let said = said_by(&format!("memory::{case}")).unwrap();
    assert_eq!(said, format!("SKIPPED: {case} on memory, which declares no shared_by_processes\n"));
    for silent in ["outbox::a_committed_event_is_read", "no::there_is_no_bell_to_wait_for"] {
        assert_eq!(said_by(&format!("memory::{silent}")).unwrap(), "", "{silent}");
    }
}
