//! Clusters of three, one node of which is killed and started again while events are counted.
//!
//! - [`BrokerCluster`]: what each broker's cluster provides
//! - [`cases`]: what is promised meanwhile
//! - `rabbitmq`, `nats`, `kafka`: one file for each broker

pub mod cases;
mod kafka;
mod nats;
mod rabbitmq;

pub use kafka::KafkaCluster;
pub use nats::NatsCluster;
pub use rabbitmq::RabbitMqCluster;

use relevo_core::broker::Subscriber;
use relevo_core::relay::run::Destination;
use relevo_testkit::services;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Three nodes with one destination that all of them have, and both of Relevo's ends of it, each of which knows all
/// nodes. Its calls wait for servers: they are no work for an asynchronous task.
pub trait BrokerCluster: Send + Sync + 'static {
    /// Hands events of the topic `thing.happened` to the destination.
    fn destination(&self) -> Arc<dyn Destination>;

    /// Consumes the destination, in its order whatever happens to a connection.
    fn subscriber(&self) -> Box<dyn Subscriber>;

    /// Which node leads the destination; an error while none does.
    fn leader(&self) -> services::Result<usize>;

    /// Kills a node, like a power cut.
    fn kill9(&self, node: usize);

    /// Starts a killed node again with what it has, and waits until it serves.
    fn restart(&self, node: usize) -> services::Result<()>;
}

/// A cluster that takes long to start, for several cases, each of which has it for itself in its turn.
pub struct InTurn<C> {
    cluster: OnceLock<Option<Arc<C>>>,
    turn: Mutex<()>,
}

impl<C> InTurn<C> {
    /// Nothing is started yet.
    pub const fn new() -> Self {
        Self { cluster: OnceLock::new(), turn: Mutex::new(()) }
    }

    /// Runs a case on the cluster, which the first one starts; it may be missing, and has said so then.
    pub fn run(&self, start: impl FnOnce() -> Option<C>, case: impl FnOnce(Arc<C>)) {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cluster) = self.cluster.get_or_init(|| start().map(Arc::new)) {
            case(cluster.clone());
        }
    }
}

impl<C> Default for InTurn<C> {
    fn default() -> Self {
        Self::new()
    }
}

/// A module of the given name with a `#[test]` for each case, each with a cluster of its own. The expression starts a
/// cluster; it may be missing, and has said so then.
#[macro_export]
macro_rules! cluster_tests {
    ($name:ident, $start:expr) => {
        mod $name {
            use super::*;

            #[test]
            fn nothing_is_lost_doubled_or_reordered_while_leaders_are_killed() {
                let Some(cluster) = $start else { return };
                let cluster: std::sync::Arc<dyn $crate::cluster::BrokerCluster> =
                    std::sync::Arc::new(cluster);
                $crate::cluster::cases::leaders_are_killed(cluster);
            }
        }
    };
}
