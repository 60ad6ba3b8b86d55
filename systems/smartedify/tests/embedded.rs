//! All of it in one process on SQLite, with everything that can be broken.
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

mod common;

use chrono::TimeDelta;
use common::{eventually, number, until};
use hyper::Method;
use serde_json::json;
use smartedify::client::{Answer, Client};
use smartedify::db::{Db, Sql};
use smartedify::embedded::{self, Break, Options, Running};
use smartedify::outbox::cleanup::Keep;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);
const TOKEN: &str = "a token of this test";

async fn started(folder: &std::path::Path, rate: u32) -> Running {
    let mut options = Options::in_folder(folder);
    options.rate = rate;
    options.admin_token = Some(TOKEN.into());
    options.settings.poll = (Duration::from_millis(10), Duration::from_millis(100));
    embedded::start(options).await.unwrap()
}

/// So many more effects than now.
async fn goes_on(running: &Running, effects: u64) {
    let before = running.figures().await.unwrap().effects;
    eventually("it goes on", async || {
        (running.figures().await.unwrap().effects >= before + effects).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_broken_nothing_is_lost_and_nothing_happens_twice() {
    let folder = tempfile::tempdir().unwrap();
    let running = started(folder.path(), 100).await;
    goes_on(&running, 50).await;
    running.break_it(Break::Poison).await.unwrap();
    running.break_it(Break::Twice).await.unwrap();
    eventually("a copy is absorbed", async || {
        (running.figures().await.unwrap().duplicates > 0).then_some(())
    })
    .await;
    running.break_it(Break::Fail).await.unwrap();
    eventually("failures", async || (running.figures().await.unwrap().retried > 5).then_some(()))
        .await;
    running.mend();
    goes_on(&running, 20).await;
    running.break_it(Break::Down).await.unwrap();
    eventually("a backlog", async || (running.figures().await.unwrap().pending > 30).then_some(()))
        .await;
    running.mend();
    running.break_it(Break::Relay).await.unwrap();
    running.break_it(Break::Poison).await.unwrap();
    goes_on(&running, 50).await;
    let verdict = running.finish(PATIENCE).await.unwrap();
    assert!(verdict.broken.is_empty(), "{verdict:?}");
    let report = verdict.report;
    assert_eq!((report.dead, report.lost), (2, 0), "{report:?}");
    assert_eq!(report.delivered + report.dead, report.committed, "{report:?}");
    assert_eq!(report.effects, report.delivered);
    assert!(report.duplicates_seen > 0 && report.retried > 5, "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_run_in_the_same_folder_goes_on_where_the_first_ended() {
    let folder = tempfile::tempdir().unwrap();
    let running = started(folder.path(), 100).await;
    goes_on(&running, 20).await;
    // Dropped in the middle of everything.
    drop(running);
    let running = started(folder.path(), 100).await;
    goes_on(&running, 20).await;
    let verdict = running.finish(PATIENCE).await.unwrap();
    assert!(verdict.broken.is_empty(), "{verdict:?}");
    assert!(verdict.report.committed >= 40);
}

/// What every refusal is, whoever refuses; answers why.
fn problem(answer: &Answer, status: u16) -> String {
    assert_eq!(answer.status, status, "{answer:?}");
    assert_eq!(answer.content_type, "application/problem+json", "{answer:?}");
    let problem = answer.json();
    assert_eq!(problem["status"], status, "{answer:?}");
    problem["detail"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_answers_with_problems_that_say_why() {
    let folder = tempfile::tempdir().unwrap();
    let running = started(folder.path(), 0).await;
    let client = Client::to(running.addresses().api);
    let made = client.post("/tenants", json!({ "name": "Mirador" })).await.unwrap();
    assert_eq!(made.status, 201, "{made:?}");
    let tenant = format!("/tenants/{}", made.json()["tenant_id"].as_str().unwrap());
    let user = json!({ "email": "ana@example.org", "role": "owner" });
    assert_eq!(client.post(&format!("{tenant}/users"), user.clone()).await.unwrap().status, 201);
    let odd = json!({ "quorum_percent": 0, "voting": "by_head" });
    let unknown = "/tenants/018f0000-0000-7000-8000-000000000000";
    // A byte more than is read at all.
    let large = json!({ "name": "x".repeat(2 * 1024 * 1024 - 10) });
    assert_eq!(large.to_string().len(), 2 * 1024 * 1024 + 1);
    for (method, path, body, status, why) in [
        (Method::POST, format!("{tenant}/users"), user.clone(), 409, "already"),
        (
            Method::POST,
            format!("{tenant}/users"),
            json!({ "email": "ana", "role": "" }),
            422,
            "e-mail",
        ),
        (Method::PUT, format!("{tenant}/governance"), odd, 422, "quorum_percent is 0"),
        (Method::PATCH, tenant.clone(), json!({ "name": " " }), 422, "empty"),
        (Method::PATCH, tenant.clone(), json!({ "title": "x" }), 422, "unknown field"),
        (Method::PATCH, unknown.into(), json!({ "name": "x" }), 404, "no tenant"),
        (Method::PATCH, "/tenants/7".into(), json!({ "name": "x" }), 404, "no tenant"),
        (Method::GET, "/tenant".into(), json!(null), 404, "no such page"),
        (Method::GET, "/tenants?limit=x".into(), json!(null), 400, "limit"),
        (Method::GET, "/tenants/%FF".into(), json!(null), 400, "UTF-8"),
        (Method::DELETE, tenant.clone(), json!(null), 405, "DELETE"),
        (Method::GET, format!("{tenant}/users"), json!(null), 405, "GET"),
        (Method::POST, "/tenants".into(), large, 413, "limit"),
        (Method::GET, "/metrics".into(), json!(null), 404, "metrics"),
    ] {
        let answer = client.send(method, &path, Some(body)).await.unwrap();
        let told = problem(&answer, status);
        assert!(told.contains(why), "{path}: {told}");
    }
    let no_body = client.send(Method::POST, "/tenants", None).await.unwrap();
    assert!(problem(&no_body, 400).contains("JSON"), "{no_body:?}");
    let shown = client.get(&tenant).await.unwrap().json();
    assert_eq!((shown["name"].as_str(), shown["version"].as_i64()), (Some("Mirador"), Some(2)));
    let second = client.post("/tenants", json!({ "name": "Alameda" })).await.unwrap().json();
    let page = |after: &str| format!("/tenants?limit=1&after={after}");
    let first = client.get("/tenants?limit=1").await.unwrap().json();
    let next = client.get(&page(first[0]["id"].as_str().unwrap())).await.unwrap().json();
    assert_eq!(next[0]["id"], second["tenant_id"]);
    assert_eq!(client.get("/health").await.unwrap().json()["broker"], "up");
    let verdict = running.finish(PATIENCE).await.unwrap();
    assert!(verdict.broken.is_empty(), "{verdict:?}");
    assert_eq!(verdict.report.committed, 3, "what was refused left no event");
}

#[tokio::test]
async fn the_open_api_is_for_this_machine_only() {
    let folder = tempfile::tempdir().unwrap();
    for (address, open) in [("0.0.0.0:0", false), ("[::]:0", false), ("[::1]:0", true)] {
        let mut options = Options::in_folder(folder.path());
        (options.listen, options.rate) = (address.parse().unwrap(), 0);
        let refused = embedded::start(options).await.err().map(|error| error.to_string());
        let told = refused.is_some_and(|why| why.contains("this machine only"));
        assert_eq!(told, !open, "{address}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_are_for_whoever_has_the_token() {
    let folder = tempfile::tempdir().unwrap();
    let running = started(folder.path(), 0).await;
    running.break_it(Break::Poison).await.unwrap();
    let client = Client::to(running.addresses().api);
    let admin = client.clone().with_token(TOKEN);
    for nobody in [client.clone(), client.with_token("wrong")] {
        problem(&nobody.get("/admin/outbox/dlq").await.unwrap(), 401);
        problem(&nobody.post("/admin/outbox/dlq/reprocess", json!({})).await.unwrap(), 401);
    }
    let dead = eventually("a dead letter", async || {
        let listed = admin.get("/admin/outbox/dlq").await.unwrap().json();
        listed.get(0).cloned()
    })
    .await;
    assert_eq!(dead["error_class"], "permanent", "{dead}");
    assert!(dead["last_error"].as_str().unwrap().contains("quorum_percent is 255"), "{dead}");
    let asked =
        admin.post("/admin/outbox/dlq/reprocess", json!({ "event_id": dead["id"] })).await.unwrap();
    assert_eq!(asked.status, 202, "{asked:?}");
    let none = json!({ "error_class": "transient" });
    problem(&admin.post("/admin/outbox/dlq/reprocess", none).await.unwrap(), 404);
    let odd = json!({ "error_class": "unheard of" });
    problem(&admin.post("/admin/outbox/dlq/reprocess", odd).await.unwrap(), 422);
    // It still makes no sense: it was tried again, and is back.
    eventually("it died again", async || {
        let listed = admin.get("/admin/outbox/dlq").await.unwrap().json();
        let again = listed.get(0)?.get("last_error_at")? != dead.get("last_error_at")?;
        again.then_some(())
    })
    .await;
    let verdict = running.finish(PATIENCE).await.unwrap();
    assert!(verdict.broken.is_empty(), "{verdict:?}");
    assert_eq!(verdict.report.dead, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_token_dead_letters_are_for_nobody() {
    for unset in [None, Some(String::new())] {
        let folder = tempfile::tempdir().unwrap();
        let mut options = Options::in_folder(folder.path());
        (options.rate, options.admin_token) = (0, unset);
        let running = embedded::start(options).await.unwrap();
        let client = Client::to(running.addresses().api);
        for nobody in [client.clone(), client.clone().with_token(""), client.with_token(TOKEN)] {
            let listed = nobody.get("/admin/outbox/dlq").await.unwrap();
            assert!(problem(&listed, 403).contains("no admin token was set"), "{listed:?}");
            let asked = nobody.post("/admin/outbox/dlq/reprocess", json!({})).await.unwrap();
            problem(&asked, 403);
        }
    }
}

/// On both sides, as it does elsewhere: here nothing is kept at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_older_than_its_retention_goes() {
    let folder = tempfile::tempdir().unwrap();
    let running = started(folder.path(), 100).await;
    running.break_it(Break::Poison).await.unwrap();
    goes_on(&running, 20).await;
    let before = running.finish(PATIENCE).await.unwrap();
    assert!(before.broken.is_empty(), "{before:?}");
    let open = async |name: &str| {
        Db::open(&format!("sqlite:{}", folder.path().join(name).display())).await.unwrap()
    };
    let (service, downstream) = (open("tenants.db").await, open("directory.db").await);
    let kept = async || {
        let events = Sql::both("SELECT count(*) FROM outbox_events");
        let dead = Sql::both("SELECT count(*) FROM outbox_events_dlq");
        let ids = Sql::both("SELECT count(*) FROM processed_event_ids");
        [
            number(&service, events).await,
            number(&service, dead).await,
            number(&downstream, ids).await,
        ]
    };
    let effects = i64::try_from(before.report.effects).unwrap();
    assert_eq!(kept().await, [effects, 1, effects]);

    let mut options = Options::in_folder(folder.path());
    let none = TimeDelta::zero();
    (options.rate, options.keep) = (0, Keep { published: none, dead: none, processed: none });
    let running = embedded::start(options).await.unwrap();
    until("rows left", 0, async || kept().await.iter().sum::<i64>()).await;
    let effects = Sql::both("SELECT count(*) FROM audit_log");
    assert_eq!(number(&downstream, effects).await.unsigned_abs(), before.report.effects);
    drop(running);
}
