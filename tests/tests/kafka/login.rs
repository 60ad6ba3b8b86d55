//! Who is let in.

use crate::{consumer, event, open, publish, run, settle, start, store, take, topic};
use relevo_brokers::kafka::{KafkaConfig, KafkaPublisher, KafkaSubscriber};
use relevo_core::Kind;
use relevo_core::broker::{Confirm, Subscriber};
use relevo_testkit::services::{Certificates, KafkaOptions};
use std::time::Duration;

#[test]
fn passwords_and_certificates_let_in_and_nothing_else_does() {
    run(async || {
        let certificates = Certificates::shared().unwrap();
        let Some(server) = start(KafkaOptions::new().tls(&certificates)).await else { return };
        let topic = topic(&server, 1).await;
        let files = server.tls_files().unwrap();
        let short = Duration::from_secs(5);
        let scram = |password: &str| {
            let url = format!("kafkas://relevo:{password}@{}", server.scram_bootstrap().unwrap());
            KafkaConfig::to(&url).unwrap().authority(&files.ca).connect_timeout(short)
        };
        let bare = KafkaConfig::to(&format!("kafkas://{}", server.mtls_bootstrap().unwrap()));
        let bare = bare.unwrap().authority(&files.ca).connect_timeout(short);
        let mtls = bare.clone().client_certificate(&files.certificate, &files.key);
        for (number, good) in [scram("relevo"), mtls].into_iter().enumerate() {
            let payload = number.to_string();
            store(good.clone(), &[event(&topic, "k", payload.as_bytes())]).await;
            let mut receiver = open(good, consumer(&topic)).await;
            let came = take(&mut receiver, 1).await;
            assert_eq!(came[0].payload, payload);
            settle(&mut receiver, &came).await;
            receiver.close().await.unwrap();
        }
        let another = files.ca.with_file_name("another-authority.pem");
        std::fs::write(&another, Certificates::new().unwrap().ca).unwrap();
        let strange = scram("relevo").authority(&another);
        for bad in [scram("wr0ng"), bare, strange] {
            let confirms =
                publish(&KafkaPublisher::new(bad.clone()), &[event(&topic, "k", b"x")]).await;
            let [Confirm::Down { error }] = &confirms[..] else { panic!("{confirms:?}") };
            assert!(!error.contains("wr0ng"), "{error}");
            let error = KafkaSubscriber::new(bad, consumer(&topic)).open().await.err().unwrap();
            assert!(!error.to_string().contains("wr0ng"), "{error}");
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
