//! A broker for tests that answers as it is told, and remembers what it was given.

use async_trait::async_trait;
use relevo_core::broker::{Confirm, Publisher};
use relevo_core::event::Event;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Rule = dyn Fn(&Event, usize) -> Confirm + Send + Sync;

/// A broker in this process.
#[derive(Clone)]
pub struct FakeBroker {
    rule: Arc<Rule>,
    received: Arc<Mutex<Vec<Event>>>,
}

impl FakeBroker {
    /// Answers each message by what it is and how often it was published before.
    pub fn new(rule: impl Fn(&Event, usize) -> Confirm + Send + Sync + 'static) -> Self {
        Self { rule: Arc::new(rule), received: Arc::default() }
    }

    fn received(&self) -> MutexGuard<'_, Vec<Event>> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every message it was given, stored or not, in the order of their coming.
    pub fn messages(&self) -> Vec<Event> {
        self.received().clone()
    }

    /// The payloads it was given of one key.
    pub fn payloads(&self, key: &str) -> Vec<String> {
        let mine = |event: &&Event| event.key.as_deref() == Some(key);
        let text = |event: &Event| String::from_utf8_lossy(&event.payload).into_owned();
        self.received().iter().filter(mine).map(text).collect()
    }
}

#[async_trait]
impl Publisher for FakeBroker {
    fn name(&self) -> &'static str {
        "fake"
    }

    async fn publish(&self, events: &[&Event]) -> Vec<Confirm> {
        let mut confirms = Vec::new();
        for event in events {
            let before = self.received().iter().filter(|other| other.id == event.id).count();
            self.received().push((*event).clone());
            confirms.push((self.rule)(event, before));
        }
        confirms
    }
}
