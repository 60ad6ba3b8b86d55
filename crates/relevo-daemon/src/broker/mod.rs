//! From a broker's configuration to its adapter. Nothing else in the binary knows which one it is.
//!
//! - [`Adapter`]: which one a URL names
//! - [`destination`]: what hands events over
//! - [`topology`]: what must be there, read strictly, and what brings the broker to it
//! - `kafka`, `nats`, `rabbitmq`: the configuration as the adapter wants it
//!
//! A further adapter is a line of [`Adapter::KNOWN`], an arm in each of [`check`], [`destination`] and
//! [`topology::read`], and a file beside these.

mod adapter;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
pub mod topology;

pub use adapter::Adapter;

use crate::config::Broker;
use relevo_brokers::http::{HttpConfig, HttpPublisher};
use relevo_brokers::stdout::LogPublisher;
use relevo_core::Result;
#[cfg(any(feature = "kafka", feature = "nats", feature = "rabbitmq"))]
use relevo_core::broker::Publisher;
use relevo_core::broker::ToBroker;
use relevo_core::relay::run::Destination;
use std::sync::Arc;
use std::time::Duration;

/// The address without anything secret, if the adapter accepts the configuration. Files are read, nobody is asked.
pub fn check(broker: &Broker) -> Result<String> {
    match Adapter::of(&broker.url)? {
        Adapter::Stdout => Ok(broker.url.to_string()),
        Adapter::Http => HttpConfig::to(broker.url.expose()).map(|_| broker.url.to_string()),
        #[cfg(feature = "rabbitmq")]
        Adapter::RabbitMq => rabbitmq::config(broker, "relevo").map(|_| broker.url.to_string()),
        #[cfg(feature = "nats")]
        Adapter::Nats => nats::config(broker, "relevo").map(|config| config.address()),
        #[cfg(feature = "kafka")]
        Adapter::Kafka => kafka::config(broker, "relevo").map(|config| config.address()),
        #[cfg(not(all(feature = "kafka", feature = "nats", feature = "rabbitmq")))]
        other => Err(other.is_not_built()),
    }
}

/// What hands events over. An attempt may take `limit` where the adapter has none of its own.
pub fn destination(
    broker: &Broker,
    service: &str,
    limit: Duration,
) -> Result<Arc<dyn Destination>> {
    match Adapter::of(&broker.url)? {
        Adapter::Stdout => Ok(Arc::new(ToBroker::new(LogPublisher::default()))),
        Adapter::Http => http(broker, service, limit),
        #[cfg(feature = "rabbitmq")]
        Adapter::RabbitMq => Ok(relayed(rabbitmq::publisher(broker, service)?)),
        #[cfg(feature = "nats")]
        Adapter::Nats => Ok(relayed(nats::publisher(broker, service)?)),
        #[cfg(feature = "kafka")]
        Adapter::Kafka => Ok(relayed(kafka::publisher(broker, service)?)),
        #[cfg(not(all(feature = "kafka", feature = "nats", feature = "rabbitmq")))]
        other => Err(other.is_not_built()),
    }
}

#[cfg(any(feature = "kafka", feature = "nats", feature = "rabbitmq"))]
fn relayed(publisher: impl Publisher) -> Arc<dyn Destination> {
    Arc::new(ToBroker::new(publisher))
}

fn http(broker: &Broker, service: &str, limit: Duration) -> Result<Arc<dyn Destination>> {
    let mut config = HttpConfig::to(broker.url.expose())?.source(service).timeout(limit);
    for secret in &broker.signing {
        config = config.secret(secret.expose())?;
    }
    Ok(Arc::new(ToBroker::new(HttpPublisher::new(config))))
}

#[cfg(test)]
#[cfg(all(feature = "nats", feature = "rabbitmq"))]
mod tests;
