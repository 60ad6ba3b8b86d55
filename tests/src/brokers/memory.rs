//! The in-process broker: a fresh one for each case.

use async_trait::async_trait;
use relevo_brokers::memory::{BINDING, Fault as Failing, MemoryBroker, Message, QueueConfig};
use relevo_core::broker::cloudevents::Binding;
use relevo_core::broker::{Capabilities, Publisher, Received, Subscriber};
use relevo_core::event::TopicFilter;
use relevo_core::{Error, Kind, Result};
use relevo_testkit::conformance::broker::{BrokerHarness, BrokerWorld, Consuming, Fault, Raw};
use std::sync::Arc;
use std::time::Duration;

const OVERSIZE: usize = 70_000;

/// The broker inside the process.
pub struct MemoryBrokerHarness;

#[async_trait]
impl BrokerHarness for MemoryBrokerHarness {
    async fn fresh(&self, _alone: bool) -> Option<Box<dyn BrokerWorld>> {
        let world = World { broker: MemoryBroker::new() };
        world.declare(false, 100_000).ok()?;
        world.broker.declare("dead", Vec::new(), QueueConfig::default());
        Some(Box::new(world))
    }
}

struct World {
    broker: MemoryBroker,
}

impl World {
    fn declare(&self, exclusive: bool, capacity: usize) -> Result<()> {
        let config = QueueConfig::default().max_bytes(65_536).dead_letters("dead");
        let config = config.capacity(capacity);
        let config = if exclusive { config.exclusive() } else { config };
        self.broker.declare("jobs", vec![TopicFilter::parse("jobs.#")?], config);
        Ok(())
    }
}

#[async_trait]
impl BrokerWorld for World {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn capabilities(&self) -> Capabilities {
        self.broker.publisher().capabilities()
    }

    fn binding(&self) -> Binding {
        BINDING
    }

    fn topic(&self) -> String {
        "jobs.made".into()
    }

    fn unroutable(&self) -> String {
        "nobody.cares".into()
    }

    fn oversize(&self) -> usize {
        OVERSIZE
    }

    fn publisher(&self) -> Result<Arc<dyn Publisher>> {
        Ok(Arc::new(self.broker.publisher()))
    }

    fn publisher_within(&self, _messages: usize, _bytes: usize) -> Result<Arc<dyn Publisher>> {
        self.publisher()
    }

    fn subscriber(&self, consuming: Consuming) -> Result<Arc<dyn Subscriber>> {
        if consuming.exclusive {
            self.declare(true, 100_000)?;
        }
        let subscriber = self.broker.subscriber("jobs").max_unsettled(consuming.max_unsettled);
        Ok(Arc::new(subscriber.max_unsettled_bytes(consuming.max_unsettled_bytes)))
    }

    async fn stored(&self) -> Result<usize> {
        Ok(self.broker.depth("jobs"))
    }

    async fn put(&self, raw: Raw) -> Result<()> {
        let mut message = Message::new(self.topic(), raw.payload);
        message.message_id = raw.message_id;
        for (name, value) in raw.headers {
            message = message.header(name, String::from_utf8_lossy(&value));
        }
        self.broker.put(message);
        Ok(())
    }

    async fn dead(&self) -> Result<Vec<Raw>> {
        let count = self.broker.depth("dead");
        let mut receiver =
            self.broker.subscriber("dead").max_unsettled(count.max(1)).open().await?;
        let mut dead = Vec::new();
        while dead.len() < count {
            let late = |_| Error::new(Kind::Timeout, "the dead letters do not come");
            let next = tokio::time::timeout(Duration::from_secs(10), receiver.next(100));
            let Received::Messages { messages, .. } = next.await.map_err(late)?? else { continue };
            dead.extend(messages.into_iter().map(|message| Raw {
                message_id: message.message_id,
                key: None,
                headers: message.headers.into_iter().map(|(n, v)| (n, v.into_bytes())).collect(),
                payload: message.payload.to_vec(),
            }));
        }
        Ok(dead)
    }

    async fn bound(&self, messages: usize) -> Result<()> {
        self.declare(false, messages)
    }

    async fn delete(&self) -> Result<()> {
        self.broker.delete("jobs");
        Ok(())
    }

    async fn recreate(&self) -> Result<()> {
        self.declare(false, 100_000)
    }

    async fn fault(&self, fault: Fault) -> Result<()> {
        match fault {
            // Within a process nobody falls silent: who is forgotten is told.
            Fault::Cut | Fault::Forgotten => self.broker.restart(),
            Fault::Unreachable => self.broker.fail(Failing::Down),
            Fault::Silence | Fault::WithholdsAnswers | Fault::HoldsAnswers => {
                self.broker.fail(Failing::Hangs);
            }
            Fault::LosesAnswerTo(_) => self.broker.fail(Failing::LosesConfirms),
            _ => self.broker.fail(Failing::None),
        }
        Ok(())
    }

    async fn restart(&self) -> Result<()> {
        self.broker.restart();
        Ok(())
    }
}
