//! From every broker, on real servers, into PostgreSQL: each event takes effect once. One line per broker.

use relevo_tests::brokers::{KafkaHarness, MemoryBrokerHarness, NatsHarness, RabbitMqHarness};
use relevo_tests::once_tests;

once_tests!(memory, MemoryBrokerHarness);
once_tests!(rabbitmq, RabbitMqHarness::Quorum);
once_tests!(nats, NatsHarness);
once_tests!(kafka, KafkaHarness);
