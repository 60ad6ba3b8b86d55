use super::{HELD, Plan, Shape, WriterOptions, published};
use crate::adopted::Table;
use crate::story::{Fate, Intent, Line, Published, now_ns, tell};
use anyhow::{Context, Result};
use relevo::sqlite::SqliteOutbox;
use relevo::{EventId, NewEvent};
use relevo_core::clock::Rng;
use rusqlite::{Connection, Transaction, TransactionBehavior};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use uuid::Uuid;

const COUNT_UP: &str =
    "UPDATE aggregate SET version = version + 1 WHERE key = ?1 RETURNING version";
const BY_INSERT: &str =
    "INSERT INTO relevo_outbox (topic, key, payload, id) VALUES (?1, ?2, ?3, ?4)";
const BY_NEXT_INSERT: &str =
    "INSERT INTO relevo_outbox (topic, key, payload, id, note) VALUES (?1, ?2, ?3, ?4, 'next')";

pub(super) async fn run(
    options: &WriterOptions,
    table: Option<Table>,
    stopped: watch::Receiver<bool>,
) -> Result<()> {
    let way = Arc::new(Way::of(options, table));
    let mut writers = tokio::task::JoinSet::new();
    for number in 0..options.writers {
        let (options, way, stopped) = (options.clone(), way.clone(), stopped.clone());
        let rng = Rng::seeded(options.seed.wrapping_mul(1000).wrapping_add(number));
        writers.spawn_blocking(move || write(&options, &way, rng, &stopped, Hold::Shortly));
    }
    if options.hold_ms > 0 {
        let (options, stopped) = (options.clone(), stopped.clone());
        let rng = Rng::seeded(options.seed.wrapping_mul(1000).wrapping_add(options.writers));
        writers.spawn_blocking(move || write(&options, &way, rng, &stopped, Hold::Long));
    }
    while let Some(ended) = writers.join_next().await {
        ended.context("a writer panicked")??;
    }
    Ok(())
}

/// How long a writer keeps its transactions open, and with them the write lock that there is one of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hold {
    Shortly,
    Long,
}

/// How events get into the database.
enum Way {
    /// Into the log: by the library, or by this statement.
    Log(&'static str),
    /// Into the writer's own outbox table.
    Own(Box<Table>),
}

impl Way {
    fn of(options: &WriterOptions, table: Option<Table>) -> Self {
        let insert = if options.next { BY_NEXT_INSERT } else { BY_INSERT };
        table.map_or(Self::Log(insert), |table| Self::Own(Box::new(table)))
    }
}

fn write(
    options: &WriterOptions,
    way: &Way,
    mut rng: Rng,
    stopped: &watch::Receiver<bool>,
    hold: Hold,
) -> Result<()> {
    // SQLite has no second phase; a transaction of that shape is committed at once.
    let path = options.store.trim_start_matches("sqlite:");
    let mut connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(10))?;
    while !*stopped.borrow() {
        let plan = match hold {
            Hold::Shortly => Plan::next(&mut rng, options),
            Hold::Long => Plan::held(&mut rng),
        };
        if let Err(error) = transaction(&mut connection, &plan, way, &mut rng, options, hold) {
            tracing::debug!(%error, "a transaction failed");
        }
        match hold {
            Hold::Shortly => rest(&mut rng, options.pause_ms),
            // Now the others.
            Hold::Long => std::thread::sleep(Duration::from_millis(options.hold_ms)),
        }
    }
    Ok(())
}

fn rest(rng: &mut Rng, longest_ms: u64) {
    std::thread::sleep(Duration::from_micros(rng.below(longest_ms * 1000 + 1)));
}

fn transaction(
    connection: &mut Connection,
    plan: &Plan,
    way: &Way,
    rng: &mut Rng,
    options: &WriterOptions,
    hold: Hold,
) -> Result<()> {
    let shape = if hold == Hold::Long { HELD } else { plan.shape.name() }.to_owned();
    let mut intent = Intent { tx: Uuid::now_v7(), shape, ..Intent::default() };
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let publish_first = plan.shape == Shape::PublishFirst;
    let mut versions = Vec::new();
    if !publish_first {
        versions = count_up(&tx, plan)?;
    }
    for (place, (key, fate)) in plan.events.iter().enumerate() {
        // The write lock is taken when the transaction begins, so the version is the order whoever counts first.
        let event = published(&plan.keys[*key], *fate, place as u32, true);
        publish(&tx, way, &event, rng)?;
        if plan.shape == Shape::Savepoint {
            let undone = published(&event.key, Fate::Plain, event.place, true);
            tx.execute_batch("SAVEPOINT s")?;
            publish(&tx, way, &undone, rng)?;
            tx.execute_batch("ROLLBACK TO s; RELEASE s")?;
            intent.undone.push(undone.id);
        }
        intent.events.push(event);
    }
    match hold {
        Hold::Shortly => rest(rng, options.inside_ms),
        Hold::Long => std::thread::sleep(Duration::from_millis(options.hold_ms)),
    }
    if publish_first {
        versions = count_up(&tx, plan)?;
    }
    for (event, (key, _)) in intent.events.iter_mut().zip(&plan.events) {
        event.version = versions[*key];
    }
    tx.execute("INSERT INTO business (tx) VALUES (?1)", [intent.tx.to_string()])?;
    tell(&Line::Intent(intent.clone()));
    if plan.shape == Shape::Rollback {
        tell(&Line::RolledBack(intent.tx));
        return Ok(tx.rollback()?);
    }
    tx.commit()?;
    tell(&Line::Committed(intent.tx, now_ns()));
    Ok(())
}

fn count_up(tx: &Transaction<'_>, plan: &Plan) -> Result<Vec<i64>> {
    let mut statement = tx.prepare_cached(COUNT_UP)?;
    let versions: rusqlite::Result<Vec<i64>> =
        plan.keys.iter().map(|key| statement.query_row([key], |row| row.get(0))).collect();
    Ok(versions?)
}

fn publish(tx: &Transaction<'_>, way: &Way, event: &Published, rng: &mut Rng) -> Result<()> {
    let (key, topic) = (&event.key, event.fate.topic());
    match way {
        Way::Own(table) => tx.execute_batch(&table.insert(std::slice::from_ref(event)))?,
        Way::Log(_) if rng.below(2) == 0 => {
            let event = NewEvent::bytes(topic, "1").key(key).id(EventId(event.id));
            SqliteOutbox::default().publish_sync(tx, event)?;
        }
        Way::Log(insert) => {
            tx.execute(insert, (topic, key, b"1", event.id.to_string()))?;
        }
    }
    Ok(())
}
