//! RabbitMQ: a quorum queue with a replica on each node.

use super::BrokerCluster;
use relevo_brokers::rabbitmq::topology::{RabbitMqAdmin, RabbitMqTopology};
use relevo_brokers::rabbitmq::{RabbitMqConfig, RabbitMqPublisher, RabbitMqSubscriber};
use relevo_core::broker::{Subscriber, ToBroker, Topology};
use relevo_core::relay::run::Destination;
use relevo_testkit::services::{self, Cluster, RabbitMq};
use std::sync::Arc;
use std::time::Duration;

const QUEUE: &str = "counted";

/// Three nodes of RabbitMQ.
pub struct RabbitMqCluster {
    nodes: Cluster<RabbitMq>,
    config: RabbitMqConfig,
}

impl RabbitMqCluster {
    /// Three nodes that have met, with a queue on all of them.
    ///
    /// # Panics
    /// If the queue cannot be made.
    pub fn start() -> Option<Self> {
        let nodes = services::require(RabbitMq::cluster())?;
        let config = RabbitMqConfig::to(&nodes.url()).unwrap_or_else(|error| panic!("{error}"));
        let config = config.exchange("events").confirm_timeout(Duration::from_secs(10));
        let cluster = Self { nodes, config };
        cluster.declare();
        Some(cluster)
    }

    /// One consumer at a time: to the queue a connection that was lost and the next one are two consumers, until the
    /// broker has noticed, and two overtake each other.
    fn declare(&self) {
        let bind = serde_json::json!({"events": ["thing.#"]});
        let queue =
            serde_json::json!({"kind": "quorum", "single_active_consumer": true, "bind": bind});
        let wanted = serde_json::json!({"exchanges": {"events": {}}, "queues": {QUEUE: queue}});
        let wanted: RabbitMqTopology =
            serde_json::from_value(wanted).unwrap_or_else(|error| panic!("{error}"));
        let port = self.nodes[0].management().port();
        let admin = RabbitMqAdmin::new(self.config.clone(), &wanted).management_port(port);
        let runtime = tokio::runtime::Runtime::new().unwrap_or_else(|error| panic!("{error}"));
        let applied = runtime.block_on(admin.apply(false));
        applied.unwrap_or_else(|error| panic!("no queue: {error}"));
    }
}

impl BrokerCluster for RabbitMqCluster {
    fn destination(&self) -> Arc<dyn Destination> {
        Arc::new(ToBroker::new(RabbitMqPublisher::new(self.config.clone())))
    }

    fn subscriber(&self) -> Box<dyn Subscriber> {
        Box::new(RabbitMqSubscriber::new(self.config.clone(), QUEUE))
    }

    fn leader(&self) -> services::Result<usize> {
        self.nodes.leader_of(QUEUE)
    }

    fn kill9(&self, node: usize) {
        self.nodes[node].kill9();
    }

    fn restart(&self, node: usize) -> services::Result<()> {
        self.nodes[node].restart()
    }
}
