//! Brokers have the options of their adapters, and show no password.

use super::read;
use std::time::Duration;

#[test]
fn a_broker_has_the_options_of_its_adapter() {
    let text = "[broker.rabbit]\nurl = \"amqp://u:s3cret@h/shop\"\nexchange = \"orders\"\nwindow = 7\nconfirm_timeout = \"3s\"";
    let config = read(text).unwrap();
    let broker = &config.brokers["rabbit"];
    assert_eq!(broker.options.exchange.as_deref(), Some("orders"));
    assert_eq!(broker.options.window, Some(7));
    assert_eq!(broker.options.confirm_timeout, Some(Duration::from_secs(3)));
    assert!(!format!("{config:?} {broker}").contains("s3cret"));
}

#[test]
fn a_nats_server_has_the_options_of_its_adapter_and_shows_no_token() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("seed");
    std::fs::write(&file, "SUs3cret\n").unwrap();
    let text = format!(
        "[broker.n]\nurl = \"nats://s3cret@n1:4222,n2\"\nstream = \"ORDERS\"\nsubject_prefix = \"shop\"\n\
         domain = \"hub\"\nwindow = 7\nwindow_bytes = 8\nconfirm_timeout = \"3s\"\nconnect_timeout = \"4s\"\n\
         nkey_file = {:?}\n[subscription.s]\n[store.s]\nurl = \"sqlite:s.db\"\n",
        file.display().to_string()
    );
    let config = read(&text).unwrap_or_else(|error| panic!("{error}"));
    let broker = &config.brokers["n"];
    assert_eq!(broker.to_string(), "nats://n1:4222,nats://n2:4222");
    assert_eq!(broker.options.nkey.as_ref().unwrap().expose(), "SUs3cret");
    assert_eq!(broker.options.stream.as_deref(), Some("ORDERS"));
    assert_eq!(broker.options.connect_timeout, Some(Duration::from_secs(4)));
    assert!(config.subscriptions["s"].subscription.destination.contains("n1:4222"));
    assert!(!format!("{config:?} {broker}").contains("s3cret"));
}

#[cfg(feature = "kafka")]
#[test]
fn kafka_has_the_options_of_its_adapter_and_shows_no_password() {
    let of = |more: &str| {
        format!(
            "[broker.k]\nurl = \"kafkas://app:s3cret@k1,k2:9094\"\n{more}\n[subscription.s]\n\
             [store.s]\nurl = \"sqlite:s.db\"\n"
        )
    };
    let config = read(&of("compression = \"zstd\"\ntopic_prefix = \"shop.\"\nlinger = \"5ms\""));
    let config = config.unwrap_or_else(|error| panic!("{error}"));
    let broker = &config.brokers["k"];
    assert_eq!(broker.to_string(), "kafkas://k1:9092,k2:9094");
    assert_eq!(broker.options.linger, Some(Duration::from_millis(5)));
    assert!(!format!("{config:?} {broker}").contains("s3cret"));
    for (more, told) in [
        ("compression = \"gzip\"", "\"gzip\" is none of none, snappy, lz4, zstd"),
        ("sasl_mechanism = \"GSSAPI\"", "is none of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        ("ca_file = \"/no/ca.pem\"", "/no/ca.pem cannot be read"),
        ("stream = \"S\"", "stream is for nats://, tls://"),
    ] {
        let message = super::refused(&of(more));
        assert!(message.contains(told) && !message.contains("s3cret"), "{more}\n=> {message}");
    }
}
