//! Databases, and the system's own binary as processes that can be killed.
#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    unreachable_pub,
    missing_docs,
    clippy::unwrap_used,
    reason = "each test uses what it needs, and unwraps what it expects"
)]

use relevo_testkit::services::{Postgres, PostgresOptions, require};
use rustix::process::{Pid, Signal, kill_process};
use smartedify::client::Client;
use smartedify::db::{Arg, Db, Sql};
use smartedify::migrate;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use tempfile::TempDir;

pub use relevo_testkit::eventually;

pub mod outbox;

/// Which databases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Sqlite,
    Postgres,
}

/// Two fresh databases: the service's and the downstream service's, with their tables.
pub struct Place {
    pub service: String,
    pub downstream: String,
    pub db: Db,
    pub directory: Db,
    _alive: (Option<Arc<Postgres>>, TempDir),
}

impl Place {
    /// `None` if there is no server (said aloud).
    pub async fn fresh(kind: Kind) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        Some(match kind {
            Kind::Sqlite => {
                let file = |name: &str| format!("sqlite:{}", folder.path().join(name).display());
                Self::at([file("tenants.db"), file("directory.db")], (None, folder)).await
            }
            Kind::Postgres => Self::on(require(Postgres::shared(18))?, folder).await,
        })
    }

    /// On a server that keeps the times of commits, as compose.yaml starts it.
    pub async fn with_commit_times() -> Option<Self> {
        let options = PostgresOptions::new(18).setting("track_commit_timestamp", "on");
        let server = Arc::new(require(Postgres::start_with(&options))?);
        Some(Self::on(server, tempfile::tempdir().unwrap()).await)
    }

    async fn on(server: Arc<Postgres>, folder: TempDir) -> Self {
        let fresh = || server.create_database().unwrap();
        let urls = [fresh(), fresh()];
        Self::at(urls, (Some(server), folder)).await
    }

    async fn at(
        [service, downstream]: [String; 2],
        alive: (Option<Arc<Postgres>>, TempDir),
    ) -> Self {
        let (db, directory) =
            (Db::open(&service).await.unwrap(), Db::open(&downstream).await.unwrap());
        migrate::tenants(&db).await.unwrap();
        migrate::downstream(&directory).await.unwrap();
        Self { service, downstream, db, directory, _alive: alive }
    }

    pub async fn pending(&self) -> i64 {
        number(&self.db, Sql::both("SELECT count(*) FROM outbox_events WHERE published_at IS NULL"))
            .await
    }

    pub async fn published(&self) -> i64 {
        number(
            &self.db,
            Sql::both("SELECT count(*) FROM outbox_events WHERE published_at IS NOT NULL"),
        )
        .await
    }

    pub async fn dead(&self) -> i64 {
        number(&self.db, Sql::both("SELECT count(*) FROM outbox_events_dlq")).await
    }

    pub async fn effects(&self) -> i64 {
        number(&self.directory, Sql::both("SELECT count(*) FROM audit_log")).await
    }
}

pub async fn number(db: &Db, sql: Sql) -> i64 {
    db.number(&sql, &[]).await.unwrap()
}

pub async fn run(db: &Db, sql: Sql, args: &[Arg]) -> u64 {
    let mut tx = db.begin().await.unwrap();
    let changed = tx.conn().run(&sql, args).await.unwrap();
    tx.commit().await.unwrap();
    changed
}

/// Waits until a number is there.
pub async fn until(what: &str, wanted: i64, ask: impl AsyncFn() -> i64) {
    let mut last = i64::MIN;
    eventually(&format!("{wanted} {what}"), async || {
        last = ask().await;
        (last == wanted).then_some(())
    })
    .await;
}

/// One process of the system; it is killed when the value is dropped.
pub struct Process {
    child: Child,
    /// What it said when it was ready.
    pub said: String,
}

impl Process {
    /// Starts the binary and waits for its first line.
    pub fn start(command: &str, args: &[(&str, &str)]) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_smartedify"));
        process.arg(command).stdout(Stdio::piped()).env("RUST_LOG", "warn");
        for (name, value) in args {
            process.env(name, value);
        }
        let mut child = process.spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert!(!said.is_empty(), "{command} ended before it was ready: {:?}", child.wait());
        Self { child, said: said.trim().to_owned() }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.said.rsplit("//").next().unwrap().parse().unwrap()
    }

    pub fn client(&self) -> Client {
        Client::to(self.address())
    }

    /// kill -9.
    pub fn kill9(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to stop, and waits until it has.
    pub fn stop(mut self) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
