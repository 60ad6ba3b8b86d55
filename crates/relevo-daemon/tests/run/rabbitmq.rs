//! `relevo run` with a real RabbitMQ behind `amqp://` and `amqps://`.

use crate::isolation::{metric, ten_wait_for};
use crate::support::{Daemon, configure, eventually, publish, run_cli, store};
use relevo_core::dead_letters::Operate;
use relevo_testkit::services::{
    self, Certificates, ClientCertificates, Proxy, RabbitMq, RabbitMqOptions,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// A virtual host with an exchange `events` and a queue `orders` of all orders, made by the management API.
pub(crate) struct Shop {
    pub(crate) server: Arc<RabbitMq>,
    pub(crate) url: String,
    pub(crate) vhost: String,
}

impl Shop {
    pub(crate) async fn fresh() -> Option<Self> {
        let started = tokio::task::spawn_blocking(RabbitMq::shared).await.unwrap();
        Some(Self::on(services::require(started)?))
    }

    /// On a server of this test alone, which it may stop.
    pub(crate) async fn alone() -> Option<Self> {
        let started = tokio::task::spawn_blocking(RabbitMq::start).await.unwrap();
        Some(Self::on(Arc::new(services::require(started)?)))
    }

    /// A virtual host with nothing in it yet.
    fn empty(server: Arc<RabbitMq>) -> Self {
        let url = server.fresh_vhost().unwrap();
        let vhost = url.rsplit('/').next().unwrap().to_owned();
        Self { server, url, vhost }
    }

    fn on(server: Arc<RabbitMq>) -> Self {
        let shop = Self::empty(server);
        shop.put("exchanges", "/events", &json!({"type": "topic", "durable": true}));
        shop.put(
            "queues",
            "/orders",
            &json!({"durable": true, "arguments": {"x-queue-type": "quorum"}}),
        );
        let binding = json!({"routing_key": "order.#"}).to_string();
        for exchange in ["events", "amq.topic"] {
            let path = format!("/api/bindings/{}/e/{exchange}/q/orders", shop.vhost);
            shop.server.api("POST", &path, &binding).unwrap();
        }
        shop
    }

    pub(crate) fn put(&self, what: &str, name: &str, body: &Value) {
        let path = format!("/api/{what}/{}{name}", self.vhost);
        self.server.api("PUT", &path, &body.to_string()).unwrap();
    }

    /// What the queue has, looked at without taking it.
    pub(crate) async fn messages(&self, count: usize) -> Vec<Value> {
        self.messages_of("orders", count).await
    }

    /// The same of another queue.
    pub(crate) async fn messages_of(&self, queue: &str, count: usize) -> Vec<Value> {
        let path = format!("/api/queues/{}/{queue}/get", self.vhost);
        let look = json!({"count": 1000, "ackmode": "ack_requeue_true", "encoding": "auto"});
        eventually(&format!("{count} messages in the queue"), || async {
            let answer = self.server.api("POST", &path, &look.to_string()).ok()?;
            let messages: Vec<Value> = serde_json::from_str(&answer).ok()?;
            (messages.len() >= count).then_some(messages)
        })
        .await
    }

    /// Who is connected, once the broker tells: the user, the way of the login, and whether it is by TLS.
    async fn logins(&self) -> Vec<Value> {
        let path = format!("/api/vhosts/{}/connections", self.vhost);
        eventually("the broker tells who is there", || async {
            let answer = self.server.api("GET", &path, "").ok()?;
            let all: Vec<Value> = serde_json::from_str(&answer).ok()?;
            let login = |it: &Value| json!([it["user"], it["auth_mechanism"], it["ssl"]]);
            let logins: Vec<Value> = all.iter().map(login).collect();
            let is_told = |it: &Value| it.as_array().unwrap().iter().all(|part| !part.is_null());
            (!logins.is_empty() && logins.iter().all(is_told)).then_some(logins)
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_arrive_in_the_queue_with_their_headers() {
    let Some(shop) = Shop::fresh().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let broker = format!(
        "[broker.rabbit]\nurl = \"{}\"\nexchange = \"events\"\n[subscription.rabbit]\nstore = \"shop\"\nto = \"rabbit\"\n",
        shop.url
    );
    configure(folder.path(), "stdout:", &broker);
    let store = store(folder.path()).await;
    let daemon = Daemon::start(folder.path(), &[]).await;
    let mut ids = Vec::new();
    for n in 0..20 {
        ids.push(publish(&store, &format!("order-{}", n % 4), n).await.to_string());
    }
    let messages = shop.messages(20).await;
    assert_eq!(messages.len(), 20);
    let id = |message: &Value| message["properties"]["message_id"].as_str().unwrap().to_owned();
    let mut came: Vec<String> = messages.iter().map(id).collect();
    came.sort();
    ids.sort();
    assert_eq!(came, ids);
    let first = &messages[0];
    assert_eq!(first["routing_key"], "order.placed");
    assert_eq!(first["properties"]["headers"]["cloudEvents_specversion"], "1.0");
    assert_eq!(first["properties"]["headers"]["cloudEvents_source"], "shop");
    assert_eq!(first["properties"]["delivery_mode"], 2);
    assert!(!daemon.said().contains("relevo:relevo"), "a password: {}", daemon.said());
}

#[tokio::test(flavor = "multi_thread")]
async fn while_rabbitmq_cannot_be_reached_nothing_is_parked_and_all_arrives_afterwards() {
    let Some(shop) = Shop::fresh().await else { return };
    let proxy = Proxy::start(shop.server.address()).unwrap();
    proxy.refuse();
    let folder = tempfile::tempdir().unwrap();
    configure(folder.path(), &proxy.url(&shop.url), "");
    let _daemon = ten_wait_for(folder.path(), "hook").await;
    proxy.heal();
    assert_eq!(shop.messages(10).await.len(), 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_in_the_middle_loses_no_confirm_and_the_next_daemon_goes_on() {
    const EVENTS: usize = 400;
    let Some(shop) = Shop::fresh().await else { return };
    let folder = tempfile::tempdir().unwrap();
    configure(folder.path(), &shop.url, "");
    let store = store(folder.path()).await;
    let mut daemon = Daemon::start(folder.path(), &[]).await;
    for n in 0..EVENTS as u64 {
        publish(&store, &format!("order-{}", n % 7), n).await;
    }
    shop.messages(1).await;
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end().await.code(), Some(0), "{}", daemon.said());
    assert_eq!(store.status().await.unwrap().subscriptions[0].lanes_owned, 0);
    let _next = Daemon::start(folder.path(), &[]).await;
    let messages = shop.messages(EVENTS).await;
    // What was confirmed was recorded before the first one ended: nothing came twice.
    let numbers: BTreeSet<&str> = messages.iter().filter_map(|m| m["payload"].as_str()).collect();
    assert_eq!((messages.len(), numbers.len()), (EVENTS, EVENTS));
}

/// One whose confirm came, and one whose confirm is held back.
const HELD: usize = 2;

/// A daemon whose messages RabbitMQ has, while its confirm of the second is held back.
async fn awaiting_confirms(shop: &Shop, proxy: &Proxy, folder: &Path, limits: &str) -> Daemon {
    configure(folder, &proxy.url(&shop.url), limits);
    let store = store(folder).await;
    let daemon = Daemon::start(folder, &[]).await;
    publish(&store, "order-0", 0).await;
    shop.messages(1).await;
    eventually("the first one is recorded", || async {
        (store.status().await.unwrap().subscriptions[0].backlog == 0).then_some(())
    })
    .await;
    proxy.hold_replies();
    for n in 1..HELD as u64 {
        publish(&store, &format!("order-{n}"), n).await;
    }
    shop.messages(HELD).await;
    daemon
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_waits_for_confirms_that_are_on_their_way_and_nothing_comes_twice() {
    let Some(shop) = Shop::fresh().await else { return };
    let proxy = Proxy::start(shop.server.address()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = awaiting_confirms(&shop, &proxy, folder.path(), "").await;
    daemon.signal(Signal::TERM);
    let heard =
        || async { Some(()).filter(|()| daemon.said().contains("finishing what is under way")) };
    eventually("the signal is heard", heard).await;
    let store = store(folder.path()).await;
    assert!(store.status().await.unwrap().subscriptions[0].lanes_owned > 0, "it waits");
    proxy.heal();
    assert_eq!(daemon.end().await.code(), Some(0), "{}", daemon.said());
    let _next = Daemon::start(folder.path(), &[]).await;
    publish(&store, "last", HELD as u64).await;
    assert_eq!(shop.messages(HELD + 1).await.len(), HELD + 1, "what was confirmed was recorded");
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_waits_no_longer_for_confirms_than_the_configuration_says() {
    let Some(shop) = Shop::fresh().await else { return };
    let proxy = Proxy::start(shop.server.address()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let limits = "[limits]\nlease = \"1s\"\ndrain = \"1s\"\n";
    let mut daemon = awaiting_confirms(&shop, &proxy, folder.path(), limits).await;
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end().await.code(), Some(3), "{}", daemon.said());
    assert!(daemon.said().contains("not everything under way ended within 1s"));
    proxy.heal();
    // Nobody confirmed them: they are published again.
    let _next = Daemon::start(folder.path(), &[]).await;
    let messages = shop.messages(2 * HELD - 1).await;
    let numbers: BTreeSet<&str> = messages.iter().filter_map(|m| m["payload"].as_str()).collect();
    assert_eq!((messages.len(), numbers.len()), (2 * HELD - 1, HELD));
}

/// A server whose port with TLS lets clients speak without a certificate, too: it is the login that refuses.
async fn with_tls() -> Option<Arc<RabbitMq>> {
    let certificates = services::require(Certificates::shared())?;
    let options = RabbitMqOptions::new().tls(&certificates, ClientCertificates::Optional);
    let started = tokio::task::spawn_blocking(move || RabbitMq::start_with(&options)).await;
    services::require(started.unwrap()).map(Arc::new)
}

/// A broker `rabbit` with these keys, and an exchange and a queue that `relevo topology` is to make there.
fn by_tls(folder: &Path, url: &str, keys: &str) {
    let broker = format!(
        "[broker.rabbit]\nurl = \"{url}\"\nexchange = \"events\"\n{keys}\
         [subscription.rabbit]\nstore = \"shop\"\nto = \"rabbit\"\n\
         [topology.rabbit.exchanges.events]\n\
         [topology.rabbit.queues.orders]\nbind = {{ events = [\"order.#\"] }}\n"
    );
    configure(folder, "stdout:", &broker);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_way_to_log_in_is_a_matter_of_configuration() {
    let Some(server) = with_tls().await else { return };
    let files = server.tls_files().unwrap();
    let quoted = |path: &Path| format!("{:?}", path.display().to_string());
    let authority = format!("ca_file = {}\n", quoted(&files.ca));
    let certificate = format!(
        "{authority}client_cert = {}\nclient_key = {}\n",
        quoted(&files.certificate),
        quoted(&files.key)
    );
    let key = std::fs::read_to_string(&files.key).unwrap();
    let key = key.lines().find(|line| !line.starts_with('-')).unwrap();
    for (login, parameters, keys, way) in [
        ("relevo:relevo@", "", authority, "PLAIN"),
        ("", "?auth_mechanism=external", certificate, "EXTERNAL"),
    ] {
        let (folder, shop) = (tempfile::tempdir().unwrap(), Shop::empty(server.clone()));
        let url = server.tls_url(&shop.url).replace("relevo:relevo@", login) + parameters;
        by_tls(folder.path(), &url, &keys);
        let applied = run_cli(folder.path(), &["topology", "apply"]).await;
        assert_eq!(applied.code, 0, "{way}: {}{}", applied.out, applied.err);
        let store = store(folder.path()).await;
        let everything = [("RELEVO_LOG", "trace")];
        let daemon = Daemon::start_with(folder.path(), &[], &everything).await;
        publish(&store, "k", 1).await;
        eventually("it is confirmed", || async {
            metric(&daemon, "outbox_published_total", "rabbit").await.filter(|n| *n == 1.0)
        })
        .await;
        let logins = shop.logins().await;
        assert!(logins.iter().all(|it| *it == json!(["relevo", way, true])), "{logins:?}");
        assert_eq!(shop.messages(1).await[0]["payload"], r#"{"n":1}"#);
        let said = format!("{}{}{}", daemon.said(), applied.out, applied.err);
        assert!(!said.contains("relevo:relevo") && !said.contains(key), "a secret: {said}");
    }
}
