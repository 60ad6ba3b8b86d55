//! RabbitMQ over AMQP 0-9-1, in both directions.
//!
//! - `config`: where to and how
//! - `connect`, `socket`: connections with TLS, within a limit, and the end of those that are given up
//! - `headers`: an event as properties and headers, and back
//! - `publisher`, `round`, `answer`: what travels together, confirms, and what each means
//! - `subscriber`, `receiver`, `prefetch`: deliveries, settled last, and how many may be unsettled
//! - `topology`: exchanges, queues and bindings as data

mod answer;
mod config;
mod connect;
#[doc(hidden)]
pub mod fuzzing;
mod headers;
mod prefetch;
mod publisher;
mod receiver;
mod round;
mod socket;
mod subscriber;
pub mod topology;

pub use config::RabbitMqConfig;
pub use publisher::RabbitMqPublisher;
pub use subscriber::{DeadLetterTo, RabbitMqSubscriber, Rung};

use relevo_core::broker::Capabilities;
use relevo_core::broker::cloudevents::Binding;
use relevo_core::{Error, Kind};

const NAME: &str = "rabbitmq";

/// How its messages carry CloudEvents attributes.
pub const BINDING: Binding = Binding::AMQP;

fn capabilities() -> Capabilities {
    let mut can = Capabilities::default();
    can.publishes = true;
    can.windowed = true;
    can.down_if_nothing_is_taken = true;
    can.consumes = true;
    can.durable = true;
    can.refuses_unroutable = true;
    can.ordered = true;
    can.several_sources = true;
    can.exclusive_sources = true;
    can.refuses_when_full = true;
    can
}

fn failed(kind: Kind, why: impl Into<String>) -> Error {
    Error::new(kind, why).from_adapter(NAME)
}
