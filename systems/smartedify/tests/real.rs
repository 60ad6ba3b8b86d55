//! PostgreSQL, NATS JetStream and the system's own processes, while things break.
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

mod common;

use async_nats::jetstream;
use common::{Kind, Place, Process, eventually, until};
use hyper::Method;
use relevo_testkit::services::{Kafka, Nats, Proxy, require, unique_name};
use serde_json::json;
use smartedify::client::Client;
use smartedify::embedded::journal::{Acknowledged, Tally};
use smartedify::embedded::traffic::Traffic;
use smartedify::embedded::verify::{self, Order, Verdict};
use std::collections::{HashMap, HashSet};

const TOKEN: &str = "a token of this test";

/// Both databases, a broker, and what processes are told of them.
struct World {
    place: Place,
    stream: String,
    variables: Vec<(String, String)>,
}

impl World {
    async fn on(broker: &str, url: &str) -> Option<Self> {
        let place = Place::fresh(Kind::Postgres).await?;
        let stream = unique_name("smartedify");
        let variables = [
            ("DATABASE_URL", place.service.as_str()),
            ("DOWNSTREAM_DATABASE_URL", &place.downstream),
            ("SMARTEDIFY_BROKER", broker),
            ("SMARTEDIFY_BROKER_URL", url),
            ("SMARTEDIFY_STREAM", &stream),
            ("SMARTEDIFY_LISTEN", "127.0.0.1:0"),
            ("SMARTEDIFY_ADMIN_TOKEN", TOKEN),
            ("SMARTEDIFY_ACK_WAIT_MS", "2000"),
            ("OUTBOX_POLL_MIN_MS", "20"),
            ("OUTBOX_POLL_MAX_MS", "200"),
            ("OUTBOX_LEASE_MS", "2000"),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        Some(Self { place, stream, variables })
    }

    fn start(&self, command: &str, differs: &[(&str, &str)]) -> Process {
        let own = self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        Process::start(command, &own.chain(differs.iter().copied()).collect::<Vec<_>>())
    }

    /// Waits until every committed change took effect or is a dead letter.
    async fn settle(&self) {
        eventually("nothing pending", async || (self.place.pending().await == 0).then_some(()))
            .await;
        let sent = self.place.published().await;
        eventually("every effect", async || (self.place.effects().await >= sent).then_some(()))
            .await;
    }

    async fn judge(&self, acknowledged: &Acknowledged, order: Order) -> Verdict {
        let (db, directory) = (&self.place.db, &self.place.directory);
        let told = acknowledged.read().unwrap();
        let verdict = verify::judge(db, directory, Tally::default(), &told, order).await.unwrap();
        assert!(verdict.broken.is_empty(), "{verdict:?}");
        assert!(verdict.report.committed >= told.len() as u64);
        verdict
    }
}

fn acknowledged(folder: &tempfile::TempDir) -> Acknowledged {
    Acknowledged::open(&folder.path().join("acknowledged.log")).unwrap()
}

async fn jetstream(nats: &Nats) -> jetstream::Context {
    let options =
        async_nats::ConnectOptions::with_user_and_password("relevo".into(), "relevo".into());
    jetstream::new(options.connect(nats.address().to_string()).await.unwrap())
}

/// Every message of a stream: event id, tenant, version; in the stream's order.
async fn messages(nats: &Nats, stream: &str) -> Vec<(String, String, i64)> {
    let stream = jetstream(nats).await.get_stream(stream).await.unwrap();
    let last = stream.cached_info().state.last_sequence;
    let mut messages = Vec::new();
    for sequence in 1..=last {
        let message = stream.get_raw_message(sequence).await.unwrap();
        let id = message.headers.get("ce-id").map(|id| id.to_string()).unwrap_or_default();
        let body: serde_json::Value = serde_json::from_slice(&message.payload).unwrap_or_default();
        let tenant = body["tenant_id"].as_str().unwrap_or_default().to_owned();
        messages.push((id, tenant, body["version"].as_i64().unwrap_or_default()));
    }
    messages
}

/// First copies are in the order of their tenant.
fn assert_orderly(messages: &[(String, String, i64)]) {
    let (mut known, mut latest) = (HashSet::new(), HashMap::new());
    for (id, tenant, version) in messages.iter().filter(|(id, ..)| known.insert(id.clone())) {
        let before = latest.insert(tenant, *version);
        assert!(before.is_none_or(|before| before < *version), "{id}: {version} after {before:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_killed_under_load_and_two_relays_lose_nothing_and_keep_the_order() {
    let Some(nats) = require(Nats::start()) else { return };
    let Some(world) = World::on("nats", &nats.url()).await else { return };
    let folder = tempfile::tempdir().unwrap();
    let acknowledged = acknowledged(&folder);
    let serve = world.start("serve", &[]);
    let mut second = world.start("relay", &[]);
    let _consume = world.start("consume", &[]);
    let traffic = Traffic::start(serve.address(), 60, acknowledged.clone());
    eventually("effects", async || (world.place.effects().await > 30).then_some(())).await;

    nats.kill9();
    let client = serve.client();
    eventually("the API says that the broker is down, and works", async || {
        let health = client.get("/health").await.unwrap();
        (health.status == 200 && health.json()["broker"] == "down").then_some(())
    })
    .await;
    let before = acknowledged.count();
    eventually("changes are accepted", async || (acknowledged.count() > before + 40).then_some(()))
        .await;
    assert!(world.place.pending().await > 0);
    eventually("the backlog and its age are told", async || {
        let page = client.get("/metrics").await.unwrap().body;
        let told = |name: &str| {
            let line =
                page.lines().find(|line| line.starts_with(name) && line.contains("tenant-service"));
            line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).unwrap_or(0.0)
        };
        let all = [
            "outbox_backlog_gauge",
            "outbox_pending_age_average_seconds",
            "outbox_pending_age_oldest_seconds",
        ];
        all.iter().all(|name| told(name) > 0.0).then_some(())
    })
    .await;
    nats.restart().unwrap();
    let effects = world.place.effects().await;
    eventually("it goes on", async || (world.place.effects().await > effects + 60).then_some(()))
        .await;
    // One of two relays dies; its share comes back to the other when its lease ends.
    second.kill9();
    let effects = world.place.effects().await;
    eventually("it goes on", async || (world.place.effects().await > effects + 60).then_some(()))
        .await;
    traffic.stop().await;
    world.settle().await;
    // What the consumer held when the broker died comes again behind later ones; the stream has them in order.
    let report = world.judge(&acknowledged, Order::Free).await.report;
    assert_eq!((report.dead, report.lost), (0, 0), "{report:?}");
    assert_orderly(&messages(&nats, &world.stream).await);
    serve.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_killed_between_effect_and_acknowledgement_does_nothing_twice() {
    let Some(nats) = require(Nats::shared()) else { return };
    let Some(world) = World::on("nats", &nats.url()).await else { return };
    let folder = tempfile::tempdir().unwrap();
    let acknowledged = acknowledged(&folder);
    let serve = world.start("serve", &[]);
    let client = serve.client();
    let tenant = client.post("/tenants", json!({ "name": "Mirador" })).await.unwrap().json();
    let tenant = format!("/tenants/{}", tenant["tenant_id"].as_str().unwrap());
    for n in 0..600 {
        let name = json!({ "name": format!("Edificio {n}") });
        let answer = client.send(Method::PATCH, &tenant, Some(name)).await.unwrap();
        acknowledged.note(&serde_json::from_str(&answer.body).unwrap()).unwrap();
    }
    until("published", 601, || world.place.published()).await;
    // The network swallows what the consumer says: it works on what it holds, and nobody hears of it.
    let proxy = Proxy::start(nats.address()).unwrap();
    let behind = proxy.url(&nats.url());
    let mut consume = world.start("consume", &[("SMARTEDIFY_BROKER_URL", &behind)]);
    eventually("effects", async || (world.place.effects().await > 0).then_some(())).await;
    proxy.half_open();
    let context = jetstream(&nats).await;
    eventually("effects that are not acknowledged", async || {
        let stream = context.get_stream(&world.stream).await.unwrap();
        let consumer = stream.consumer_info("directory").await.unwrap();
        let acknowledged = i64::try_from(consumer.ack_floor.stream_sequence).unwrap();
        (world.place.effects().await > acknowledged).then_some(())
    })
    .await;
    consume.kill9();
    let _next = world.start("consume", &[]);
    world.settle().await;
    let report = world.judge(&acknowledged, Order::Free).await.report;
    assert_eq!((report.effects, report.dead), (601, 0), "{report:?}");
    let shown = client.get(&tenant).await.unwrap().json();
    let known = smartedify::db::Sql::both("SELECT count(*) FROM tenant_directory WHERE name = $1");
    let name = shown["name"].as_str().unwrap().into();
    assert_eq!(
        world.place.directory.number(&known, &[name]).await.unwrap(),
        1,
        "the newest name won"
    );
    serve.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_messages_and_copies_stop_nobody_and_the_dlq_holds_exactly_the_failed() {
    let Some(nats) = require(Nats::shared()) else { return };
    let Some(world) = World::on("nats", &nats.url()).await else { return };
    let serve = world.start("serve", &[]);
    let _consume = world.start("consume", &[]);
    let client = serve.client();
    let made = client.post("/tenants", json!({ "name": "Mirador" })).await.unwrap().json();
    let tenant = made["tenant_id"].as_str().unwrap();
    until("effects", 1, || world.place.effects()).await;

    // Strangers write to the stream: no id, no JSON, and a copy of what was sent already.
    let context = jetstream(&nats).await;
    let subject = |topic: &str| format!("{}.{topic}", world.stream);
    let no_id = context.publish(subject("tenant.updated"), "?".into()).await.unwrap();
    no_id.await.unwrap();
    let stream = context.get_stream(&world.stream).await.unwrap();
    let first = stream.get_raw_message(1).await.unwrap();
    let mut headers = first.headers.clone();
    // Under another id of the broker's, so that not even its own window knows it.
    headers.insert("Nats-Msg-Id", "another");
    let copy =
        context.publish_with_headers(first.subject.clone(), headers.clone(), first.payload.clone());
    copy.await.unwrap().await.unwrap();
    headers.insert("Nats-Msg-Id", "a third");
    headers.insert("ce-id", uuid::Uuid::now_v7().to_string().as_str());
    let odd = context.publish_with_headers(first.subject.clone(), headers, "no JSON".into());
    odd.await.unwrap().await.unwrap();

    // A bug of the service: events that make no sense are dead letters of the outbox; nothing else is.
    let nonsense =
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
                    VALUES ($1::uuid, 'tenant', $2, 'governance.changed', '{\"quorum\": 400}')";
    let id = uuid::Uuid::now_v7().to_string();
    let sql = smartedify::db::Sql::each(nonsense, "");
    common::run(&world.place.db, sql, &[id.as_str().into(), tenant.into()]).await;
    let path = format!("/tenants/{tenant}");
    client.send(Method::PATCH, &path, Some(json!({ "name": "Alameda" }))).await.unwrap();
    until("effects", 2, || world.place.effects()).await;
    until("dead", 1, || world.place.dead()).await;
    let admin = Client::to(serve.address()).with_token(TOKEN);
    let dead = admin.get("/admin/outbox/dlq").await.unwrap().json();
    assert_eq!(
        (dead[0]["id"].as_str(), dead[0]["error_class"].as_str()),
        (Some(&*id), Some("permanent"))
    );

    // What no consumer can read is kept with its reason, in the consumer's own dead letters.
    let store = relevo::postgres::PostgresStore::connect(&world.place.downstream).await.unwrap();
    let unread = eventually("what cannot be read is kept", async || {
        use relevo::{DeadFilter, Operate};
        let letters = store.dead_letters(&DeadFilter::default(), None, 10).await.unwrap();
        (letters.len() == 2).then_some(letters)
    })
    .await;
    let payloads: HashSet<&[u8]> = unread.iter().map(|letter| &letter.event.payload[..]).collect();
    assert_eq!(payloads, HashSet::from([&b"?"[..], b"no JSON"]), "{unread:?}");

    // Sent again from the command line.
    let reprocess = std::process::Command::new(env!("CARGO_BIN_EXE_smartedify"))
        .args(["reprocess", "--event", &id])
        .env("DATABASE_URL", &world.place.service)
        .output()
        .unwrap();
    assert!(reprocess.status.success(), "{reprocess:?}");
    assert_eq!(String::from_utf8_lossy(&reprocess.stdout), "1 to be sent again by the relay\n");
    serve.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_system_runs_on_kafka() {
    let Some(kafka) = require(Kafka::shared()) else { return };
    let Some(world) = World::on("kafka", &format!("kafka://{}", kafka.bootstrap())).await else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let acknowledged = acknowledged(&folder);
    let serve = world.start("serve", &[]);
    let _consume = world.start("consume", &[]);
    let traffic = Traffic::start(serve.address(), 50, acknowledged.clone());
    eventually("effects", async || (world.place.effects().await > 100).then_some(())).await;
    traffic.stop().await;
    world.settle().await;
    let report = world.judge(&acknowledged, Order::Kept).await.report;
    assert_eq!((report.dead, report.lost), (0, 0), "{report:?}");
    serve.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kafka_killed_under_load_loses_nothing_and_keeps_the_order() {
    let Some(kafka) = require(Kafka::start()) else { return };
    let url = format!("kafka://{}", kafka.bootstrap());
    let Some(world) = World::on("kafka", &url).await else { return };
    let folder = tempfile::tempdir().unwrap();
    let acknowledged = acknowledged(&folder);
    let serve = world.start("serve", &[]);
    let _consume = world.start("consume", &[]);
    let traffic = Traffic::start(serve.address(), 50, acknowledged.clone());
    eventually("effects", async || (world.place.effects().await > 50).then_some(())).await;
    kafka.kill9();
    let before = acknowledged.count();
    eventually("changes are accepted", async || (acknowledged.count() > before + 40).then_some(()))
        .await;
    assert!(world.place.pending().await > 0);
    kafka.restart().unwrap();
    let effects = world.place.effects().await;
    eventually("it goes on", async || (world.place.effects().await > effects + 60).then_some(()))
        .await;
    traffic.stop().await;
    world.settle().await;
    let report = world.judge(&acknowledged, Order::Kept).await.report;
    assert_eq!((report.dead, report.lost), (0, 0), "{report:?}");
    serve.stop();
}
