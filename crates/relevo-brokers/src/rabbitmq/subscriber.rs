use super::config::RabbitMqConfig;
use super::connect::{connect, within};
use super::prefetch::Prefetch;
use super::receiver::{Queue, RabbitMqReceiver};
use super::{BINDING, NAME, capabilities, failed};
use async_trait::async_trait;
use lapin::options::{BasicConsumeOptions, BasicQosOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, Consumer};
use relevo_core::broker::cloudevents::Binding;
use relevo_core::broker::{Capabilities, Receiver, Source, Subscriber};
use relevo_core::{Error, Kind, Result};
use std::time::Duration;

/// A queue whose messages wait for this long and then go back to where they came from: one step of a retry ladder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rung {
    /// The queue's message TTL.
    pub delay: Duration,
    /// The queue. Its dead-letter exchange is the default one, its dead-letter routing key the consumed queue.
    pub queue: String,
}

/// Where a message goes that is given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterTo {
    /// The exchange; empty is the default one.
    pub exchange: String,
    /// The routing key; the message's own topic if there is none.
    pub routing_key: Option<String>,
}

/// Consumes queues: prefetch, acknowledgement last.
///
/// With several consumers of a queue, order is kept only if the queue has `x-single-active-consumer`.
pub struct RabbitMqSubscriber {
    config: RabbitMqConfig,
    queues: Vec<String>,
    prefetch: Prefetch,
    ladder: Vec<Rung>,
    dead_letters: Option<DeadLetterTo>,
}

impl RabbitMqSubscriber {
    /// Consumes `queue`.
    pub fn new(config: RabbitMqConfig, queue: impl Into<String>) -> Self {
        Self {
            config,
            queues: vec![queue.into()],
            prefetch: Prefetch::new(100, 16 << 20),
            ladder: Vec::new(),
            dead_letters: None,
        }
    }

    /// Consumes this queue too; each queue is a source of its own.
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queues.push(queue.into());
        self
    }

    /// Most unsettled messages of each queue (default 100), including those that the client has received ahead.
    pub fn prefetch(mut self, messages: u16) -> Self {
        self.prefetch = Prefetch::new(messages, self.prefetch.max_bytes());
        self
    }

    /// Most bytes of messages that were handed out and are unsettled, of all queues together (default 16 MiB). RabbitMQ
    /// counts messages only, so a receiver that has handed out more ends, and the next one has a prefetch that fits; a
    /// larger message comes alone. What the client has received ahead is bounded by [`Self::prefetch`] alone.
    pub fn prefetch_bytes(mut self, bytes: usize) -> Self {
        self.prefetch = Prefetch::new(self.prefetch.messages(), bytes);
        self
    }

    /// What is to be delivered again later waits in these queues: in the one with the shortest delay that is long
    /// enough. Without any, or when none is long enough, it waits here, unacknowledged, and is handed out again.
    pub fn retry_ladder(mut self, mut rungs: Vec<Rung>) -> Self {
        rungs.sort_by_key(|rung| rung.delay);
        self.ladder = rungs;
        self
    }

    /// What is given up goes here. Without it, giving up is an error and the message stays.
    pub fn dead_letters(mut self, to: DeadLetterTo) -> Self {
        self.dead_letters = Some(to);
        self
    }

    fn refused(&self, why: String) -> Error {
        failed(Kind::DestinationRefused, format!("{}: {why}", self.config.address()))
    }

    async fn consume(&self, channel: &Channel, queue: &str) -> Result<Consumer> {
        let limit = self.config.connect_timeout;
        let name = ShortString::try_new(queue).map_err(|error| self.refused(error.to_string()))?;
        let consuming = channel.basic_consume(
            name,
            ShortString::from(""),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        within(limit, "consuming", consuming).await.map_err(|why| self.refused(why))
    }
}

#[async_trait]
impl Subscriber for RabbitMqSubscriber {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        let mut can = capabilities();
        can.delays_at_broker = !self.ladder.is_empty();
        can
    }

    fn binding(&self) -> Binding {
        BINDING
    }

    async fn open(&self) -> Result<Box<dyn Receiver>> {
        let limit = self.config.connect_timeout;
        let connection = connect(&self.config, "consumes").await;
        let connection = connection.map_err(|why| failed(Kind::DestinationDown, why))?;
        // Whatever follows may fail or be given up: then the receiver hangs up, as a connection that is dropped does not
        // while the broker still owes it an answer. It would live on with a consumer that nobody hears.
        let mut receiver = Box::new(RabbitMqReceiver::new(
            connection,
            self.ladder.clone(),
            self.dead_letters.clone(),
            self.config.confirm_timeout,
            self.prefetch.clone(),
        ));
        let prefetch = self.prefetch.next();
        let opening = async {
            let channel = receiver.connection().create_channel().await?;
            channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
            Ok(channel)
        };
        let channel = within(limit, "opening a channel", opening).await;
        let channel = channel.map_err(|why| failed(Kind::DestinationDown, why))?;
        for name in &self.queues {
            let consumer = self.consume(&channel, name).await?;
            receiver.add(Queue::new(Source::named(name.as_str()), consumer));
        }
        Ok(receiver)
    }
}
