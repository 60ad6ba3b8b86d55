//! Harnesses that bring each broker before the conformance suite.

mod kafka;
mod memory;
mod nats;
mod rabbitmq;

pub use kafka::KafkaHarness;
pub use memory::MemoryBrokerHarness;
pub use nats::NatsHarness;
pub use rabbitmq::RabbitMqHarness;

use relevo_core::{Error, Kind, Result};
use relevo_testkit::conformance::broker::Fault;
use relevo_testkit::services::Proxy;

/// Does to the way to a broker what a case asks for.
fn spoil(proxy: &Proxy, fault: Fault) -> Result<()> {
    match fault {
        Fault::Cut => proxy.cut(),
        Fault::Unreachable => proxy.refuse(),
        Fault::Silence => proxy.half_open(),
        Fault::Forgotten => proxy.forget(),
        Fault::LosesAnswerTo(text) => proxy.lose_reply_to(&text),
        Fault::WithholdsAnswers => proxy.lose_replies(),
        Fault::HoldsAnswers => proxy.hold_replies(),
        _ => return heal(proxy),
    }
    Ok(())
}

fn heal(proxy: &Proxy) -> Result<()> {
    let (are_late, never_lost) = (proxy.holds_replies(), proxy.owes_a_loss());
    proxy.heal();
    if !are_late {
        // What was swallowed is missing: those connections would hang until somebody notices.
        proxy.cut();
    }
    match never_lost {
        true => Err(Error::new(Kind::StoreFailed, "the answer that was to be lost never came")),
        false => Ok(()),
    }
}
