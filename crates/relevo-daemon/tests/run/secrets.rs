//! Passwords stay where they are: the most talkative log shows none, whether they let in or not.

use crate::isolation::{breaker, metric};
use crate::nats::shared;
use crate::rabbitmq::Shop;
use crate::support::{Daemon, configure, eventually, publish, store};
use relevo_testkit::services::unique_name;
use rustix::process::Signal;
use serde_json::json;

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

fn refused(name: &str, url: &str) -> String {
    format!(
        "[broker.{name}]\nurl = \"{url}\"\n[subscription.{name}]\nstore = \"shop\"\nto = \"{name}\"\n"
    )
}

/// As text, or as clients write bytes down.
fn shows(text: &str, secret: &str) -> bool {
    let bytes = format!("{:?}", secret.as_bytes());
    text.contains(secret) || text.contains(bytes.trim_matches(['[', ']']))
}

#[tokio::test(flavor = "multi_thread")]
async fn no_password_is_shown_even_if_everything_is_logged() {
    let (Some(shop), Some(nats)) = (Shop::fresh().await, shared().await) else { return };
    let folder = tempfile::tempdir().unwrap();
    let user = add_user(&shop);
    let with = |password: &str| shop.url.replace("relevo:relevo@", &format!("{user}:{password}@"));
    let at_nats = nats.url().replace("relevo:relevo@", &format!("relevo:{WRONG_AT_NATS}@"));
    let others = refused("wrong", &with(WRONG)) + &refused("nats", &at_nats);
    configure(folder.path(), &with(RIGHT), &others);
    let store = store(folder.path()).await;
    let everything = [("RELEVO_LOG", "trace")];
    let mut daemon = Daemon::start_with(folder.path(), &[], &everything).await;
    publish(&store, "k", 1).await;
    eventually("it is confirmed", || async {
        metric(&daemon, "outbox_published_total", "hook").await.filter(|n| *n == 1.0)
    })
    .await;
    for name in ["wrong", "nats"] {
        eventually(&format!("{name} is not let in"), || async {
            breaker(&daemon, name).await.filter(|open| *open == 1.0)
        })
        .await;
    }
    let (_, metrics) = daemon.get("/metrics").await;
    daemon.signal(Signal::TERM);
    daemon.end().await;
    let printed = daemon.printed.lock().unwrap().clone();
    let said = daemon.said();
    assert!(said.contains("TRACE"), "not everything is logged: {said}");
    for secret in [RIGHT, WRONG, WRONG_AT_NATS] {
        for (place, text) in [("log", &said), ("output", &printed), ("metrics", &metrics)] {
            let line = text.lines().find(|line| shows(line, secret));
            assert_eq!(line, None, "{secret} is in the {place}");
        }
    }
}
