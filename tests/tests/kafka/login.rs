//! Who is let in.

use crate::{consumer, event, open, publish, run, settle, start, store, take, topic};
use relevo_brokers::kafka::{KafkaConfig, KafkaPublisher, KafkaSubscriber, Mechanism};
use relevo_core::Kind;
use relevo_core::broker::{Confirm, Subscriber};
use relevo_testkit::services::{Certificates, Kafka, KafkaOptions};
use std::time::Duration;

/// A wrong login is known only when nobody has answered for so long.
const SHORT: Duration = Duration::from_secs(10);
/// Whoever is let in has time.
const LONG: Duration = Duration::from_secs(60);

fn by_password(server: &Kafka, mechanism: Mechanism, password: &str) -> KafkaConfig {
    let url = format!("kafkas://relevo:{password}@{}", server.scram_bootstrap().unwrap());
    let config = KafkaConfig::to(&url).unwrap().authority(&server.tls_files().unwrap().ca);
    config.mechanism(mechanism).connect_timeout(SHORT)
}

/// What is published comes in again.
async fn is_let_in(config: KafkaConfig, topic: &str, payload: String) {
    store(config.clone(), &[event(topic, "k", payload.as_bytes())]).await;
    let mut receiver = open(config, consumer(topic)).await;
    let came = take(&mut receiver, 1).await;
    assert_eq!(came[0].payload, payload);
    settle(&mut receiver, &came).await;
    receiver.close().await.unwrap();
}

/// What publishing and consuming say.
async fn is_kept_out(config: KafkaConfig, topic: String) -> (String, relevo_core::Error) {
    let publisher = KafkaPublisher::new(config.clone());
    let (events, group) =
        ([event(&topic, "k", b"x")], KafkaSubscriber::new(config, consumer(&topic)));
    let (confirms, opened) = tokio::join!(publish(&publisher, &events), group.open());
    let [Confirm::Down { error }] = &confirms[..] else { panic!("{confirms:?}") };
    let refused = opened.err().unwrap();
    assert!(!error.contains("wr0ng") && !refused.to_string().contains("wr0ng"), "{error}");
    (error.clone(), refused)
}

#[test]
fn passwords_and_certificates_let_in_and_nothing_else_does() {
    run(async || {
        let certificates = Certificates::shared().unwrap();
        let Some(server) = start(KafkaOptions::new().tls(&certificates)).await else { return };
        let topic = topic(&server, 1).await;
        let files = server.tls_files().unwrap();
        let bare = KafkaConfig::to(&format!("kafkas://{}", server.mtls_bootstrap().unwrap()));
        let bare = bare.unwrap().authority(&files.ca).connect_timeout(SHORT);
        let mtls = bare.clone().client_certificate(&files.certificate, &files.key);
        for mechanism in Mechanism::ALL {
            let right = by_password(&server, mechanism, "relevo");
            is_let_in(right.connect_timeout(LONG), &topic, mechanism.as_str().into()).await;
        }
        is_let_in(mtls.connect_timeout(LONG), &topic, "by certificate".into()).await;
        let another = files.ca.with_file_name("another-authority.pem");
        std::fs::write(&another, Certificates::new().unwrap().ca).unwrap();
        let strange = by_password(&server, Mechanism::default(), "relevo").authority(&another);
        let (not_shown, not_believed) =
            tokio::join!(is_kept_out(bare, topic.clone()), is_kept_out(strange, topic.clone()));
        assert_eq!(not_shown.1.kind(), Kind::DestinationDown, "{}", not_shown.1);
        assert!(not_believed.0.contains("certificate"), "{}", not_believed.0);
        let wrong =
            |mechanism| is_kept_out(by_password(&server, mechanism, "wr0ng"), topic.clone());
        let [plain, scram256, scram512] = Mechanism::ALL.map(wrong);
        let (plain, scram256, scram512) = tokio::join!(plain, scram256, scram512);
        // Each mechanism has words of its own on the broker.
        let words = ["Invalid username or password", "SCRAM-SHA-256", "SCRAM-SHA-512"];
        for ((error, refused), words) in [plain, scram256, scram512].into_iter().zip(words) {
            let remedy = "check user, password and mechanism";
            assert!(error.contains(words) && error.contains(remedy), "{error}");
            assert_eq!(refused.kind(), Kind::AuthenticationFailed, "{refused}");
            assert!(refused.message().contains(remedy), "{refused}");
        }
    });
}

#[test]
fn a_certificate_for_another_name_is_not_believed() {
    run(async || {
        // The brokers are known as 127.0.0.1; with a certificate for that the case above gets in the same way.
        let certificates = Certificates::for_names(&["kafka.example.org"]).unwrap();
        let Some(server) = start(KafkaOptions::new().tls(&certificates)).await else { return };
        let topic = topic(&server, 1).await;
        let files = server.tls_files().unwrap();
        let bad = KafkaConfig::to(&format!("kafkas://{}", server.mtls_bootstrap().unwrap()));
        let bad = bad.unwrap().authority(&files.ca).connect_timeout(Duration::from_secs(10));
        let bad = bad.client_certificate(&files.certificate, &files.key);
        let confirms =
            publish(&KafkaPublisher::new(bad.clone()), &[event(&topic, "k", b"x")]).await;
        assert!(matches!(&confirms[..], [Confirm::Down { .. }]), "{confirms:?}");
        let refused = KafkaSubscriber::new(bad, consumer(&topic)).open().await.err().unwrap();
        assert_eq!(refused.kind(), Kind::DestinationDown, "{refused}");
    });
}
