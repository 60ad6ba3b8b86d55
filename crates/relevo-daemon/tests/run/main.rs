//! `relevo run` and `relevo topology` as processes, on SQLite, with real endpoints and brokers.
#![allow(clippy::unwrap_used)]

mod adopt;
mod forced;
mod isolation;
#[cfg(feature = "kafka")]
mod isolation_kafka;
#[cfg(feature = "kafka")]
mod kafka;
mod nats;
mod rabbitmq;
mod refused;
mod secrets;
mod settings;
mod support;
mod topology;

use relevo_brokers::http::Secret;
use relevo_core::ErrorClass;
use relevo_core::dead_letters::{DeadFilter, Operate};
use relevo_core::telemetry::METRICS;
use rustix::process::Signal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use support::{Daemon, Endpoint, configure, eventually, free_address, publish, store};

const AT_ONCE: Duration = Duration::ZERO;
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

#[tokio::test]
async fn what_is_published_arrives_as_a_cloudevent_and_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::start(|_| (202, AT_ONCE)).await;
    configure(folder.path(), &format!("http://{}/hook", endpoint.address), "");
    let store = store(folder.path()).await;
    let daemon = Daemon::start(folder.path(), &[]).await;
    let id = publish(&store, "order-1", 1).await;
    let received = endpoint.has_received(1).await.remove(0);
    assert_eq!(received.body, r#"{"n":1}"#);
    assert_eq!(received.header("ce-id"), id.to_string());
    assert_eq!(received.header("ce-type"), "order.placed");
    assert_eq!(received.header("ce-source"), "shop");
    eventually("it is counted", || async {
        daemon.metric("outbox_published_total{").await.filter(|n| *n == 1.0)
    })
    .await;
    assert!(daemon.said().contains("store shop: SQLite"), "{}", daemon.said());
}

#[tokio::test]
async fn requests_are_signed_with_every_secret_of_the_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::start(|_| (200, AT_ONCE)).await;
    std::fs::write(folder.path().join("secrets"), format!("{SECRET}\n{SECRET}\n")).unwrap();
    let broker = "[broker.signed]\nurl = \"http://ADDRESS/\"\nsecrets_file = \"secrets\"\n[subscription.signed]\nstore = \"shop\"\nto = \"signed\"\n";
    configure(folder.path(), "stdout:", &broker.replace("ADDRESS", &endpoint.address.to_string()));
    let store = store(folder.path()).await;
    let _daemon = Daemon::start(folder.path(), &[]).await;
    let id = publish(&store, "k", 1).await.to_string();
    let received = endpoint.has_received(1).await.remove(0);
    let time = received.header("webhook-timestamp").parse().unwrap();
    let one = Secret::parse(SECRET).unwrap().sign(&id, time, received.body.as_bytes());
    assert_eq!(received.header("webhook-id"), id);
    assert_eq!(received.header("webhook-signature"), format!("{one} {one}"));
}

#[tokio::test]
async fn every_documented_metric_shows_from_the_start_with_its_service() {
    let folder = tempfile::tempdir().unwrap();
    configure(folder.path(), "stdout:", "");
    store(folder.path()).await;
    let daemon = Daemon::start(folder.path(), &[]).await;
    let (status, text) = daemon.get("/metrics").await;
    assert_eq!(status, 200);
    for (name, kind, _) in METRICS.iter().filter(|(name, ..)| *name != "relevo_store_errors_total")
    {
        assert!(text.contains(&format!("# TYPE {name} {kind}")), "{name} is missing in\n{text}");
    }
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        assert!(line.contains("service=\"shop\""), "{line}");
    }
}

#[tokio::test]
async fn an_endpoint_that_is_down_opens_the_breaker_parks_nothing_and_is_found_again() {
    let folder = tempfile::tempdir().unwrap();
    let address = free_address().await;
    configure(folder.path(), &format!("http://{address}/"), "");
    let store = store(folder.path()).await;
    let daemon = Daemon::start(folder.path(), &[]).await;
    for n in 1..=20 {
        publish(&store, &format!("order-{}", n % 3), n).await;
    }
    let breaker = async |expected: f64| {
        eventually("the breaker", || async {
            daemon.metric("relevo_breaker_open{").await.filter(|open| *open == expected)
        })
        .await
    };
    breaker(1.0).await;
    assert_eq!(store.status().await.unwrap().subscriptions[0].parked_keys, 0);
    assert_eq!(daemon.ready().await.0, 200, "probes are progress");
    let endpoint = Endpoint::start_at(address, |_| (200, AT_ONCE)).await;
    endpoint.has_received(20).await;
    breaker(0.0).await;
    let mut bodies = endpoint.bodies();
    bodies.sort();
    bodies.dedup();
    assert_eq!((bodies.len(), endpoint.bodies().len()), (20, 20), "each exactly once");
}

#[tokio::test]
async fn a_refused_event_becomes_a_dead_letter_and_its_key_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint =
        Endpoint::start(|body| (if body.contains("13") { 422 } else { 200 }, AT_ONCE)).await;
    configure(folder.path(), &format!("http://{}/", endpoint.address), "");
    let store = store(folder.path()).await;
    let daemon = Daemon::start(folder.path(), &[]).await;
    let bad = publish(&store, "k", 13).await;
    publish(&store, "k", 14).await;
    endpoint.has_received(2).await;
    let letters = eventually("a dead letter", || async {
        Some(store.dead_letters(&DeadFilter::default(), None, 10).await.unwrap())
            .filter(|found| !found.is_empty())
    })
    .await;
    assert_eq!(letters[0].event.id, bad);
    assert!(
        letters[0].error.contains("422") && letters[0].error.contains("as told"),
        "{}",
        letters[0].error
    );
    assert_eq!(daemon.metric("outbox_failed_permanent_total{service=\"shop\",subscription=\"hook\",class=\"poison\"}").await, Some(1.0));
}

#[tokio::test]
async fn a_busy_endpoint_is_tried_again_in_the_order_of_the_key() {
    let folder = tempfile::tempdir().unwrap();
    let up = Arc::new(AtomicBool::new(false));
    let is_up = up.clone();
    let endpoint =
        Endpoint::start(move |_| (if is_up.load(Ordering::SeqCst) { 200 } else { 429 }, AT_ONCE))
            .await;
    configure(folder.path(), &format!("http://{}/", endpoint.address), "");
    let store = store(folder.path()).await;
    let daemon = Daemon::start(folder.path(), &[]).await;
    for n in 1..=3 {
        publish(&store, "k", n).await;
    }
    eventually("a retry", || async {
        daemon.metric("outbox_retry_total{").await.filter(|n| *n >= 1.0)
    })
    .await;
    up.store(true, Ordering::SeqCst);
    eventually("all are published", || async {
        daemon.metric("outbox_published_total{").await.filter(|n| *n == 3.0)
    })
    .await;
    let last: Vec<String> = endpoint.bodies().into_iter().rev().take(3).rev().collect();
    assert_eq!(last, [r#"{"n":1}"#, r#"{"n":2}"#, r#"{"n":3}"#]);
}

#[tokio::test]
async fn each_class_of_errors_is_tried_again_by_its_own_policy() {
    let folder = tempfile::tempdir().unwrap();
    let answer = |body: &str| match body {
        r#"{"n":13}"# => 422, // poison: one attempt more
        r#"{"n":14}"# => 409, // permanent: not listed, so dead at once
        r#"{"n":15}"# => 429, // transient: four attempts
        _ => 200,
    };
    let endpoint = Endpoint::start(move |body| (answer(body), AT_ONCE)).await;
    let classes = "[retry.fast.poison]\nkind = \"ladder\"\ndelays = [\"50ms\"]\n\
                   [retry.fast.transient]\nstep = \"20ms\"\nmax_attempts = 4\n";
    configure(folder.path(), &format!("http://{}/", endpoint.address), classes);
    let store = store(folder.path()).await;
    let _daemon = Daemon::start(folder.path(), &[]).await;
    for n in [13, 14, 15, 16] {
        publish(&store, &format!("k{n}"), n).await;
    }
    let letters = eventually("three dead letters", || async {
        Some(store.dead_letters(&DeadFilter::default(), None, 10).await.unwrap())
            .filter(|found| found.len() == 3)
    })
    .await;
    let of = |class: ErrorClass| {
        let letter = letters.iter().find(|letter| letter.class == class).unwrap();
        let body = String::from_utf8(letter.event.payload.to_vec()).unwrap();
        let tries = endpoint.bodies().iter().filter(|tried| **tried == body).count();
        (letter.attempts, tries)
    };
    assert_eq!(of(ErrorClass::Poison), (2, 2));
    assert_eq!(of(ErrorClass::Permanent), (1, 1));
    assert_eq!(of(ErrorClass::Transient), (4, 4));
}

#[tokio::test]
async fn sigterm_finishes_what_is_under_way_and_gives_the_lanes_back() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::start(|_| (200, Duration::from_millis(500))).await;
    configure(folder.path(), &format!("http://{}/", endpoint.address), "");
    let store = store(folder.path()).await;
    let mut daemon = Daemon::start(folder.path(), &[]).await;
    publish(&store, "k", 1).await;
    endpoint.has_received(1).await;
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end().await.code(), Some(0), "{}", daemon.said());
    assert_eq!(store.status().await.unwrap().subscriptions[0].lanes_owned, 0);
    // Had it not been recorded, the next daemon would send it again.
    let daemon = Daemon::start(folder.path(), &[]).await;
    publish(&store, "k", 2).await;
    endpoint.has_received(2).await;
    assert_eq!(endpoint.bodies(), [r#"{"n":1}"#, r#"{"n":2}"#], "{}", daemon.said());
}

#[tokio::test]
async fn sigterm_waits_no_longer_than_the_configuration_says_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let hang = Arc::new(AtomicBool::new(true));
    let hangs = hang.clone();
    let pause = move || Duration::from_secs(if hangs.load(Ordering::SeqCst) { 900 } else { 0 });
    let endpoint = Endpoint::start(move |_| (200, pause())).await;
    let limits = "[limits]\nlease = \"1s\"\ndrain = \"1s\"\nhandler_limit = \"15m\"\n";
    configure(folder.path(), &format!("http://{}/", endpoint.address), limits);
    let store = store(folder.path()).await;
    let mut daemon = Daemon::start(folder.path(), &[]).await;
    publish(&store, "k", 1).await;
    endpoint.has_received(1).await;
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end().await.code(), Some(3), "{}", daemon.said());
    let said = daemon.said();
    assert!(said.contains("finishing what is under way, at most 1s"), "{said}");
    assert!(said.contains("not everything under way ended within 1s"), "{said}");
    hang.store(false, Ordering::SeqCst);
    let _next = Daemon::start(folder.path(), &[]).await;
    endpoint.has_received(2).await;
    assert_eq!(endpoint.bodies(), [r#"{"n":1}"#, r#"{"n":1}"#]);
}

#[tokio::test]
async fn a_second_signal_ends_at_once_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let hang = Arc::new(AtomicBool::new(true));
    let hangs = hang.clone();
    let pause = move || Duration::from_secs(if hangs.load(Ordering::SeqCst) { 60 } else { 0 });
    let endpoint = Endpoint::start(move |_| (200, pause())).await;
    configure(
        folder.path(),
        &format!("http://{}/", endpoint.address),
        "[limits]\nlease = \"1s\"\n",
    );
    let store = store(folder.path()).await;
    let mut daemon = Daemon::start(folder.path(), &[]).await;
    publish(&store, "k", 1).await;
    endpoint.has_received(1).await;
    daemon.signal(Signal::TERM);
    let said =
        || async { Some(()).filter(|()| daemon.said().contains("finishing what is under way")) };
    eventually("the first signal is heard", said).await;
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end().await.code(), Some(130), "{}", daemon.said());
    hang.store(false, Ordering::SeqCst);
    let _next = Daemon::start(folder.path(), &[]).await;
    endpoint.has_received(2).await;
}

#[tokio::test]
async fn a_subscription_that_cannot_start_is_shown_and_the_others_work() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::start(|_| (200, AT_ONCE)).await;
    let more = "[store.lost]\nurl = \"sqlite:no/such/folder/lost.db\"\n[subscription.broken]\nstore = \"lost\"\nto = \"hook\"\n";
    configure(folder.path(), &format!("http://{}/", endpoint.address), more);
    let store = store(folder.path()).await;
    let daemon = Daemon::start(folder.path(), &["--ready-patience", "1s"]).await;
    publish(&store, "k", 1).await;
    endpoint.has_received(1).await;
    let body = eventually("it is not ready", || async {
        let (status, body) = daemon.ready().await;
        (status == 503).then_some(body)
    })
    .await;
    assert_eq!(body["not_progressing"], serde_json::json!(["broken"]));
    assert_eq!(body["subscriptions"]["broken"]["state"], "starting");
    assert!(
        body["subscriptions"]["broken"]["trouble"]
            .as_str()
            .is_some_and(|text| text.starts_with('R')),
        "{body}"
    );
    assert_eq!(body["subscriptions"]["hook"]["ready"], true);
    assert_eq!(daemon.get("/health/live").await.0, 200, "liveness depends on nothing");
}

#[tokio::test]
async fn a_subscription_removed_by_an_operator_is_let_go() {
    let folder = tempfile::tempdir().unwrap();
    configure(folder.path(), "stdout:", "[limits]\nlease = \"1s\"\n");
    let store = store(folder.path()).await;
    let mut daemon = Daemon::start(folder.path(), &["--ready-patience", "1s"]).await;
    let state = async |expected: &str| {
        eventually(expected, || async {
            let (status, body) = daemon.ready().await;
            (status == 200 && body["subscriptions"]["hook"]["state"] == expected).then_some(())
        })
        .await
    };
    state("running").await;
    store.remove("hook").await.unwrap();
    state("removed").await;
    assert!(store.status().await.unwrap().subscriptions.is_empty(), "nobody brings it back");
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end().await.code(), Some(0), "{}", daemon.said());
}

#[tokio::test]
async fn ready_means_progressing() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint =
        Endpoint::start(|body| (200, Duration::from_secs(if body.contains("13") { 4 } else { 0 })))
            .await;
    configure(folder.path(), &format!("http://{}/", endpoint.address), "");
    let store = store(folder.path()).await;
    let daemon = Daemon::start(folder.path(), &["--ready-patience", "1s"]).await;
    publish(&store, "k", 1).await;
    endpoint.has_received(1).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(daemon.ready().await.0, 200, "idle is ready");
    publish(&store, "k", 13).await;
    let ready = async |expected: u16| {
        eventually("readiness flips", || async {
            let (status, body) = daemon.ready().await;
            (status == expected).then_some(body)
        })
        .await
    };
    assert_eq!(ready(503).await["not_progressing"], serde_json::json!(["hook"]));
    assert_eq!(ready(200).await["not_progressing"], serde_json::json!([]));
}

#[tokio::test]
async fn without_a_configuration_a_store_and_an_address_are_enough() {
    let folder = tempfile::tempdir().unwrap();
    let arguments =
        ["--store", "sqlite:shop.db", "--to", "stdout:", "--migrate", "--listen", "127.0.0.1:0"];
    let daemon = Daemon::start(folder.path(), &arguments).await;
    let id = publish(&support::store(folder.path()).await, "k", 1).await;
    let line = eventually("a line is printed", || async {
        daemon.printed.lock().unwrap().lines().next().map(str::to_owned)
    })
    .await;
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&line["id"], &line["data"]["n"]), (&id.to_string().into(), &1.into()));
}

/// The commands that a message shows between backticks.
fn commands(text: &str) -> Vec<Vec<String>> {
    let quoted = text.split('`').skip(1).step_by(2).filter(|it| it.starts_with("relevo "));
    quoted.map(|it| it.split(' ').skip(1).map(str::to_owned).collect()).collect()
}

#[tokio::test]
async fn following_the_messages_literally_leads_to_a_daemon_at_work() {
    let folder = tempfile::tempdir().unwrap();
    let relevo = |args: &[String]| {
        let mut command = support::relevo(folder.path());
        command.args(args).output().unwrap()
    };
    let first = relevo(&["run".into()]);
    let said = String::from_utf8(first.stderr).unwrap();
    assert_eq!(commands(&said)[0], ["init"], "{said}");
    let init = relevo(&commands(&said)[0]);
    assert!(init.status.success());
    let next = commands(&String::from_utf8(init.stdout).unwrap());
    let [migrate, run] = &next[..] else { panic!("{next:?}") };
    assert!(relevo(migrate).status.success(), "{migrate:?}");
    assert_eq!(run[0], "run");
    let options: Vec<&str> = run[1..].iter().map(String::as_str).collect();
    let options = [&options[..], &["--listen", "127.0.0.1:0"]].concat();
    let daemon = Daemon::start(folder.path(), &options).await;
    let published = relevo(&["publish".into(), "order.placed".into(), "1".into()]);
    let id = String::from_utf8(published.stdout).unwrap().trim().to_owned();
    eventually("it is printed", || async {
        Some(()).filter(|()| daemon.printed.lock().unwrap().contains(&id))
    })
    .await;
}

#[tokio::test]
async fn a_configuration_without_subscriptions_says_what_to_add() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("relevo.toml"), "[store.main]\nurl = \"sqlite:shop.db\"\n")
        .unwrap();
    store(folder.path()).await;
    let ended = support::relevo(folder.path()).arg("run").output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(2), "{said}");
    let lines = said.lines().skip_while(|line| !line.starts_with("  [broker")).take(4);
    let text: Vec<&str> = lines.map(str::trim).collect();
    let mut file =
        std::fs::OpenOptions::new().append(true).open(folder.path().join("relevo.toml")).unwrap();
    std::io::Write::write_all(&mut file, text.join("\n").as_bytes()).unwrap();
    let daemon = Daemon::start(folder.path(), &["--listen", "127.0.0.1:0"]).await;
    assert!(daemon.said().contains("subscription notify"), "{said}\n{}", daemon.said());
}

#[tokio::test]
async fn the_variable_names_the_store_of_a_daemon_too() {
    let folder = tempfile::tempdir().unwrap();
    configure(folder.path(), "stdout:", "");
    let store = store(folder.path()).await;
    std::fs::rename(folder.path().join("relevo.toml"), folder.path().join("other.toml")).unwrap();
    let text = std::fs::read_to_string(folder.path().join("other.toml")).unwrap();
    let text = text.replace("sqlite:shop.db", "sqlite:no-such.db");
    std::fs::write(folder.path().join("relevo.toml"), text).unwrap();
    let daemon =
        Daemon::start_with(folder.path(), &[], &[("RELEVO_STORE", "sqlite:shop.db")]).await;
    let id = publish(&store, "k", 1).await.to_string();
    eventually("it is printed", || async {
        Some(()).filter(|()| daemon.printed.lock().unwrap().contains(&id))
    })
    .await;
    assert!(daemon.said().contains("not sqlite:no-such.db (relevo.toml)"), "{}", daemon.said());
}

#[tokio::test]
async fn backlog_and_age_are_shown_without_counting_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let address = free_address().await;
    configure(folder.path(), &format!("http://{address}/"), "");
    let store = store(folder.path()).await;
    for n in 1..=7 {
        publish(&store, "k", n).await;
    }
    let daemon = Daemon::start(folder.path(), &[]).await;
    eventually("the backlog shows", || async {
        daemon.metric("outbox_backlog_gauge{").await.filter(|n| *n >= 7.0)
    })
    .await;
    eventually("the age shows", || async {
        daemon.metric("relevo_oldest_pending_seconds{").await.filter(|s| *s > 0.0)
    })
    .await;
}

#[tokio::test]
async fn the_page_of_metrics_and_the_table_in_the_code_agree() {
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md"))
            .unwrap();
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
    let expected: Vec<String> = METRICS
        .iter()
        .map(|(name, kind, meaning)| format!("| `{name}` | {kind} | {meaning} |"))
        .collect();
    assert_eq!(rows, expected, "docs/metrics.md lists exactly what the code has, in its order");
}
