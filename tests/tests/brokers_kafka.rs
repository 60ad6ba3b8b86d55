//! Apache Kafka through the suite for brokers, on a real server.

use relevo_testkit::broker_conformance;
use relevo_tests::brokers::KafkaHarness;

broker_conformance!(kafka, KafkaHarness);
