//! One line per store: every case of the suite, against each.

use relevo_testkit::store_conformance;
use relevo_tests::stores::{MemoryHarness, SqliteHarness};

store_conformance!(memory, MemoryHarness);
store_conformance!(sqlite_sqlx, SqliteHarness::Sqlx);
store_conformance!(sqlite_rusqlite, SqliteHarness::Rusqlite);
