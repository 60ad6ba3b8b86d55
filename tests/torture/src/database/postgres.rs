use crate::adopted::Table;
use crate::check::Applied;
use crate::story::Published;
use crate::writer::{KEYS, WRITER_SESSIONS};
use anyhow::{Context, Result, bail};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls, Row};
use uuid::Uuid;

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS aggregate (key text PRIMARY KEY, version bigint NOT NULL DEFAULT 0);
    CREATE TABLE IF NOT EXISTS business (tx uuid PRIMARY KEY);
    CREATE TABLE IF NOT EXISTS effect (
        at bigserial PRIMARY KEY, id uuid NOT NULL, key text NOT NULL, cause uuid, attempt text NOT NULL);
    CREATE INDEX IF NOT EXISTS effect_id ON effect (id);
    CREATE TABLE IF NOT EXISTS shared (slot bigint PRIMARY KEY, n bigint NOT NULL);
    INSERT INTO shared SELECT slot, 0 FROM generate_series(0, 3) AS slot ON CONFLICT DO NOTHING;";

/// One statement, and so one transaction.
const PUBLISH: &str = "
    WITH business AS (INSERT INTO business (tx) VALUES ($1))
    INSERT INTO relevo.outbox (topic, key, payload, id)
    SELECT e.topic, e.key, '1', e.id FROM unnest($2::text[], $3::text[], $4::uuid[]) AS e (topic, key, id)";

/// A server that was killed is back within this.
const PATIENCE: Duration = Duration::from_secs(30);

/// A database of a PostgreSQL server, with a session of the test's own.
#[derive(Clone)]
pub struct PostgresDatabase {
    /// Its URL, past any proxy.
    pub url: String,
    session: Arc<Mutex<Option<Arc<Client>>>>,
    /// The outbox table of somebody else's that is relayed instead of the log.
    pub(super) adopted: Option<Arc<Table>>,
    /// The log's first segments have a few rows.
    pub(super) small_segments: bool,
}

impl std::fmt::Debug for PostgresDatabase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresDatabase").field("url", &self.url).finish_non_exhaustive()
    }
}

impl PostgresDatabase {
    /// The database at `url`.
    pub fn new(url: String) -> Self {
        Self { url, session: Arc::default(), adopted: None, small_segments: false }
    }

    /// The same database where it has moved to.
    pub fn at(&self, url: String) -> Self {
        Self { adopted: self.adopted.clone(), ..Self::new(url) }
    }

    async fn session(&self) -> Result<Arc<Client>, tokio_postgres::Error> {
        let mut session = self.session.lock().await;
        if let Some(client) = session.as_ref().filter(|client| !client.is_closed()) {
            return Ok(client.clone());
        }
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await?;
        tokio::spawn(connection);
        let client = Arc::new(client);
        *session = Some(client.clone());
        Ok(client)
    }

    /// Asks the server, which may be just coming back. Only for what may be asked twice.
    pub async fn query(&self, sql: &str, args: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let asked = match self.session().await {
                Ok(client) => client.query(sql, args).await,
                Err(error) => Err(error),
            };
            match asked {
                Ok(rows) => return Ok(rows),
                // An answer of the server itself, other than that it is starting or ending, is an answer.
                Err(error) if error.code().is_some_and(|code| !code.code().starts_with("57P")) => {
                    return Err(error).context(sql.to_owned());
                }
                Err(error) if Instant::now() > deadline => {
                    return Err(error).context("the server does not come back");
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    async fn number(&self, sql: &str, args: &[&(dyn ToSql + Sync)]) -> Result<i64> {
        let rows = self.query(sql, args).await?;
        rows.first().context("an empty answer")?.try_get(0).context("not a number")
    }

    pub(super) async fn create(&self) -> Result<()> {
        self.session().await?.batch_execute(TABLES).await?;
        if let Some(table) = &self.adopted
            && !self.has(table).await?
        {
            self.session().await?.batch_execute(table.statements()).await?;
        }
        let keys = "INSERT INTO aggregate SELECT 'key-' || n, 0 FROM generate_series(0, $1::bigint - 1) AS n
                    ON CONFLICT DO NOTHING";
        self.query(keys, &[&(KEYS as i64)]).await?;
        Ok(())
    }

    /// A restored database has its tables already.
    async fn has(&self, table: &Table) -> Result<bool> {
        let name = table.mapping().table.sql();
        let rows = self.query("SELECT to_regclass($1) IS NOT NULL", &[&name]).await?;
        rows.first().context("an empty answer")?.try_get(0).context("not a truth")
    }

    pub(super) async fn effects(&self) -> Result<Vec<Applied>> {
        let rows =
            self.query("SELECT at, id, key, cause, attempt FROM effect ORDER BY at", &[]).await?;
        let applied = rows.iter().map(|row| Applied {
            at: row.get(0),
            id: row.get(1),
            key: row.get(2),
            cause: row.get(3),
            attempt: row.get(4),
        });
        Ok(applied.collect())
    }

    /// How many effects there are.
    pub async fn count_effects(&self) -> Result<usize> {
        Ok(self.number("SELECT count(*) FROM effect", &[]).await? as usize)
    }

    pub(super) async fn applied_of(&self, ids: &[Uuid]) -> Result<HashSet<Uuid>> {
        let rows = self.query("SELECT id FROM effect WHERE id = ANY($1)", &[&ids]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    pub(super) async fn log_length(&self) -> Result<(i64, i64)> {
        let rows = self.number("SELECT count(*) FROM relevo.outbox", &[]).await?;
        Ok((rows, self.number("SELECT relevo.last_seq()", &[]).await?))
    }

    /// Every transaction that left its row.
    pub async fn business(&self) -> Result<HashSet<Uuid>> {
        let rows = self.query("SELECT tx FROM business", &[]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    pub(super) async fn texts(&self, sql: &str) -> Result<Vec<String>> {
        let rows = self.query(sql, &[]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    pub(super) async fn publish(&self, tx: Uuid, events: &[Published]) -> Result<()> {
        let topics: Vec<&str> = events.iter().map(|event| event.fate.topic()).collect();
        let keys: Vec<&str> = events.iter().map(|event| event.key.as_str()).collect();
        let ids: Vec<Uuid> = events.iter().map(|event| event.id).collect();
        // Any answer first, so that the session is known to live: a lost publication must not be asked for twice.
        self.query("SELECT 1", &[]).await?;
        if let Some(table) = &self.adopted {
            let business = format!("INSERT INTO business (tx) VALUES ('{tx}')");
            let insert = format!("WITH b AS ({business}) {}", table.insert(events));
            return Ok(self.session().await?.batch_execute(&insert).await?);
        }
        self.session().await?.execute(PUBLISH, &[&tx, &topics, &keys, &ids]).await?;
        Ok(())
    }

    /// Ends transactions whose second phase nobody will do any more.
    pub async fn end_prepared(&self) -> Result<usize> {
        let query = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()";
        let left = self.query(query, &[]).await?;
        for (number, row) in left.iter().enumerate() {
            let verb = if number % 2 == 0 { "COMMIT" } else { "ROLLBACK" };
            let statement = format!("{verb} PREPARED '{}'", row.get::<_, &str>(0));
            // Its writer may have come back in this very moment.
            if let Err(error) = self.session().await?.batch_execute(&statement).await {
                tracing::debug!(%error, "a prepared transaction was ended by its writer");
            }
        }
        Ok(left.len())
    }

    pub(super) async fn quiesce(&self) -> Result<()> {
        let query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND datname = current_database()";
        let deadline = Instant::now() + PATIENCE;
        while self.number(query, &[&WRITER_SESSIONS]).await? > 0 {
            if Instant::now() > deadline {
                bail!("sessions of dead writers are still at work");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.end_prepared().await?;
        Ok(())
    }
}
