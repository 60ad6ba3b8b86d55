//! Where events go: NATS JetStream, which the document prefers, or Kafka, its way out. One of them is chosen before the
//! start and stays: changed while events are under way, the later ones of a tenant could arrive first.

use anyhow::Result;
use relevo::broker::{Publisher, Subscriber, Topology};
use std::time::Duration;

/// The CloudEvents source of every event.
const SOURCE: &str = "smartedify/tenant-service";

/// So many days a message stays in its stream or topic.
pub const KEPT_DAYS: u32 = 7;

/// A broker, and what this system is called there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broker {
    /// Which, and where.
    pub at: At,
    /// The stream (NATS) or the topic (Kafka).
    pub stream: String,
    /// After so long a consumer that died loses what it held to another.
    pub ack_wait: Duration,
}

/// Which broker, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum At {
    /// NATS servers: `nats://host:4222`.
    Nats(String),
    /// Kafka brokers: `kafka://host:9092`.
    Kafka(String),
}

impl Broker {
    /// The stream `smartedify` there.
    pub fn at(at: At) -> Self {
        Self { at, stream: "smartedify".into(), ack_wait: Duration::from_secs(30) }
    }

    /// Under another name.
    pub fn stream(mut self, name: impl Into<String>) -> Self {
        self.stream = name.into();
        self
    }

    /// What order depends on: which broker, and where in it. Its address may change.
    pub fn name(&self) -> String {
        let kind = match self.at {
            At::Nats(_) => "nats",
            At::Kafka(_) => "kafka",
        };
        format!("{kind}:{}", self.stream)
    }

    /// Where messages go that no consumer can read.
    pub fn dead_letters(&self) -> String {
        format!("{}-dead-letters", self.stream)
    }

    /// Publishes there.
    pub fn publisher(&self) -> Result<Box<dyn Publisher>> {
        match &self.at {
            At::Nats(url) => nats::publisher(self, url),
            At::Kafka(servers) => kafka::publisher(self, servers),
        }
    }

    /// Consumes from there, under a name of the consumer's own.
    pub fn subscriber(&self, consumer: &str) -> Result<Box<dyn Subscriber>> {
        match &self.at {
            At::Nats(url) => nats::subscriber(self, url, consumer),
            At::Kafka(servers) => kafka::subscriber(self, servers, consumer),
        }
    }

    /// Makes what must be there; what is there already stays as it is.
    pub async fn prepare(&self) -> Result<()> {
        let topology: Box<dyn Topology> = match &self.at {
            At::Nats(url) => nats::topology(self, url)?,
            At::Kafka(servers) => kafka::topology(self, servers)?,
        };
        for step in topology.apply(false).await?.steps {
            tracing::info!(%step, "broker");
        }
        Ok(())
    }
}

#[cfg(feature = "nats")]
mod nats {
    use super::{Broker, KEPT_DAYS, Publisher, Result, SOURCE, Subscriber, Topology};
    use relevo::nats::{
        NatsAdmin, NatsConfig, NatsConsumer, NatsPublisher, NatsSubscriber, NatsTopology,
    };

    fn config(broker: &Broker, url: &str) -> Result<NatsConfig> {
        let config = NatsConfig::to(url)?.stream(&broker.stream).source(SOURCE);
        Ok(config.subject_prefix(&broker.stream))
    }

    pub(super) fn publisher(broker: &Broker, url: &str) -> Result<Box<dyn Publisher>> {
        Ok(Box::new(NatsPublisher::new(config(broker, url)?)))
    }

    pub(super) fn subscriber(
        broker: &Broker,
        url: &str,
        consumer: &str,
    ) -> Result<Box<dyn Subscriber>> {
        let consumer = NatsConsumer::new(&broker.stream, consumer)
            .ack_wait(broker.ack_wait)
            .dead_letters(broker.dead_letters());
        Ok(Box::new(NatsSubscriber::new(config(broker, url)?, consumer)))
    }

    pub(super) fn topology(broker: &Broker, url: &str) -> Result<Box<dyn Topology>> {
        let wanted: NatsTopology = serde_json::from_value(serde_json::json!({
            "streams": { (&broker.stream): {
                "subjects": [format!("{}.>", broker.stream)],
                "max_age": format!("{KEPT_DAYS}d"),
                "duplicate_window": "10m",
            }},
            "dead_letters": broker.dead_letters(),
        }))?;
        Ok(Box::new(NatsAdmin::new(config(broker, url)?, wanted)))
    }
}

#[cfg(feature = "kafka")]
mod kafka {
    use super::{Broker, KEPT_DAYS, Publisher, Result, SOURCE, Subscriber, Topology};
    use relevo::kafka::{
        KafkaAdmin, KafkaConfig, KafkaConsumer, KafkaPublisher, KafkaSubscriber, KafkaTopology,
    };

    /// Tenants are spread over these; a tenant stays in one.
    const PARTITIONS: usize = 8;

    fn config(broker: &Broker, servers: &str) -> Result<KafkaConfig> {
        Ok(KafkaConfig::to(servers)?.topic(&broker.stream).source(SOURCE))
    }

    pub(super) fn publisher(broker: &Broker, servers: &str) -> Result<Box<dyn Publisher>> {
        Ok(Box::new(KafkaPublisher::new(config(broker, servers)?)))
    }

    pub(super) fn subscriber(
        broker: &Broker,
        servers: &str,
        consumer: &str,
    ) -> Result<Box<dyn Subscriber>> {
        let consumer =
            KafkaConsumer::new(&broker.stream, consumer).dead_letters(broker.dead_letters());
        Ok(Box::new(KafkaSubscriber::new(config(broker, servers)?, consumer)))
    }

    pub(super) fn topology(broker: &Broker, servers: &str) -> Result<Box<dyn Topology>> {
        let wanted: KafkaTopology = serde_json::from_value(serde_json::json!({
            "topics": { (&broker.stream): {
                "partitions": PARTITIONS,
                "retention": format!("{KEPT_DAYS}d"),
            }},
            "dead_letters": broker.dead_letters(),
        }))?;
        Ok(Box::new(KafkaAdmin::new(config(broker, servers)?, wanted)))
    }
}

/// A broker that this binary was built without.
macro_rules! without {
    ($module:ident, $feature:literal) => {
        #[cfg(not(feature = $feature))]
        mod $module {
            use super::{Broker, Publisher, Result, Subscriber, Topology};
            use anyhow::bail;

            const WHY: &str =
                concat!("this build knows no ", $feature, ": build it with --features ", $feature);

            pub(super) fn publisher(_: &Broker, _: &str) -> Result<Box<dyn Publisher>> {
                bail!(WHY)
            }

            pub(super) fn subscriber(_: &Broker, _: &str, _: &str) -> Result<Box<dyn Subscriber>> {
                bail!(WHY)
            }

            pub(super) fn topology(_: &Broker, _: &str) -> Result<Box<dyn Topology>> {
                bail!(WHY)
            }
        }
    };
}

without!(nats, "nats");
without!(kafka, "kafka");
