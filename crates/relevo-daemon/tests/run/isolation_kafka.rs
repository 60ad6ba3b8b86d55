//! Kafka among other brokers in one process: what fails there is not felt by them, and the other way round.

use crate::isolation::{
    EVENTS, breaker, complete_and_in_order, metric, nothing_is_parked, number, place,
};
use crate::kafka::{self, messages};
use crate::nats::{payloads, shared};
use crate::rabbitmq::Shop;
use crate::support::{Daemon, Endpoint, eventually, run_cli, store};
use relevo_brokers::nats::NatsConfig;
use relevo_core::dead_letters::Operate;
use relevo_testkit::services::{self, Kafka, Nats, Proxy, unique_name};
use rustix::process::Signal;
use serde_json::Value;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A Kafka that may be stopped, and beside it one of each other kind, which cannot be reached when that is wanted.
struct Fleet {
    kafka: Kafka,
    prefix: String,
    rabbit: Shop,
    to_rabbit: Proxy,
    nats: Arc<Nats>,
    stream: String,
    to_nats: Proxy,
    endpoint: Endpoint,
    to_endpoint: Proxy,
}

impl Fleet {
    async fn start() -> Option<Fleet> {
        let kafka = tokio::task::spawn_blocking(Kafka::start).await.unwrap();
        let kafka = services::require(kafka)?;
        let (rabbit, nats) = (Shop::fresh().await?, shared().await?);
        let endpoint = Endpoint::start(|_| (200, Duration::ZERO)).await;
        Some(Fleet {
            kafka,
            prefix: unique_name("isle"),
            to_rabbit: Proxy::start(rabbit.server.address()).unwrap(),
            rabbit,
            to_nats: Proxy::start(nats.address()).unwrap(),
            nats,
            stream: unique_name("ISLE"),
            to_endpoint: Proxy::start(endpoint.address).unwrap(),
            endpoint,
        })
    }

    fn topic(&self) -> String {
        format!("{}.order.placed", self.prefix)
    }

    fn kafka_url(&self) -> String {
        format!("kafka://{}", self.kafka.bootstrap())
    }

    fn configure(&self, folder: &Path) {
        let broker = |name: &str, url: &str, options: &str| {
            format!(
                "[broker.{name}]\nurl = \"{url}\"\n{options}\n\
                 [subscription.{name}]\nstore = \"shop\"\nto = \"{name}\"\nretry = \"fast\"\n"
            )
        };
        let quick = "connect_timeout = \"2s\"\nconfirm_timeout = \"5s\"\n";
        let (topic, stream) = (self.topic(), &self.stream);
        let text = [
            "[service]\nname = \"shop\"\n[http]\nlisten = \"127.0.0.1:0\"\n",
            "[store.shop]\nurl = \"sqlite:shop.db\"\n",
            "[retry.fast]\nkind = \"linear\"\nstep = \"200ms\"\n",
            &broker(
                "kafka",
                &self.kafka_url(),
                &format!("topic_prefix = \"{}.\"\n{quick}", self.prefix),
            ),
            &broker(
                "rabbit",
                &self.to_rabbit.url(&self.rabbit.url),
                &format!("exchange = \"events\"\n{quick}"),
            ),
            &broker(
                "nats",
                &self.to_nats.url(&self.nats.url()),
                &format!("subject_prefix = \"{stream}\"\n{quick}"),
            ),
            &broker("hook", &format!("http://{}/", self.to_endpoint.address()), ""),
            &format!("[topology.kafka.topics.\"{topic}\"]\npartitions = 3\n"),
            &format!("[topology.nats.streams.{stream}]\nsubjects = [\"{stream}.>\"]\n"),
        ]
        .concat();
        std::fs::write(folder.join("relevo.toml"), text).unwrap();
    }

    /// All events of this wave are at RabbitMQ, at NATS and at the endpoint, in order.
    async fn the_others_have(&self, wave: &Range<u64>) {
        let (of_wave, total) = (|n: &u64| wave.contains(n), wave.end as usize);
        let came = self.rabbit.messages(total).await;
        let body = |message: &Value| number(message["payload"].as_str().unwrap());
        complete_and_in_order("rabbitmq", came.iter().map(body).filter(of_wave));
        let config = NatsConfig::to(&self.nats.url()).unwrap();
        // A consumer of this wave alone goes on where the one before ended.
        let came = payloads(config, &self.stream, EVENTS as usize).await;
        complete_and_in_order("nats", came.iter().map(|body| number(body)).filter(of_wave));
        let came = self.endpoint.has_received(total).await;
        let numbers = came.iter().map(|request| number(&request.body));
        complete_and_in_order("http", numbers.filter(of_wave));
    }

    async fn kafka_has(&self, wave: &Range<u64>) {
        let came = messages(&self.kafka_url(), &self.topic(), wave.end as usize).await;
        let numbers = came.iter().map(kafka::number).filter(|n| wave.contains(n));
        complete_and_in_order("kafka", numbers);
    }

    fn cut_the_others_off(&self) {
        [&self.to_rabbit, &self.to_nats, &self.to_endpoint].into_iter().for_each(Proxy::refuse);
    }

    fn let_the_others_back(&self) {
        [&self.to_rabbit, &self.to_nats, &self.to_endpoint].into_iter().for_each(Proxy::heal);
    }
}

/// These breakers are open, and those of the others closed.
async fn only_these_are_down(daemon: &Daemon, down: &[&str]) {
    for name in ["kafka", "rabbit", "nats", "hook"] {
        let wanted = if down.contains(&name) { 1.0 } else { 0.0 };
        eventually(&format!("the breaker of {name} is {wanted}"), || async {
            breaker(daemon, name).await.filter(|open| *open == wanted)
        })
        .await;
    }
}

async fn all_have_confirmed(daemon: &Daemon, wave: &Range<u64>) {
    for name in ["kafka", "rabbit", "nats", "hook"] {
        eventually(&format!("{name} confirms all"), || async {
            let confirmed = metric(daemon, "outbox_published_total", name).await;
            confirmed.filter(|n| *n >= wave.end as f64)
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kafka_and_the_others_do_not_feel_each_others_outages_and_all_catch_up() {
    let Some(fleet) = Fleet::start().await else { return };
    let folder = tempfile::tempdir().unwrap();
    fleet.configure(folder.path());
    let applied = run_cli(folder.path(), &["topology", "apply"]).await;
    assert_eq!(applied.code, 0, "{}{}", applied.out, applied.err);
    let store = store(folder.path()).await;

    // Nobody listens there when the daemon starts.
    tokio::task::block_in_place(|| fleet.kafka.stop());
    let mut daemon = Daemon::start(folder.path(), &[]).await;
    let wave = 0..EVENTS;
    place(&store, &wave).await;
    fleet.the_others_have(&wave).await;
    only_these_are_down(&daemon, &["kafka"]).await;
    nothing_is_parked(&store, &["kafka"]).await;
    tokio::task::block_in_place(|| fleet.kafka.restart()).unwrap();
    fleet.kafka_has(&wave).await;
    only_these_are_down(&daemon, &[]).await;

    // It worked before, and answers no more.
    fleet.kafka.pause();
    let wave = EVENTS..2 * EVENTS;
    place(&store, &wave).await;
    fleet.the_others_have(&wave).await;
    only_these_are_down(&daemon, &["kafka"]).await;
    fleet.kafka.resume();
    fleet.kafka_has(&wave).await;
    only_these_are_down(&daemon, &[]).await;

    // The other way round.
    fleet.cut_the_others_off();
    let wave = 2 * EVENTS..3 * EVENTS;
    place(&store, &wave).await;
    fleet.kafka_has(&wave).await;
    only_these_are_down(&daemon, &["rabbit", "nats", "hook"]).await;
    fleet.let_the_others_back();
    fleet.the_others_have(&wave).await;
    only_these_are_down(&daemon, &[]).await;
    all_have_confirmed(&daemon, &wave).await;
    // What was on its way when a connection broke is unknown: it was parked, and tried again.
    eventually("nothing is parked any more", || async {
        let status = store.status().await.unwrap().subscriptions;
        status.iter().all(|it| it.parked_keys == 0).then_some(())
    })
    .await;
    nothing_is_parked(&store, &["kafka", "rabbit", "nats", "hook"]).await;
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end().await.code(), Some(0), "{}", daemon.said());
}
