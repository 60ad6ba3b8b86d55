//! The documentation's table of what brokers can do is what they declare.
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

use relevo_brokers::http::{HttpConfig, HttpPublisher};
use relevo_brokers::kafka::{KafkaConfig, KafkaPublisher};
use relevo_brokers::memory::MemoryBroker;
use relevo_brokers::nats::{NatsConfig, NatsPublisher};
use relevo_brokers::rabbitmq::{RabbitMqConfig, RabbitMqPublisher};
use relevo_core::broker::{Capabilities, Publisher};
use relevo_testkit::conformance::broker::{BROKER_CAPABILITIES, broker_capability_table};

fn shipped() -> Vec<(&'static str, Capabilities)> {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _entered = runtime.enter();
    let publishers: [Box<dyn Publisher>; 5] = [
        Box::new(RabbitMqPublisher::new(RabbitMqConfig::to("amqp://localhost").unwrap())),
        Box::new(NatsPublisher::new(NatsConfig::to("nats://localhost").unwrap())),
        Box::new(KafkaPublisher::new(KafkaConfig::to("kafka://localhost").unwrap())),
        Box::new(HttpPublisher::new(HttpConfig::to("http://localhost").unwrap())),
        Box::new(MemoryBroker::new().publisher()),
    ];
    publishers.iter().map(|publisher| (publisher.name(), publisher.capabilities())).collect()
}

fn page(name: &str) -> String {
    let path = format!("{}/../docs/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn the_page_has_the_table_that_the_brokers_declare() {
    let table = broker_capability_table(&shipped());
    assert!(page("brokers.md").contains(&table), "docs/brokers.md should contain:\n\n{table}");
}

#[test]
fn every_capability_is_in_the_table() {
    let serde = serde_json::to_value(Capabilities::default()).unwrap();
    let mut fields: Vec<&String> = serde.as_object().unwrap().keys().collect();
    let mut listed: Vec<&str> = BROKER_CAPABILITIES.iter().map(|(name, ..)| *name).collect();
    fields.sort();
    listed.sort();
    assert_eq!(fields, listed);
}

#[test]
fn every_no_has_its_reason() {
    let page = page("brokers.md");
    let (mut asked, reasons) = (0, page.matches(", no `").count());
    for (broker, has) in shipped() {
        for (name, ..) in BROKER_CAPABILITIES.iter().filter(|(_, _, can)| !can(&has)) {
            let reason = format!("**{broker}, no `{name}`**");
            assert!(page.contains(&reason), "docs/brokers.md gives no reason for {reason}");
            asked += 1;
        }
    }
    assert_eq!(asked, reasons, "docs/brokers.md gives a reason for what is a yes");
}
