//! PostgreSQL, NATS JetStream and the system's own processes, while things break.
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

mod common;
#[path = "real/figures.rs"]
mod figures;
#[path = "real/load.rs"]
mod load;

use async_nats::jetstream;
use common::{Kind, Place, Process, eventually, number, until};
use hyper::Method;
use relevo_testkit::services::{Kafka, Nats, Proxy, require, unique_name};
use serde_json::json;
use smartedify::client::{Answer, Client};
use smartedify::db::Sql;
use smartedify::embedded::journal::{Acknowledged, Tally};
use smartedify::embedded::traffic::Traffic;
use smartedify::embedded::verify::{self, Order, Verdict};
use smartedify::tenants::{Changed, Tenants};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

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
            ("SMARTEDIFY_METRICS_LISTEN", "127.0.0.1:0"),
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

    /// Waits until the consumer has settled everything that is in the stream now.
    async fn consumed(&self, nats: &Nats) {
        let stream = jetstream(nats).await.get_stream(&self.stream).await.unwrap();
        let last = stream.cached_info().state.last_sequence;
        eventually("everything is acknowledged", async || {
            let consumer = stream.consumer_info("directory").await.unwrap();
            (consumer.ack_floor.stream_sequence >= last).then_some(())
        })
        .await;
    }

    /// The stream takes no message that is larger than so many bytes, headers included.
    async fn largest_message(&self, nats: &Nats, bytes: i32) {
        let context = jetstream(nats).await;
        let mut config =
            context.get_stream(&self.stream).await.unwrap().cached_info().config.clone();
        config.max_message_size = bytes;
        context.update_stream(config).await.unwrap();
    }

    /// Sends the message of an event once more, under another id of the broker's: not even its own window knows it.
    async fn send_copy(&self, nats: &Nats, event: &str) {
        let context = jetstream(nats).await;
        let stream = context.get_stream(&self.stream).await.unwrap();
        for sequence in 1..=stream.cached_info().state.last_sequence {
            let message = stream.get_raw_message(sequence).await.unwrap();
            if message.headers.get("ce-id").is_some_and(|id| id.as_str() == event) {
                let (subject, mut headers) = (message.subject.clone(), message.headers.clone());
                headers.insert("Nats-Msg-Id", unique_name("copy").as_str());
                let copy = context.publish_with_headers(subject, headers, message.payload.clone());
                copy.await.unwrap().await.unwrap();
                return;
            }
        }
        panic!("{event} is not in the stream");
    }

    /// Events that took effect, however often.
    async fn effects_by_id(&self) -> i64 {
        let ids = Sql::both("SELECT count(DISTINCT event_id) FROM audit_log");
        number(&self.place.directory, ids).await
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

/// The value of a metric on a page.
fn figure(page: &str, name: &str) -> f64 {
    let line = page.lines().find(|line| line.starts_with(&format!("{name}{{")));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0)
}

/// A change that its client was told of.
fn noted(acknowledged: &Acknowledged, answer: &Answer) -> Changed {
    let changed = serde_json::from_str(&answer.body).unwrap();
    acknowledged.note(&changed).unwrap();
    changed
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
    let written = number(&world.place.db, Sql::both("SELECT count(*) FROM outbox_events")).await;
    eventually("changes are accepted", async || (acknowledged.count() > before + 40).then_some(()))
        .await;
    assert!(world.place.pending().await > 0);
    eventually("the backlog and its age are told", async || {
        let page = client.get("/metrics").await.unwrap().body;
        let all = [
            "outbox_backlog_gauge",
            "outbox_pending_age_average_seconds",
            "outbox_pending_age_oldest_seconds",
        ];
        all.iter().all(|name| figure(&page, name) > 0.0).then_some(())
    })
    .await;
    // What was written while the broker was known to be down is not blamed for it.
    let blamed = Sql::both(
        "SELECT count(*) FROM (SELECT retry_count FROM outbox_events ORDER BY created_at OFFSET $1) late WHERE retry_count > 0",
    );
    assert_eq!(world.place.db.number(&blamed, &[written.into()]).await.unwrap(), 0);
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
        noted(&acknowledged, &answer);
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
    let known = Sql::both("SELECT count(*) FROM tenant_directory WHERE name = $1");
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
    let folder = tempfile::tempdir().unwrap();
    let acknowledged = acknowledged(&folder);
    let serve = world.start("serve", &[]);
    let _consume = world.start("consume", &[]);
    let client = serve.client();
    let made = client.post("/tenants", json!({ "name": "Mirador" })).await.unwrap();
    let Changed { tenant_id: tenant, event_id: event, .. } = noted(&acknowledged, &made);
    until("effects", 1, || world.place.effects()).await;

    // Strangers write to the stream: no id, no JSON, and a copy of what was sent already.
    let context = jetstream(&nats).await;
    let subject = |topic: &str| format!("{}.{topic}", world.stream);
    let no_id = context.publish(subject("tenant.updated"), "?".into()).await.unwrap();
    no_id.await.unwrap();
    world.send_copy(&nats, &event).await;
    let stream = context.get_stream(&world.stream).await.unwrap();
    let first = stream.get_raw_message(1).await.unwrap();
    let mut headers = first.headers.clone();
    headers.insert("Nats-Msg-Id", "a third");
    headers.insert("ce-id", uuid::Uuid::now_v7().to_string().as_str());
    let odd = context.publish_with_headers(first.subject.clone(), headers, "no JSON".into());
    odd.await.unwrap().await.unwrap();

    // A bug of the service: events that make no sense are dead letters of the outbox; nothing else is.
    let nonsense =
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
                    VALUES ($1::uuid, 'tenant', $2, 'governance.changed', '{\"quorum\": 400}')";
    let id = uuid::Uuid::now_v7().to_string();
    let sql = Sql::each(nonsense, "");
    common::run(&world.place.db, sql, &[id.as_str().into(), tenant.as_str().into()]).await;
    let path = format!("/tenants/{tenant}");
    let renamed = client.send(Method::PATCH, &path, Some(json!({ "name": "Alameda" }))).await;
    noted(&acknowledged, &renamed.unwrap());
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

    // Everything that is in the stream was settled, the copy too: it took no effect.
    world.consumed(&nats).await;
    assert_eq!((world.place.effects().await, world.effects_by_id().await), (2, 2));
    let report = world.judge(&acknowledged, Order::Kept).await.report;
    assert_eq!((report.committed, report.effects, report.dead), (2, 2, 1), "{report:?}");

    // Sent again from the command line: the relay tries it again, and it still makes no sense.
    let reprocess = std::process::Command::new(env!("CARGO_BIN_EXE_smartedify"))
        .args(["reprocess", "--event", &id])
        .env("DATABASE_URL", &world.place.service)
        .output()
        .unwrap();
    assert!(reprocess.status.success(), "{reprocess:?}");
    assert_eq!(String::from_utf8_lossy(&reprocess.stdout), "1 to be sent again by the relay\n");
    eventually("it died again", async || {
        let again = admin.get("/admin/outbox/dlq").await.unwrap().json();
        let later = again[0]["last_error_at"].as_str()? > dead[0]["last_error_at"].as_str()?;
        (later && again[0]["id"] == dead[0]["id"]).then_some(())
    })
    .await;
    let report = world.judge(&acknowledged, Order::Kept).await.report;
    assert_eq!((report.effects, report.dead), (2, 1), "{report:?}");
    serve.stop();
}

/// A payload that makes sense, and that JetStream does not take: its own answer, with its code.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_broker_refuses_for_good_is_a_dead_letter_in_its_words_and_its_tenant_goes_on() {
    let Some(nats) = require(Nats::shared()) else { return };
    let Some(world) = World::on("nats", &nats.url()).await else { return };
    let folder = tempfile::tempdir().unwrap();
    let acknowledged = acknowledged(&folder);
    let serve = world.start("serve", &[]);
    let _consume = world.start("consume", &[]);
    let client = serve.client();
    let made = client.post("/tenants", json!({ "name": "Mirador" })).await.unwrap();
    let tenant = format!("/tenants/{}", noted(&acknowledged, &made).tenant_id);
    until("effects", 1, || world.place.effects()).await;

    world.largest_message(&nats, 4096).await;
    let president = "Ana ".repeat(2000);
    let large = json!({ "quorum_percent": 60, "voting": "by_head", "president": president });
    let large = client.send(Method::PUT, &format!("{tenant}/governance"), Some(large)).await;
    let large = noted(&acknowledged, &large.unwrap());
    let next = client.send(Method::PATCH, &tenant, Some(json!({ "name": "Alameda" }))).await;
    noted(&acknowledged, &next.unwrap());
    until("effects", 2, || world.place.effects()).await;
    until("dead", 1, || world.place.dead()).await;
    let admin = client.clone().with_token(TOKEN);
    let dead = admin.get("/admin/outbox/dlq").await.unwrap().json();
    let told = |name: &str| dead[0][name].as_str().unwrap_or_default().to_owned();
    assert_eq!((told("id"), told("error_class")), (large.event_id.clone(), "poison".into()));
    let refusal = r#"JetStream refused it: "message size exceeds maximum allowed" (10054)"#;
    assert_eq!((told("last_error").as_str(), dead[0]["retry_count"].as_i64()), (refusal, Some(1)));
    let page = client.get("/metrics").await.unwrap().body;
    let mut refused = page.lines().filter(|it| it.starts_with("outbox_failed_permanent_total{"));
    assert!(refused.any(|it| it.contains("class=\"poison\"") && it.ends_with(" 1")), "{page}");

    // Somebody lets the stream take it: it is sent again, behind what went on without it.
    world.largest_message(&nats, -1).await;
    let which = json!({ "event_id": large.event_id });
    let asked = admin.post("/admin/outbox/dlq/reprocess", which).await.unwrap();
    assert_eq!(asked.status, 202, "{asked:?}");
    until("effects", 3, || world.place.effects()).await;
    until("dead", 0, || world.place.dead()).await;
    let sent = messages(&nats, &world.stream).await;
    assert_eq!(sent.iter().map(|(_, _, version)| *version).collect::<Vec<_>>(), [1, 3, 2]);
    world.judge(&acknowledged, Order::Free).await;
    serve.stop();
}

/// Relevo's inbox absorbs copies before the handler sees them; here it has forgotten, and the document's table has not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_the_inbox_does_not_know_is_in_processed_event_ids() {
    let Some(nats) = require(Nats::shared()) else { return };
    let Some(world) = World::on("nats", &nats.url()).await else { return };
    let serve = world.start("serve", &[]);
    let _consume = world.start("consume", &[]);
    let client = serve.client();
    let made = client.post("/tenants", json!({ "name": "Mirador" })).await.unwrap().json();
    let users = format!("/tenants/{}/users", made["tenant_id"].as_str().unwrap());
    let user = json!({ "email": "ana@example.org", "role": "owner" });
    let added = client.post(&users, user).await.unwrap().json();
    let id = added["event_id"].as_str().unwrap();
    until("effects", 2, || world.place.effects()).await;
    world.consumed(&nats).await;

    let directory = &world.place.directory;
    let forget = Sql::each("DELETE FROM relevo.inbox WHERE id = $1", "");
    let met = Sql::each("SELECT count(*) FROM relevo.inbox WHERE id = $1", "");
    let users = async || number(directory, Sql::both("SELECT users FROM tenant_directory")).await;
    assert_eq!(common::run(directory, forget, &[id.into()]).await, 1);
    world.send_copy(&nats, id).await;
    until("met again", 1, async || directory.number(&met, &[id.into()]).await.unwrap()).await;
    world.consumed(&nats).await;
    assert_eq!((world.place.effects().await, users().await), (2, 1), "it took effect once");

    // Without its row there it does take effect: nothing else held the copy back.
    let unprocessed = Sql::both("DELETE FROM processed_event_ids WHERE event_id = $1");
    assert_eq!(common::run(directory, forget, &[id.into()]).await, 1);
    assert_eq!(common::run(directory, unprocessed, &[id.into()]).await, 1);
    world.send_copy(&nats, id).await;
    until("effects", 3, || world.place.effects()).await;
    assert_eq!((world.effects_by_id().await, users().await), (2, 2));
    serve.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_further_relay_shows_its_own_figures() {
    let Some(nats) = require(Nats::shared()) else { return };
    let Some(world) = World::on("nats", &nats.url()).await else { return };
    let tenants = Tenants::on(world.place.db.clone());
    for n in 0..5 {
        tenants.create(&format!("Edificio {n}")).await.unwrap();
    }
    // Its broker is not there: what waits is seen all the same.
    let waiting = world.start("relay", &[("SMARTEDIFY_BROKER_URL", "nats://127.0.0.1:1")]);
    eventually("the backlog is told", async || {
        let page = waiting.client().get("/metrics").await.unwrap().body;
        (figure(&page, "outbox_backlog_gauge") == 5.0).then_some(())
    })
    .await;
    waiting.stop();

    let relay = world.start("relay", &[]);
    let client = relay.client();
    let page = eventually("what it did is told", async || {
        let page = client.get("/metrics").await.unwrap().body;
        let done = figure(&page, "outbox_published_total") == 5.0;
        (done && figure(&page, "outbox_backlog_gauge") == 0.0).then_some(page)
    })
    .await;
    assert!(figure(&page, "outbox_publish_attempts_total") >= 5.0, "{page}");
    assert_eq!(figure(&page, "outbox_publish_latency_seconds_count"), 5.0, "{page}");
    assert!(page.contains("outbox_published_total{service=\"tenant-service\""), "{page}");
    let elsewhere = client.get("/tenants").await.unwrap();
    let refused = (elsewhere.status, elsewhere.content_type.as_str());
    assert_eq!(refused, (404, "application/problem+json"), "that page and nothing else");
    assert_eq!(world.place.published().await, 5);
    relay.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quiet_table_is_looked_at_less_and_less_often() {
    let Some(nats) = require(Nats::shared()) else { return };
    let Some(world) = World::on("nats", &nats.url()).await else { return };
    let poll = [("OUTBOX_POLL_MIN_MS", "10"), ("OUTBOX_POLL_MAX_MS", "1000")];
    let relay = world.start("relay", &poll);
    let tenants = Tenants::on(world.place.db.clone());
    tenants.create("Mirador").await.unwrap();
    until("published", 1, || world.place.published()).await;
    let client = relay.client();
    let looks = async || figure(&client.get("/metrics").await.unwrap().body, "relevo_pages_total");
    let (before, began) = (looks().await, Instant::now());
    tokio::time::sleep(Duration::from_secs(4)).await;
    let (seen, seconds) = (looks().await - before, began.elapsed().as_secs_f64());
    // Pauses of 10, 20, 40 ... 1000 ms: eight looks, then one a second, and twice that for the two readers there are.
    // Every 10 ms it would be four hundred. A slow machine only makes them fewer.
    assert!(seen <= 2.0 * (8.0 + seconds), "{seen} looks in {seconds} s");
    let later = looks().await;
    eventually("it goes on looking", async || (looks().await > later).then_some(())).await;
    tenants.create("Alameda").await.unwrap();
    until("published", 2, || world.place.published()).await;
    relay.stop();
}

/// Rows of so many days: how one is made, and how those that are there are found.
const PUBLISHED: [Sql; 2] = [
    Sql::each(
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, published_at)
         VALUES (gen_random_uuid(), 'tenant', 't', 'tenant.created', '{}', now() - $1::interval)",
        "",
    ),
    Sql::each("SELECT round(extract(epoch FROM now() - published_at) / 86400)::bigint FROM outbox_events WHERE published_at IS NOT NULL", ""),
];
const DEAD: [Sql; 2] = [
    Sql::each(
        "INSERT INTO outbox_events_dlq (id, aggregate_type, aggregate_id, event_type, payload, last_error_at)
         VALUES (gen_random_uuid(), 'tenant', 't', 'tenant.created', '{}', now() - $1::interval)",
        "",
    ),
    Sql::each("SELECT round(extract(epoch FROM now() - last_error_at) / 86400)::bigint FROM outbox_events_dlq", ""),
];
const PROCESSED: [Sql; 2] = [
    Sql::each(
        "INSERT INTO processed_event_ids (consumer, event_id, processed_at)
         VALUES ('directory', gen_random_uuid()::text, now() - $1::interval)",
        "",
    ),
    Sql::each(
        "SELECT round(extract(epoch FROM now() - processed_at) / 86400)::bigint FROM processed_event_ids",
        "",
    ),
];

/// Nobody calls the clean-up here: `serve` and `consume` do it by themselves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_processes_take_away_what_is_older_than_its_retention_and_nothing_else() {
    let Some(nats) = require(Nats::shared()) else { return };
    let Some(world) = World::on("nats", &nats.url()).await else { return };
    let (service, downstream) = (&world.place.db, &world.place.directory);
    let tables = [
        (service, &PUBLISHED, [31, 29]),
        (service, &DEAD, [91, 89]),
        (downstream, &PROCESSED, [181, 179]),
    ];
    for (db, [make, _], days) in tables {
        for days in days {
            assert_eq!(common::run(db, *make, &[format!("{days} days").into()]).await, 1);
        }
    }
    Tenants::on(service.clone()).create("Mirador").await.unwrap();
    let waits = Sql::each(
        "UPDATE outbox_events SET created_at = now() - interval '400 days' WHERE published_at IS NULL",
        "",
    );
    assert_eq!(common::run(service, waits, &[]).await, 1);

    // Its broker is not there: what waits stays.
    let serve = world.start("serve", &[("SMARTEDIFY_BROKER_URL", "nats://127.0.0.1:1")]);
    let consume = world.start("consume", &[]);
    for (db, [_, there], [_, young]) in tables {
        eventually("only the younger one is left", async || {
            let rows: Vec<(i64,)> = db.rows(there, &[]).await.unwrap();
            assert!(rows.contains(&(young,)), "{rows:?}");
            (rows == [(young,)]).then_some(())
        })
        .await;
    }
    assert_eq!(world.place.pending().await, 1);
    consume.stop();
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
