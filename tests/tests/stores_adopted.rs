//! An adopted table passes the suite of stores, but for what it declares that it cannot do.

use relevo_testkit::store_conformance;
use relevo_tests::adopt::{AdoptedHarness, Kind};

store_conformance!(sqlite, AdoptedHarness(Kind::Sqlite));
store_conformance!(postgres_15, AdoptedHarness(Kind::Postgres(15)));
store_conformance!(postgres_18, AdoptedHarness(Kind::Postgres(18)));
