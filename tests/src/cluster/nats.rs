//! NATS JetStream: a stream with a replica on each server.

use super::BrokerCluster;
use relevo_brokers::nats::{
    NatsAdmin, NatsConfig, NatsConsumer, NatsPublisher, NatsSubscriber, NatsTopology,
};
use relevo_core::broker::{Subscriber, ToBroker, Topology};
use relevo_core::relay::run::Destination;
use relevo_testkit::eventually;
use relevo_testkit::services::{self, Cluster, Nats};
use std::sync::Arc;
use std::time::Duration;

const STREAM: &str = "COUNTED";

/// Three servers of NATS.
pub struct NatsCluster {
    nodes: Cluster<Nats>,
    config: NatsConfig,
}

impl NatsCluster {
    /// Three servers that have met, with a stream on all of them.
    ///
    /// # Panics
    /// If the stream cannot be made.
    pub fn start() -> Option<Self> {
        let nodes = services::require(Nats::cluster())?;
        let config = NatsConfig::to(&nodes.urls().join(","));
        let config = config.unwrap_or_else(|error| panic!("{error}"));
        let cluster = Self { nodes, config: config.ack_timeout(Duration::from_secs(5)) };
        cluster.declare();
        Some(cluster)
    }

    fn declare(&self) {
        let wanted =
            serde_json::json!({"streams": {STREAM: {"subjects": ["thing.>"], "replicas": 3}}});
        let wanted: NatsTopology =
            serde_json::from_value(wanted).unwrap_or_else(|error| panic!("{error}"));
        let admin = NatsAdmin::new(self.config.clone(), wanted);
        let runtime = tokio::runtime::Runtime::new().unwrap_or_else(|error| panic!("{error}"));
        runtime.block_on(eventually("the stream", async || admin.apply(false).await.ok()));
    }
}

impl BrokerCluster for NatsCluster {
    fn destination(&self) -> Arc<dyn Destination> {
        Arc::new(ToBroker::new(NatsPublisher::new(self.config.clone())))
    }

    /// What a broken connection leaves unsettled comes again after what followed it, unless there is but one.
    fn subscriber(&self) -> Box<dyn Subscriber> {
        let consumer = NatsConsumer::new(STREAM, "counter").one_at_a_time();
        let consumer = consumer.ack_wait(Duration::from_secs(5)).heartbeat(Duration::from_secs(2));
        Box::new(NatsSubscriber::new(self.config.clone(), consumer))
    }

    fn leader(&self) -> services::Result<usize> {
        self.nodes.leader_of(STREAM)
    }

    fn kill9(&self, node: usize) {
        self.nodes[node].kill9();
    }

    fn restart(&self, node: usize) -> services::Result<()> {
        self.nodes[node].restart()
    }
}
