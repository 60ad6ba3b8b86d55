//! Every limit that relevo.toml sets is the adapter's. What each does there, the adapters' own tests show.

use super::*;
use crate::config::Config;

/// A broker at `url`, with limits that no adapter has by itself.
fn limited(url: &str, more: &str) -> Broker {
    let text = format!(
        r#"
        [store.main]
        url = "sqlite:shop.db"
        [broker.hook]
        url = "{url}"
        window = 7
        window_bytes = 70_001
        confirm_timeout = "3s"
        connect_timeout = "1900ms"
        {more}
        [subscription.notify]
        "#
    );
    let config = Config::read("relevo.toml", &text, std::iter::empty()).unwrap();
    config.brokers["hook"].clone()
}

const WINDOW: (usize, usize) = (7, 70_001);
const TIMES: (Duration, Duration) = (Duration::from_secs(3), Duration::from_millis(1900));

#[test]
fn limits_of_rabbitmq_are_those_of_the_file() {
    let broker = limited("amqp://h", "blocked_limit = \"11s\"\nmax_message_bytes = 123_456");
    let config = rabbitmq::config(&broker, "shop").unwrap();
    assert_eq!((config.window, config.window_bytes), WINDOW);
    assert_eq!((config.confirm_timeout, config.connect_timeout), TIMES);
    assert_eq!(config.blocked_limit, Duration::from_secs(11));
    assert_eq!((config.max_message_bytes, config.source.as_str()), (123_456, "shop"));
}

#[test]
fn limits_of_nats_are_those_of_the_file() {
    let config = nats::config(&limited("nats://h", ""), "shop").unwrap();
    assert_eq!((config.max_in_flight, config.max_in_flight_bytes), WINDOW);
    assert_eq!((config.ack_timeout, config.connect_timeout), TIMES);
}

#[cfg(feature = "kafka")]
#[test]
fn limits_of_kafka_are_those_of_the_file() {
    use relevo_brokers::kafka::Compression;
    for compression in Compression::ALL {
        let more = format!("linger = \"13ms\"\ncompression = \"{}\"", compression.as_str());
        let config = kafka::config(&limited("kafka://h", &more), "shop").unwrap();
        assert_eq!((config.max_in_flight, config.max_in_flight_bytes), WINDOW);
        assert_eq!((config.ack_timeout, config.connect_timeout), TIMES);
        assert_eq!(config.linger, Duration::from_millis(13));
        assert_eq!(config.compression.as_str(), compression.as_str());
    }
}
