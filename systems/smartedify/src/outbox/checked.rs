//! The wrapper around every publisher: an event whose payload makes no sense is refused for good, here, before anybody
//! downstream meets it. What the broker says of the others is the broker's.

use crate::events::TenantEvent;
use async_trait::async_trait;
use relevo::broker::{Capabilities, Confirm, Publisher};
use relevo::{ErrorClass, Event};
use std::time::Duration;

/// Checks, then publishes.
pub struct Checked {
    inner: Box<dyn Publisher>,
}

impl Checked {
    /// In front of this publisher.
    pub fn before(inner: Box<dyn Publisher>) -> Self {
        Self { inner }
    }
}

/// The refusal of an event that makes no sense.
fn refusal(event: &Event) -> Option<Confirm> {
    let invalid = TenantEvent::read(event).err()?;
    let (class, error) = (ErrorClass::Permanent, invalid.to_string());
    Some(Confirm::Refused { class, error, after: None })
}

#[async_trait]
impl Publisher for Checked {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn publish(&self, events: &[&Event]) -> Vec<Confirm> {
        let refusals: Vec<Option<Confirm>> = events.iter().map(|event| refusal(event)).collect();
        let sound = events.iter().zip(&refusals).filter(|(_, refusal)| refusal.is_none());
        let sound: Vec<&Event> = sound.map(|(event, _)| *event).collect();
        let confirms = if sound.is_empty() { Vec::new() } else { self.inner.publish(&sound).await };
        let mut confirms = confirms.into_iter();
        let unanswered = || Confirm::Unknown { error: "the broker gave no answer".into() };
        let answer = |refusal: Option<Confirm>| {
            refusal.unwrap_or_else(|| confirms.next().unwrap_or_else(unanswered))
        };
        refusals.into_iter().map(answer).collect()
    }

    fn publish_limit(&self) -> Option<Duration> {
        self.inner.publish_limit()
    }

    fn largest_wave(&self) -> usize {
        self.inner.largest_wave()
    }

    fn window(&self) -> Option<usize> {
        self.inner.window()
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use relevo::NewEvent;
    use std::sync::{Arc, Mutex};

    /// Answers what it is told for each topic, and remembers what it got.
    #[derive(Clone, Default)]
    struct Broker {
        got: Arc<Mutex<Vec<String>>>,
    }

    #[async_trait]
    impl Publisher for Broker {
        fn name(&self) -> &'static str {
            "told"
        }

        async fn publish(&self, events: &[&Event]) -> Vec<Confirm> {
            self.got.lock().unwrap().extend(events.iter().map(|event| event.id.to_string()));
            let answer = |event: &&Event| match &*event.topic {
                "tenant.created" => Confirm::Stored,
                _ => Confirm::Down { error: "gone".into() },
            };
            events.iter().map(answer).collect()
        }

        fn publish_limit(&self) -> Option<Duration> {
            None
        }

        fn window(&self) -> Option<usize> {
            Some(7)
        }

        fn largest_wave(&self) -> usize {
            3
        }
    }

    #[test]
    fn a_checked_publisher_wants_what_the_broker_wants() {
        let checked = Checked::before(Box::new(Broker::default()));
        assert_eq!((checked.publish_limit(), checked.largest_wave()), (None, 3));
        assert_eq!(checked.window(), Some(7));
    }

    fn event(kind: &str, version: i64) -> Event {
        let payload =
            format!(r#"{{"type":"{kind}","tenant_id":"t","version":{version},"name":"n"}}"#);
        Event::stored(NewEvent::bytes(kind, payload).key("t"), chrono::Utc::now())
    }

    #[tokio::test]
    async fn the_broker_gets_what_makes_sense_and_its_answers_find_their_events() {
        let broker = Broker::default();
        let checked = Checked::before(Box::new(broker.clone()));
        let events =
            [event("tenant.created", 0), event("tenant.updated", 2), event("tenant.created", 1)];
        let confirms = checked.publish(&events.iter().collect::<Vec<_>>()).await;
        let expected_error = "the payload makes no sense: versions begin with 1";
        assert!(
            matches!(&confirms[0], Confirm::Refused { class: ErrorClass::Permanent, error, after: None }
            if error == expected_error)
        );
        assert!(matches!(confirms[1], Confirm::Down { .. }));
        assert_eq!(confirms[2], Confirm::Stored);
        let got = broker.got.lock().unwrap().clone();
        assert_eq!(got, [events[1].id.to_string(), events[2].id.to_string()]);
    }

    #[tokio::test]
    async fn a_wave_of_nonsense_does_not_bother_the_broker() {
        let broker = Broker::default();
        let confirms =
            Checked::before(Box::new(broker.clone())).publish(&[&event("tenant.created", 0)]).await;
        assert!(matches!(confirms[..], [Confirm::Refused { .. }]));
        assert!(broker.got.lock().unwrap().is_empty());
    }
}
