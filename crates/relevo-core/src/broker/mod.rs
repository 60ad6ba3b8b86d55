//! Where events go when they leave the database, and where they come in again: one contract for every broker
//! and for HTTP.
//!
//! - [`Publisher`]: a batch out, one [`Confirm`] per message back. [`ToBroker`] relays a subscription to one.
//! - [`Subscriber`] and [`Receiver`]: messages in, each settled once.
//! - [`cloudevents`]: an event as headers, and headers as an event, the same for all of them.
//! - [`Topology`]: what must be there at the broker, as a plan of steps.
//! - [`Capabilities`]: what an adapter can do, as a value.

pub mod cloudevents;
mod incoming;
mod relay_to;
mod subscriber;
mod topology;

use crate::event::Event;
use async_trait::async_trait;
use serde::Serialize;
use std::time::Duration;

pub(crate) use incoming::event_id;
pub use incoming::{Arrived, Foreign, Incoming, Malformed, Source, Take};
pub use relay_to::ToBroker;
pub use subscriber::{Received, Receiver, Settle, Subscriber, Tag, dead_header};
pub use topology::{Act, Plan, Step, Told, Topology};

/// So long a relay waits for the answers of an adapter that says nothing else ([`Publisher::publish_limit`]).
pub const PUBLISH_LIMIT: Duration = Duration::from_secs(60);

/// The answer to one published message.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Confirm {
    /// Stored and routed.
    Stored,
    /// Refused; the class says whether trying again makes sense.
    Refused {
        /// Try again?
        class: crate::error::ErrorClass,
        /// What the destination said.
        error: String,
        /// Not before this long, if it said so.
        after: Option<Duration>,
    },
    /// Nobody knows: it may be stored.
    Unknown {
        /// What happened.
        error: String,
    },
    /// The destination as a whole cannot be reached, or refuses everything.
    Down {
        /// What happened.
        error: String,
    },
}

/// What an adapter can do; read by the engine, by the conformance suite and by the documentation's table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Capabilities {
    /// Events can be published to it.
    pub publishes: bool,
    /// Events can be consumed from it.
    pub consumes: bool,
    /// It survives a restart of the broker.
    pub durable: bool,
    /// A message that nobody would receive is refused, not lost.
    pub refuses_unroutable: bool,
    /// A publish that fails makes all later ones of its key fail too: several events of a key may be unconfirmed at
    /// once without getting out of order.
    pub failure_fails_later: bool,
    /// Several events in a row that it does not take for now, and none that it takes, mean that the broker as a whole is
    /// unwell (a queue without its majority, too few replicas), not that they are bad.
    pub down_if_nothing_is_taken: bool,
    /// A second copy of an id, soon after the first, is dropped by the broker itself.
    pub drops_duplicates: bool,
    /// Messages of one source arrive in the order in which they were stored, as long as nothing is retried by the
    /// broker.
    pub ordered: bool,
    /// What the broker itself delivers again ([`Settle::RetryAfter`]) comes before what followed it.
    pub order_on_retry: bool,
    /// What is to come again later ([`Settle::RetryAfter`]) waits at the broker: it outlives its receiver, and whoever
    /// consumes when it is due gets it.
    pub delays_at_broker: bool,
    /// A receiver may have several sources, and pauses each for itself.
    pub several_sources: bool,
    /// Several consumers share the work while each source still has one consumer at a time.
    pub exclusive_sources: bool,
    /// A stored message can be told apart by where it is stored: its place is a stable id.
    pub stable_position: bool,
    /// The broker bounds what is stored and refuses more.
    pub refuses_when_full: bool,
    /// Messages go out before earlier ones are answered, up to a window that is bounded in messages and in bytes.
    pub windowed: bool,
}

/// Publishes to a broker or an endpoint.
///
/// # Contract
/// - The same id may be published twice: after `Unknown`, after a crash. The second copy is stored, or dropped where
///   the broker knows the id; both are confirmed.
/// - A payload over the broker's limit is refused as poison, without harm to the others.
/// - Dropping the future in the middle is allowed: what was sent may be stored. Later calls work.
/// - A connection that was lost is made anew by the next call; until that works, everything is `Down`.
#[async_trait]
pub trait Publisher: Send + Sync + 'static {
    /// The adapter's name.
    fn name(&self) -> &'static str;

    /// What it can do.
    fn capabilities(&self) -> Capabilities {
        Capabilities { publishes: true, ..Capabilities::default() }
    }

    /// Publishes one batch and answers for each message, in the same order. Unless
    /// [`Capabilities::failure_fails_later`] is declared and wanted, never more than one event of a key is in a
    /// batch, so the messages may travel at the same time.
    async fn publish(&self, events: &[&Event]) -> Vec<Confirm>;

    /// A batch without its answers for so long is given up, and all of it is unknown: adapters have limits of their own,
    /// which must be shorter. `None` if each message has one, however many of them wait for their turn.
    fn publish_limit(&self) -> Option<Duration> {
        Some(PUBLISH_LIMIT)
    }

    /// No more events than this make one batch; asked before each, and at least one goes. Between two batches a relay
    /// looks whether it still has the lane. Where events are sent a few at a time, those that only wait for their turn
    /// would be sent by an owner that was replaced long ago.
    fn largest_wave(&self) -> usize {
        usize::MAX
    }

    /// Most messages without their answer, over all batches, where messages travel together up to such a window. So many
    /// lanes hand over at once as it has room for, unless the configuration says otherwise.
    fn window(&self) -> Option<usize> {
        None
    }

    /// Hands over what is still on its way and ends the connection. Publishing afterwards is `Down`.
    async fn close(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Plain;

    #[async_trait]
    impl Publisher for Plain {
        fn name(&self) -> &'static str {
            "plain"
        }

        async fn publish(&self, events: &[&Event]) -> Vec<Confirm> {
            vec![Confirm::Stored; events.len()]
        }
    }

    #[test]
    fn an_adapter_that_says_nothing_else_publishes_promises_nothing_and_is_given_up_in_time() {
        let publishes = Capabilities { publishes: true, ..Capabilities::default() };
        assert_eq!(Plain.capabilities(), publishes);
        assert_eq!(Plain.publish_limit(), Some(PUBLISH_LIMIT));
        assert_eq!((Plain.largest_wave(), Plain.window()), (usize::MAX, None));
    }
}
