//! The counters that production shows, as one run raised them.

use metrics::atomics::AtomicU64;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

pub(super) const SKIPPED: &str = "relevo_skipped_total";
pub(super) const DIED: &str = "outbox_failed_permanent_total";
pub(super) const RETRIED: &str = "outbox_retry_total";

/// Stands where a process has its exporter; all simulated processes share it.
#[derive(Debug, Default)]
pub(super) struct Counters(Mutex<BTreeMap<(String, String), Arc<AtomicU64>>>);

impl Counters {
    /// What this counter says of this subscription, over all its other labels.
    pub(super) fn counted(&self, name: &str, subscription: &str) -> u64 {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let counter = known.get(&(name.to_owned(), subscription.to_owned()));
        counter.map_or(0, |counter| counter.load(Ordering::Relaxed))
    }
}

impl Recorder for Counters {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let subscription = key.labels().find(|label| label.key() == "subscription");
        let kept = [SKIPPED, DIED, RETRIED].contains(&key.name());
        let Some(subscription) = subscription.filter(|_| kept) else {
            return Counter::noop();
        };
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let whose = (key.name().to_owned(), subscription.value().to_owned());
        let counter = known.entry(whose).or_default();
        Counter::from_arc(counter.clone())
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}
