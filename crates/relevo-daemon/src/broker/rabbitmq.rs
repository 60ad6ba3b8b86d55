use crate::broker::topology::Wanted;
use crate::config::Broker;
use relevo_brokers::rabbitmq::topology::{RabbitMqAdmin, RabbitMqTopology};
use relevo_brokers::rabbitmq::{RabbitMqConfig, RabbitMqPublisher};
use relevo_core::Result;
use relevo_core::broker::Topology;

/// As the adapter wants it; reads the files of certificates.
pub(super) fn config(broker: &Broker, service: &str) -> Result<RabbitMqConfig> {
    let options = &broker.options;
    let mut config = RabbitMqConfig::to(broker.url.expose())?.source(service);
    let (window, bytes) = (config.window, config.window_bytes);
    config = config.window(options.window.unwrap_or(window), options.window_bytes.unwrap_or(bytes));
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
