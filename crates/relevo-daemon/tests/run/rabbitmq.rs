//! `relevo run` with a real RabbitMQ behind `amqp://`.

use crate::isolation::ten_wait_for;
use crate::support::{Daemon, configure, eventually, publish, store};
use relevo_core::dead_letters::Operate;
use relevo_testkit::services::{self, Proxy, RabbitMq};
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

    fn on(server: Arc<RabbitMq>) -> Self {
        let url = server.fresh_vhost().unwrap();
        let vhost = url.rsplit('/').next().unwrap().to_owned();
        let shop = Self { server, url, vhost };
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
        let path = format!("/api/queues/{}/orders/get", self.vhost);
        let look = json!({"count": 1000, "ackmode": "ack_requeue_true", "encoding": "auto"});
        eventually(&format!("{count} messages in the queue"), || async {
            let answer = self.server.api("POST", &path, &look.to_string()).ok()?;
            let messages: Vec<Value> = serde_json::from_str(&answer).ok()?;
            (messages.len() >= count).then_some(messages)
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
