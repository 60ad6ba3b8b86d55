//! Where events go, through Relevo's adapters.

use anyhow::{Context, Result};
use async_trait::async_trait;
use rdkafka::ClientConfig;
use relevo::Event;
use relevo::broker::{Capabilities, Confirm, Publisher};
use relevo_brokers::kafka::{KafkaConfig, KafkaPublisher};
use relevo_brokers::nats::{NatsConfig, NatsPublisher};
use relevo_brokers::rabbitmq::{RabbitMqConfig, RabbitMqPublisher};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Where events go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Sink {
    /// Nowhere.
    Null,
    /// A stream of this name; subjects begin with it.
    Nats { url: String, stream: String },
    /// An exchange of this name with one queue of the same name behind it.
    RabbitMq { url: String, name: String, quorum: bool },
    /// A topic of this name.
    Kafka { bootstrap: String, topic: String },
}

impl Sink {
    /// Relevo's own adapter, with the settings it comes with.
    pub(crate) fn publisher(&self) -> Result<Option<Box<dyn Publisher>>> {
        Ok(match self {
            Sink::Null => None,
            Sink::Nats { url, stream } => {
                let config = NatsConfig::to(url)?.subject_prefix(stream.as_str());
                Some(Box::new(NatsPublisher::new(config)))
            }
            Sink::RabbitMq { url, name, .. } => {
                let config = RabbitMqConfig::to(url)?.exchange(name.as_str());
                Some(Box::new(RabbitMqPublisher::new(config)))
            }
            Sink::Kafka { bootstrap, topic } => {
                let config = KafkaConfig::to(&format!("kafka://{bootstrap}"))?;
                Some(Box::new(KafkaPublisher::new(config.topic(topic.as_str()))))
            }
        })
    }

    /// Most messages without their confirm: what Relevo's adapter comes with.
    pub(crate) fn window(&self) -> usize {
        match self {
            Sink::Kafka { .. } => 10_000,
            _ => 1000,
        }
    }
}

/// The client does not take user and password from a URL.
pub(crate) async fn connect_nats(url: &str) -> Result<async_nats::Client> {
    let (user, host) = url.trim_start_matches("nats://").split_once('@').context("no user")?;
    let (user, password) = user.split_once(':').context("no password")?;
    let options = async_nats::ConnectOptions::with_user_and_password(user.into(), password.into());
    Ok(options.connect(host).await?)
}

/// A Kafka client of any kind.
pub(crate) fn kafka_client(bootstrap: &str) -> ClientConfig {
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", bootstrap).set("allow.auto.create.topics", "false");
    client
}

/// An adapter as it is.
pub(crate) struct Adapter(pub(crate) Box<dyn Publisher>);

#[async_trait]
impl Publisher for Adapter {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    async fn publish(&self, events: &[&Event]) -> Vec<Confirm> {
        self.0.publish(events).await
    }

    fn publish_limit(&self) -> Option<Duration> {
        self.0.publish_limit()
    }

    fn largest_wave(&self) -> usize {
        self.0.largest_wave()
    }

    fn window(&self) -> Option<usize> {
        self.0.window()
    }

    async fn close(&self) {
        self.0.close().await;
    }
}
