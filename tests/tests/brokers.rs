//! Every broker through the same suite: one line per adapter.

use relevo_testkit::broker_conformance;
use relevo_tests::brokers::{MemoryBrokerHarness, RabbitMqHarness};

broker_conformance!(memory, MemoryBrokerHarness);
broker_conformance!(rabbitmq_quorum, RabbitMqHarness::Quorum);
broker_conformance!(rabbitmq_classic, RabbitMqHarness::Classic);
