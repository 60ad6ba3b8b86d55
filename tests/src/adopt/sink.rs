use async_trait::async_trait;
use relevo_core::broker::{Confirm, Publisher, ToBroker};
use relevo_core::{ErrorClass, Event};
use relevo_testkit::eventually;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// An event as it arrived.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// Its id.
    pub id: String,
    /// Its topic.
    pub topic: String,
    /// Its key.
    pub key: String,
    /// Its payload.
    pub payload: String,
    /// Its headers, as JSON.
    pub headers: String,
}

/// What to answer for an event at its n-th attempt.
type Verdict = Box<dyn Fn(&Event, u32) -> Confirm + Send + Sync>;

/// A broker that remembers what it stored and fails on request.
pub struct Sink {
    state: Mutex<State>,
    verdict: Verdict,
}

#[derive(Default)]
struct State {
    stored: Vec<Seen>,
    attempts: BTreeMap<String, u32>,
}

impl Sink {
    /// Stores everything.
    pub fn new() -> Self {
        Self::answering(|_, _| Confirm::Stored)
    }

    /// Answers as told.
    pub fn answering(verdict: impl Fn(&Event, u32) -> Confirm + Send + Sync + 'static) -> Self {
        Self { state: Mutex::default(), verdict: Box::new(verdict) }
    }

    /// Refuses events whose payload has this text: for good, or so many times.
    pub fn refusing(text: &'static str, times: Option<u32>) -> Self {
        Self::answering(move |event, attempt| {
            let bad = String::from_utf8_lossy(&event.payload).contains(text);
            let class = if times.is_some() { ErrorClass::Transient } else { ErrorClass::Permanent };
            match bad && times.is_none_or(|times| attempt <= times) {
                true => {
                    Confirm::Refused { class, error: "the broker's reason".into(), after: None }
                }
                false => Confirm::Stored,
            }
        })
    }

    pub(super) fn destination(self: &Arc<Self>) -> ToBroker<Shared> {
        ToBroker::new(Shared(self.clone()))
    }

    /// Everything stored so far, copies included.
    pub fn stored(&self) -> Vec<Seen> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).stored.clone()
    }

    /// Waits until so many different events were stored.
    pub async fn wait_for(&self, events: usize) -> Vec<Seen> {
        eventually(&format!("{events} events at the broker"), async || {
            let stored = self.first_copies();
            (stored.len() >= events).then_some(stored)
        })
        .await
    }

    /// The first copy of each event, in order.
    pub fn first_copies(&self) -> Vec<Seen> {
        let mut known = std::collections::BTreeSet::new();
        self.stored().into_iter().filter(|seen| known.insert(seen.id.clone())).collect()
    }
}

impl Default for Sink {
    fn default() -> Self {
        Self::new()
    }
}

/// The sink as a relay holds it.
pub(super) struct Shared(Arc<Sink>);

#[async_trait]
impl Publisher for Shared {
    fn name(&self) -> &'static str {
        "sink"
    }

    async fn publish(&self, events: &[&Event]) -> Vec<Confirm> {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = |event: &&Event| {
            let attempts = state.attempts.entry(event.id.to_string()).or_default();
            *attempts += 1;
            let confirm = (self.0.verdict)(event, *attempts);
            if confirm == Confirm::Stored {
                state.stored.push(seen(event));
            }
            confirm
        };
        events.iter().map(answer).collect()
    }
}

fn seen(event: &Event) -> Seen {
    Seen {
        id: event.id.to_string(),
        topic: event.topic.clone(),
        key: event.key.clone().unwrap_or_default(),
        payload: String::from_utf8_lossy(&event.payload).into_owned(),
        headers: event.headers.to_json(),
    }
}
