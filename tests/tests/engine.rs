//! One line per store and driver: the whole engine, with handlers of each.

use relevo_tests::engine_tests;
use relevo_tests::world::{MemoryWorld, PgHandlers, PostgresWorld, SqliteHandlers, SqliteWorld};

engine_tests!(memory, MemoryWorld::fresh());
engine_tests!(sqlite_sqlx, SqliteWorld::fresh(SqliteHandlers::Sqlx));
engine_tests!(sqlite_rusqlite, SqliteWorld::fresh(SqliteHandlers::Rusqlite));
engine_tests!(postgres_sqlx, PostgresWorld::fresh(15, PgHandlers::Sqlx));
engine_tests!(postgres_tokio_postgres, PostgresWorld::fresh(14, PgHandlers::TokioPostgres));
engine_tests!(postgres_deadpool, PostgresWorld::fresh(18, PgHandlers::Deadpool));
