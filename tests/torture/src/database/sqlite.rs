use crate::adopted::Table;
use crate::check::Applied;
use crate::story::Published;
use crate::writer::KEYS;
use anyhow::Result;
use rusqlite::types::Type;
use rusqlite::{Connection, Row, TransactionBehavior};
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS aggregate (key TEXT PRIMARY KEY, version INTEGER NOT NULL DEFAULT 0);
    CREATE TABLE IF NOT EXISTS business (tx TEXT PRIMARY KEY);
    CREATE TABLE IF NOT EXISTS effect (
        at INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, key TEXT NOT NULL, cause TEXT, attempt TEXT NOT NULL);
    CREATE INDEX IF NOT EXISTS effect_id ON effect (id);
    CREATE TABLE IF NOT EXISTS shared (slot INTEGER PRIMARY KEY, n INTEGER NOT NULL);
    INSERT OR IGNORE INTO shared VALUES (0, 0), (1, 0), (2, 0), (3, 0);";

/// A database file.
#[derive(Debug, Clone)]
pub struct SqliteDatabase {
    /// `sqlite:` and the path.
    pub url: String,
    /// The outbox table of somebody else's that is relayed instead of the log.
    pub(super) adopted: Option<Arc<Table>>,
}

impl SqliteDatabase {
    /// The file at `url`.
    pub fn new(url: String) -> Self {
        Self { url, adopted: None }
    }

    /// A connection that waits for others.
    pub fn connect(&self) -> Result<Connection> {
        let connection = Connection::open(self.url.trim_start_matches("sqlite:"))?;
        connection.busy_timeout(Duration::from_secs(20))?;
        Ok(connection)
    }

    pub(super) fn create(&self) -> Result<()> {
        let connection = self.connect()?;
        connection.execute_batch(TABLES)?;
        if let Some(table) = &self.adopted
            && !has(&connection, table)?
        {
            connection.execute_batch(table.statements())?;
        }
        for number in 0..KEYS {
            connection.execute(
                "INSERT OR IGNORE INTO aggregate (key) VALUES (?1)",
                [format!("key-{number}")],
            )?;
        }
        Ok(())
    }

    pub(super) fn effects(&self) -> Result<Vec<Applied>> {
        let connection = self.connect()?;
        let mut statement =
            connection.prepare("SELECT at, id, key, cause, attempt FROM effect ORDER BY at")?;
        let applied = statement.query_map([], |row| {
            let cause = row.get::<_, Option<String>>(3)?.map(|_| uuid(row, 3)).transpose()?;
            Ok(Applied {
                at: row.get(0)?,
                id: uuid(row, 1)?,
                key: row.get(2)?,
                cause,
                attempt: row.get(4)?,
            })
        })?;
        Ok(applied.collect::<rusqlite::Result<_>>()?)
    }

    pub(super) fn count_effects(&self) -> Result<usize> {
        let count: i64 =
            self.connect()?.query_row("SELECT count(*) FROM effect", [], |row| row.get(0))?;
        Ok(count as usize)
    }

    pub(super) fn applied_of(&self, ids: &[Uuid]) -> Result<HashSet<Uuid>> {
        let connection = self.connect()?;
        let mut statement = connection.prepare("SELECT count(*) > 0 FROM effect WHERE id = ?1")?;
        let mut applied = HashSet::new();
        for id in ids {
            if statement.query_row([id.to_string()], |row| row.get::<_, bool>(0))? {
                applied.insert(*id);
            }
        }
        Ok(applied)
    }

    pub(super) fn log_length(&self) -> Result<(i64, i64)> {
        let sql = "SELECT (SELECT count(*) FROM relevo_outbox),
                          COALESCE((SELECT seq FROM sqlite_sequence WHERE name = 'relevo_outbox'), 0)";
        Ok(self.connect()?.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?)
    }

    /// Makes a copy of the whole file while others are at work, as backups do.
    pub fn copy_into(&self, file: &Path) -> Result<Self> {
        let file = file.display().to_string();
        self.connect()?.execute("VACUUM INTO ?1", [&file])?;
        Ok(Self { url: format!("sqlite:{file}"), adopted: self.adopted.clone() })
    }

    pub(super) fn business(&self) -> Result<HashSet<Uuid>> {
        let connection = self.connect()?;
        let mut statement = connection.prepare("SELECT tx FROM business")?;
        let found = statement.query_map([], |row| uuid(row, 0))?;
        Ok(found.collect::<rusqlite::Result<_>>()?)
    }

    pub(super) fn texts(&self, sql: &str) -> Result<Vec<String>> {
        let connection = self.connect()?;
        let mut statement = connection.prepare(sql)?;
        let texts = statement.query_map([], |row| row.get(0))?;
        Ok(texts.collect::<rusqlite::Result<_>>()?)
    }

    pub(super) fn publish(&self, tx: Uuid, events: &[Published]) -> Result<()> {
        let mut connection = self.connect()?;
        let open = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        open.execute("INSERT INTO business (tx) VALUES (?1)", [tx.to_string()])?;
        if let Some(table) = &self.adopted {
            open.execute_batch(&table.insert(events))?;
            return Ok(open.commit()?);
        }
        for event in events {
            let insert =
                "INSERT INTO relevo_outbox (topic, key, payload, id) VALUES (?1, ?2, ?3, ?4)";
            open.execute(insert, (event.fate.topic(), &event.key, b"1", event.id.to_string()))?;
        }
        Ok(open.commit()?)
    }
}

/// A copy has its tables already.
fn has(connection: &Connection, table: &Table) -> Result<bool> {
    let sql = "SELECT count(*) > 0 FROM sqlite_master WHERE type = 'table' AND name = ?1";
    Ok(connection.query_row(sql, [&table.mapping().table.table], |row| row.get(0))?)
}

fn uuid(row: &Row<'_>, column: usize) -> rusqlite::Result<Uuid> {
    let text: String = row.get(column)?;
    text.parse().map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(error))
    })
}
