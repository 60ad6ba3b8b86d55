//! One line per supported version of PostgreSQL; each driver's transactions publish on at least one of them.

use relevo_testkit::store_conformance;
use relevo_tests::stores::{PgDriver, PostgresHarness};

store_conformance!(postgres_14, PostgresHarness(14, PgDriver::TokioPostgres));
store_conformance!(postgres_15, PostgresHarness(15, PgDriver::Sqlx));
store_conformance!(postgres_16, PostgresHarness(16, PgDriver::Deadpool));
store_conformance!(postgres_17, PostgresHarness(17, PgDriver::TokioPostgres));
store_conformance!(postgres_18, PostgresHarness(18, PgDriver::Sqlx));
