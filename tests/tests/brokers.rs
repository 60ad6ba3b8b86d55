//! Every broker through the same suite: one line per adapter.

use relevo_testkit::broker_conformance;
use relevo_tests::alone::said_by;
use relevo_tests::brokers::{MemoryBrokerHarness, RabbitMqHarness};

broker_conformance!(memory, MemoryBrokerHarness);
broker_conformance!(rabbitmq_quorum, RabbitMqHarness::Quorum);
broker_conformance!(rabbitmq_classic, RabbitMqHarness::Classic);

#[test]
fn a_case_that_an_adapter_cannot_do_says_so_and_one_that_it_can_says_nothing() {
    let case = "restart::nothing_confirmed_is_lost_by_a_restart_while_counting";
    let said = said_by(&format!("memory::{case}")).unwrap();
    assert_eq!(said, format!("SKIPPED: {case} on memory, which declares no durable\n"));
    assert_eq!(said_by("memory::publish::an_empty_batch_has_no_answers").unwrap(), "");
}
