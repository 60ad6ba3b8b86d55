//! Harnesses that bring each broker before the conformance suite.

mod kafka;
mod memory;
mod nats;
mod rabbitmq;

pub use kafka::KafkaHarness;
pub use memory::MemoryBrokerHarness;
pub use nats::NatsHarness;
pub use rabbitmq::RabbitMqHarness;
