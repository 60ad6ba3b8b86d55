//! Where Relevo's events go when they leave the database, each behind [`relevo_core::broker::Publisher`], and where
//! they come in again, each behind [`relevo_core::broker::Subscriber`].
//!
//! - `http` (feature `http`): POST to an endpoint, CloudEvents 1.0 in binary mode, signed if wanted
//! - `kafka` (feature `kafka`): Apache Kafka, both ways
//! - [`memory`]: a broker inside the process
//! - `nats` (feature `nats`): NATS JetStream, both ways
//! - `rabbitmq` (feature `rabbitmq`): publisher confirms, consumers with prefetch, topology
//! - [`stdout`]: one line of JSON per event, for a first look and for pipes

#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "kafka")]
pub mod kafka;
pub mod memory;
#[cfg(feature = "nats")]
pub mod nats;
#[cfg(any(feature = "kafka", feature = "nats", feature = "rabbitmq"))]
mod patience;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
#[cfg(any(feature = "kafka", feature = "nats", feature = "rabbitmq"))]
mod span;
pub mod stdout;
#[cfg(any(feature = "nats", feature = "rabbitmq"))]
mod turns;
#[cfg(any(feature = "nats", feature = "rabbitmq"))]
mod window;
