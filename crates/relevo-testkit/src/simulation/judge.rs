//! What the journal holds each delivery against: was it committed and wanted, in order, and byte for byte?

use super::invariant::Invariant;
use super::journal::{Journal, Published, Subscriber};
use relevo_core::event::{Event, EventId, Headers, header};

impl Journal {
    pub(super) fn check_wanted(&mut self, subscriber: usize, id: EventId) {
        let about = &self.subscribers[subscriber];
        let text = match self.events.get(&id) {
            None => format!("{id} was never published"),
            Some(event) if event.committed_at.is_none() => {
                format!("{id} did not commit, but reached {}", about.name)
            }
            Some(event) if !wants(about, event, subscriber) => {
                format!("{} does not want {id}", about.name)
            }
            Some(event) if about.behind && !was_handed_on(event, subscriber) => {
                format!("{id} reached {} and no broker", about.name)
            }
            Some(_) => return,
        };
        self.broken(Invariant::NoGhost, text);
    }

    /// Whatever of this key had committed when this event was published (or stands before it in the same
    /// transaction) must be decided already. Behind a broker it is what that stored before it.
    pub(super) fn check_order(&mut self, subscriber: usize, id: EventId) {
        let Some(event) = self.events.get(&id).filter(|event| event.only_for.is_none()) else {
            return;
        };
        let about = &self.subscribers[subscriber];
        let before = |other: &Published| {
            if about.behind {
                return stored_before(other, event, subscriber);
            }
            other.published_at < event.published_at
                && (other.tx == event.tx
                    || other.committed_at.is_some_and(|at| at < event.published_at))
        };
        let undecided = |other: &&Published| {
            let delivered = &other.at[subscriber];
            before(other)
                && wants(about, other, subscriber)
                && !delivered.optional
                && delivered.first_decided.is_none()
        };
        let earlier = self.by_key.get(&event.key).into_iter().flatten();
        let overtaken = earlier.filter_map(|id| self.events.get(id)).find(undecided);
        if overtaken.is_some() && !about.ordered {
            self.overtakers += 1;
        } else if let Some(other) = overtaken {
            let (key, name) = (&event.key, about.name);
            let text = format!(
                "{id} of key {key} reached {name} before {:?}",
                String::from_utf8_lossy(&other.payload)
            );
            self.broken(Invariant::Order, text);
        }
    }

    pub(super) fn check_bytes(&mut self, subscriber: usize, event: &Event) {
        let behind = self.subscribers[subscriber].behind;
        let same = self.events.get(&event.id).is_none_or(|published| {
            published.payload == event.payload
                && same_headers(&published.headers, &event.headers, behind)
                && published.topic == event.topic
                && event.key.as_ref().is_none_or(|key| published.key == *key)
        });
        if !same {
            self.broken(
                Invariant::DeadLetters,
                format!("{} arrived with other bytes than it was published with", event.id),
            );
        }
    }
}

/// A broker adds what its messages say in any case; nothing else may come, and nothing may go.
fn same_headers(published: &Headers, arrived: &Headers, behind: bool) -> bool {
    const SAID: [&str; 4] = [header::SOURCE, header::TYPE, header::TIME, header::CONTENT_TYPE];
    let added = |name: &str| behind && SAID.contains(&name);
    let own = |(name, _): &(&str, &str)| published.get(name).is_some() || !added(name);
    arrived.iter().filter(own).eq(published.iter())
}

/// Did the broker store `other` before `event`? First copies count.
fn stored_before(other: &Published, event: &Published, subscriber: usize) -> bool {
    let at = |event: &Published| event.at[subscriber].handed_on;
    at(other).zip(at(event)).is_some_and(|(other, this)| other < this)
}

/// Whoever stands behind a broker has everything from it, but for edited copies of its own dead letters.
fn was_handed_on(event: &Published, subscriber: usize) -> bool {
    event.at[subscriber].handed_on.is_some() || event.only_for == Some(subscriber)
}

/// Does this subscriber want the event? Whoever stands behind a broker takes what comes.
pub(super) fn wants(subscriber: &Subscriber, event: &Published, index: usize) -> bool {
    let topic = !subscriber.only_a || event.topic.starts_with("a.");
    subscriber.behind || topic && event.only_for.is_none_or(|only| only == index)
}
