#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

use relevo_core::dead_letters::Operate;
use relevo_core::outbox::adopt::{AdoptedTable, Mapping, Preset, Role, TableName};
use relevo_core::{EventId, Result};
use relevo_stores::postgres::PostgresStore;
use relevo_stores::sqlite::SqliteStore;
use relevo_testkit::services::{Postgres, PostgresOptions, require};
use std::path::PathBuf;
use std::sync::Arc;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// Which database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A file.
    Sqlite,
    /// PostgreSQL of this major version.
    Postgres(u16),
}

/// An owner's database, with Relevo's tables beside its own.
#[derive(Clone)]
pub struct Database {
    /// Which one it is.
    pub kind: Kind,
    /// Where it is.
    pub url: String,
    _alive: Arc<Alive>,
}

enum Alive {
    Server(#[allow(dead_code)] Arc<Postgres>),
    Folder(PathBuf),
}

impl Drop for Alive {
    fn drop(&mut self) {
        if let Self::Folder(folder) = self
            && let Err(error) = std::fs::remove_dir_all(&*folder)
        {
            eprintln!("{} stays behind: {error}", folder.display());
        }
    }
}

impl Database {
    /// A fresh one; `None` if there is no server (said aloud).
    pub async fn fresh(kind: Kind) -> Option<Self> {
        let db = Self::bare(kind).await?;
        db.operate().await.migrate().await.unwrap();
        Some(db)
    }

    /// A fresh one on a server with settings of its own.
    pub async fn on(options: &PostgresOptions) -> Option<Self> {
        let server = Arc::new(require(Postgres::start_with(options))?);
        let db = Self::on_server(server);
        db.operate().await.migrate().await.unwrap();
        Some(db)
    }

    fn on_server(server: Arc<Postgres>) -> Self {
        let (kind, url) = (Kind::Postgres(server.major()), server.create_database().unwrap());
        Self { kind, url, _alive: Arc::new(Alive::Server(server)) }
    }

    /// A fresh one without Relevo's tables.
    pub async fn bare(kind: Kind) -> Option<Self> {
        if let Kind::Postgres(major) = kind {
            return require(Postgres::shared(major)).map(Self::on_server);
        }
        let folder = std::env::temp_dir().join(format!("relevo-adopt-{}", EventId::fresh()));
        std::fs::create_dir_all(&folder).unwrap();
        let url = format!("sqlite:{}", folder.join("owner.db").display());
        Some(Self { kind, url, _alive: Arc::new(Alive::Folder(folder)) })
    }

    /// Is it PostgreSQL?
    pub fn is_postgres(&self) -> bool {
        self.kind != Kind::Sqlite
    }

    /// What operators use.
    pub async fn operate(&self) -> Arc<dyn Operate> {
        match self.kind {
            Kind::Sqlite => Arc::new(SqliteStore::open(&self.url).unwrap()),
            Kind::Postgres(_) => Arc::new(PostgresStore::connect(&self.url).await.unwrap()),
        }
    }

    /// The table as a process of its own would adopt it.
    pub async fn adopt(
        &self,
        name: &str,
        mapping: Mapping,
    ) -> Result<(Arc<dyn AdoptedTable>, Arc<dyn Operate>)> {
        Ok(match self.kind {
            Kind::Sqlite => {
                let store = SqliteStore::open(&self.url)?;
                (Arc::new(store.adopt(name, mapping).await?), Arc::new(store))
            }
            Kind::Postgres(_) => {
                let store = PostgresStore::connect(&self.url).await?;
                (Arc::new(store.adopt(name, mapping).await?), Arc::new(store))
            }
        })
    }

    /// A session of the owner's, on a server.
    pub async fn client(&self) -> Client {
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    /// Runs the owner's statements, in a session of their own.
    pub async fn run(&self, sql: &str) {
        self.try_run(sql).await.unwrap_or_else(|error| panic!("{error}\n{sql}"));
    }

    /// Runs statements that may fail.
    pub async fn try_run(&self, sql: &str) -> std::result::Result<(), String> {
        match self.kind {
            Kind::Postgres(_) => {
                let client = self.client().await;
                client.batch_execute(sql).await.map_err(|error| format!("{error:?}"))
            }
            Kind::Sqlite => {
                let (path, sql) = (self.path(), sql.to_owned());
                let work = move || open(&path).execute_batch(&sql).map_err(|e| e.to_string());
                tokio::task::spawn_blocking(work).await.unwrap()
            }
        }
    }

    /// What a query answers, as text.
    pub async fn rows(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        match self.kind {
            Kind::Postgres(_) => {
                let answer = self.client().await.simple_query(sql).await.unwrap();
                let row = |message: SimpleQueryMessage| match message {
                    SimpleQueryMessage::Row(row) => Some(
                        (0..row.len()).map(|i| row.get(i).map(str::to_owned)).collect::<Vec<_>>(),
                    ),
                    _ => None,
                };
                answer.into_iter().filter_map(row).collect()
            }
            Kind::Sqlite => {
                let (path, sql) = (self.path(), sql.to_owned());
                tokio::task::spawn_blocking(move || query(&path, &sql)).await.unwrap()
            }
        }
    }

    /// The first number that a query answers with.
    pub async fn number(&self, sql: &str) -> i64 {
        self.rows(sql).await[0][0].as_deref().unwrap().parse().unwrap()
    }

    /// A connection of the owner's, to a file.
    pub fn connection(&self) -> rusqlite::Connection {
        open(&self.path())
    }

    fn path(&self) -> PathBuf {
        self.url.trim_start_matches("sqlite:").into()
    }
}

fn open(path: &PathBuf) -> rusqlite::Connection {
    let conn = rusqlite::Connection::open(path).unwrap();
    conn.busy_timeout(std::time::Duration::from_secs(60)).unwrap();
    conn
}

fn query(path: &PathBuf, sql: &str) -> Vec<Vec<Option<String>>> {
    let conn = open(path);
    let mut statement = conn.prepare(sql).unwrap();
    let columns = statement.column_count();
    let text = |value: rusqlite::types::Value| match value {
        rusqlite::types::Value::Null => None,
        rusqlite::types::Value::Integer(number) => Some(number.to_string()),
        rusqlite::types::Value::Real(number) => Some(number.to_string()),
        rusqlite::types::Value::Text(text) => Some(text),
        rusqlite::types::Value::Blob(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
    };
    let rows = statement
        .query_map([], |row| (0..columns).map(|i| row.get(i).map(text)).collect())
        .unwrap();
    rows.collect::<rusqlite::Result<_>>().unwrap()
}

/// SmartEdify's table and its dead letters; on PostgreSQL with a number of its owner's, which tells the order.
pub async fn smartedify(db: &Database) -> Mapping {
    let mapping = Preset::SmartEdify.mapping(TableName::parse("outbox_events").unwrap());
    let columns = "aggregate_type text NOT NULL, aggregate_id text NOT NULL, event_type text NOT NULL,
        payload {json} NOT NULL, retry_count int NOT NULL DEFAULT 0, next_retry_at {time} NOT NULL DEFAULT ({now}),
        published_at {time}, last_error varchar(40), error_class text, last_error_at {time},
        created_at {time} NOT NULL DEFAULT ({now}), updated_at {time} NOT NULL DEFAULT ({now})";
    let (json, time, now, number) = match db.is_postgres() {
        true => ("jsonb", "timestamptz", "now()", "bigint GENERATED ALWAYS AS IDENTITY"),
        false => ("text", "text", "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')", "int"),
    };
    let columns = columns.replace("{json}", json).replace("{time}", time).replace("{now}", now);
    let id = if db.is_postgres() { "uuid" } else { "text" };
    db.run(&format!(
        "CREATE TABLE outbox_events (id {id} PRIMARY KEY, {columns}, position {number});
         CREATE INDEX idx_outbox_ready ON outbox_events (next_retry_at) WHERE published_at IS NULL;
         CREATE TABLE outbox_events_dlq (id {id} PRIMARY KEY, {columns}, position bigint);"
    ))
    .await;
    if db.is_postgres() { mapping.with(Role::Sequence, "position") } else { mapping }
}
