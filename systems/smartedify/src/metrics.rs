//! The document's metrics. Relevo counts; this module adds what only the table can tell: its backlog, the age of what
//! waits, and the size of the dead-letter table.

use crate::db::{Db, Sql};
use crate::outbox::SUBSCRIPTION;
use anyhow::{Result, anyhow};
use metrics::{counter, describe_gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use relevo::{ErrorClass, telemetry};
use std::time::Duration;

/// The document's six.
pub const DOCUMENTED: [&str; 6] = [
    "outbox_publish_attempts_total",
    "outbox_published_total",
    "outbox_retry_total",
    "outbox_failed_permanent_total",
    BACKLOG,
    "outbox_publish_latency_seconds",
];

const BACKLOG: &str = "outbox_backlog_gauge";
const AGE_AVERAGE: &str = "outbox_pending_age_average_seconds";
const AGE_OLDEST: &str = "outbox_pending_age_oldest_seconds";
const DEAD: &str = "outbox_dlq_gauge";

/// Up to ten minutes; 30 s, the alert's threshold, is among them.
const LATENCY_BUCKETS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0];

/// Installs the recorder that all metrics of this process go to, under the service's name. Once per process.
pub fn install(service: &str) -> Result<PrometheusHandle> {
    telemetry::set_service(service);
    let latency = Matcher::Full("outbox_publish_latency_seconds".into());
    let builder = PrometheusBuilder::new().set_buckets_for_metric(latency, LATENCY_BUCKETS)?;
    let handle = builder.install_recorder().map_err(|error| anyhow!("no metrics: {error}"))?;
    telemetry::describe();
    describe_gauge!(AGE_AVERAGE, "average age of pending events");
    describe_gauge!(AGE_OLDEST, "age of the oldest pending event");
    describe_gauge!(DEAD, "rows of outbox_events_dlq");
    announce();
    Ok(handle)
}

/// Shows every metric from the start: an alert cannot be raised on one that is not there.
fn announce() {
    for name in DOCUMENTED {
        match name {
            BACKLOG => {}
            "outbox_failed_permanent_total" => ErrorClass::ALL.iter().for_each(|class| {
                counter!(name, "service" => telemetry::service(), "subscription" => SUBSCRIPTION, "class" => class.as_str())
                    .increment(0);
            }),
            "outbox_publish_latency_seconds" => {
                drop(histogram!(name, "service" => telemetry::service(), "subscription" => SUBSCRIPTION));
            }
            counted => telemetry::count(counted, SUBSCRIPTION, 0),
        }
    }
    for gauge in [BACKLOG, AGE_AVERAGE, AGE_OLDEST, DEAD] {
        telemetry::set(gauge, SUBSCRIPTION, 0.0);
    }
}

/// So many tell enough for every alert; more are not counted.
const MOST: i64 = 100_000;

/// The oldest, along `idx_outbox_pending`: whatever waits beyond them costs nothing, and the very oldest is among them.
const WAITING: Sql = Sql::each(
    "SELECT count(*), coalesce(avg(age), 0)::float8, coalesce(max(age), 0)::float8
       FROM (SELECT extract(epoch FROM clock_timestamp() - created_at) AS age
               FROM outbox_events WHERE published_at IS NULL ORDER BY created_at LIMIT $1) pending",
    "SELECT count(*), coalesce(avg(age), 0.0), coalesce(max(age), 0.0)
       FROM (SELECT (julianday('now') - julianday(created_at)) * 86400.0 AS age
               FROM outbox_events WHERE published_at IS NULL ORDER BY created_at LIMIT $1)",
);
const DEAD_ROWS: Sql = Sql::both("SELECT count(*) FROM outbox_events_dlq");

/// What waits in the outbox.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Waiting {
    /// How many events.
    pub backlog: i64,
    /// Their age in seconds, on average.
    pub average_s: f64,
    /// The age of the oldest.
    pub oldest_s: f64,
}

impl Waiting {
    /// The oldest of them, at most so many.
    pub async fn among(db: &Db, most: i64) -> sqlx::Result<Self> {
        let rows: Vec<(i64, f64, f64)> = db.rows(&WAITING, &[most.into()]).await?;
        let (backlog, average, oldest) = rows.first().copied().unwrap_or_default();
        // The clock of another machine may be behind the one that wrote the row.
        Ok(Self { backlog, average_s: average.max(0.0), oldest_s: oldest.max(0.0) })
    }
}

/// Looks at the tables once.
pub async fn observe(db: &Db) -> sqlx::Result<()> {
    let waiting = Waiting::among(db, MOST).await?;
    telemetry::set(BACKLOG, SUBSCRIPTION, waiting.backlog as f64);
    telemetry::set(AGE_AVERAGE, SUBSCRIPTION, waiting.average_s);
    telemetry::set(AGE_OLDEST, SUBSCRIPTION, waiting.oldest_s);
    telemetry::set(DEAD, SUBSCRIPTION, db.number(&DEAD_ROWS, &[]).await? as f64);
    Ok(())
}

/// Between two looks.
pub const EVERY: Duration = Duration::from_secs(2);

/// Looks again and again. Without the upkeep samples would pile up while nobody scrapes.
pub async fn run(db: Db, handle: PrometheusHandle, every: Duration) {
    let mut interval = tokio::time::interval(every);
    loop {
        interval.tick().await;
        handle.run_upkeep();
        if let Err(error) = observe(&db).await {
            tracing::warn!(%error, "the outbox cannot be looked at");
        }
    }
}
