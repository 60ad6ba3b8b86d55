//! The counters that production shows, as one run raised them.

use metrics::atomics::AtomicU64;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

const SKIPPED: &str = "relevo_skipped_total";

/// Stands where a process has its exporter; all simulated processes share it.
#[derive(Debug, Default)]
pub(super) struct Counters(Mutex<BTreeMap<String, Arc<AtomicU64>>>);

impl Counters {
    /// How many skips of this subscription were counted.
    pub(super) fn skipped(&self, subscription: &str) -> u64 {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(subscription).map_or(0, |counter| counter.load(Ordering::Relaxed))
    }
}

impl Recorder for Counters {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let subscription = key.labels().find(|label| label.key() == "subscription");
        let Some(subscription) = subscription.filter(|_| key.name() == SKIPPED) else {
            return Counter::noop();
        };
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let counter = known.entry(subscription.value().to_owned()).or_default();
        Counter::from_arc(counter.clone())
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}
