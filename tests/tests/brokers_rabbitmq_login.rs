//! Logging in to RabbitMQ by certificate: the user is whom the certificate names, and there is no password.
#![allow(clippy::unwrap_used, reason = "a test that unwraps says what it expects")]

use relevo_brokers::rabbitmq::topology::{RabbitMqAdmin, RabbitMqTopology};
use relevo_brokers::rabbitmq::{RabbitMqConfig, RabbitMqPublisher, RabbitMqSubscriber};
use relevo_core::broker::{Confirm, Publisher, Received, Settle, Subscriber, Topology};
use relevo_core::event::{Event, NewEvent};
use relevo_testkit::services::{
    self, Certificates, ClientCertificates, Identity, RabbitMq, RabbitMqOptions,
};
use relevo_testkit::{PATIENCE, eventually};
use serde_json::{Value, json};
use std::time::Duration;

const BY_CERTIFICATE: &str = "?auth_mechanism=external";

fn run(work: impl AsyncFnOnce()) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.unwrap().block_on(work());
}

/// A server whose port with TLS lets clients speak without a certificate, too, so that it is the login that refuses.
struct Broker {
    server: RabbitMq,
    certificates: Certificates,
    /// With neither user nor password.
    url: String,
}

impl Broker {
    async fn start() -> Option<Broker> {
        let certificates = Certificates::new().unwrap();
        let options = RabbitMqOptions::new().tls(&certificates, ClientCertificates::Optional);
        let started = tokio::task::spawn_blocking(move || RabbitMq::start_with(&options)).await;
        let server = services::require(started.unwrap())?;
        let url = server.tls_url(&server.fresh_vhost().unwrap()).replace("relevo:relevo@", "");
        assert!(!url.contains('@'), "{url}");
        Some(Broker { server, certificates, url })
    }

    fn anonymous(&self, parameters: &str) -> RabbitMqConfig {
        let config = RabbitMqConfig::to(&format!("{}{parameters}", self.url)).unwrap();
        let config = config.exchange("events").connect_timeout(Duration::from_secs(30));
        config.ca_file(&self.server.tls_files().unwrap().ca).unwrap()
    }

    fn showing(&self, identity: &Identity, parameters: &str) -> RabbitMqConfig {
        let folder = self.server.tls_files().unwrap().ca.parent().unwrap();
        let (pem, key) = (folder.join("shown.pem"), folder.join("shown.key"));
        std::fs::write(&pem, &identity.certificate).unwrap();
        std::fs::write(&key, &identity.key).unwrap();
        self.anonymous(parameters).client_certificate(pem, key).unwrap()
    }

    /// Those who are logged in: user and way.
    fn logins(&self) -> Vec<(String, String)> {
        let columns = "/api/connections?columns=user,auth_mechanism";
        let answer = self.server.api("GET", columns, "").unwrap();
        let all: Vec<Value> = serde_json::from_str(&answer).unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        all.iter().map(|one| (text(&one["user"]), text(&one["auth_mechanism"]))).collect()
    }
}

fn event() -> Event {
    Event::stored(NewEvent::bytes("jobs.made", "1").key("k"), chrono::Utc::now())
}

async fn lay_out(config: &RabbitMqConfig) {
    let queues = json!({"jobs": {"bind": {"events": ["jobs.#"]}}});
    let wanted = json!({"exchanges": {"events": {}}, "queues": queues});
    let wanted: RabbitMqTopology = serde_json::from_value(wanted).unwrap();
    RabbitMqAdmin::new(config.clone(), &wanted).apply(false).await.unwrap();
}

#[test]
fn a_certificate_lays_out_publishes_and_consumes_as_the_user_it_names_without_a_password() {
    run(async || {
        let Some(broker) = Broker::start().await else { return };
        let config = broker.showing(&broker.certificates.client, BY_CERTIFICATE);
        lay_out(&config).await;
        let (publisher, sent) = (RabbitMqPublisher::new(config.clone()), event());
        assert_eq!(publisher.publish(&[&sent]).await, [Confirm::Stored]);
        let mut receiver = RabbitMqSubscriber::new(config, "jobs").open().await.unwrap();
        let came = tokio::time::timeout(PATIENCE, receiver.next(1)).await.expect("it comes");
        let Received::Messages { messages, .. } = came.unwrap() else { panic!("no message") };
        assert_eq!(messages[0].message_id, Some(sent.id.to_string()));
        receiver.settle(&[(messages[0].tag, Settle::Done)]).await.unwrap();
        let logins = eventually("the broker tells who is there", async || {
            Some(broker.logins()).filter(|logins| logins.len() >= 2)
        })
        .await;
        let named = ("relevo".to_owned(), "EXTERNAL".to_owned());
        assert!(logins.iter().all(|login| *login == named), "{logins:?}");
    });
}

#[test]
fn nobody_comes_in_without_a_certificate_or_with_one_that_names_no_user() {
    run(async || {
        let Some(broker) = Broker::start().await else { return };
        lay_out(&broker.showing(&broker.certificates.client, BY_CERTIFICATE)).await;
        let Certificates { client, server, .. } = &broker.certificates;
        let by_password = |url: &str| url.replace("amqps://", "amqps://relevo:relevo@");
        for (why, config) in [
            ("no certificate", broker.anonymous(BY_CERTIFICATE)),
            // The same authority signed it, for `localhost`, whom the broker does not know.
            ("a stranger's certificate", broker.showing(server, BY_CERTIFICATE)),
            ("a certificate, but neither its login nor a password", broker.showing(client, "")),
        ] {
            let confirm = RabbitMqPublisher::new(config).publish(&[&event()]).await.remove(0);
            let Confirm::Down { error } = confirm else { panic!("{why}: {confirm:?}") };
            assert!(error.contains("ACCESS_REFUSED"), "{why}: {error}");
        }
        let config = RabbitMqConfig::to(&by_password(&broker.url)).unwrap().exchange("events");
        let config = config.ca_file(&broker.server.tls_files().unwrap().ca).unwrap();
        let confirms = RabbitMqPublisher::new(config).publish(&[&event()]).await;
        assert_eq!(confirms, [Confirm::Stored], "the port itself is open to those without one");
    });
}
