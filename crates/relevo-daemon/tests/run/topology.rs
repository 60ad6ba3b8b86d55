//! `relevo topology` against real brokers.

use crate::nats::shared;
use crate::rabbitmq::Shop;
use crate::support::{Ended, run_cli};
use relevo_testkit::services::{RabbitMq, unique_name};
use serde_json::Value;
use std::path::Path;

/// relevo.toml with a RabbitMQ whose queue `jobs` has these `options`, and whatever `more` says.
pub(crate) fn configure(folder: &Path, server: &RabbitMq, url: &str, options: &str, more: &str) {
    let port = server.management().port();
    let text = format!(
        "[broker.rabbit]\nurl = \"{url}\"\nmanagement_port = {port}\n\
         [topology.rabbit.exchanges.events]\n[topology.rabbit.queues.jobs]\n\
         bind = {{ events = [\"order.#\"] }}\n{options}\n{more}"
    );
    std::fs::write(folder.join("relevo.toml"), text).unwrap();
}

pub(crate) async fn topology(folder: &Path, arguments: &[&str]) -> Ended {
    let arguments: Vec<&str> = ["topology"].iter().chain(arguments).copied().collect();
    let ended = run_cli(folder, &arguments).await;
    let said = format!("{}{}", ended.out, ended.err);
    assert!(!said.contains("relevo:relevo"), "a password: {said}");
    ended
}

fn acts(ended: &Ended) -> Vec<(String, String)> {
    let answer: Value =
        serde_json::from_str(&ended.out).unwrap_or_else(|_| panic!("{}", ended.out));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let steps = answer["brokers"][0]["steps"].as_array().unwrap();
    steps.iter().map(|step| (text(&step["act"]), text(&step["name"]))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_shows_the_difference_and_applying_it_twice_does_nothing_more() {
    let Some(shop) = Shop::fresh().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let url = shop.server.fresh_vhost().unwrap();
    configure(folder.path(), &shop.server, &url, "max_length = 100", "");
    let plan = topology(folder.path(), &["plan"]).await;
    assert_eq!((plan.code, plan.err.as_str()), (0, ""), "clients of brokers keep their logs");
    assert!(plan.out.contains("create  queue"), "{}", plan.out);
    assert!(plan.out.contains("quorum, max-length 100, overflow reject-publish"), "{}", plan.out);
    assert!(plan.out.contains("rabbit: 3 things to put right, 0 things as wanted"), "{}", plan.out);
    let made = ["events", "jobs", "events -> jobs"].map(|name| ("create".to_owned(), name.into()));
    assert_eq!(acts(&topology(folder.path(), &["plan", "--json"]).await), made);
    assert_eq!(topology(folder.path(), &["check"]).await.code, 1);
    assert_eq!(topology(folder.path(), &["check"]).await.code, 1, "looking changes nothing");

    let applied = topology(folder.path(), &["apply"]).await;
    assert_eq!(applied.code, 0, "{}", applied.err);
    assert!(applied.out.contains("rabbit: created queue jobs: quorum"), "{}", applied.out);
    assert!(applied.out.contains("rabbit: 3 things put right"), "{}", applied.out);
    let again = topology(folder.path(), &["apply"]).await;
    assert_eq!((again.code, again.out.as_str()), (0, "rabbit: 3 things as wanted\n"));
    assert_eq!(topology(folder.path(), &["check"]).await.code, 0);
    let all = topology(folder.path(), &["plan", "--all"]).await;
    assert!(all.out.contains("ok   queue"), "{}", all.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_would_lose_messages_is_refused_whole_unless_forced() {
    let Some(shop) = Shop::fresh().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let url = shop.server.fresh_vhost().unwrap();
    configure(folder.path(), &shop.server, &url, "", "");
    assert_eq!(topology(folder.path(), &["apply"]).await.code, 0);
    let more = "[topology.rabbit.queues.others]\n";
    configure(folder.path(), &shop.server, &url, "kind = \"classic\"", more);
    let before = acts(&topology(folder.path(), &["plan", "--json"]).await);
    assert!(before.contains(&("create".to_owned(), "others".to_owned())), "{before:?}");
    let plan = topology(folder.path(), &["plan"]).await;
    assert!(plan.out.contains("replace  queue"), "{}", plan.out);
    assert!(plan.out.contains("1 thing would lose messages and needs --force"), "{}", plan.out);
    let refused = topology(folder.path(), &["apply"]).await;
    assert_eq!(refused.code, 5, "{}{}", refused.out, refused.err);
    assert!(refused.err.contains("R0041") && refused.err.contains("queue jobs"), "{}", refused.err);
    let after = acts(&topology(folder.path(), &["plan", "--json"]).await);
    assert_eq!(after, before, "not even what could be made without loss was made");
    let forced = topology(folder.path(), &["apply", "--force"]).await;
    assert_eq!(forced.code, 0, "{}", forced.err);
    assert!(forced.out.contains("replaced queue jobs"), "{}", forced.out);
    assert!(forced.out.contains("created binding events -> jobs"), "{}", forced.out);
    assert_eq!(topology(folder.path(), &["check"]).await.code, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_broker_is_asked_by_itself_and_one_can_be_picked() {
    let (Some(shop), Some(nats)) = (Shop::fresh().await, shared().await) else { return };
    let folder = tempfile::tempdir().unwrap();
    let url = shop.server.fresh_vhost().unwrap();
    let stream = unique_name("PICKED");
    let more = format!(
        "[broker.nats]\nurl = \"{}\"\n[topology.nats.streams.{stream}]\nsubjects = [\"{stream}.>\"]\n\
         [topology.nats.streams.{stream}.consumers.billing]\nack_wait = \"1m\"\n\
         [broker.down]\nurl = \"nats://u:s3cret@127.0.0.1:1\"\n[topology.down.streams.S]\nsubjects = [\"s\"]\n",
        nats.url()
    );
    configure(folder.path(), &shop.server, &url, "", &more);
    let one = topology(folder.path(), &["apply", "--broker", "nats"]).await;
    assert_eq!(one.code, 0, "{}", one.err);
    assert!(one.out.contains(&format!("nats: created consumer {stream}/billing")), "{}", one.out);
    assert!(!one.out.contains("rabbit"), "{}", one.out);

    let all = topology(folder.path(), &["apply"]).await;
    assert_eq!(all.code, 3, "one is down: {}{}", all.out, all.err);
    assert!(all.err.contains("down: error R0036 (nats)"), "{}", all.err);
    assert!(!all.err.contains("s3cret"), "{}", all.err);
    assert!(all.out.contains("nats: 2 things as wanted"), "{}", all.out);
    assert!(all.out.contains("rabbit: created queue jobs"), "{}", all.out);
    let json = topology(folder.path(), &["check", "--json"]).await;
    let answer: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!((json.code, &answer["brokers"][0]["error"]["code"]), (3, &"R0036".into()));
    assert_eq!(answer["brokers"][2]["is_as_wanted"], true, "{answer}");
    assert_eq!(topology(folder.path(), &["check", "--broker", "rabbit"]).await.code, 0);

    let wrong = topology(folder.path(), &["plan", "--broker", "rabit"]).await;
    assert_eq!(wrong.code, 2, "{}", wrong.err);
    assert!(wrong.err.contains("did you mean \"rabbit\""), "{}", wrong.err);
}
