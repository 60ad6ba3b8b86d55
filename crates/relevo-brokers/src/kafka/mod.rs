//! Apache Kafka: an idempotent producer whose delivery reports are read one by one, consumer groups that commit last.
//!
//! - `config`: servers, login, TLS, limits
//! - `connect`, `watch`, `rights`: clients of librdkafka, and what they have to say
//! - `topic`, `headers`: an event as a Kafka record
//! - `publisher`, `answer`, `window`: publishing, and what a delivery report means
//! - `subscriber`, `receiver`, `group`, `partition`, `ahead`, `delivery`, `dead_letters`, `lag`: consuming
//! - [`topology`]: topics as data

mod ahead;
mod answer;
mod config;
mod connect;
mod dead_letters;
mod delivery;
#[doc(hidden)]
pub mod fuzzing;
mod group;
mod headers;
mod lag;
mod partition;
mod publisher;
mod receiver;
mod rights;
mod subscriber;
mod topic;
pub mod topology;
mod watch;
mod window;

pub use config::{Compression, KafkaConfig, Mechanism};
pub use lag::PartitionLag;
pub use publisher::KafkaPublisher;
pub use subscriber::{KafkaConsumer, KafkaSubscriber};
pub use topology::{KafkaAdmin, KafkaTopology};

use relevo_core::broker::Capabilities;

/// The adapter's name.
const NAME: &str = "kafka";

/// What Kafka can do.
fn capabilities() -> Capabilities {
    let mut can = Capabilities::default();
    can.publishes = true;
    can.windowed = true;
    can.down_if_nothing_is_taken = true;
    can.consumes = true;
    can.durable = true;
    can.refuses_unroutable = true;
    can.ordered = true;
    can.order_on_retry = true;
    can.several_sources = true;
    can.exclusive_sources = true;
    can.stable_position = true;
    can
}
