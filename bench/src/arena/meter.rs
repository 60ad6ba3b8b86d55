//! What a turn costs beside its own process: counters before and after.

use super::Arena;
use crate::cost::cpu_of_tree;
use crate::tasks::connect;
use anyhow::Result;
use tokio_postgres::Client;

/// The counters of one moment.
pub(crate) struct Meter {
    pub(crate) cpu_database_s: f64,
    pub(crate) cpu_broker_s: f64,
    pub(crate) wal_bytes: f64,
    /// Made so far, by updates and deletes: vacuum takes none of this count away.
    pub(crate) dead_tuples: i64,
    pub(crate) queries: i64,
}

/// Statements are counted where the server has the extension for it, otherwise transactions.
pub(crate) async fn queries(client: &Client) -> Result<i64> {
    let extension = "SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_stat_statements')";
    let sql = match client.query_one(extension, &[]).await?.get(0) {
        true => "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
                  WHERE d.datname = current_database() AND query NOT LIKE '%pg_stat_statements%' AND query NOT LIKE '%pg_extension%'",
        false => "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()",
    };
    Ok(client.query_one(sql, &[]).await?.get(0))
}

/// How they were counted.
pub(crate) async fn queries_are(client: &Client) -> Result<&'static str> {
    let extension = "SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_stat_statements')";
    Ok(match client.query_one(extension, &[]).await?.get(0) {
        true => "statements, by pg_stat_statements",
        false => "transactions, by pg_stat_database: this server has no pg_stat_statements",
    })
}

impl Arena {
    /// The counters now, with those of this database. A connection of its own: a session sends its counts when it ends.
    pub(super) async fn counters(&self, url: &str) -> Result<Meter> {
        let client = connect(url).await?;
        let sql = "SELECT (pg_current_wal_insert_lsn() - '0/0')::float8,
                          (SELECT coalesce(sum(n_tup_upd + n_tup_del), 0)::bigint FROM pg_stat_user_tables
                            WHERE schemaname = 'relevo' OR relname IN ('classic', 'outboxevent'))";
        let row = client.query_one(sql, &[]).await?;
        Ok(Meter {
            cpu_database_s: self.postgres.pid().map_or(0.0, cpu_of_tree),
            cpu_broker_s: self.broker_pids().map(cpu_of_tree).sum(),
            wal_bytes: row.get(0),
            dead_tuples: row.get(1),
            queries: queries(&client).await?,
        })
    }
}
