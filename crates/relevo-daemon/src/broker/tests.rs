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

/// A relay that gave up first would call everything unknown, also what was never sent or is stored.
#[test]
fn a_relay_waits_longer_than_the_longest_limits_of_each_adapter_together() {
    let longest = |url: &str, more: &str| {
        let limits = format!("confirm_timeout = \"1m\"\nconnect_timeout = \"1m\"\n{more}");
        let text = format!("[broker.hook]\nurl = \"{url}\"\n{limits}");
        Config::read("relevo.toml", &text, std::iter::empty()).unwrap().brokers["hook"].clone()
    };
    let minutes = |count: u64| Some(Duration::from_secs(60 * count));
    let rabbitmq = longest("amqp://h", "blocked_limit = \"1m\"");
    assert!(rabbitmq::publisher(&rabbitmq, "shop").unwrap().publish_limit() > minutes(6));
    let nats = longest("nats://one,two,three", "");
    assert!(nats::publisher(&nats, "shop").unwrap().publish_limit() > minutes(6));
    #[cfg(feature = "kafka")]
    {
        let kafka = longest("kafka://h", "linger = \"59s\"");
        assert!(kafka::publisher(&kafka, "shop").unwrap().publish_limit() > minutes(5));
    }
}

/// What the file may say at most is what the adapter keeps.
#[test]
fn the_largest_window_of_rabbitmq_is_not_cut() {
    let text = "[broker.hook]\nurl = \"amqp://h\"\nwindow = 100_000\nwindow_bytes = 1_073_741_824";
    let config = Config::read("relevo.toml", text, std::iter::empty()).unwrap();
    let config = rabbitmq::config(&config.brokers["hook"], "shop").unwrap();
    assert_eq!((config.window, config.window_bytes), (100_000, 1 << 30));
}
