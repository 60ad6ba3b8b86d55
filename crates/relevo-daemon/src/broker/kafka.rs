use crate::broker::topology::Wanted;
use crate::config::Broker;
use relevo_brokers::kafka::topology::{KafkaAdmin, KafkaTopology};
use relevo_brokers::kafka::{Compression, KafkaConfig, KafkaPublisher, Mechanism};
use relevo_core::broker::Topology;
use relevo_core::error::quoted;
use relevo_core::{Error, Kind, Result};

/// As the adapter wants it. What its client would refuse is refused here. The files of certificates are read anew for each
/// connection; here they are only looked at.
pub(super) fn config(broker: &Broker, service: &str) -> Result<KafkaConfig> {
    let options = &broker.options;
    let mut config = KafkaConfig::to(broker.url.expose())?.source(service);
    config.client_name = format!("relevo {service}");
    config.topic = options.topic.clone();
    config.topic_prefix = options.topic_prefix.clone();
    config.linger = options.linger.unwrap_or(config.linger);
    config.ack_timeout = options.confirm_timeout.unwrap_or(config.ack_timeout);
    config.connect_timeout = options.connect_timeout.unwrap_or(config.connect_timeout);
    config.max_message_bytes = options.max_message_bytes.unwrap_or(config.max_message_bytes);
    let (window, bytes) = (config.max_in_flight, config.max_in_flight_bytes);
    config = config.window(options.window.unwrap_or(window), options.window_bytes.unwrap_or(bytes));
    if let Some(name) = &options.compression {
        config = config.compression(compression(name)?);
    }
    if let Some(name) = &options.sasl_mechanism {
        config = config.mechanism(mechanism(name)?);
    }
    if let Some(file) = &options.ca_file {
        config = config.authority(file);
    }
    if let Some((certificate, key)) = &options.client_certificate {
        config = config.client_certificate(certificate, key);
    }
    config.check()?;
    Ok(config)
}

pub(super) fn publisher(broker: &Broker, service: &str) -> Result<KafkaPublisher> {
    config(broker, service).map(KafkaPublisher::new)
}

fn compression(name: &str) -> Result<Compression> {
    let all = Compression::ALL.map(Compression::as_str);
    Compression::parse(name).ok_or_else(|| unknown("compression", name, &all))
}

fn mechanism(name: &str) -> Result<Mechanism> {
    let all = Mechanism::ALL.map(Mechanism::as_str);
    Mechanism::parse(name).ok_or_else(|| unknown("sasl_mechanism", name, &all))
}

fn unknown(key: &str, given: &str, known: &[&str]) -> Error {
    let why = format!("{key}: {} is none of {}", quoted(given), known.join(", "));
    Error::new(Kind::InvalidConfig, why)
}

impl Wanted for KafkaTopology {
    fn admin(&self, broker: &Broker, service: &str) -> Result<Box<dyn Topology>> {
        Ok(Box::new(KafkaAdmin::new(config(broker, service)?, self.clone())))
    }
}
