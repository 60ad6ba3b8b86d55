//! The documented metrics beside Relevo's own. `outbox_pending_total` and `mq_dlq_total` go up and down: they are gauges
//! in spite of their names.

use chrono::{DateTime, TimeDelta, Utc};
use metrics::{Unit, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use relevo::{DeadFilter, DeadState, Operate};
use std::sync::OnceLock;

/// Rows of `Outbox` that wait.
pub const PENDING: &str = "outbox_pending_total";
/// Messages in the dead-letter queues, and what never came to a queue.
pub const DLQ: &str = "mq_dlq_total";
/// From the commit to the confirm.
pub const LATENCY: &str = "outbox_dispatch_latency_ms";
/// When a worker signed life.
pub const HEARTBEAT: &str = "worker_heartbeat_timestamp_seconds";
/// When it had its last message.
pub const LAST_MESSAGE: &str = "worker_last_message_timestamp_seconds";

/// The alert is at 2000 ms.
const BUCKETS: [f64; 13] = [
    5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2000.0, 5000.0, 30_000.0, 120_000.0,
    600_000.0,
];

/// Most dead letters that are counted.
const MOST: usize = 10_000;

static HANDLE: OnceLock<Option<PrometheusHandle>> = OnceLock::new();

/// Makes this process keep its metrics, unless whoever started it does that already.
pub fn install() {
    HANDLE.get_or_init(|| {
        let builder = PrometheusBuilder::new();
        let buckets = builder.set_buckets_for_metric(Matcher::Full(LATENCY.into()), &BUCKETS);
        let handle = buckets.and_then(PrometheusBuilder::install_recorder).ok()?;
        relevo::telemetry::set_service("ticketflow");
        relevo::telemetry::describe();
        describe();
        Some(handle)
    });
}

fn describe() {
    describe_gauge!(PENDING, "rows of Outbox that wait to be dispatched");
    describe_gauge!(DLQ, "messages in a dead-letter queue, by queue");
    describe_histogram!(LATENCY, Unit::Milliseconds, "OccurredAt to the confirm");
    describe_gauge!(HEARTBEAT, "when a worker signed life");
    describe_gauge!(LAST_MESSAGE, "when a worker had its last message");
    // An alert on a gauge that was never set would never fire, and nobody would know.
    pending(0);
}

/// Everything, as Prometheus reads it; `None` where another recorder is at work.
pub fn render() -> Option<String> {
    HANDLE.get().and_then(Option::as_ref).map(PrometheusHandle::render)
}

/// What was measured and not read yet must not grow without bound: to be called every few seconds.
pub fn upkeep() {
    if let Some(handle) = HANDLE.get().and_then(Option::as_ref) {
        handle.run_upkeep();
    }
}

/// So many rows wait.
pub fn pending(rows: i64) {
    gauge!(PENDING).set(rows as f64);
}

/// So many dead letters are in a queue.
pub fn dead_letters(queue: &str, messages: u32) {
    gauge!(DLQ, "queue" => queue.to_owned()).set(messages);
}

/// Counts the dead letters that the database keeps under a name, and shows them as a queue's.
pub async fn count_dead_letters(operate: &dyn Operate, name: &str, queue: &str) {
    let mut filter = DeadFilter::default();
    filter.subscription = Some(name.to_owned());
    filter.state = Some(DeadState::Dead);
    match operate.dead_letters(&filter, None, MOST).await {
        Ok(letters) => dead_letters(queue, letters.len() as u32),
        Err(error) => tracing::warn!(%error, name, "its dead letters"),
    }
}

/// An event was confirmed this long after it happened.
pub fn dispatched(after: TimeDelta) {
    histogram!(LATENCY).record(after.num_microseconds().unwrap_or_default().max(0) as f64 / 1000.0);
}

/// A worker lives.
pub fn heartbeat(worker: &str, now: DateTime<Utc>, last_message: Option<DateTime<Utc>>) {
    let seconds = |time: DateTime<Utc>| time.timestamp_millis() as f64 / 1000.0;
    gauge!(HEARTBEAT, "worker" => worker.to_owned()).set(seconds(now));
    if let Some(last) = last_message {
        gauge!(LAST_MESSAGE, "worker" => worker.to_owned()).set(seconds(last));
    }
}
