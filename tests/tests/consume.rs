//! One line per store and driver: consuming from a broker with effects done once.

use relevo_tests::consume_tests;
use relevo_tests::world::{MemoryWorld, PgHandlers, PostgresWorld, SqliteHandlers, SqliteWorld};

consume_tests!(memory, MemoryWorld::fresh());
consume_tests!(sqlite_sqlx, SqliteWorld::fresh(SqliteHandlers::Sqlx));
consume_tests!(postgres_sqlx, PostgresWorld::fresh(15, PgHandlers::Sqlx));
consume_tests!(postgres_tokio_postgres, PostgresWorld::fresh(14, PgHandlers::TokioPostgres));
consume_tests!(postgres_deadpool, PostgresWorld::fresh(18, PgHandlers::Deadpool));
