//! From a broker's URL to what hands events over.

use crate::config::{Broker, DESTINATIONS};
use relevo_brokers::http::{HttpConfig, HttpPublisher};
#[cfg(feature = "rabbitmq")]
use relevo_brokers::rabbitmq::RabbitMqPublisher;
use relevo_brokers::stdout::LogPublisher;
use relevo_core::broker::ToBroker;
use relevo_core::relay::run::Destination;
use relevo_core::{Error, Kind, Result};
use std::sync::Arc;
use std::time::Duration;

/// The destination that a broker's URL means; its scheme picks the adapter. An attempt may take `limit`.
pub(super) fn of(broker: &Broker, service: &str, limit: Duration) -> Result<Arc<dyn Destination>> {
    match broker.url.scheme() {
        Some("http" | "https") => {
            let mut config = HttpConfig::to(broker.url.expose())?.source(service).timeout(limit);
            for secret in &broker.signing {
                config = config.secret(secret.expose())?;
            }
            Ok(Arc::new(ToBroker::new(HttpPublisher::new(config))))
        }
        #[cfg(feature = "rabbitmq")]
        Some("amqp" | "amqps") => {
            let publisher = RabbitMqPublisher::new(broker.rabbitmq(service)?);
            Ok(Arc::new(ToBroker::new(publisher)))
        }
        Some("stdout") => Ok(Arc::new(ToBroker::new(LogPublisher::default()))),
        _ => {
            let why = format!("{}: events go to {DESTINATIONS}", broker.url);
            Err(Error::new(Kind::InvalidConfig, why))
        }
    }
}
