use crate::{Input, expect};
use relevo_brokers::kafka::KafkaConfig;
use relevo_brokers::nats::NatsConfig;
use relevo_brokers::rabbitmq::RabbitMqConfig;

/// A password as no other part of an input contains it.
const PASSWORD: &str = "Tr0ub4dor";

/// Any broker's URL is taken or refused, in one line, without repeating the password in it.
pub(crate) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let url = input.text();
    shown_of(&url);
    let (user, host, tail) = (input.text(), input.text(), input.text());
    if [&user, &host, &tail].iter().any(|part| part.contains("://") || part.contains(PASSWORD)) {
        return;
    }
    for scheme in ["amqp", "amqps", "nats", "tls", "kafka", "kafkas"] {
        // Several nodes in one URL, each with its own way to write who comes.
        let url = format!("{scheme}://{user}:{PASSWORD}@{host},{user}:{PASSWORD}@{host}/{tail}");
        let shown = shown_of(&url);
        assert!(!shown.contains(PASSWORD), "{url:?} shown as {shown:?}");
    }
    let setting = KafkaConfig::to("kafka://host").and_then(|config| config.setting(&user, &tail));
    setting.as_ref().err().into_iter().for_each(expect::error);
}

/// Everything people may see of it.
fn shown_of(url: &str) -> String {
    let rabbitmq = RabbitMqConfig::to(url);
    let nats = NatsConfig::to(url);
    let kafka = KafkaConfig::to(url);
    let errors = [rabbitmq.as_ref().err(), nats.as_ref().err(), kafka.as_ref().err()];
    errors.into_iter().flatten().for_each(expect::error);
    let addresses = (
        rabbitmq.as_ref().map(RabbitMqConfig::address).unwrap_or_default(),
        nats.as_ref().map(NatsConfig::address).unwrap_or_default(),
        kafka.as_ref().map(KafkaConfig::address).unwrap_or_default(),
    );
    format!("{rabbitmq:?} {nats:?} {kafka:?} {addresses:?}")
}
