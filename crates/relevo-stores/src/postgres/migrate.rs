//! Numbered schema changes, embedded and checksummed.
//!
//! A schema moves under programs that go on: each change says which older programs may work beside it, and none waits
//! for a lock so long that publishers would have to wait behind it.

use super::PostgresStore;
use super::errors::{could_not_lock, error};
use super::session::{Session, args};
use md5::{Digest, Md5};
use relevo_core::{Kind, Result};
use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Migration {
    version: i64,
    /// Programs whose newest version is at least this one go on working after the change: it only adds what they do
    /// not look at. The change's own version, if it breaks all older programs.
    oldest: i64,
    name: &'static str,
    sql: &'static str,
}

macro_rules! migrations {
    ($($version:literal $name:literal beside $oldest:literal;)*) => {
        [$(Migration {
            version: $version,
            oldest: $oldest,
            name: $name,
            sql: include_str!(concat!("migrations/", $name, ".sql")),
        }),*]
    };
}

const MIGRATIONS: [Migration; 11] = migrations! {
    1 "0001_log" beside 1;
    2 "0002_relay" beside 2;
    3 "0003_publish" beside 3;
    4 "0004_record" beside 4;
    5 "0005_upkeep" beside 5;
    6 "0006_doorbell" beside 6;
    7 "0007_inbox" beside 7;
    8 "0008_horizon" beside 7;
    9 "0009_adopt" beside 7;
    10 "0010_adopt_mapping" beside 7;
    11 "0011_lane" beside 11;
};

/// The version this code works with.
pub(crate) const VERSION: i64 = MIGRATIONS.len() as i64;

/// Segments that a new log begins with.
const FIRST_SEGMENTS: usize = 8;

/// Rows of a segment while nothing is known of the log's pace.
pub(crate) const FIRST_ROWS: i64 = 100_000;

const GRANTS: &str = include_str!("migrations/grants.sql");

/// A change waits for a lock at most so long: until it has it, every publisher would wait behind it.
const LOCK_TIMEOUT: &str = "SET LOCAL lock_timeout = '500ms'";

/// For so long a change that did not get its locks is tried again.
const PATIENCE: Duration = Duration::from_secs(120);

impl Migration {
    /// What a program of the next version would bring along, for tests of rolling upgrades.
    const fn next(sql: &'static str) -> Self {
        Self { version: VERSION + 1, oldest: VERSION, name: "of the next version", sql }
    }

    fn checksum(&self) -> String {
        Md5::digest(self.sql.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// All SQL that `migrate` runs on an empty database, and the GRANTs for a writer and a relay role, to be handed to
/// another migration tool.
pub fn print() -> String {
    let mut text = String::from("BEGIN;\nCREATE SCHEMA IF NOT EXISTS relevo;\n\n");
    for migration in &MIGRATIONS {
        text.push_str(&format!("-- {}\n{}", migration.name, migration.sql));
        text.push_str(&format!(
            "INSERT INTO relevo.migration (version, name, checksum, oldest) VALUES ({}, '{}', '{}', {});\n\n",
            migration.version,
            migration.name,
            migration.checksum(),
            migration.oldest
        ));
    }
    for _ in 0..FIRST_SEGMENTS {
        text.push_str(&format!("SELECT relevo.make_segment({FIRST_ROWS});\n"));
    }
    text.push_str("COMMIT;\n\n");
    text.push_str(GRANTS);
    text
}

impl PostgresStore {
    /// Every change this program knows, in order.
    fn known(&self) -> impl Iterator<Item = Migration> {
        MIGRATIONS.into_iter().chain(self.inner.options.next_change.map(Migration::next))
    }

    /// The version this program works with.
    pub(crate) fn version(&self) -> i64 {
        self.known().last().map_or(0, |migration| migration.version)
    }

    /// Brings the schema up to this version. Two processes may do it at once: the second finds it done.
    pub(crate) async fn bring_up(&self) -> Result<Vec<String>> {
        refuse_unsuitable(&self.session().await?).await?;
        let give_up = Instant::now() + PATIENCE;
        loop {
            match self.apply_missing().await {
                Err(cause) if could_not_lock(&cause) && Instant::now() < give_up => {
                    // Whoever waited behind us gets a turn.
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
                done => return done,
            }
        }
    }

    async fn apply_missing(&self) -> Result<Vec<String>> {
        let session = self.session().await?;
        let tx = session.begin().await?;
        // Held until the transaction ends, whichever way.
        tx.query("SELECT pg_advisory_xact_lock(7165061, 0)", args![]).await?;
        tx.batch(LOCK_TIMEOUT).await?;
        let schema = tx.query_one("SELECT to_regnamespace('relevo') IS NOT NULL", args![]).await?;
        if !schema.get::<_, bool>(0) {
            tx.batch("CREATE SCHEMA relevo").await?;
        }
        let applied = self.applied(&tx).await?;
        let mut names = Vec::new();
        for migration in self.known().filter(|migration| migration.version > applied) {
            tx.batch(migration.sql).await?;
            note(&tx, &migration).await?;
            names.push(migration.name.to_owned());
        }
        tx.commit().await?;
        self.first_segments(&session, applied == 0).await?;
        Ok(names)
    }

    /// The version in the database, 0 if there is none; refuses one that this code did not make, unless it may go on
    /// beside it.
    async fn applied(&self, session: &Session) -> Result<i64> {
        if !has_table(session).await? {
            return Ok(0);
        }
        let rows = session
            .query("SELECT version, checksum FROM relevo.migration ORDER BY version", args![])
            .await?;
        for row in &rows {
            let (version, checksum): (i64, String) = (row.get(0), row.get(1));
            match self.known().find(|migration| migration.version == version) {
                None => self.refuse_unless_beside(session).await?,
                Some(known) if known.checksum() != checksum => {
                    let message = format!(
                        "migration {} in the database differs from this program's: another build made it",
                        known.name
                    );
                    return Err(error(Kind::SchemaNewer, message));
                }
                Some(_) => {}
            }
        }
        Ok(rows.iter().map(|row| row.get(0)).max().unwrap_or(0))
    }

    /// Refuses newer tables, unless every change since says that programs like this one go on beside it.
    async fn refuse_unless_beside(&self, session: &Session) -> Result<()> {
        let version = self.version();
        let sql = "SELECT max(version), bool_and(coalesce(oldest, version) <= $1) FROM relevo.migration WHERE version > $1";
        let row = session.query_one(sql, args![version]).await?;
        match row.get::<_, Option<bool>>(1) {
            Some(false) => Err(newer(row.get(0), version)),
            Some(true) | None => Ok(()),
        }
    }

    /// Refuses to work with tables of another version. Answers with the version that is there.
    pub(crate) async fn require_current(&self, session: &Session) -> Result<i64> {
        if !has_table(session).await? {
            return Err(error(
                Kind::SchemaMissing,
                "there is no schema relevo in this database; run `relevo migrate`",
            ));
        }
        let row = session
            .query_one("SELECT coalesce(max(version), 0) FROM relevo.migration", args![])
            .await?;
        let (there, needed) = (row.get::<_, i64>(0), self.version());
        if there == 0 {
            return Err(error(
                Kind::SchemaMissing,
                "the tables are not there yet; run `relevo migrate`",
            ));
        }
        if there < needed {
            let message = format!(
                "the tables are of version {there}, this program needs {needed}; run `relevo migrate`"
            );
            return Err(error(Kind::SchemaOlder, message));
        }
        self.refuse_unless_beside(session).await?;
        Ok(there)
    }

    async fn first_segments(&self, session: &Session, fresh: bool) -> Result<()> {
        if fresh {
            let rows = self.inner.options.segment_rows.unwrap_or(FIRST_ROWS);
            for _ in 0..FIRST_SEGMENTS.min(self.inner.options.segments_ahead) {
                session.query("SELECT relevo.make_segment($1)", args![rows]).await?;
            }
        }
        Ok(())
    }
}

async fn refuse_unsuitable(session: &Session) -> Result<()> {
    let sql = "SELECT current_setting('server_version_num')::int, current_setting('server_encoding'), pg_is_in_recovery()";
    let row = session.query_one(sql, args![]).await?;
    let (version, encoding, replica) =
        (row.get::<_, i32>(0), row.get::<_, String>(1), row.get::<_, bool>(2));
    check_server(version, &encoding, replica)
}

/// Refuses a server that cannot hold a log.
pub(crate) fn check_server(version: i32, encoding: &str, replica: bool) -> Result<()> {
    if version < 140_000 {
        let message = format!("PostgreSQL {} is too old; 14 to 18 are supported", version / 10_000);
        return Err(error(Kind::UnsupportedServer, message));
    }
    if encoding != "UTF8" {
        let message = format!(
            "the database's encoding is {encoding}; keys find their lane by their UTF-8 bytes"
        );
        return Err(error(Kind::UnsupportedServer, message));
    }
    if replica {
        let message = "the server is in recovery; point the URL at the primary, or add target_session_attrs=read-write";
        return Err(error(Kind::ReadOnlyReplica, message));
    }
    Ok(())
}

async fn has_table(session: &Session) -> Result<bool> {
    let there =
        session.query_one("SELECT to_regclass('relevo.migration') IS NOT NULL", args![]).await?;
    Ok(there.get(0))
}

fn newer(there: i64, known: i64) -> relevo_core::Error {
    let message = format!(
        "the tables are of version {there}, this program knows {known} and cannot go on beside it; upgrade it"
    );
    error(Kind::SchemaNewer, message)
}

async fn note(session: &Session, migration: &Migration) -> Result<()> {
    let Migration { version, oldest, name, .. } = *migration;
    let sql =
        "INSERT INTO relevo.migration (version, name, checksum, oldest) VALUES ($1, $2, $3, $4)";
    session.execute(sql, args![version, name, migration.checksum(), oldest]).await?;
    Ok(())
}
