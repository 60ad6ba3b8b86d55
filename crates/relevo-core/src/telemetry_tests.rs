#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use super::*;
use crate::event::EventId;
use crate::outbox::{Death, EventRef, LaneId, ParkKey, Position, Skip, TickRef};
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString,
};
use std::sync::{Arc, Mutex};

/// Everything that was counted, set or noted on a thread, in its order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Heard(Arc<Mutex<Vec<String>>>);

impl Heard {
    /// What was heard so far.
    pub(crate) fn so_far(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    fn add(&self, line: String) {
        self.0.lock().unwrap().push(line);
    }

    fn of(&self, key: &Key) -> Arc<Meter> {
        let labels =
            key.labels().filter(|label| label.key() != "service" || label.value() != "relevo");
        let name = std::iter::once(key.name().to_owned());
        let name = name.chain(labels.map(|label| format!("{}={}", label.key(), label.value())));
        Arc::new(Meter { heard: self.clone(), name: name.collect::<Vec<_>>().join(" ") })
    }
}

struct Meter {
    heard: Heard,
    name: String,
}

impl CounterFn for Meter {
    fn increment(&self, value: u64) {
        self.heard.add(format!("{} +{value}", self.name));
    }

    fn absolute(&self, _: u64) {
        unreachable!()
    }
}

impl GaugeFn for Meter {
    fn increment(&self, _: f64) {
        unreachable!()
    }

    fn decrement(&self, _: f64) {
        unreachable!()
    }

    fn set(&self, value: f64) {
        self.heard.add(format!("{} is {value}", self.name));
    }
}

impl HistogramFn for Meter {
    fn record(&self, value: f64) {
        self.heard.add(format!("{} took {value}", self.name));
    }
}

impl Recorder for Heard {
    fn describe_counter(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        self.add(format!("{} counter", key.as_str()));
    }

    fn describe_gauge(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        self.add(format!("{} gauge", key.as_str()));
    }

    fn describe_histogram(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        self.add(format!("{} histogram", key.as_str()));
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.of(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.of(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.of(key))
    }
}

fn heard(said: impl FnOnce()) -> Vec<String> {
    let heard = Heard::default();
    metrics::with_local_recorder(&heard, said);
    heard.so_far()
}

fn change() -> LaneChange {
    let lane = LaneId { subscription: "s".into(), lane: 1 };
    LaneChange::moving(lane, 7, Position::default(), Position::default())
}

fn eventful() -> LaneChange {
    let event =
        || EventRef { key: "k".into(), to: TickRef::default(), seq: 1, id: EventId::fresh() };
    let park = |attempts| ParkKey {
        key: "k".into(),
        attempts,
        deaths: 0,
        retry_in: None,
        class: ErrorClass::Transient,
        error: String::new(),
    };
    let death = |class| Death { event: event(), attempts: 1, class, error: String::new() };
    LaneChange {
        delivered: 5,
        // One of them never had an attempt: it waits behind another.
        parked: vec![park(1), park(0), park(2)],
        skips: vec![Skip { event: event(), reason: String::new() }],
        deaths: vec![death(ErrorClass::Poison), death(ErrorClass::Permanent)],
        ..change()
    }
}

#[test]
fn every_metric_is_described_by_its_kind() {
    let described: Vec<String> =
        METRICS.iter().map(|(name, kind, _)| format!("{name} {kind}")).collect();
    assert_eq!(heard(describe), described);
}

#[test]
fn a_figure_carries_its_service_and_its_subscription() {
    assert_eq!(service(), "relevo", "unless it was given another name");
    assert_eq!(heard(|| count("n", "s", 3)), ["n subscription=s +3"]);
    assert_eq!(heard(|| set("n", "s", 1.5)), ["n subscription=s is 1.5"]);
    let lag = heard(|| source_lag("c", "orders/3", 9.0));
    assert_eq!(lag, ["relevo_source_lag subscription=c source=orders/3 is 9"]);
    let error = heard(|| store_error("s", "R0032"));
    assert_eq!(error, ["relevo_store_errors_total subscription=s code=R0032 +1"]);
    let refused = heard(|| refused_row("s"));
    assert_eq!(refused, ["outbox_failed_permanent_total subscription=s class=poison +1"]);
    let took = heard(|| latencies("s", [250, 500].map(Duration::from_millis).into_iter()));
    let latency = |took| format!("outbox_publish_latency_seconds subscription=s took {took}");
    assert_eq!(took, [latency("0.25"), latency("0.5")]);
}

#[test]
fn what_is_recorded_counts_retries_skips_and_dead_letters_each_by_its_class() {
    let counted = [
        "outbox_retry_total subscription=s +2",
        "relevo_skipped_total subscription=s +1",
        "outbox_failed_permanent_total subscription=s class=poison +1",
        "outbox_failed_permanent_total subscription=s class=permanent +1",
    ];
    assert_eq!(heard(|| recorded("s", &eventful())), counted);
    let both = Delivery::Recorded { change: eventful(), rest: Vec::new(), down: None };
    let published = "outbox_published_total subscription=s +5";
    assert_eq!(heard(|| delivered("s", &both)), [&[published][..], &counted].concat());
}

#[test]
fn of_what_is_not_recorded_yet_only_the_confirms_are_counted() {
    let decided = Delivery::Decided { change: eventful(), rest: Vec::new(), down: None };
    assert_eq!(heard(|| delivered("s", &decided)), ["outbox_published_total subscription=s +5"]);
    let down = Delivery::Down { items: Vec::new(), reason: "refused".into() };
    assert_eq!(heard(|| delivered("s", &down)), [""; 0]);
}
