//! A load run: people at work through the API, until every effect is there; how long each took, and whether any is lost.

use crate::client::Client;
use crate::database::Database;
use crate::topology::{METRICS, NOTIFICATIONS};
use crate::traffic::{Journal, Traffic};
use anyhow::{Result, ensure};
use chrono::{DateTime, Utc};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::Instant;
use uuid::Uuid;

/// So long the last effects may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// Options of `ticketflow load`.
#[derive(Debug, Clone, clap::Args)]
pub struct LoadArgs {
    /// Where the API is
    #[arg(long, default_value = "127.0.0.1:8080")]
    api: SocketAddr,
    /// Its database, and the worker's
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    database_url: String,
    /// How long people are at work
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Changes of tickets they ask for in a minute; each is two messages, one for each queue
    #[arg(long, default_value_t = 10_000)]
    per_minute: u32,
    /// How many they are
    #[arg(long, default_value_t = 32)]
    people: u32,
}

/// When each change was processed, by consumer.
type Processed = BTreeMap<(Uuid, i64), DateTime<Utc>>;

/// Runs it and prints the figures; an error if anything is missing.
pub async fn run(args: LoadArgs) -> Result<()> {
    let database = Database::open(&args.database_url).await?;
    let began = Instant::now();
    let traffic = Traffic::start(&Client::at(args.api), args.people, args.per_minute.div_ceil(60));
    tokio::time::sleep(Duration::from_secs(args.seconds)).await;
    let journal = traffic.stop().await;
    let asked_for = began.elapsed();
    let effects = settled(&database, &journal).await?;
    let all = began.elapsed();
    let changes = journal.changes();
    let per_minute = |n: u64, time: Duration| n as f64 * 60.0 / time.as_secs_f64();
    println!(
        "changes accepted   {changes} in {:.1} s, {:.0} a minute",
        asked_for.as_secs_f64(),
        per_minute(changes, asked_for)
    );
    println!(
        "messages processed {} in {:.1} s, {:.0} a minute",
        2 * changes,
        all.as_secs_f64(),
        per_minute(2 * changes, all)
    );
    for (consumer, processed) in &effects {
        let mut took = latencies(&journal, processed);
        took.sort_unstable();
        println!(
            "request to {consumer:<13} p50 {:>6} ms   p99 {:>6} ms   max {:>6} ms",
            at(&took, 0.5),
            at(&took, 0.99),
            at(&took, 1.0)
        );
    }
    println!("unclear answers    {}", journal.unclear());
    let lost: usize = effects.values().map(|processed| missing(&journal, processed)).sum();
    println!("lost               {lost}");
    ensure!(lost == 0, "{lost} effects are missing after {PATIENCE:?}");
    Ok(())
}

/// Waits until every effect is there, or for as long as that may take.
async fn settled(
    database: &Database,
    journal: &Journal,
) -> Result<BTreeMap<&'static str, Processed>> {
    let began = Instant::now();
    loop {
        let mut effects = BTreeMap::new();
        for consumer in [NOTIFICATIONS, METRICS] {
            effects.insert(consumer, processed(database, consumer).await?);
        }
        if began.elapsed() > PATIENCE || effects.values().all(|it| missing(journal, it) == 0) {
            return Ok(effects);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn processed(database: &Database, consumer: &str) -> Result<Processed> {
    const PROCESSED: &str = r#"SELECT a."TicketId", a."Version", p."ProcessedAt" FROM "ProcessedEvents" p
        JOIN "TicketActivity" a ON a."EventId" = p."EventId" WHERE p."Consumer" = $1"#;
    let mut connection = database.connect().await?;
    let rows = connection.session().query(PROCESSED, &[consumer.into()]).await?;
    rows.iter().map(|row| Ok(((row.text(0)?.parse()?, row.number(1)?), row.time(2)?))).collect()
}

fn missing(journal: &Journal, processed: &Processed) -> usize {
    journal.asked().keys().filter(|change| !processed.contains_key(change)).count()
}

/// From each request to its effect, in milliseconds.
fn latencies(journal: &Journal, processed: &Processed) -> Vec<i64> {
    let took = |(change, asked): (&(Uuid, i64), &std::time::SystemTime)| {
        Some((*processed.get(change)? - DateTime::<Utc>::from(*asked)).num_milliseconds())
    };
    journal.asked().iter().filter_map(took).collect()
}

fn at(sorted: &[i64], share: f64) -> i64 {
    let place = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(place.saturating_sub(1)).copied().unwrap_or_default()
}
