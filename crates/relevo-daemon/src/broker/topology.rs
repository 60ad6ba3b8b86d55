//! `[topology.BROKER]`: what must be there, as each adapter has it.

use super::Adapter;
use crate::config::Broker;
use relevo_core::Result;
use relevo_core::broker::Topology;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::sync::Arc;

/// What must be there at a broker, in its adapter's own words.
pub trait Wanted: Debug + Send + Sync {
    /// What compares it with the broker, and brings the broker to it.
    fn admin(&self, broker: &Broker, service: &str) -> Result<Box<dyn Topology>>;
}

/// Why a table is no topology.
#[derive(Debug)]
#[non_exhaustive]
pub enum Refused {
    /// The adapter has none.
    HasNone,
    /// It says something that cannot be meant.
    Unread(toml::de::Error),
}

/// A topology as the adapter of that kind reads it: strictly.
pub fn read(adapter: Adapter, table: toml::Table) -> Result<Arc<dyn Wanted>, Refused> {
    match adapter {
        #[cfg(feature = "rabbitmq")]
        Adapter::RabbitMq => read_as::<relevo_brokers::rabbitmq::topology::RabbitMqTopology>(table),
        #[cfg(feature = "nats")]
        Adapter::Nats => read_as::<relevo_brokers::nats::topology::NatsTopology>(table),
        #[cfg(feature = "kafka")]
        Adapter::Kafka => read_as::<relevo_brokers::kafka::topology::KafkaTopology>(table),
        _ => {
            drop(table);
            Err(Refused::HasNone)
        }
    }
}

#[cfg_attr(not(any(feature = "kafka", feature = "nats", feature = "rabbitmq")), expect(dead_code))]
fn read_as<T: Wanted + DeserializeOwned + 'static>(
    table: toml::Table,
) -> Result<Arc<dyn Wanted>, Refused> {
    let wanted = T::deserialize(toml::Value::Table(table)).map_err(Refused::Unread)?;
    Ok(Arc::new(wanted))
}
