//! The metrics every process shows, by name. Labels are bounded: service, subscription, class.

use crate::error::ErrorClass;
use crate::mutant;
use crate::outbox::LaneChange;
use crate::relay::Delivery;
use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use std::sync::OnceLock;
use std::time::Duration;

/// Every metric: name, kind, meaning. The documentation's table is checked against this one.
pub const METRICS: &[(&str, &str, &str)] = &[
    ("outbox_publish_attempts_total", "counter", "events handed to a destination, every attempt"),
    (
        "outbox_published_total",
        "counter",
        "events confirmed by their destination or whose effect committed",
    ),
    ("outbox_retry_total", "counter", "failed attempts that will be tried again"),
    ("outbox_failed_permanent_total", "counter", "events that became dead letters"),
    ("outbox_backlog_gauge", "gauge", "upper bound of undecided events, from sequence numbers"),
    ("outbox_publish_latency_seconds", "histogram", "created_at to the confirm"),
    ("relevo_oldest_pending_seconds", "gauge", "age of the oldest undecided event"),
    ("relevo_skipped_total", "counter", "events a handler skipped, with a reason kept"),
    ("relevo_filtered_total", "counter", "events a subscription does not want"),
    ("relevo_parked_keys", "gauge", "keys that wait after a failure"),
    ("relevo_lanes_owned", "gauge", "lanes this process works"),
    ("relevo_lanes_stopped", "gauge", "lanes that stopped and need a person"),
    ("relevo_lane_takeovers_total", "counter", "lanes taken"),
    ("relevo_stale_total", "counter", "writes refused because the lane belongs to another owner"),
    ("relevo_void_total", "counter", "batches whose outcome was read back from the store"),
    (
        "relevo_aborted_total",
        "counter",
        "shared transactions rolled back and redone one event at a time",
    ),
    (
        "relevo_spoilt_total",
        "counter",
        "shared transactions done again with savepoints, because an event of theirs failed or was skipped",
    ),
    ("relevo_store_errors_total", "counter", "errors the store reported, by code"),
    ("relevo_breaker_open", "gauge", "1 while the destination is taken to be down"),
    ("relevo_pages_total", "counter", "pages read"),
    ("relevo_consumed_total", "counter", "messages of a broker whose effect committed"),
    ("relevo_inbox_duplicates_total", "counter", "messages of a broker that were seen before"),
    (
        "relevo_inbox_landed_total",
        "counter",
        "messages of a broker that failed, or wait behind one, in the consumer's log",
    ),
    (
        "relevo_inbox_returned_total",
        "counter",
        "messages of a broker that failed and were left to it",
    ),
    (
        "relevo_source_lag",
        "gauge",
        "messages of a partition that its consumer has not settled yet, by source (Kafka)",
    ),
];

static SERVICE: OnceLock<String> = OnceLock::new();

/// Names the service that all metrics carry as label `service`; the first call counts.
pub fn set_service(name: impl Into<String>) {
    // A second call is a second relay in the same process: the name given first stays.
    SERVICE.get_or_init(|| name.into());
}

/// The service's name.
pub fn service() -> String {
    SERVICE.get_or_init(|| "relevo".into()).clone()
}

/// Describes every metric to the installed recorder.
pub fn describe() {
    for (name, kind, meaning) in METRICS {
        match *kind {
            "counter" => describe_counter!(*name, *meaning),
            "gauge" => describe_gauge!(*name, *meaning),
            _ => describe_histogram!(*name, Unit::Seconds, *meaning),
        }
    }
}

/// Counts by one, with the two labels everything has.
pub fn count(name: &'static str, subscription: &str, n: u64) {
    counter!(name, "service" => service(), "subscription" => subscription.to_owned()).increment(n);
}

/// Sets a gauge, with the two labels everything has.
pub fn set(name: &'static str, subscription: &str, value: f64) {
    gauge!(name, "service" => service(), "subscription" => subscription.to_owned()).set(value);
}

/// How many messages of a source its consumer has not settled yet. The caller bounds how many sources there are.
pub fn source_lag(consumer: &str, source: &str, messages: f64) {
    gauge!("relevo_source_lag", "service" => service(), "subscription" => consumer.to_owned(), "source" => source.to_owned())
        .set(messages);
}

/// Counts a shared transaction that is done again with savepoints: its handlers are called again.
pub fn spoilt(subscription: &str) {
    count("relevo_spoilt_total", subscription, 1);
}

/// Counts an error of the store by its code.
pub fn store_error(subscription: &str, code: &'static str) {
    counter!("relevo_store_errors_total", "service" => service(), "subscription" => subscription.to_owned(), "code" => code)
        .increment(1);
}

/// Counts what became of a batch. What is decided and not recorded yet may be decided again: of that only the confirms.
pub fn delivered(subscription: &str, delivery: &Delivery) {
    if let Delivery::Recorded { change, .. } | Delivery::Decided { change, .. } = delivery {
        count("outbox_published_total", subscription, change.delivered);
    }
    if let Delivery::Recorded { change, .. } = delivery {
        recorded(subscription, change);
    }
}

/// Counts what a recorded change says of what was not delivered.
pub fn recorded(subscription: &str, change: &LaneChange) {
    let retried = if mutant!(RetryNotCounted) { 0 } else { change.retried() };
    count("outbox_retry_total", subscription, retried);
    let skipped = if mutant!(SkipNotCounted) { 0 } else { change.skips.len() as u64 };
    count("relevo_skipped_total", subscription, skipped);
    for death in change.deaths.iter().filter(|_| !mutant!(DeathNotCounted)) {
        died(subscription, death.class);
    }
}

fn died(subscription: &str, class: ErrorClass) {
    counter!(
        "outbox_failed_permanent_total",
        "service" => service(), "subscription" => subscription.to_owned(), "class" => class.as_str()
    )
    .increment(1);
}

/// Counts a row of an adopted table that makes no event, and is a dead letter at once.
pub fn refused_row(subscription: &str) {
    died(subscription, ErrorClass::Poison);
}

/// Notes how long events took from their publication to their confirm.
pub fn latencies(subscription: &str, took: impl Iterator<Item = Duration>) {
    let histogram = histogram!("outbox_publish_latency_seconds", "service" => service(), "subscription" => subscription.to_owned());
    took.for_each(|took| histogram.record(took.as_secs_f64()));
}

#[cfg(test)]
#[path = "telemetry_tests.rs"]
pub(crate) mod tests;
