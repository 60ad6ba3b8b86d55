//! Where events go.

use super::secret::Secret;
use std::path::PathBuf;
use std::time::Duration;

/// The destinations of this build, for people.
#[cfg(feature = "rabbitmq")]
pub const DESTINATIONS: &str =
    "http://HOST/PATH, amqp://HOST/VHOST, amqps://HOST/VHOST, or stdout:";
/// The destinations of this build, for people.
#[cfg(not(feature = "rabbitmq"))]
pub const DESTINATIONS: &str = "http://HOST/PATH, or stdout:";

/// A broker or an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Broker {
    /// Its URL; the scheme picks the adapter.
    pub url: Secret,
    /// What requests are signed with.
    pub signing: Vec<Secret>,
    /// What only some adapters know.
    pub options: BrokerOptions,
}

impl std::fmt::Display for Broker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.url.fmt(f)
    }
}

/// What may be said of a broker beside its URL. What is not said is the adapter's own default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BrokerOptions {
    /// The exchange that events are published to.
    pub exchange: Option<String>,
    /// Most messages that wait for their confirm.
    pub window: Option<usize>,
    /// Most bytes that wait for their confirm.
    pub window_bytes: Option<usize>,
    /// A confirm that takes longer is unknown.
    pub confirm_timeout: Option<Duration>,
    /// Authorities that are trusted beside the system's, PEM.
    pub ca_file: Option<PathBuf>,
    /// Certificate and key to show to the broker, PEM.
    pub client_certificate: Option<(PathBuf, PathBuf)>,
}

#[cfg(feature = "rabbitmq")]
impl Broker {
    /// As the adapter for RabbitMQ wants it; reads the files.
    pub fn rabbitmq(
        &self,
        service: &str,
    ) -> relevo_core::Result<relevo_brokers::rabbitmq::RabbitMqConfig> {
        let options = &self.options;
        let mut config = relevo_brokers::rabbitmq::RabbitMqConfig::to(self.url.expose())?;
        config = config.source(service);
        let (window, bytes) = (config.window, config.window_bytes);
        config =
            config.window(options.window.unwrap_or(window), options.window_bytes.unwrap_or(bytes));
        if let Some(exchange) = &options.exchange {
            config = config.exchange(exchange);
        }
        if let Some(limit) = options.confirm_timeout {
            config = config.confirm_timeout(limit);
        }
        if let Some(file) = &options.ca_file {
            config = config.ca_file(file)?;
        }
        if let Some((certificate, key)) = &options.client_certificate {
            config = config.client_certificate(certificate, key)?;
        }
        Ok(config)
    }
}
