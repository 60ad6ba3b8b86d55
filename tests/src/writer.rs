//! An application's own transaction, of each driver, as the conformance suite wants it.

use async_trait::async_trait;
use relevo_core::event::{EventId, NewEvent};
use relevo_core::outbox::PublishIn;
use relevo_core::{Error, Kind, Result};
use relevo_stores::memory::{MemoryStore, MemoryTransaction};
use relevo_stores::sqlite::SqliteOutbox;
use relevo_testkit::conformance::Writer;
use rusqlite::TransactionBehavior;
use sqlx::{Sqlite, SqlitePool};
use std::path::PathBuf;
use tokio::sync::{mpsc, oneshot};

/// Turns a driver's error into one of Relevo's, for a test to show.
pub fn failed(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(Kind::StoreFailed, error.to_string()).because(error)
}

/// A transaction in memory.
pub struct InMemory {
    outbox: relevo_stores::memory::MemoryOutbox,
    tx: MemoryTransaction,
}

impl InMemory {
    /// Begins.
    pub fn begin(store: &MemoryStore) -> Box<dyn Writer> {
        Box::new(Self { outbox: store.outbox(), tx: store.begin() })
    }
}

#[async_trait]
impl Writer for InMemory {
    async fn publish(&mut self, events: Vec<NewEvent>) -> Result<Vec<EventId>> {
        publish(&self.outbox, &mut self.tx, events).await
    }

    async fn commit(self: Box<Self>) -> Result<()> {
        self.tx.commit()
    }

    async fn roll_back(self: Box<Self>) -> Result<()> {
        self.tx.rollback();
        Ok(())
    }
}

/// One event by `publish`, several by `publish_all`: both forms are used.
async fn publish<O: PublishIn<Tx>, Tx>(
    outbox: &O,
    tx: &mut Tx,
    mut events: Vec<NewEvent>,
) -> Result<Vec<EventId>> {
    match (events.pop(), events.is_empty()) {
        (Some(only), true) => Ok(vec![outbox.publish(tx, only).await?]),
        (Some(last), false) => {
            events.push(last);
            outbox.publish_all(tx, events).await
        }
        (None, _) => Ok(Vec::new()),
    }
}

/// A transaction of sqlx on SQLite.
pub struct SqlxOnSqlite {
    tx: sqlx::Transaction<'static, Sqlite>,
}

impl SqlxOnSqlite {
    /// Begins with the write lock.
    pub async fn begin(pool: &SqlitePool) -> Result<Box<dyn Writer>> {
        Ok(Box::new(Self { tx: pool.begin_with("BEGIN IMMEDIATE").await.map_err(failed)? }))
    }
}

#[async_trait]
impl Writer for SqlxOnSqlite {
    async fn publish(&mut self, events: Vec<NewEvent>) -> Result<Vec<EventId>> {
        publish(&SqliteOutbox::default(), &mut self.tx, events).await
    }

    async fn commit(self: Box<Self>) -> Result<()> {
        self.tx.commit().await.map_err(failed)
    }

    async fn roll_back(self: Box<Self>) -> Result<()> {
        self.tx.rollback().await.map_err(failed)
    }
}

/// What a transaction is told that lives elsewhere: in a thread, or in a task that owns its connection.
enum Command {
    Publish(Vec<NewEvent>, oneshot::Sender<Result<Vec<EventId>>>),
    End { commit: bool, done: oneshot::Sender<Result<()>> },
}

/// A transaction that lives elsewhere. Dropped without an end it is rolled back.
pub struct Elsewhere {
    commands: mpsc::UnboundedSender<Command>,
}

impl Elsewhere {
    async fn tell<T>(&self, command: Command, answer: oneshot::Receiver<Result<T>>) -> Result<T> {
        let gone = || Error::new(Kind::StoreFailed, "the transaction's thread is gone");
        self.commands.send(command).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    async fn end(&self, commit: bool) -> Result<()> {
        let (done, answer) = oneshot::channel();
        self.tell(Command::End { commit, done }, answer).await
    }
}

#[async_trait]
impl Writer for Elsewhere {
    async fn publish(&mut self, events: Vec<NewEvent>) -> Result<Vec<EventId>> {
        let (done, answer) = oneshot::channel();
        self.tell(Command::Publish(events, done), answer).await
    }

    async fn commit(self: Box<Self>) -> Result<()> {
        self.end(true).await
    }

    async fn roll_back(self: Box<Self>) -> Result<()> {
        self.end(false).await
    }
}

/// Begins a transaction of rusqlite, in a thread of its own.
pub async fn begin_rusqlite(path: PathBuf) -> Result<Box<dyn Writer>> {
    let (commands, inbox) = mpsc::unbounded_channel();
    let (begun, is_begun) = oneshot::channel();
    std::thread::spawn(move || {
        let mut connection = match rusqlite::Connection::open(path) {
            Ok(connection) => connection,
            Err(error) => return drop(begun.send(Err(failed(error)))),
        };
        let tx = connection
            .busy_timeout(std::time::Duration::from_secs(10))
            .and_then(|()| connection.transaction_with_behavior(TransactionBehavior::Immediate));
        match tx {
            Ok(tx) => {
                drop(begun.send(Ok(())));
                serve_rusqlite(tx, inbox);
            }
            Err(error) => drop(begun.send(Err(failed(error)))),
        }
    });
    is_begun.await.map_err(failed)??;
    Ok(Box::new(Elsewhere { commands }))
}

fn serve_rusqlite(tx: rusqlite::Transaction<'_>, mut inbox: mpsc::UnboundedReceiver<Command>) {
    let outbox = SqliteOutbox::default();
    while let Some(command) = inbox.blocking_recv() {
        match command {
            Command::Publish(mut events, done) => {
                let published = match (events.pop(), events.is_empty()) {
                    (Some(only), true) => outbox.publish_sync(&tx, only).map(|id| vec![id]),
                    (Some(last), false) => {
                        events.push(last);
                        outbox.publish_all_sync(&tx, events)
                    }
                    (None, _) => Ok(Vec::new()),
                };
                drop(done.send(published));
            }
            Command::End { commit, done } => {
                let ended = if commit { tx.commit() } else { tx.rollback() };
                return drop(done.send(ended.map_err(failed)));
            }
        }
    }
}

pub use postgres::{SqlxOnPostgres, begin_deadpool, begin_tokio_postgres};

mod postgres {
    use super::{Command, Elsewhere, failed, publish};
    use async_trait::async_trait;
    use deadpool_postgres::Pool;
    use relevo_core::Result;
    use relevo_core::event::{EventId, NewEvent};
    use relevo_stores::postgres::PostgresOutbox;
    use relevo_testkit::conformance::Writer;
    use sqlx::{PgPool, Postgres};
    use tokio::sync::{mpsc, oneshot};

    /// A transaction of sqlx on PostgreSQL.
    pub struct SqlxOnPostgres {
        tx: sqlx::Transaction<'static, Postgres>,
    }

    impl SqlxOnPostgres {
        /// Begins.
        pub async fn begin(pool: &PgPool) -> Result<Box<dyn Writer>> {
            Ok(Box::new(Self { tx: pool.begin().await.map_err(failed)? }))
        }
    }

    #[async_trait]
    impl Writer for SqlxOnPostgres {
        async fn publish(&mut self, events: Vec<NewEvent>) -> Result<Vec<EventId>> {
            publish(&PostgresOutbox::new(), &mut self.tx, events).await
        }

        async fn commit(self: Box<Self>) -> Result<()> {
            self.tx.commit().await.map_err(failed)
        }

        async fn roll_back(self: Box<Self>) -> Result<()> {
            self.tx.rollback().await.map_err(failed)
        }
    }

    /// Serves commands with a transaction, whose type each driver has its own of.
    macro_rules! serve {
        ($tx:expr, $begun:ident, $inbox:ident) => {
            match $tx.await {
                Err(error) => drop($begun.send(Err(failed(error)))),
                Ok(mut tx) => {
                    drop($begun.send(Ok(())));
                    while let Some(command) = $inbox.recv().await {
                        match command {
                            Command::Publish(events, done) => {
                                drop(
                                    done.send(
                                        publish(&PostgresOutbox::new(), &mut tx, events).await,
                                    ),
                                );
                            }
                            Command::End { commit, done } => {
                                let ended =
                                    if commit { tx.commit().await } else { tx.rollback().await };
                                drop(done.send(ended.map_err(failed)));
                                break;
                            }
                        }
                    }
                }
            }
        };
    }

    /// Begins a transaction of deadpool.
    pub async fn begin_deadpool(pool: Pool) -> Result<Box<dyn Writer>> {
        let (commands, mut inbox) = mpsc::unbounded_channel();
        let (begun, is_begun) = oneshot::channel();
        let mut client = pool.get().await.map_err(failed)?;
        tokio::spawn(async move { serve!(client.transaction(), begun, inbox) });
        is_begun.await.map_err(failed)??;
        Ok(Box::new(Elsewhere { commands }))
    }

    /// Begins a transaction of tokio-postgres.
    pub async fn begin_tokio_postgres(pool: Pool) -> Result<Box<dyn Writer>> {
        let (commands, mut inbox) = mpsc::unbounded_channel();
        let (begun, is_begun) = oneshot::channel();
        let mut client = pool.get().await.map_err(failed)?;
        tokio::spawn(async move {
            let client: &mut tokio_postgres::Client = &mut client;
            serve!(client.transaction(), begun, inbox)
        });
        is_begun.await.map_err(failed)??;
        Ok(Box::new(Elsewhere { commands }))
    }
}
