//! The outbox of a place, relayed to a broker that answers what it is told.

use super::Place;
use async_trait::async_trait;
use relevo::broker::{Confirm, Publisher};
use relevo::{ErrorClass, Event, RunningRelay};
use smartedify::outbox::{Outbox, Settings};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Each case on SQLite and on PostgreSQL.
macro_rules! on_both {
    ($($case:ident,)*) => {
        $(mod $case {
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                super::$case(Place::fresh(Kind::Sqlite).await.unwrap()).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                let Some(place) = Place::fresh(Kind::Postgres).await else { return };
                super::$case(place).await;
            }
        })*
    };
}

pub(crate) use on_both;

/// The documented settings, in less time.
pub fn quick() -> Settings {
    Settings {
        poll: (Duration::from_millis(10), Duration::from_millis(100)),
        lease: Duration::from_secs(2),
        ..Settings::default()
    }
}

type Answer = dyn Fn(&Event, u32) -> Confirm + Send + Sync;
/// Attempts by event, and what was stored.
type Seen = (HashMap<String, u32>, Vec<String>);

/// Answers the n-th attempt of an event as told, and remembers what it stored.
#[derive(Clone)]
pub struct Told {
    answer: Arc<Answer>,
    seen: Arc<Mutex<Seen>>,
}

impl Told {
    pub fn new(answer: impl Fn(&Event, u32) -> Confirm + Send + Sync + 'static) -> Self {
        Self { answer: Arc::new(answer), seen: Arc::default() }
    }

    /// How often it was asked to publish this event.
    pub fn attempts(&self, event: &str) -> u32 {
        self.seen.lock().unwrap().0.get(event).copied().unwrap_or(0)
    }

    /// The ids of what it stored.
    pub fn stored(&self) -> Vec<String> {
        self.seen.lock().unwrap().1.clone()
    }
}

#[async_trait]
impl Publisher for Told {
    fn name(&self) -> &'static str {
        "told"
    }

    async fn publish(&self, events: &[&Event]) -> Vec<Confirm> {
        let mut seen = self.seen.lock().unwrap();
        let mut confirms = Vec::new();
        for event in events {
            let attempt = seen.0.entry(event.id.to_string()).or_default();
            *attempt += 1;
            let confirm = (self.answer)(event, *attempt);
            if confirm == Confirm::Stored {
                seen.1.push(event.id.to_string());
            }
            confirms.push(confirm);
        }
        confirms
    }
}

pub fn refused(class: ErrorClass) -> Confirm {
    Confirm::Refused { class, error: "503 from the broker".into(), after: None }
}

/// The table adopted, and a relay of it.
pub async fn relay(
    place: &Place,
    settings: &Settings,
    to: impl Publisher,
) -> (Outbox, RunningRelay) {
    let outbox = Outbox::adopt(&place.service).await.unwrap();
    let relay = outbox.relay("one", settings, Box::new(to)).await.unwrap();
    (outbox, relay)
}
