//! Harnesses that bring each broker before the conformance suite.

#[cfg(feature = "kafka")]
mod kafka;
mod memory;
mod nats;
mod rabbitmq;

#[cfg(feature = "kafka")]
pub use kafka::KafkaHarness;
pub use memory::MemoryBrokerHarness;
pub use nats::NatsHarness;
pub use rabbitmq::RabbitMqHarness;
