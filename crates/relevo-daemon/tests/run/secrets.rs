//! Passwords stay where they are: the most talkative log shows none, whether they let in or not.

use crate::isolation::{breaker, metric};
#[cfg(feature = "kafka")]
use crate::kafka;
use crate::nats::shared;
use crate::rabbitmq::Shop;
#[cfg(feature = "kafka")]
use crate::support::relevo;
use crate::support::{Daemon, configure, eventually, publish, store};
use relevo_testkit::services::unique_name;
use rustix::process::Signal;
use serde_json::json;
use std::path::Path;

/// Like nothing else that is ever said: a password of its own for each login.
const RIGHT: &str = "Rq7-lets-in-Zk31";
const WRONG: &str = "Xw9-keeps-out-Hv58";
const WRONG_AT_NATS: &str = "Jt4-nats-refuses-Pb62";

/// A user of the virtual host with the password [`RIGHT`].
fn add_user(shop: &Shop) -> String {
    let user = unique_name("teller");
    let login = json!({"password": RIGHT, "tags": ""}).to_string();
    shop.server.api("PUT", &format!("/api/users/{user}"), &login).unwrap();
    let everything = json!({"configure": ".*", "write": ".*", "read": ".*"});
    shop.put("permissions", &format!("/{user}"), &everything);
    user
}

fn refused(name: &str, url: &str, options: &str) -> String {
    format!(
        "[broker.{name}]\nurl = \"{url}\"\n{options}[subscription.{name}]\nstore = \"shop\"\nto = \"{name}\"\n"
    )
}

/// As text, or as clients write bytes down.
pub(crate) fn shows(text: &str, secret: &str) -> bool {
    let bytes = format!("{:?}", secret.as_bytes());
    text.contains(secret) || text.contains(bytes.trim_matches(['[', ']']))
}

const EVERYTHING: (&str, &str) = ("RELEVO_LOG", "trace");

/// A daemon that logs everything: an event is confirmed to `hook`, and none of these is let in.
async fn one_lets_in(folder: &Path, others: &[&str]) -> Daemon {
    let store = store(folder).await;
    let daemon = Daemon::start_with(folder, &[], &[EVERYTHING]).await;
    publish(&store, "k", 1).await;
    eventually("it is confirmed", || async {
        metric(&daemon, "outbox_published_total", "hook").await.filter(|n| *n == 1.0)
    })
    .await;
    for name in others {
        eventually(&format!("{name} is not let in"), || async {
            breaker(&daemon, name).await.filter(|open| *open == 1.0)
        })
        .await;
    }
    daemon
}

/// Ends it, and looks at everything that it has ever told; its log has lines of this kind, which only the most talkative
/// one has.
async fn assert_kept(mut daemon: Daemon, finest: &str, secrets: &[&str]) {
    let (_, metrics) = daemon.get("/metrics").await;
    let (_, ready) = daemon.get("/health/ready").await;
    daemon.signal(Signal::TERM);
    daemon.end().await;
    let printed = daemon.printed.lock().unwrap().clone();
    let said = daemon.said();
    assert!(said.contains(finest), "not everything is logged: {said}");
    let places = [("log", said), ("output", printed), ("metrics", metrics), ("health", ready)];
    places.iter().for_each(|(place, text)| assert_shown_nowhere(text, place, secrets));
}

fn assert_shown_nowhere(text: &str, place: &str, secrets: &[&str]) {
    let line = text.lines().find(|line| secrets.iter().any(|secret| shows(line, secret)));
    assert_eq!(line, None, "a password is in the {place}");
}

#[cfg(feature = "kafka")]
fn append(folder: &Path, more: &str) {
    let file = folder.join("relevo.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(file, text + more).unwrap();
}

/// The exit code of `relevo topology apply`, and all that it said.
#[cfg(feature = "kafka")]
fn topology_telling_everything(folder: &Path, broker: &str) -> (Option<i32>, String) {
    let mut command = relevo(folder);
    command.args(["topology", "apply", "--broker", broker]).env(EVERYTHING.0, EVERYTHING.1);
    let ended = tokio::task::block_in_place(|| command.output().unwrap());
    let told = [ended.stdout, ended.stderr].concat();
    (ended.status.code(), String::from_utf8(told).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_password_is_shown_even_if_everything_is_logged() {
    let (Some(shop), Some(nats)) = (Shop::fresh().await, shared().await) else { return };
    let folder = tempfile::tempdir().unwrap();
    let user = add_user(&shop);
    let with = |password: &str| shop.url.replace("relevo:relevo@", &format!("{user}:{password}@"));
    let at_nats = nats.url().replace("relevo:relevo@", &format!("relevo:{WRONG_AT_NATS}@"));
    let others = refused("wrong", &with(WRONG), "") + &refused("nats", &at_nats, "");
    configure(folder.path(), &with(RIGHT), &others);
    let daemon = one_lets_in(folder.path(), &["wrong", "nats"]).await;
    assert_kept(daemon, "TRACE", &[RIGHT, WRONG, WRONG_AT_NATS]).await;
}

#[cfg(feature = "kafka")]
#[tokio::test(flavor = "multi_thread")]
async fn no_password_of_kafka_is_shown_even_if_everything_is_logged() {
    let Some(server) = kafka::with_teller(RIGHT).await else { return };
    let folder = tempfile::tempdir().unwrap();
    let (authority, address) = (kafka::authority(&server), server.scram_bootstrap().unwrap());
    let with = |password: &str| format!("kafkas://teller:{password}@{address}");
    kafka::with_topic(folder.path(), &with(RIGHT), &authority, "order.placed");
    let wrong = refused("wrong", &with(WRONG), &authority);
    append(folder.path(), &format!("{wrong}[topology.wrong.topics.\"order.placed\"]\n"));
    for (broker, lets_in) in [("hook", true), ("wrong", false)] {
        let (code, told) = topology_telling_everything(folder.path(), broker);
        assert_eq!(code == Some(0), lets_in, "{broker}: {told}");
        assert_shown_nowhere(&told, "topology", &[RIGHT, WRONG]);
    }
    let daemon = one_lets_in(folder.path(), &["wrong"]).await;
    // The client has nothing to say that is finer.
    assert_kept(daemon, "DEBUG relevo_brokers::kafka", &[RIGHT, WRONG]).await;
}
