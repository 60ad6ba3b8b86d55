//! Every broker as a cluster of three whose leaders are killed while events are counted: one line per broker.

use relevo_tests::cluster::{KafkaCluster, NatsCluster, RabbitMqCluster};
use relevo_tests::cluster_tests;

cluster_tests!(rabbitmq, RabbitMqCluster::start());
cluster_tests!(nats, NatsCluster::start());
cluster_tests!(kafka, KafkaCluster::start());
