//! `relevo run` with a real NATS behind `nats://` and `tls://`.

use crate::isolation::ten_wait_for;
use crate::support::{Daemon, configure, eventually, publish, run_cli, store};
use relevo_brokers::nats::{NatsConfig, NatsConsumer, NatsSubscriber};
use relevo_core::broker::{Incoming, Received, Settle, Subscriber};
use relevo_testkit::services::{
    self, Certificates, ClientCertificates, Nats, NatsLogin, NatsOptions, Proxy, unique_name,
};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The server that all tests here share.
pub(crate) async fn shared() -> Option<Arc<Nats>> {
    services::require(tokio::task::spawn_blocking(Nats::shared).await.unwrap())
}

/// The payloads of a stream in its order, once so many different messages are there.
pub(crate) async fn payloads(config: NatsConfig, stream: &str, count: usize) -> Vec<String> {
    let messages = messages(config, stream, count).await;
    messages.iter().map(|message| String::from_utf8(message.payload.to_vec()).unwrap()).collect()
}

async fn messages(config: NatsConfig, stream: &str, count: usize) -> Vec<Incoming> {
    let consumer = NatsConsumer::new(stream, "test");
    let mut receiver = NatsSubscriber::new(config, consumer).open().await.unwrap();
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
    all
}

/// relevo.toml with a broker `hook` at `url`, its `options`, and a stream of the subjects `PREFIX.>`.
fn with_stream(folder: &Path, url: &str, options: &str, stream: &str, prefix: &str) {
    let topology = format!(
        "[topology.hook.streams.{stream}]\nsubjects = [\"{prefix}.>\"]\nmax_age = \"1d\"\n"
    );
    configure(folder, url, &topology);
    let file = folder.join("relevo.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let url = format!("url = \"{url}\"\n");
    std::fs::write(file, text.replace(&url, &format!("{url}{options}"))).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn events_arrive_in_the_stream_in_the_order_of_their_key() {
    let Some(server) = shared().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let (stream, prefix) = (unique_name("SHOP"), unique_name("shop"));
    let options = format!(
        "stream = \"{stream}\"\nsubject_prefix = \"{prefix}\"\nwindow = 5\nwindow_bytes = 4096\n\
         confirm_timeout = \"30s\"\nconnect_timeout = \"20s\"\n"
    );
    with_stream(folder.path(), "nats://127.0.0.1:1", &options, &stream, &prefix);
    // The URL carries the password: it is kept in a file of its own.
    std::fs::write(folder.path().join("url"), server.url()).unwrap();
    let file = folder.path().join("relevo.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("url = \"nats://127.0.0.1:1\"", "url_file = \"url\""))
        .unwrap();
    let applied = run_cli(folder.path(), &["topology", "apply"]).await;
    assert_eq!(applied.code, 0, "{}", applied.err);
    let store = store(folder.path()).await;
    let daemon = Daemon::start(folder.path(), &[]).await;
    for n in 0..60 {
        publish(&store, &format!("order-{}", n % 4), n).await;
    }
    let config = NatsConfig::to(&server.url()).unwrap();
    let came = messages(config, &stream, 60).await;
    assert_eq!(came[0].topic, format!("{prefix}.order.placed"));
    let header = |name: &str| {
        let found = came[0].headers.iter().find(|(given, _)| given.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    };
    assert_eq!((header("ce-source"), header("ce-type")), (Some("shop"), Some("order.placed")));
    for key in 0..4 {
        let number = |message: &Incoming| {
            let body: serde_json::Value = serde_json::from_slice(&message.payload).unwrap();
            body["n"].as_u64().unwrap()
        };
        let of_key: Vec<u64> = came.iter().map(number).filter(|n| n % 4 == key).collect();
        assert!(of_key.is_sorted() && of_key.len() == 15, "key {key}: {of_key:?}");
    }
    let said = daemon.said();
    assert!(!said.contains("relevo:relevo") && said.contains("hook (nats://127.0.0.1:"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn while_nats_cannot_be_reached_nothing_is_parked_and_all_arrives_afterwards() {
    let Some(server) = shared().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let (stream, prefix) = (unique_name("SHOP"), unique_name("shop"));
    let options = format!("subject_prefix = \"{prefix}\"\n");
    with_stream(folder.path(), &proxy.url(&server.url()), &options, &stream, &prefix);
    let applied = run_cli(folder.path(), &["topology", "apply"]).await;
    assert_eq!(applied.code, 0, "{}", applied.err);
    proxy.refuse();
    let _daemon = ten_wait_for(folder.path(), "hook").await;
    proxy.heal();
    let config = NatsConfig::to(&server.url()).unwrap();
    assert_eq!(payloads(config, &stream, 10).await.len(), 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subject_that_no_stream_stores_is_a_dead_letter_with_its_reason() {
    let Some(server) = shared().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let prefix = unique_name("nobody");
    let options = format!("subject_prefix = \"{prefix}\"\n");
    with_stream(folder.path(), &server.url(), &options, "UNUSED", "unused");
    let store = store(folder.path()).await;
    let daemon = Daemon::start(folder.path(), &[]).await;
    publish(&store, "k", 1).await;
    let letters = eventually("a dead letter", || async {
        let listed = run_cli(folder.path(), &["dead-letters", "list"]).await.out;
        listed.contains("no stream stores").then_some(listed)
    })
    .await;
    assert!(letters.contains("permanent"), "{letters}");
    assert_eq!(daemon.metric("relevo_breaker_open{").await, Some(0.0));
}

/// What a server of this kind wants to know of its clients, as keys of relevo.toml.
fn login(server: &Nats, folder: &Path) -> String {
    let quoted = |path: &Path| format!("{:?}", path.display().to_string());
    let mut keys = String::new();
    if let Some(seed) = server.seed() {
        std::fs::write(folder.join("nkey.seed"), format!("{seed}\n")).unwrap();
        keys += "nkey_file = \"nkey.seed\"\n";
    }
    if let Some(file) = server.credentials_file() {
        std::fs::copy(file, folder.join("user.creds")).unwrap();
        keys += "credentials_file = \"user.creds\"\n";
    }
    if let Some(files) = server.tls_files() {
        keys += &format!("ca_file = {}\n", quoted(&files.ca));
        keys += &format!("client_cert = {}\n", quoted(&files.certificate));
        keys += &format!("client_key = {}\n", quoted(&files.key));
    }
    keys
}

/// The token and the seed of a credentials file: its only long lines without a blank.
fn secrets_of(server: &Nats) -> Vec<String> {
    let Some(file) = server.credentials_file() else { return Vec::new() };
    let text = std::fs::read_to_string(file).unwrap();
    let is_secret = |line: &&str| line.len() > 50 && !line.contains(' ');
    let secrets: Vec<String> = text.lines().filter(is_secret).map(str::to_owned).collect();
    assert_eq!(secrets.len(), 2, "a token and a seed");
    secrets
}

#[tokio::test(flavor = "multi_thread")]
async fn every_way_to_log_in_is_a_matter_of_configuration() {
    let Some(certificates) = services::require(Certificates::shared()) else { return };
    let mutual = NatsOptions::new().tls(&certificates, ClientCertificates::Required);
    for options in [
        NatsOptions::new().login(NatsLogin::Nkey),
        NatsOptions::new().login(NatsLogin::Credentials),
        mutual,
    ] {
        let started = tokio::task::spawn_blocking(move || Nats::start_with(&options)).await;
        let Some(server) = services::require(started.unwrap()) else { return };
        let folder = tempfile::tempdir().unwrap();
        let keys = login(&server, folder.path());
        with_stream(folder.path(), &server.url(), &keys, "ORDERS", "order");
        let applied = run_cli(folder.path(), &["topology", "apply"]).await;
        assert_eq!(applied.code, 0, "{keys}{}{}", applied.out, applied.err);
        let store = store(folder.path()).await;
        let everything = [("RELEVO_LOG", "trace")];
        let daemon = Daemon::start_with(folder.path(), &[], &everything).await;
        publish(&store, "k", 1).await;
        eventually("it is confirmed", || async {
            daemon.metric("outbox_published_total{").await.filter(|n| *n == 1.0)
        })
        .await;
        let said = format!("{}{}{}", daemon.said(), applied.out, applied.err);
        assert!(!said.contains("relevo:relevo"), "a password: {said}");
        assert!(server.seed().is_none_or(|seed| !said.contains(seed)), "a seed: {said}");
        for secret in secrets_of(&server) {
            assert!(!said.contains(&secret), "of the credentials: {said}");
        }
    }
}
