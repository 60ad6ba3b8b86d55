//! Several pipelines in one process: what fails in one is not felt by the others, at the start or later.

use crate::nats::{payloads, shared};
use crate::rabbitmq::Shop;
use crate::support::{Daemon, Endpoint, eventually, publish, run_cli, store};
use relevo_brokers::nats::NatsConfig;
use relevo_core::dead_letters::{DeadFilter, Operate};
use relevo_stores::sqlite::SqliteStore;
use relevo_testkit::services::{Nats, Proxy, unique_name};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

pub(crate) const EVENTS: u64 = 40;
pub(crate) const KEYS: u64 = 4;

/// A broker of each kind, and everything that can be wrong with one beside them.
struct Fleet<'f> {
    rabbit: &'f Shop,
    nats: &'f Nats,
    stream: &'f str,
    endpoint: &'f Endpoint,
    /// Accepts connections and stays silent.
    silent: &'f Proxy,
}

impl Fleet<'_> {
    fn configure(&self, folder: &Path) {
        let (rabbit, nats, stream) = (&self.rabbit.url, self.nats.url(), self.stream);
        let (endpoint, silent) = (self.endpoint.address, self.silent.address());
        let subscription = |name: &str, store: &str, to: &str| {
            format!("[subscription.{name}]\nstore = \"{store}\"\nto = \"{to}\"\n")
        };
        let broker = |name: &str, url: &str, options: &str| {
            let table = format!("[broker.{name}]\nurl = \"{url}\"\n{options}");
            table + &subscription(name, "shop", name)
        };
        let quick = "connect_timeout = \"2s\"\n";
        let text = [
            "[service]\nname = \"shop\"\n[http]\nlisten = \"127.0.0.1:0\"\n",
            "[limits]\nlease = \"3s\"\n[store.shop]\nurl = \"sqlite:shop.db\"\n",
            "[store.closed]\nurl = \"postgres://u@127.0.0.1:1/d\"\n",
            "[store.lost]\nurl = \"sqlite:no/such/folder/lost.db\"\n",
            &format!("[store.mute]\nurl = \"postgres://u@{silent}/d\"\n"),
            &broker("rabbit", rabbit, "exchange = \"events\"\n"),
            &broker("nats", &nats, &format!("subject_prefix = \"{stream}\"\n")),
            &broker("hook", &format!("http://{endpoint}/"), ""),
            &broker("nowhere", "amqp://no-such-host.invalid/", quick),
            &broker("silent", &format!("amqp://u:s3cret@{silent}/"), quick),
            &format!("[topology.nats.streams.{stream}]\nsubjects = [\"{stream}.>\"]\n"),
            &["closed", "lost", "mute"].map(|store| subscription(store, store, "hook")).concat(),
        ]
        .concat();
        std::fs::write(folder.join("relevo.toml"), text).unwrap();
    }
}

impl Fleet<'_> {
    /// All events of this wave are where nothing is wrong.
    async fn the_healthy_have(&self, wave: &Range<u64>) {
        let of_wave = |n: &u64| wave.contains(n);
        let config = NatsConfig::to(&self.nats.url()).unwrap();
        let came = payloads(config, self.stream, EVENTS as usize).await;
        complete_and_in_order("nats", came.iter().map(|body| number(body)).filter(of_wave));
        let came = self.endpoint.has_received(wave.end as usize).await;
        let numbers = came.iter().map(|request| number(&request.body));
        complete_and_in_order("http", numbers.filter(of_wave));
    }

    /// The broker that was away gets all of this wave, too.
    async fn rabbit_comes_back(&self, daemon: &Daemon, wave: &Range<u64>) {
        let server = self.rabbit.server.clone();
        tokio::task::spawn_blocking(move || server.restart().unwrap()).await.unwrap();
        eventually("all are confirmed", || async {
            let confirmed = metric(daemon, "outbox_published_total", "rabbit").await;
            confirmed.filter(|n| *n >= wave.end as f64)
        })
        .await;
        let came = self.rabbit.messages(wave.end as usize).await;
        let body = |message: &Value| number(message["payload"].as_str().unwrap());
        complete_and_in_order("rabbitmq", came.iter().map(body).filter(|n| wave.contains(n)));
        eventually("the breaker closes", || async {
            breaker(daemon, "rabbit").await.filter(|n| *n == 0.0)
        })
        .await;
    }
}

pub(crate) async fn place(store: &SqliteStore, wave: &Range<u64>) {
    for n in wave.clone() {
        publish(store, &format!("order-{}", n % KEYS), n).await;
    }
}

pub(crate) fn number(body: &str) -> u64 {
    let body: Value = serde_json::from_str(body).unwrap();
    body["n"].as_u64().unwrap()
}

/// First copies only: a confirm that was lost makes a second one, which an inbox drops.
pub(crate) fn complete_and_in_order(what: &str, bodies: impl Iterator<Item = u64>) {
    let mut seen = BTreeSet::new();
    let first: Vec<u64> = bodies.filter(|n| seen.insert(*n)).collect();
    assert_eq!(seen.len() as u64, EVENTS, "{what}: {first:?}");
    for key in 0..KEYS {
        let of_key: Vec<u64> = first.iter().copied().filter(|n| n % KEYS == key).collect();
        assert!(of_key.is_sorted(), "{what}, key {key}: {of_key:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_or_store_that_is_down_neither_stops_nor_delays_the_others_and_catches_up() {
    let (Some(rabbit), Some(nats)) = (Shop::alone().await, shared().await) else { return };
    let folder = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::start(|_| (200, Duration::ZERO)).await;
    let silent = Proxy::start(nats.address()).unwrap();
    silent.half_open();
    let stream = unique_name("ISLE");
    let (rabbit, nats) = (&rabbit, &*nats);
    let fleet = Fleet { rabbit, nats, stream: &stream, endpoint: &endpoint, silent: &silent };
    fleet.configure(folder.path());
    let applied = run_cli(folder.path(), &["topology", "apply"]).await;
    assert_eq!(applied.code, 0, "{}{}", applied.out, applied.err);
    let store = store(folder.path()).await;
    rabbit.server.stop();

    let mut daemon = Daemon::start(folder.path(), &[]).await;
    let wave = 0..EVENTS;
    place(&store, &wave).await;
    fleet.the_healthy_have(&wave).await;
    they_are_shown(&daemon, folder.path()).await;
    nothing_is_parked(&store, &["rabbit", "nowhere", "silent"]).await;
    fleet.rabbit_comes_back(&daemon, &wave).await;

    // The same in the middle of the run, when it has worked before.
    rabbit.server.stop();
    let wave = EVENTS..2 * EVENTS;
    place(&store, &wave).await;
    fleet.the_healthy_have(&wave).await;
    fleet.rabbit_comes_back(&daemon, &wave).await;
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end().await.code(), Some(0), "{}", daemon.said());
    assert!(!daemon.said().contains("s3cret"), "{}", daemon.said());
}

/// A daemon whose destination cannot be reached, with ten events that wait for it.
pub(crate) async fn ten_wait_for(folder: &Path, subscription: &str) -> Daemon {
    let (store, daemon) = (store(folder).await, Daemon::start(folder, &[]).await);
    for n in 0..10 {
        publish(&store, &format!("order-{n}"), n).await;
    }
    eventually("the breaker opens", || async {
        daemon.metric("relevo_breaker_open{").await.filter(|open| *open == 1.0)
    })
    .await;
    nothing_is_parked(&store, &[subscription]).await;
    daemon
}

/// What cannot be reached is not the events' fault: no key of these waits behind a failed event, nothing is given up.
pub(crate) async fn nothing_is_parked(store: &SqliteStore, subscriptions: &[&str]) {
    let status = store.status().await.unwrap().subscriptions;
    for name in subscriptions {
        let found = status.iter().find(|it| it.name == *name).unwrap();
        assert_eq!((found.parked_keys, found.parked_events), (0, 0), "{name}");
    }
    let letters = store.dead_letters(&DeadFilter::default(), None, 10).await.unwrap();
    assert!(letters.is_empty(), "{letters:?}");
}

pub(crate) async fn metric(daemon: &Daemon, name: &str, subscription: &str) -> Option<f64> {
    let labels = format!("{{service=\"shop\",subscription=\"{subscription}\"}}");
    daemon.metric(&format!("{name}{labels}")).await
}

pub(crate) async fn breaker(daemon: &Daemon, subscription: &str) -> Option<f64> {
    metric(daemon, "relevo_breaker_open", subscription).await
}

/// What is down is told by the metrics, by `/health/ready` and by `relevo status`; what works is not blamed.
async fn they_are_shown(daemon: &Daemon, folder: &Path) {
    for down in ["rabbit", "nowhere", "silent"] {
        eventually(&format!("the breaker of {down} opens"), || async {
            breaker(daemon, down).await.filter(|open| *open == 1.0)
        })
        .await;
    }
    for up in ["nats", "hook"] {
        assert_eq!(breaker(daemon, up).await, Some(0.0), "{up}");
    }
    let (_, ready) = daemon.ready().await;
    for store in ["closed", "lost", "mute"] {
        assert_eq!(ready["subscriptions"][store]["state"], "starting", "{ready}");
    }
    assert_eq!(ready["subscriptions"]["rabbit"]["breaker_open"], true, "{ready}");
    eventually("status tells of the breaker", || async {
        let status = run_cli(folder, &["status", "--store", "shop"]).await.out;
        let told = |name: &str| {
            status.lines().any(|line| line.starts_with(name) && line.contains("breaker"))
        };
        (told("rabbit") && !told("nats") && !told("hook")).then_some(())
    })
    .await;
}
