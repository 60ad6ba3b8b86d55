//! `relevo run` with a real Kafka behind `kafka://` and `kafkas://`.

use crate::secrets::shows;
use crate::support::{Daemon, configure, eventually, publish, run_cli, store};
use relevo_brokers::kafka::{KafkaConfig, KafkaConsumer, KafkaSubscriber};
use relevo_core::broker::{Incoming, Received, Settle, Subscriber};
use relevo_testkit::services::{self, Certificates, Kafka, KafkaOptions, unique_name};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The server that all tests here share.
pub(crate) async fn shared() -> Option<Arc<Kafka>> {
    services::require(tokio::task::spawn_blocking(Kafka::shared).await.unwrap())
}

/// A topic's messages, in the order of each partition, once so many different ones are there.
pub(crate) async fn messages(url: &str, topic: &str, count: usize) -> Vec<Incoming> {
    let consumer = KafkaConsumer::new(topic, unique_name("test"));
    let subscriber = KafkaSubscriber::new(KafkaConfig::to(url).unwrap(), consumer);
    let mut receiver = subscriber.open().await.unwrap();
    let (mut all, mut seen) = (Vec::new(), BTreeSet::new());
    while seen.len() < count {
        let next = tokio::time::timeout(Duration::from_secs(120), receiver.next(100)).await;
        let next = next.unwrap_or_else(|_| panic!("{} of {count} messages came", seen.len()));
        let Received::Messages { messages, .. } = next.unwrap() else { continue };
        let done: Vec<_> = messages.iter().map(|message| (message.tag, Settle::Done)).collect();
        receiver.settle(&done).await.unwrap();
        seen.extend(messages.iter().map(|message| message.payload.clone()));
        all.extend(messages);
    }
    receiver.close().await.unwrap();
    all
}

/// A server with TLS whose user `teller` has this password and may do everything.
pub(crate) async fn with_teller(password: &str) -> Option<Kafka> {
    let certificates = services::require(Certificates::shared())?;
    let options = KafkaOptions::new().tls(&certificates).user("teller", password);
    let options = options.setting("super.users", "User:ANONYMOUS;User:relevo;User:teller");
    let started = tokio::task::spawn_blocking(move || Kafka::start_with(&options)).await;
    services::require(started.unwrap())
}

/// Whom to believe, as a key of relevo.toml.
pub(crate) fn authority(server: &Kafka) -> String {
    format!("ca_file = {}\n", quoted(&server.tls_files().unwrap().ca))
}

fn quoted(path: &Path) -> String {
    format!("{:?}", path.display().to_string())
}

/// relevo.toml with a broker `hook` at `url`, its `options`, and a topic of three partitions.
pub(crate) fn with_topic(folder: &Path, url: &str, options: &str, topic: &str) {
    let topology = format!("[topology.hook.topics.\"{topic}\"]\npartitions = 3\n");
    configure(folder, url, &topology);
    let file = folder.join("relevo.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let url = format!("url = \"{url}\"\n");
    std::fs::write(file, text.replace(&url, &format!("{url}{options}"))).unwrap();
}

async fn apply(folder: &Path) {
    let applied = run_cli(folder, &["topology", "apply"]).await;
    assert_eq!(applied.code, 0, "{}{}", applied.out, applied.err);
}

async fn all_confirmed(daemon: &Daemon, count: f64) {
    eventually("they are confirmed", || async {
        daemon.metric("outbox_published_total{").await.filter(|n| *n == count)
    })
    .await;
}

pub(crate) fn number(message: &Incoming) -> u64 {
    let body: serde_json::Value = serde_json::from_slice(&message.payload).unwrap();
    body["n"].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn events_arrive_in_the_topic_in_the_order_of_their_key() {
    let Some(server) = shared().await else { return };
    let (folder, prefix) = (tempfile::tempdir().unwrap(), unique_name("shop"));
    let (url, topic) =
        (format!("kafka://{}", server.bootstrap()), format!("{prefix}.order.placed"));
    let options = format!(
        "topic_prefix = \"{prefix}.\"\ncompression = \"lz4\"\nwindow = 5\nwindow_bytes = 4096\n\
         confirm_timeout = \"60s\"\nconnect_timeout = \"30s\"\n"
    );
    with_topic(folder.path(), &url, &options, &topic);
    apply(folder.path()).await;
    let store = store(folder.path()).await;
    let daemon = Daemon::start(folder.path(), &[]).await;
    for n in 0..60 {
        publish(&store, &format!("order-{}", n % 4), n).await;
    }
    let came = messages(&url, &topic, 60).await;
    let header = |name: &str| {
        let found = came[0].headers.iter().find(|(given, _)| given.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    };
    assert_eq!((header("ce_source"), header("ce_type")), (Some("shop"), Some("order.placed")));
    for key in 0..4 {
        let of_key: Vec<u64> = came.iter().map(number).filter(|n| n % 4 == key).collect();
        assert!(of_key.is_sorted() && of_key.len() == 15, "key {key}: {of_key:?}");
    }
    assert!(daemon.said().contains("hook (kafka://127.0.0.1:"), "{}", daemon.said());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_not_there_is_a_dead_letter_with_its_reason() {
    let Some(server) = shared().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let options = format!("topic_prefix = \"{}.\"\n", unique_name("nobody"));
    with_topic(folder.path(), &format!("kafka://{}", server.bootstrap()), &options, "unused");
    let store = store(folder.path()).await;
    let daemon = Daemon::start(folder.path(), &[]).await;
    publish(&store, "k", 1).await;
    let letters = eventually("a dead letter", || async {
        let listed = run_cli(folder.path(), &["dead-letters", "list"]).await.out;
        listed.contains("order.placed").then_some(listed)
    })
    .await;
    assert!(letters.contains("permanent"), "{letters}");
    assert_eq!(daemon.metric("relevo_breaker_open{").await, Some(0.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_way_to_log_in_is_a_matter_of_configuration() {
    const PASSWORD: &str = "Nd6-scram-lets-in-Wy27";
    let Some(server) = with_teller(PASSWORD).await else { return };
    let (authority, files) = (authority(&server), server.tls_files().unwrap());
    let certificate = format!(
        "{authority}client_cert = {}\nclient_key = {}\n",
        quoted(&files.certificate),
        quoted(&files.key)
    );
    let scram = format!("kafkas://teller:{PASSWORD}@{}", server.scram_bootstrap().unwrap());
    let mutual = format!("kafkas://{}", server.mtls_bootstrap().unwrap());
    for (url, keys) in [(scram, authority), (mutual, certificate)] {
        let folder = tempfile::tempdir().unwrap();
        with_topic(folder.path(), &url, &keys, "order.placed");
        apply(folder.path()).await;
        let store = store(folder.path()).await;
        let everything = [("RELEVO_LOG", "trace")];
        let daemon = Daemon::start_with(folder.path(), &[], &everything).await;
        publish(&store, "k", 1).await;
        all_confirmed(&daemon, 1.0).await;
        assert!(!shows(&daemon.said(), PASSWORD), "a password: {}", daemon.said());
    }
}
