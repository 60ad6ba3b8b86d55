use crate::broker::topology::Wanted;
use crate::config::Broker;
use relevo_brokers::rabbitmq::topology::{RabbitMqAdmin, RabbitMqTopology};
use relevo_brokers::rabbitmq::{RabbitMqConfig, RabbitMqPublisher};
use relevo_core::broker::Topology;
use relevo_core::{Error, Kind, Result};

/// As the adapter wants it; reads the files of certificates.
pub(super) fn config(broker: &Broker, service: &str) -> Result<RabbitMqConfig> {
    let options = &broker.options;
    let mut config = RabbitMqConfig::to(broker.url.expose())?.source(service);
    let window = options.window.unwrap_or(config.window);
    let bytes = options.window_bytes.unwrap_or(config.window_bytes);
    at_most("window", window, RabbitMqConfig::MOST_MESSAGES)?;
    at_most("window_bytes", bytes, RabbitMqConfig::MOST_BYTES)?;
    config = config.window(window, bytes);
    if let Some(exchange) = &options.exchange {
        config = config.exchange(exchange);
    }
    for (topics, exchange) in &options.routes {
        config = config.route(topics.clone(), exchange);
    }
    if let Some(limit) = options.confirm_timeout {
        config = config.confirm_timeout(limit);
    }
    if let Some(limit) = options.connect_timeout {
        config = config.connect_timeout(limit);
    }
    if let Some(limit) = options.blocked_limit {
        config = config.blocked_limit(limit);
    }
    if let Some(bytes) = options.max_message_bytes {
        config = config.max_message_bytes(bytes);
    }
    if let Some(file) = &options.ca_file {
        config = config.ca_file(file)?;
    }
    if let Some((certificate, key)) = &options.client_certificate {
        config = config.client_certificate(certificate, key)?;
    }
    Ok(config)
}

/// The adapter would keep to its bound and not say so.
fn at_most(key: &str, given: usize, most: usize) -> Result<()> {
    if given > most {
        return Err(Error::new(
            Kind::InvalidConfig,
            format!("{key}: at most {most} with RabbitMQ"),
        ));
    }
    Ok(())
}

pub(super) fn publisher(broker: &Broker, service: &str) -> Result<RabbitMqPublisher> {
    config(broker, service).map(RabbitMqPublisher::new)
}

impl Wanted for RabbitMqTopology {
    fn admin(&self, broker: &Broker, service: &str) -> Result<Box<dyn Topology>> {
        let admin = RabbitMqAdmin::new(config(broker, service)?, self);
        Ok(match broker.options.management_port {
            Some(port) => Box::new(admin.management_port(port)),
            None => Box::new(admin),
        })
    }
}
