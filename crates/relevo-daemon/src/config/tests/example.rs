//! The files that `relevo` writes are valid, and show every key with its real default.

use super::super::*;
use super::read;
use relevo_core::outbox::Start;

/// Is it `key = value`, rather than a sentence with an equals sign in it?
fn is_key(line: &str) -> bool {
    let plain = |name: &str| name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    line.split_once(" = ").is_some_and(|(name, _)| !name.is_empty() && plain(name))
}

/// The example with every `# key = value` line taken out of its comment.
fn uncommented() -> String {
    let line = |line: &str| match line.strip_prefix("# ") {
        Some(rest) if is_key(rest) && !rest.contains("path/to") => format!("{rest}\n"),
        _ => format!("{line}\n"),
    };
    example::full().lines().map(line).collect()
}

/// A table of this kind with a key that nobody knows is refused with all that are known: the example has them.
#[cfg(any(feature = "kafka", all(feature = "nats", feature = "rabbitmq")))]
fn shows_every_key(table: &str, kind: &str) {
    let text = uncommented();
    let message = super::refused(&format!("{text}\n{table}\nnosuchkey = 1\n"));
    let (_, known) = message.split_once("(known here: ").unwrap_or_else(|| panic!("{message}"));
    for key in known.trim_end().trim_end_matches(')').split(", ") {
        assert!(text.contains(key), "the example does not show {key} of {kind}");
    }
}

#[test]
fn the_example_shows_the_real_defaults() {
    let text = uncommented();
    let config = read(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let notify = &config.subscriptions["notify"];
    // An endpoint has no window: this is what it gets without being asked.
    let mut unasked = RelayConfig::default();
    unasked.concurrency = Some(unasked.batches_at_once());
    assert_eq!(notify.relay, unasked);
    assert_eq!(notify.handler_limit, HANDLER_LIMIT);
    assert_eq!(notify.subscription.start, Start::Beginning);
    assert_eq!((config.limits, config.retention), (Limits::default(), Retention::default()));
    assert_eq!((config.service.as_str(), config.listen.to_string().as_str()), ("relevo", LISTEN));
    assert_eq!(config.drain, DRAIN);
    read(&example::full()).unwrap();
}

/// The adapters have defaults of their own: what the example shows is what they are.
#[cfg(all(feature = "nats", feature = "rabbitmq"))]
#[test]
fn the_example_shows_the_defaults_of_the_adapters() {
    use relevo_brokers::{nats::NatsConfig, rabbitmq::RabbitMqConfig};
    let config = read(&uncommented()).unwrap();
    let options = &config.brokers["rabbit"].options;
    let real = RabbitMqConfig::to("amqp://h").unwrap();
    assert_eq!(options.exchange.as_deref(), Some(real.exchange.as_str()));
    assert_eq!(options.routes, real.routes);
    assert_eq!(
        (options.window, options.window_bytes),
        (Some(real.window), Some(real.window_bytes))
    );
    assert_eq!(options.confirm_timeout, Some(real.confirm_timeout));
    assert_eq!(options.connect_timeout, Some(real.connect_timeout));
    assert_eq!(options.blocked_limit, Some(real.blocked_limit));
    assert_eq!(options.max_message_bytes, Some(real.max_message_bytes));
    let options = &config.brokers["nats"].options;
    let real = NatsConfig::to("nats://h").unwrap();
    let window = (Some(real.max_in_flight), Some(real.max_in_flight_bytes));
    assert_eq!((options.window, options.window_bytes), window);
    assert_eq!(options.confirm_timeout, Some(real.ack_timeout));
    assert_eq!(options.connect_timeout, Some(real.connect_timeout));
}

#[cfg(feature = "kafka")]
#[test]
fn the_example_shows_the_defaults_of_kafka_and_every_key_of_its_topics() {
    use relevo_brokers::kafka::{Compression, KafkaConfig, Mechanism};
    let config = read(&uncommented()).unwrap();
    let options = &config.brokers["kafka"].options;
    let real = KafkaConfig::to("kafka://h").unwrap();
    let window = (Some(real.max_in_flight), Some(real.max_in_flight_bytes));
    assert_eq!((options.window, options.window_bytes), window);
    assert_eq!(options.confirm_timeout, Some(real.ack_timeout));
    assert_eq!(options.connect_timeout, Some(real.connect_timeout));
    assert_eq!(options.linger, Some(real.linger));
    assert_eq!(options.max_message_bytes, Some(real.max_message_bytes));
    assert_eq!(options.compression.as_deref(), Some(Compression::default().as_str()));
    assert_eq!(options.sasl_mechanism.as_deref(), Some(Mechanism::default().as_str()));
    shows_every_key("[topology.kafka.topics.other]", "a topic");
}

#[cfg(all(feature = "nats", feature = "rabbitmq"))]
#[test]
fn the_example_shows_every_key_of_a_topology() {
    use relevo_brokers::{nats::NatsTopology, rabbitmq::topology::RabbitMqTopology};
    shows_every_key("[topology.rabbit.queues.other]", "a queue");
    shows_every_key("[topology.rabbit.exchanges.other]", "an exchange");
    shows_every_key("[topology.nats.streams.OTHER]", "a stream");
    shows_every_key("[topology.nats.streams.EVENTS.consumers.other]", "a consumer");
    let table: toml::Table = toml::from_str(&uncommented()).unwrap();
    let of = |name: &str| table["topology"][name].clone();
    let rabbit = RabbitMqTopology::deserialize(of("rabbit")).unwrap();
    assert_eq!(rabbit.ladder("billing").len(), 3);
    let nats = NatsTopology::deserialize(of("nats")).unwrap();
    assert_eq!(nats.consumer("EVENTS", "billing").unwrap().filters, ["order.paid"]);
}

/// A key that is missing in the list of numbers or lists could not be overridden: its text would be refused.
#[test]
fn a_variable_can_override_every_key_of_the_example() {
    fn visit(table: &toml::Table, path: &str, into: &mut Vec<(String, String)>) {
        for (key, value) in table {
            let name = format!("{path}__{}", key.to_uppercase().replace('-', "_"));
            match value {
                toml::Value::Table(inner) if key != "bind" => visit(inner, &name, into),
                toml::Value::Array(items) if items.iter().all(toml::Value::is_str) => {
                    let items: Vec<&str> = items.iter().filter_map(toml::Value::as_str).collect();
                    into.push((name, items.join(",")));
                }
                toml::Value::Table(_) | toml::Value::Array(_) => {}
                toml::Value::String(text) => into.push((name, text.clone())),
                other => into.push((name, other.to_string())),
            }
        }
    }
    let (text, mut variables) = (uncommented(), Vec::new());
    visit(&toml::from_str(&text).unwrap(), "RELEVO", &mut variables);
    assert!(variables.len() > 60, "{}", variables.len());
    for (name, value) in variables.into_iter().filter(|(name, _)| !name.ends_with("__ROUTES")) {
        let read = Config::read("relevo.toml", &text, [(name.clone(), value.clone())].into_iter());
        assert!(read.is_ok(), "{name}={value}: {}", read.unwrap_err());
    }
}

#[test]
fn the_first_file_is_valid_with_and_without_its_comments() {
    read(&example::first(example::FIRST_STORE)).unwrap();
    let text: String = example::first("sqlite:a\"b.db")
        .lines()
        .skip_while(|line| !line.starts_with("[store"))
        .map(|line| match line.strip_prefix("# ") {
            Some(rest) if rest.starts_with('[') || is_key(rest) => format!("{rest}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    let config = read(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(config.subscriptions["notify"].to, "out");
    assert_eq!(config.stores["main"].expose(), "sqlite:a\"b.db");
}
