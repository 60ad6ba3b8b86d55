//! The Kafka topic of an event.

use super::config::KafkaConfig;

/// The longest name that brokers take.
const LONGEST: usize = 249;

/// Where an event of this topic goes, or why it can go nowhere.
pub(super) fn of(topic: &str, config: &KafkaConfig) -> Result<String, String> {
    let name = match (&config.topic, &config.topic_prefix) {
        (Some(one), _) => one.clone(),
        (None, Some(prefix)) => format!("{prefix}{topic}"),
        (None, None) => topic.to_owned(),
    };
    check(&name)?;
    Ok(name)
}

/// Whether brokers take the name.
pub(super) fn check(name: &str) -> Result<(), String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.is_empty() || name.len() > LONGEST {
        return Err(format!("a Kafka topic has 1 to {LONGEST} characters, not {}", name.len()));
    }
    if matches!(name, "." | "..") || !name.bytes().all(allowed) {
        return Err(format!("{name:?} is no Kafka topic: letters, digits, '.', '_' and '-' only"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_events_topic_is_its_kafka_topic_unless_configured() {
        let config = KafkaConfig::to("kafka://h").unwrap();
        assert_eq!(of("ticket.created", &config).unwrap(), "ticket.created");
        let prefixed = config.clone().topic_prefix("shop.");
        assert_eq!(of("ticket.created", &prefixed).unwrap(), "shop.ticket.created");
        assert_eq!(of("a/b c", &config.clone().topic("events")).unwrap(), "events");
        for odd in ["", ".", "..", "a/b", "a b", "größe", &"x".repeat(250)] {
            assert!(of(odd, &config).is_err(), "{odd}");
        }
    }
}
