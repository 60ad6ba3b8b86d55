//! Keys of `[broker.NAME]`, written in relevo.toml, change what happens at a real broker.

use crate::nats;
use crate::rabbitmq::Shop;
use crate::support::{Daemon, configure, eventually, publish, run_cli, store};
use relevo_brokers::nats::NatsConfig;
use relevo_core::NewEvent;
use relevo_core::dead_letters::Operate;
use relevo_stores::sqlite::SqliteStore;
use relevo_testkit::services::{self, Nats, NatsOptions, RabbitMq, RabbitMqOptions, unique_name};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// relevo.toml with a broker `hook` at `url` and these keys of it.
pub(crate) fn with_keys(folder: &Path, url: &str, keys: &str, more: &str) {
    configure(folder, url, more);
    let file = folder.join("relevo.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let url = format!("url = \"{url}\"\n");
    std::fs::write(file, text.replace(&url, &format!("{url}{keys}"))).unwrap();
}

/// Waits until so many events are confirmed.
pub(crate) async fn confirmed(daemon: &Daemon, count: f64) {
    eventually("they are confirmed", || async {
        daemon.metric("outbox_published_total{").await.filter(|n| *n == count)
    })
    .await;
}

/// Waits for a dead letter of this class.
async fn dead_letter(folder: &Path, class: &str) -> String {
    eventually("a dead letter", || async {
        let listed = run_cli(folder, &["dead-letters", "list"]).await.out;
        listed.contains(class).then_some(listed)
    })
    .await
}

/// An event whose payload has so many bytes.
pub(crate) async fn publish_bytes(store: &SqliteStore, bytes: usize) {
    let event = NewEvent::bytes("order.placed", vec![b'x'; bytes]).key(format!("of {bytes}"));
    store.publish_now(event).await.unwrap();
}

/// A payload above the limit of relevo.toml, which the broker itself would take, is a dead letter; a smaller one is
/// stored.
pub(crate) async fn only_the_larger_one_dies(folder: &Path, limit: usize) {
    let (store, daemon) = (store(folder).await, Daemon::start(folder, &[]).await);
    publish_bytes(&store, limit * 2).await;
    publish_bytes(&store, limit / 4).await;
    let letters = dead_letter(folder, "poison").await;
    confirmed(&daemon, 1.0).await;
    assert_eq!(letters.matches("order.placed").count(), 1, "{letters}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_leads_its_topics_to_another_exchange() {
    let Some(shop) = Shop::fresh().await else { return };
    shop.put("exchanges", "/billing", &json!({"type": "topic", "durable": true}));
    shop.put("queues", "/invoices", &json!({"durable": true}));
    let binding = json!({"routing_key": "#"}).to_string();
    let path = format!("/api/bindings/{}/e/billing/q/invoices", shop.vhost);
    shop.server.api("POST", &path, &binding).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let keys = "exchange = \"events\"\n\
                routes = [{ topics = \"invoice.#\", exchange = \"billing\" }]\n";
    with_keys(folder.path(), &shop.url, keys, "");
    let store = store(folder.path()).await;
    let _daemon = Daemon::start(folder.path(), &[]).await;
    publish(&store, "k", 1).await;
    let invoice = NewEvent::json("invoice.sent", &json!({ "n": 2 })).unwrap();
    store.publish_now(invoice).await.unwrap();
    for (queue, topic) in [("orders", "order.placed"), ("invoices", "invoice.sent")] {
        let came = shop.messages_of(queue, 1).await;
        let topics: Vec<&str> = came.iter().filter_map(|it| it["routing_key"].as_str()).collect();
        assert_eq!(topics, [topic], "{queue}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rabbitmq_is_sent_nothing_larger_than_the_configuration_says() {
    let Some(shop) = Shop::fresh().await else { return };
    let folder = tempfile::tempdir().unwrap();
    with_keys(folder.path(), &shop.url, "max_message_bytes = 2000\n", "");
    only_the_larger_one_dies(folder.path(), 2000).await;
    assert_eq!(shop.messages(1).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_connection_is_waited_for_as_long_as_the_configuration_says() {
    // Longer than it is if nothing is said.
    const LIMIT: Duration = Duration::from_secs(8);
    let options = RabbitMqOptions::new().line("vm_memory_high_watermark.absolute = 1MB");
    let started = tokio::task::spawn_blocking(move || RabbitMq::start_with(&options)).await;
    let Some(server) = services::require(started.unwrap()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let keys = format!("blocked_limit = \"{}s\"\n", LIMIT.as_secs());
    with_keys(folder.path(), &server.url(), &keys, "");
    let store = store(folder.path()).await;
    let daemon = Daemon::start(folder.path(), &[]).await;
    let began = Instant::now();
    for n in 0..5 {
        publish(&store, &format!("order-{n}"), n).await;
    }
    eventually("the breaker opens", || async {
        daemon.metric("relevo_breaker_open{").await.filter(|open| *open == 1.0)
    })
    .await;
    assert!(began.elapsed() >= LIMIT, "after {:?}", began.elapsed());
}

async fn server(options: NatsOptions) -> Option<Nats> {
    let started = tokio::task::spawn_blocking(move || Nats::start_with(&options)).await;
    services::require(started.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_domain_is_the_jetstream_that_events_and_topology_go_to() {
    let Some(hub) = server(NatsOptions::new().domain("hub")).await else { return };
    let leaf = NatsOptions::new().domain("leaf").leaf_of(&hub);
    let Some(leaf) = server(leaf).await else { return };
    let (folder, stream) = (tempfile::tempdir().unwrap(), unique_name("SHOP"));
    let topology = format!("[topology.hook.streams.{stream}]\nsubjects = [\"order.>\"]\n");
    with_keys(folder.path(), &leaf.url(), "domain = \"hub\"\n", &topology);
    eventually("the leaf knows the hub", || async {
        let applied = run_cli(folder.path(), &["topology", "apply"]).await;
        (applied.code == 0).then_some(())
    })
    .await;
    let checked = run_cli(folder.path(), &["topology", "check"]).await;
    assert_eq!(checked.code, 0, "{}{}", checked.out, checked.err);
    let store = store(folder.path()).await;
    let _daemon = Daemon::start(folder.path(), &[]).await;
    publish(&store, "k", 1).await;
    let at_hub = NatsConfig::to(&hub.url()).unwrap();
    assert_eq!(nats::payloads(at_hub, &stream, 1).await, [r#"{"n":1}"#]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_stream_than_the_configured_one_would_store_is_a_dead_letter() {
    let Some(server) = nats::shared().await else { return };
    let (folder, stream, prefix) =
        (tempfile::tempdir().unwrap(), unique_name("SHOP"), unique_name("shop"));
    let topology = format!("[topology.hook.streams.{stream}]\nsubjects = [\"{prefix}.>\"]\n");
    let keys = format!("stream = \"ANOTHER\"\nsubject_prefix = \"{prefix}\"\n");
    with_keys(folder.path(), &server.url(), &keys, &topology);
    let applied = run_cli(folder.path(), &["topology", "apply"]).await;
    assert_eq!(applied.code, 0, "{}{}", applied.out, applied.err);
    let store = store(folder.path()).await;
    let daemon = Daemon::start(folder.path(), &[]).await;
    publish(&store, "k", 1).await;
    let letters = dead_letter(folder.path(), "permanent").await;
    assert!(letters.contains("expected stream does not match"), "{letters}");
    let published = daemon.metric("outbox_published_total{").await;
    assert!(published.is_none_or(|count| count == 0.0), "{published:?}");
}

#[cfg(feature = "kafka")]
mod kafka {
    use super::*;
    use crate::kafka::{authority, messages, shared, with_topic};
    use relevo_testkit::services::{Certificates, Kafka, KafkaOptions};

    async fn apply(folder: &Path) {
        let applied = run_cli(folder, &["topology", "apply"]).await;
        assert_eq!(applied.code, 0, "{}{}", applied.out, applied.err);
    }

    /// A topic of its own for `order.placed`, and these keys of the broker.
    async fn prepare(server: &Arc<Kafka>, folder: &Path, keys: &str) -> (String, String) {
        let (url, prefix) = (format!("kafka://{}", server.bootstrap()), unique_name("shop"));
        let topic = format!("{prefix}.order.placed");
        with_topic(folder, &url, &format!("topic_prefix = \"{prefix}.\"\n{keys}"), &topic);
        apply(folder).await;
        (url, topic)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn kafka_is_sent_nothing_larger_than_the_configuration_says() {
        let Some(server) = shared().await else { return };
        let folder = tempfile::tempdir().unwrap();
        let (url, topic) = prepare(&server, folder.path(), "max_message_bytes = 4000\n").await;
        only_the_larger_one_dies(folder.path(), 4000).await;
        assert_eq!(messages(&url, &topic, 1).await[0].payload.len(), 1000);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_message_waits_for_others_as_long_as_the_configuration_says() {
        const LINGER: Duration = Duration::from_secs(3);
        let Some(server) = shared().await else { return };
        let folder = tempfile::tempdir().unwrap();
        let keys = format!("linger = \"{}s\"\n", LINGER.as_secs());
        prepare(&server, folder.path(), &keys).await;
        let store = store(folder.path()).await;
        let daemon = Daemon::start(folder.path(), &[]).await;
        let began = Instant::now();
        publish(&store, "k", 1).await;
        confirmed(&daemon, 1.0).await;
        assert!(began.elapsed() >= LINGER, "after {:?}", began.elapsed());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_password_is_proved_in_the_way_that_the_configuration_says() {
        let Some(certificates) = services::require(Certificates::shared()) else { return };
        let options = KafkaOptions::new().tls(&certificates).user("teller", "Qe9-only-sha-256");
        let options = options.setting("super.users", "User:ANONYMOUS;User:relevo;User:teller");
        // Without a word of it the login would be by SCRAM-SHA-512, which these brokers do not know.
        let options = options.setting("sasl.enabled.mechanisms", "SCRAM-SHA-256");
        let started = tokio::task::spawn_blocking(move || Kafka::start_with(&options)).await;
        let Some(server) = services::require(started.unwrap()) else { return };
        let folder = tempfile::tempdir().unwrap();
        let url = format!("kafkas://teller:Qe9-only-sha-256@{}", server.scram_bootstrap().unwrap());
        let keys = format!("{}sasl_mechanism = \"SCRAM-SHA-256\"\n", authority(&server));
        with_topic(folder.path(), &url, &keys, "order.placed");
        apply(folder.path()).await;
        let store = store(folder.path()).await;
        let daemon = Daemon::start(folder.path(), &[]).await;
        publish(&store, "k", 1).await;
        confirmed(&daemon, 1.0).await;
    }
}
