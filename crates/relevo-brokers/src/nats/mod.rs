//! NATS JetStream: publishes with a window of acknowledgements, consumes by durable pull consumers.
//!
//! - `config`: servers, credentials, TLS, limits; what a consumer is
//! - `connect`, `tls`, `complaints`: one connection that never mends itself behind our back
//! - `subject`, `headers`: an event as a NATS message
//! - `publisher`, `wave`, `answer`: publishing, and what an answer means
//! - `subscriber`, `receiver`, `pull`, `delivery`, `dead_letters`, `unreadable`: consuming
//! - [`topology`]: streams and consumers as data

mod answer;
mod complaints;
mod config;
mod connect;
mod dead_letters;
mod delivery;
#[doc(hidden)]
pub mod fuzzing;
mod headers;
mod publisher;
mod pull;
mod receiver;
mod subject;
mod subscriber;
mod tls;
pub mod topology;
mod unreadable;
mod wave;

pub use config::NatsConfig;
pub use publisher::NatsPublisher;
pub use subscriber::{NatsConsumer, NatsSubscriber};
pub use topology::{NatsAdmin, NatsTopology};

use relevo_core::broker::Capabilities;

/// The adapter's name.
const NAME: &str = "nats";

/// What JetStream can do. Retries keep the order only where one message is unsettled at a time.
fn capabilities(max_unsettled: usize) -> Capabilities {
    let mut can = Capabilities::default();
    can.publishes = true;
    can.windowed = true;
    can.down_if_nothing_is_taken = true;
    can.consumes = true;
    can.durable = true;
    can.refuses_unroutable = true;
    can.drops_duplicates = true;
    can.ordered = true;
    can.order_on_retry = max_unsettled == 1;
    can.delays_at_broker = true;
    can.stable_position = true;
    can.refuses_when_full = true;
    can
}
