//! What the shell counts, and what it says in the log.

use super::super::*;
use super::TO;
use super::rig::{Log, handing_over, idle, shell};
use crate::error::ErrorClass;
use crate::event::{Event, NewEvent};
use crate::outbox::{Death, EventRef, LaneId, ParkKey, Position, Skip, TickRef};
use crate::telemetry::tests::Heard;
use std::collections::BTreeMap;
use std::sync::Mutex;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};

fn heard(said: impl FnOnce(&Shell)) -> Vec<String> {
    let heard = Heard::default();
    metrics::with_local_recorder(&heard, || said(&shell(Log::new())));
    heard.so_far()
}

#[test]
fn a_lane_that_went_to_another_is_no_error_of_the_store() {
    let noted = |kind| heard(|shell| shell.note(&Error::new(kind, "scripted")));
    assert_eq!(noted(Kind::Stale), ["relevo_stale_total subscription=s +1"]);
    let error = "relevo_store_errors_total subscription=s code=R0032 +1";
    assert_eq!(noted(Kind::StoreFailed), [error]);
}

#[tokio::test]
async fn figures_are_shown_when_they_have_changed() {
    assert_eq!(heard(|shell| shell.show(&idle())), [""; 0]);
    let owner = handing_over().await;
    let shown = heard(|shell| {
        shell.show(&owner);
        assert!(!shell.owes_nothing.load(Ordering::Relaxed));
        assert_eq!(shell.counts.borrow().lanes, 2);
    });
    let figure = |name: &str, value: &str| format!("relevo_{name} subscription=s {value}");
    let figures = [
        figure("lanes_owned", "is 2"),
        figure("lanes_stopped", "is 0"),
        figure("parked_keys", "is 0"),
        figure("breaker_open", "is 0"),
        figure("lane_takeovers_total", "+2"),
        figure("filtered_total", "+0"),
    ];
    assert_eq!(shown, figures);
}

fn moving() -> LaneChange {
    let lane = LaneId { subscription: "s".into(), lane: 3 };
    LaneChange::moving(lane, 7, Position::default(), Position::at(TO))
}

#[test]
fn how_long_it_took_is_noted_of_what_was_delivered_and_of_nothing_else() {
    let ids = [(); 5].map(|()| EventId::fresh());
    let [delivered, died, skipped, waits, left] = ids;
    let at = |id| EventRef { key: "k".into(), to: TO, seq: 1, id };
    let (class, error) = (ErrorClass::Poison, String::new());
    let change = LaneChange {
        delivered: 1,
        deaths: vec![Death { event: at(died), attempts: 1, class, error }],
        skips: vec![Skip { event: at(skipped), reason: String::new() }],
        waiting: vec![at(waits)],
        ..moving()
    };
    let event = Event::stored(NewEvent::bytes("t", vec![]), chrono::Utc::now());
    let rest = [Item { from: TickRef::default(), at: at(left), event }];
    let hours_ago = |hours| chrono::Utc::now() - chrono::Duration::hours(hours);
    let hours = [died, skipped, waits, left, delivered].into_iter().zip(1..);
    let created = hours.map(|(id, hours)| (id, hours_ago(hours))).collect();
    let noted = heard(|shell| shell.note_latencies(&change, &rest, created));
    let [noted] = noted.as_slice() else { panic!("{noted:?}") };
    let took = noted.strip_prefix("outbox_publish_latency_seconds subscription=s took ").unwrap();
    let hours = took.parse::<f64>().unwrap() / 3600.0;
    assert!((5.0..5.1).contains(&hours), "{noted}");
}

/// What is said in the log, field by field.
#[derive(Clone, Default)]
struct Logged(Arc<Mutex<Vec<BTreeMap<&'static str, String>>>>);

#[derive(Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl tracing::Subscriber for Logged {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        fields.0.insert("level", event.metadata().level().to_string());
        self.0.lock().unwrap().push(fields.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn the_log_tells_dead_letters_and_failed_keys_but_no_key_that_only_waits() {
    let park = |key: &str, attempts| ParkKey {
        key: key.into(),
        attempts,
        deaths: 0,
        retry_in: None,
        class: ErrorClass::Transient,
        error: "refused".into(),
    };
    let event = EventRef { key: "d".into(), to: TO, seq: 1, id: EventId::fresh() };
    let (class, error) = (ErrorClass::Poison, "no JSON".to_owned());
    let death = Death { event: event.clone(), attempts: 1, class, error };
    let change = LaneChange {
        deaths: vec![death],
        parked: vec![park("waits", 0), park("fails", 1), park("fails again", 2)],
        ..moving()
    };
    let logged = Logged::default();
    tracing::subscriber::with_default(logged.clone(), || shell(Log::new()).tell(&change));
    let lines = logged.0.lock().unwrap().clone();
    let said: Vec<[&str; 3]> = lines
        .iter()
        .map(|line| {
            ["level", "message", "key"].map(|name| line.get(name).map_or("", String::as_str))
        })
        .collect();
    let parked = |key| ["WARN", "parked", key];
    let told = [["ERROR", "dead letter", ""], parked("\"fails\""), parked("\"fails again\"")];
    assert_eq!(said, told);
    let dead = ["event", "class", "error"].map(|name| lines[0][name].clone());
    assert_eq!(dead, [event.id.to_string(), "poison".into(), "\"no JSON\"".into()]);
}
