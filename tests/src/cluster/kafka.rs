//! Apache Kafka: a topic with a replica on each broker, two of which must have a message.

use super::BrokerCluster;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use relevo_brokers::kafka::{
    KafkaAdmin, KafkaConfig, KafkaConsumer, KafkaPublisher, KafkaSubscriber, KafkaTopology,
};
use relevo_core::broker::{Subscriber, ToBroker, Topology};
use relevo_core::relay::run::Destination;
use relevo_testkit::eventually;
use relevo_testkit::services::{self, Cluster, Kafka};
use std::sync::Arc;
use std::time::Duration;

const TOPIC: &str = "thing.happened";

/// Three brokers of Kafka, each a controller too.
pub struct KafkaCluster {
    nodes: Cluster<Kafka>,
    config: KafkaConfig,
}

impl KafkaCluster {
    /// Three brokers that have met, with a topic on all of them.
    ///
    /// # Panics
    /// If the topic cannot be made.
    pub fn start() -> Option<Self> {
        let nodes = services::require(Kafka::cluster())?;
        let addresses: Vec<String> = nodes.iter().map(|node| node.address().to_string()).collect();
        let config = KafkaConfig::to(&format!("kafka://{}", addresses.join(",")));
        let config = config.unwrap_or_else(|error| panic!("{error}"));
        let cluster = Self { nodes, config: config.ack_timeout(Duration::from_secs(20)) };
        cluster.declare();
        Some(cluster)
    }

    fn declare(&self) {
        let runtime = tokio::runtime::Runtime::new().unwrap_or_else(|error| panic!("{error}"));
        runtime.block_on(self.topic(TOPIC, 2));
    }

    /// Makes a topic with a replica on each broker, so many of which must have a message.
    ///
    /// # Panics
    /// If it cannot be made.
    pub async fn topic(&self, name: &str, in_sync: usize) {
        let wanted = serde_json::json!({"topics": {name: {
            "partitions": 1, "replicas": 3, "min_in_sync_replicas": in_sync
        }}});
        let wanted: KafkaTopology =
            serde_json::from_value(wanted).unwrap_or_else(|error| panic!("{error}"));
        let admin = KafkaAdmin::new(self.config.clone(), wanted);
        eventually("the topic", async || admin.apply(false).await.ok()).await;
    }

    /// All brokers, as whoever connects to them.
    pub fn config(&self) -> KafkaConfig {
        self.config.clone()
    }

    /// A broker that has the topic and does not lead it, once one leads.
    pub fn follower(&self, topic: &str) -> Option<usize> {
        let leader = self.nodes.leader_of(topic).ok()?;
        (0..self.nodes.iter().count()).find(|node| *node != leader)
    }

    /// How many replicas of a topic are in step, as a broker says that runs.
    pub fn in_sync(&self, topic: &str) -> Option<usize> {
        let asking: BaseConsumer =
            ClientConfig::new().set("bootstrap.servers", self.nodes.bootstrap()).create().ok()?;
        let metadata = asking.fetch_metadata(Some(topic), Duration::from_secs(10)).ok()?;
        Some(metadata.topics().first()?.partitions().first()?.isr().len())
    }
}

impl BrokerCluster for KafkaCluster {
    fn destination(&self) -> Arc<dyn Destination> {
        Arc::new(ToBroker::new(KafkaPublisher::new(self.config.clone())))
    }

    fn subscriber(&self) -> Box<dyn Subscriber> {
        let consumer =
            KafkaConsumer::new(TOPIC, "counter").session_timeout(Duration::from_secs(10));
        Box::new(KafkaSubscriber::new(self.config.clone(), consumer))
    }

    fn leader(&self) -> services::Result<usize> {
        self.nodes.leader_of(TOPIC)
    }

    fn kill9(&self, node: usize) {
        self.nodes[node].kill9();
    }

    fn restart(&self, node: usize) -> services::Result<()> {
        self.nodes[node].restart()
    }
}
