use crate::broker::topology::Wanted;
use crate::config::Broker;
use relevo_brokers::nats::topology::{NatsAdmin, NatsTopology};
use relevo_brokers::nats::{NatsConfig, NatsPublisher};
use relevo_core::Result;
use relevo_core::broker::Topology;

/// As the adapter wants it. The files of certificates and credentials are read anew for each connection, so that
/// renewed ones are taken; here they are only looked at.
pub(super) fn config(broker: &Broker, service: &str) -> Result<NatsConfig> {
    let options = &broker.options;
    let mut config = NatsConfig::to(broker.url.expose())?.source(service);
    config.client_name = format!("relevo {service}");
    config.stream = options.stream.clone();
    config.subject_prefix = options.subject_prefix.clone();
    config.domain = options.domain.clone();
    config.ack_timeout = options.confirm_timeout.unwrap_or(config.ack_timeout);
    config.connect_timeout = options.connect_timeout.unwrap_or(config.connect_timeout);
    let (window, bytes) = (config.max_in_flight, config.max_in_flight_bytes);
    config = config.window(options.window.unwrap_or(window), options.window_bytes.unwrap_or(bytes));
    if let Some(seed) = &options.nkey {
        config = config.nkey(seed.expose());
    }
    if let Some(file) = &options.credentials_file {
        config = config.credentials_file(file);
    }
    if let Some(file) = &options.ca_file {
        config = config.authority(file);
    }
    if let Some((certificate, key)) = &options.client_certificate {
        config = config.client_certificate(certificate, key);
    }
    config.check_files()?;
    Ok(config)
}

pub(super) fn publisher(broker: &Broker, service: &str) -> Result<NatsPublisher> {
    config(broker, service).map(NatsPublisher::new)
}

impl Wanted for NatsTopology {
    fn admin(&self, broker: &Broker, service: &str) -> Result<Box<dyn Topology>> {
        Ok(Box::new(NatsAdmin::new(config(broker, service)?, self.clone())))
    }
}
