//! NATS JetStream through the suite for brokers, on a real server.

use relevo_testkit::broker_conformance;
use relevo_tests::brokers::NatsHarness;

broker_conformance!(nats, NatsHarness);
