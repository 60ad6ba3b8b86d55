use super::{HELD, Plan, Shape, WriterOptions, pause, published};
use crate::adopted::Table;
use crate::story::{Fate, Intent, Line, Published, now_ns, tell};
use crate::worker::Broken;
use anyhow::{Context, Result};
use relevo::postgres::PostgresOutbox;
use relevo::{EventId, NewEvent, PublishIn};
use relevo_core::clock::Rng;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_postgres::{Client, NoTls, Transaction};
use uuid::Uuid;

/// An answer that takes longer does not come any more.
const PATIENCE: Duration = Duration::from_secs(10);

/// The name by which the test tells writers' sessions from others.
pub(crate) const APPLICATION: &str = "torture-writer";

const COUNT_UP: &str =
    "UPDATE aggregate SET version = version + 1 WHERE key = $1 RETURNING version";
const BUSINESS: &str = "INSERT INTO business (tx) VALUES ($1)";
const BY_FUNCTION: &str =
    "SELECT relevo.publish_bytes($1, $2, $3, headers => jsonb_build_object('id', $4::text))";
const BY_INSERT: &str =
    "INSERT INTO relevo.outbox (topic, key, payload, id) VALUES ($1, $2, $3, $4)";
const BY_NEXT_INSERT: &str =
    "INSERT INTO relevo.outbox (topic, key, payload, id, note) VALUES ($1, $2, $3, $4, 'next')";

pub(super) async fn run(
    options: &WriterOptions,
    table: Option<Table>,
    stopped: watch::Receiver<bool>,
) -> Result<()> {
    let table = table.map(Arc::new);
    let mut writers = JoinSet::new();
    for number in 0..options.writers {
        writers.spawn(Writer::new(options, &table, number, &stopped).run(false));
    }
    if options.hold_ms > 0 {
        writers.spawn(Writer::new(options, &table, options.writers, &stopped).run(true));
    }
    while let Some(ended) = writers.join_next().await {
        ended.context("a writer panicked")?;
    }
    Ok(())
}

struct Writer {
    options: WriterOptions,
    /// Its own outbox table, if it does not publish into the log.
    table: Option<Arc<Table>>,
    rng: Rng,
    stopped: watch::Receiver<bool>,
}

/// Errors of the driver and of Relevo; what matters is only whether COMMIT had been sent.
type Fault = Box<dyn std::error::Error + Send + Sync>;

impl Writer {
    fn new(
        options: &WriterOptions,
        table: &Option<Arc<Table>>,
        number: u64,
        stopped: &watch::Receiver<bool>,
    ) -> Self {
        let rng = Rng::seeded(options.seed.wrapping_mul(1000).wrapping_add(number));
        Self { options: options.clone(), table: table.clone(), rng, stopped: stopped.clone() }
    }

    async fn run(mut self, hold: bool) {
        let mut session: Option<Session> = None;
        while !*self.stopped.borrow() {
            if session.as_ref().is_none_or(|session| session.client.is_closed()) {
                let connecting = connect(&self.options.store);
                session = tokio::time::timeout(PATIENCE, connecting).await.ok().flatten();
            }
            let Some(Session { client, .. }) = &mut session else {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let limit = PATIENCE + Duration::from_millis(self.options.hold_ms);
            match tokio::time::timeout(limit, self.transaction(client, hold)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::debug!(%error, "a transaction failed");
                    session = None;
                }
                // A connection of which nobody says that it is gone.
                Err(_) => session = None,
            }
            pause(&mut self.rng, self.options.pause_ms).await;
        }
    }

    async fn transaction(&mut self, client: &mut Client, hold: bool) -> Result<(), Fault> {
        let plan =
            if hold { Plan::held(&mut self.rng) } else { Plan::next(&mut self.rng, &self.options) };
        if self.options.broken == Some(Broken::PublishApart) && plan.shape == Shape::Rollback {
            return self.publish_apart(client, &plan).await;
        }
        let shape = if hold { HELD } else { plan.shape.name() };
        let mut intent =
            Intent { tx: Uuid::now_v7(), shape: shape.to_owned(), ..Intent::default() };
        let inside_ms = if hold { self.options.hold_ms } else { self.options.inside_ms };
        let mut tx = client.transaction().await?;
        self.work(&mut tx, &plan, &mut intent, inside_ms).await?;
        tx.execute(BUSINESS, &[&intent.tx]).await?;
        tell(&Line::Intent(intent.clone()));
        match plan.shape {
            Shape::Rollback => {
                tell(&Line::RolledBack(intent.tx));
                tx.rollback().await?;
            }
            Shape::TwoPhase => {
                // The transaction leaves the session here: dropping `tx` finds none to roll back.
                tx.batch_execute(&format!("PREPARE TRANSACTION '{}'", intent.tx)).await?;
                drop(tx);
                self.second_phase(client, intent.tx).await?;
            }
            _ => {
                tx.commit().await?;
                tell(&Line::Committed(intent.tx, now_ns()));
            }
        }
        Ok(())
    }

    /// Locks and publishes as the plan says; on return every version is known.
    async fn work(
        &mut self,
        tx: &mut Transaction<'_>,
        plan: &Plan,
        intent: &mut Intent,
        inside_ms: u64,
    ) -> Result<(), Fault> {
        let publish_first = matches!(plan.shape, Shape::PublishFirst | Shape::TwoPhase);
        let mut versions = Vec::new();
        if !publish_first {
            versions = lock(tx, plan).await?;
        }
        for (place, (key, fate)) in plan.events.iter().enumerate() {
            let event = published(&plan.keys[*key], *fate, place as u32, !publish_first);
            self.publish(tx, &event).await?;
            if plan.shape == Shape::Savepoint {
                self.take_back(tx, &event, intent).await?;
            }
            intent.events.push(event);
        }
        if inside_ms > self.options.inside_ms {
            // For so long, or until the test is over.
            let over = self.stopped.wait_for(|stopped| *stopped);
            drop(tokio::time::timeout(Duration::from_millis(inside_ms), over).await);
        } else {
            pause(&mut self.rng, inside_ms).await;
        }
        if publish_first {
            versions = lock(tx, plan).await?;
        }
        for (event, (key, _)) in intent.events.iter_mut().zip(&plan.events) {
            event.version = versions[*key];
        }
        Ok(())
    }

    /// In one of the three ways a service may choose.
    async fn publish(&mut self, tx: &mut Transaction<'_>, event: &Published) -> Result<(), Fault> {
        if let Some(table) = &self.table {
            let insert = table.insert(std::slice::from_ref(event));
            return Ok(tx.batch_execute(&insert).await?);
        }
        let payload = event.place.to_string().into_bytes();
        let topic = event.fate.topic();
        match self.rng.below(3) {
            0 => {
                let new = NewEvent::bytes(topic, payload).key(&event.key).id(EventId(event.id));
                PostgresOutbox::new().publish(tx, new).await?;
            }
            1 => {
                tx.query(BY_FUNCTION, &[&topic, &event.key, &payload, &event.id.to_string()])
                    .await?;
            }
            _ => {
                let insert = if self.options.next { BY_NEXT_INSERT } else { BY_INSERT };
                tx.execute(insert, &[&topic, &event.key, &payload, &event.id]).await?;
            }
        }
        Ok(())
    }

    async fn take_back(
        &mut self,
        tx: &mut Transaction<'_>,
        event: &Published,
        intent: &mut Intent,
    ) -> Result<(), Fault> {
        let undone = published(&event.key, Fate::Plain, event.place, true);
        tx.batch_execute("SAVEPOINT s").await?;
        self.publish(tx, &undone).await?;
        tx.batch_execute("ROLLBACK TO SAVEPOINT s").await?;
        intent.undone.push(undone.id);
        Ok(())
    }

    /// Ends a prepared transaction, however often the server goes away meanwhile: nobody else will.
    async fn second_phase(&mut self, client: &mut Client, tx: Uuid) -> Result<(), Fault> {
        pause(&mut self.rng, 5 * self.options.inside_ms).await;
        if self.rng.below(5) == 0 {
            client.batch_execute(&format!("ROLLBACK PREPARED '{tx}'")).await?;
            tell(&Line::RolledBack(tx));
            return Ok(());
        }
        client.batch_execute(&format!("COMMIT PREPARED '{tx}'")).await?;
        tell(&Line::Committed(tx, now_ns()));
        Ok(())
    }

    /// Wrong on purpose: the event is there although the transaction is not.
    async fn publish_apart(&mut self, client: &mut Client, plan: &Plan) -> Result<(), Fault> {
        let mut other = connect(&self.options.store).await.ok_or("no connection")?;
        let event = published(&plan.keys[0], Fate::Plain, 0, false);
        let tx = client.transaction().await?;
        let mut apart = other.client.transaction().await?;
        self.publish(&mut apart, &event).await?;
        apart.commit().await?;
        let intent = Intent { tx: Uuid::now_v7(), events: vec![event], ..Intent::default() };
        tell(&Line::Intent(intent.clone()));
        tell(&Line::RolledBack(intent.tx));
        tx.rollback().await?;
        Ok(())
    }
}

async fn lock(tx: &Transaction<'_>, plan: &Plan) -> Result<Vec<i64>, Fault> {
    let mut versions = Vec::new();
    for key in &plan.keys {
        versions.push(tx.query_one(COUNT_UP, &[key]).await?.get(0));
    }
    Ok(versions)
}

/// A client with the task that moves its bytes. Left alone, that task waits for an answer that is owed, however long, and
/// keeps the connection and the server's session with it: it ends with its client.
struct Session {
    client: Client,
    connection: JoinSet<Result<(), tokio_postgres::Error>>,
}

async fn connect(url: &str) -> Option<Session> {
    let mut config: tokio_postgres::Config = url.parse().ok()?;
    config.application_name(APPLICATION).connect_timeout(Duration::from_secs(5));
    let (client, connection) = config.connect(NoTls).await.ok()?;
    let mut session = Session { client, connection: JoinSet::new() };
    session.connection.spawn(connection);
    // A prepared transaction that waits for its second phase keeps its keys locked.
    session.client.batch_execute("SET lock_timeout = '5s'").await.ok()?;
    Some(session)
}
