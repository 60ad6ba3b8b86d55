//! What a user may not write, by exchange and by topic, and what becomes of the messages beside it.

use super::{admin, class_of, event, fresh, publish, run, shop};
use relevo_brokers::rabbitmq::{RabbitMqConfig, RabbitMqPublisher};
use relevo_core::ErrorClass;
use relevo_core::broker::{Confirm, Topology};
use relevo_core::event::{Event, TopicFilter};
use relevo_testkit::eventually;
use relevo_testkit::services::{RabbitMq, unique_name};
use serde_json::json;
use std::sync::Arc;

/// A user of a fresh virtual host with the exchange `events`, who may do nothing yet.
struct User {
    server: Arc<RabbitMq>,
    vhost: String,
    name: String,
    /// As this user.
    url: String,
}

impl User {
    async fn fresh() -> Option<User> {
        let (server, url) = fresh().await?;
        admin(&server, &url, &shop()).apply(false).await.unwrap();
        let (name, vhost) = (unique_name("user"), url.rsplit('/').next().unwrap().to_owned());
        let made = json!({"password": "secret", "tags": ""});
        server.api("PUT", &format!("/api/users/{name}"), &made.to_string()).unwrap();
        let url = url.replace("relevo:relevo@", &format!("{name}:secret@"));
        Some(User { server, vhost, name, url })
    }

    fn may(&self, what: &str, rights: &serde_json::Value) {
        let path = format!("/api/{what}/{}/{}", self.vhost, self.name);
        self.server.api("PUT", &path, &rights.to_string()).unwrap();
    }

    /// Exchanges whose name matches.
    fn may_write(&self, exchanges: &str) {
        self.may("permissions", &json!({"configure": "", "write": exchanges, "read": ""}));
    }

    /// Topics of the exchange `events` that match.
    fn may_write_topics(&self, topics: &str) {
        let rights = json!({"exchange": "events", "write": topics, "read": ""});
        self.may("topic-permissions", &rights);
    }

    fn config(&self) -> RabbitMqConfig {
        RabbitMqConfig::to(&self.url).unwrap().exchange("events")
    }
}

fn refused_for_now(confirm: &Confirm, remedy: &str) {
    assert_eq!(class_of(confirm), Some(ErrorClass::Transient), "{confirm:?}");
    let Confirm::Refused { error, .. } = confirm else { panic!("{confirm:?}") };
    assert!(error.contains(remedy), "{error}");
}

#[test]
fn a_forbidden_topic_is_refused_by_name_and_the_others_go_on_until_it_is_permitted() {
    run(async || {
        let Some(user) = User::fresh().await else { return };
        user.may_write("^events$");
        user.may_write_topics(r"^jobs\.open\.");
        let publisher = RabbitMqPublisher::new(user.config());
        let secret = "jobs.secret.it's";
        // The broker cuts what it says of this one.
        let long = format!("jobs.{}", "x".repeat(240));
        let topics: Vec<&str> = (0..30)
            .map(|n| match n {
                7 | 21 => secret,
                13 => &long,
                _ => "jobs.open.a",
            })
            .collect();
        let events: Vec<Event> = topics.iter().map(|topic| event(topic, b"x")).collect();
        for _ in 0..2 {
            let confirms = publish(&publisher, &events).await;
            for (topic, confirm) in topics.iter().zip(&confirms) {
                match topic.starts_with("jobs.open.") {
                    true => assert_eq!(*confirm, Confirm::Stored, "{confirms:?}"),
                    false => refused_for_now(
                        confirm,
                        &format!(
                            "may not write the topic {topic} to the exchange \"events\": it needs that topic permission"
                        ),
                    ),
                }
            }
        }
        user.may_write_topics(r"^jobs\.");
        eventually("what is permitted is stored", async || {
            let confirms = publish(&publisher, &events).await;
            confirms.iter().all(|confirm| *confirm == Confirm::Stored).then_some(())
        })
        .await;
    });
}

#[test]
fn a_forbidden_exchange_of_a_route_is_refused_and_the_main_one_is_down_until_it_is_permitted() {
    run(async || {
        let Some(user) = User::fresh().await else { return };
        user.may_write("^events$");
        let billing = TopicFilter::parse("bill.#").unwrap();
        let routed = |config: RabbitMqConfig, to: &str| {
            RabbitMqPublisher::new(config.route(billing.clone(), to))
        };
        let events = [event("jobs.a", b"1"), event("bill.a", b"2"), event("jobs.b", b"3")];
        // The other exchange that is there; and the one without a name, where a topic is a queue.
        for other in ["dead", ""] {
            let confirms = publish(&routed(user.config(), other), &events).await;
            let remedy =
                format!("may not write to the exchange {other:?}: it needs that permission");
            refused_for_now(&confirms[1], &remedy);
            assert_eq!([&confirms[0], &confirms[2]], [&Confirm::Stored; 2], "{confirms:?}");
        }
        let publisher = RabbitMqPublisher::new(user.config());
        user.may_write("^dead$");
        let confirms = publish(&publisher, &events).await;
        let remedy = "may not write to the exchange \"events\": it needs that permission";
        let is_down = |c: &Confirm| matches!(c, Confirm::Down { error } if error.contains(remedy));
        assert!(confirms.iter().all(is_down), "nothing is parked: {confirms:?}");
        user.may_write("^(events|amq.default)$");
        eventually("what is permitted is stored", async || {
            let confirms = publish(&publisher, &[event("jobs.a", b"1")]).await;
            (confirms == [Confirm::Stored]).then_some(())
        })
        .await;
    });
}
