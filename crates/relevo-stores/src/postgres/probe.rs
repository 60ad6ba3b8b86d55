//! What the store finds out about itself at start-up.

use super::PostgresStore;
use super::errors::error;
use super::migrate::check_server;
use super::session::{Session, args};
use relevo_core::outbox::Probe;
use relevo_core::{Kind, Result};

/// What a relay needs to be allowed to do: (what, the question).
const PRIVILEGES: [(&str, &str); 6] = [
    ("SELECT on relevo.outbox", "has_table_privilege('relevo.outbox', 'SELECT')"),
    ("INSERT on relevo.tick", "has_table_privilege('relevo.tick', 'INSERT')"),
    ("UPDATE on relevo.cursor", "has_table_privilege('relevo.cursor', 'UPDATE')"),
    ("INSERT on relevo.parked_ref", "has_table_privilege('relevo.parked_ref', 'INSERT')"),
    ("INSERT on relevo.dead_letter", "has_table_privilege('relevo.dead_letter', 'INSERT')"),
    ("EXECUTE on relevo.rebase", "has_function_privilege('relevo.rebase(bigint)', 'EXECUTE')"),
];

impl PostgresStore {
    /// Looks whether this log can be worked; rebases one that was moved to another cluster.
    pub(crate) async fn look_around(&self) -> Result<Probe> {
        let session = self.session().await?;
        let server = suitable_server(&session).await?;
        let schema = self.require_current(&session).await?;
        require_privileges(&session).await?;
        refuse_sequence_cache(&session).await?;
        let pooled = self.is_pooled(&session).await?;
        let mut probe = Probe::new(server, schema, self.waking(&session, pooled).await?);
        if schema > self.version() {
            let note = format!(
                "the tables are of version {schema}, newer than this program's {}; it goes on beside them",
                self.version()
            );
            probe.notes.push(note);
        }
        if pooled {
            let note =
                "a transaction pooler stands between; everything works through it but the doorbell";
            probe.notes.push(note.into());
        }
        if let Some(tick) = self.rebase(&session).await? {
            let note = format!(
                "the log was moved to another cluster: it was rebased at tick {tick}, nothing is lost"
            );
            probe.notes.push(note);
        }
        Ok(probe)
    }

    /// Two connections that meet the same server process, or one that meets two, have a pooler between.
    pub(crate) async fn is_pooled(&self, session: &Session) -> Result<bool> {
        // A pool of one has no second connection to compare with.
        if self.pool().status().max_size < 2 {
            return Ok(false);
        }
        let before = backend(session).await?;
        let other = self.session().await?;
        let tx = other.begin().await.map_err(no_transactions)?;
        let beside = backend(&tx).await?;
        let after = backend(session).await?;
        tx.rollback().await?;
        Ok(before == beside || before != after)
    }
}

async fn backend(session: &Session) -> Result<i32> {
    Ok(session.query_one("SELECT pg_backend_pid()", args![]).await?.get(0))
}

/// A pooler in statement mode refuses to begin.
fn no_transactions(cause: relevo_core::Error) -> relevo_core::Error {
    if cause.message().contains("pooling") {
        let message = "the pooler allows no transactions (statement mode); switch it to transaction or session mode";
        return error(Kind::TransactionPooler, message).because(cause);
    }
    cause
}

async fn suitable_server(session: &Session) -> Result<String> {
    let sql =
        "SELECT current_setting('server_version_num')::int, current_setting('server_encoding'),
                      pg_is_in_recovery(), current_setting('server_version')";
    let row = session.query_one(sql, args![]).await?;
    check_server(row.get(0), row.get(1), row.get(2))?;
    Ok(format!("PostgreSQL {}", row.get::<_, &str>(3)))
}

async fn require_privileges(session: &Session) -> Result<()> {
    let questions: Vec<&str> = PRIVILEGES.iter().map(|(_, question)| *question).collect();
    let row = session
        .query_one(&format!("SELECT {}, current_user::text", questions.join(", ")), args![])
        .await?;
    let missing = PRIVILEGES
        .iter()
        .enumerate()
        .filter(|(index, _)| !row.get::<_, bool>(*index))
        .map(|(_, (what, _))| *what);
    let missing: Vec<&str> = missing.collect();
    if missing.is_empty() {
        return Ok(());
    }
    let user: &str = row.get(PRIVILEGES.len());
    let message = format!(
        "user {user} lacks {}; `relevo migrate --print` ends with the GRANTs for a relay role",
        missing.join(", ")
    );
    Err(error(Kind::MissingPrivilege, message))
}

/// A session that draws numbers ahead writes them later, below what ticks have seen.
async fn refuse_sequence_cache(session: &Session) -> Result<()> {
    let sql = "SELECT seqcache FROM pg_sequence WHERE seqrelid = 'relevo.outbox_seq'::regclass";
    let cache: i64 = session.query_one(sql, args![]).await?.get(0);
    if cache > 1 {
        let message = format!(
            "relevo.outbox_seq has CACHE {cache}: sessions would write numbers that ticks are past; ALTER SEQUENCE relevo.outbox_seq CACHE 1"
        );
        return Err(error(Kind::SequenceCache, message));
    }
    Ok(())
}
