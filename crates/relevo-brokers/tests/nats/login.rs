//! Logins and TLS: what is right works, what is wrong is named and kept secret.

use super::{consumer, event, next, publish};
use relevo_brokers::nats::{NatsAdmin, NatsConfig, NatsPublisher, NatsSubscriber, NatsTopology};
use relevo_core::Kind;
use relevo_core::broker::{Act, Confirm, Settle, Subscriber, Topology};
use relevo_testkit::services::{
    Certificates, ClientCertificates, Nats, NatsLogin, NatsOptions, require, unique_name,
};

#[tokio::test]
async fn every_login_works_and_a_wrong_one_is_named() {
    use NatsLogin::{Credentials, Nkey, Password, Token};
    for login in [Password, Token, Nkey, Credentials] {
        let Some(server) = require(Nats::start_with(&NatsOptions::new().login(login))) else {
            return;
        };
        let config = NatsConfig::to(&server.url()).unwrap();
        let config = match (server.seed(), server.credentials_file()) {
            (Some(seed), _) => config.nkey(seed),
            (_, Some(file)) => config.credentials_file(file),
            _ => config,
        };
        let plan = |config: NatsConfig| async move {
            let topology =
                serde_json::from_str(r#"{"streams":{"L":{"subjects":["l.>"]}}}"#).unwrap();
            NatsAdmin::new(config, topology).apply(false).await
        };
        assert_eq!(plan(config.clone()).await.unwrap().steps[0].act, Act::Create, "{login:?}");
        comes_back(config).await;
        let address = server.address();
        for wrong in [
            NatsConfig::to(&format!("nats://relevo:s3cret@{address}")).unwrap(),
            NatsConfig::to(&format!("nats://{address}")).unwrap().token("s3cret"),
            NatsConfig::to(&format!("nats://{address}")).unwrap(),
        ] {
            let error = plan(wrong).await.unwrap_err();
            assert_eq!(error.kind(), Kind::AuthenticationFailed, "{login:?}: {error}");
            assert!(error.message().contains("check the user and password"), "{error}");
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }
}

/// What is published to the stream `L` is consumed by the same login.
async fn comes_back(config: NatsConfig) {
    let confirms = publish(&NatsPublisher::new(config.clone()), &[event("l.a", 1)]).await;
    assert_eq!(confirms, [Confirm::Stored]);
    let mut receiver = NatsSubscriber::new(config, consumer("L")).open().await.unwrap();
    let came = next(&mut receiver, 1).await;
    assert_eq!(came[0].payload[..], b"payload 1"[..]);
    receiver.settle(&[(came[0].tag, Settle::Done)]).await.unwrap();
    receiver.close().await.unwrap();
}

#[tokio::test]
async fn a_broken_credentials_file_is_named_without_its_content() {
    let file = std::env::temp_dir().join(format!("{}.creds", unique_name("broken")));
    std::fs::write(&file, "-----BEGIN-----\ns3cret\n").unwrap();
    let config = NatsConfig::to("nats://127.0.0.1:1").unwrap().credentials_file(&file);
    let error = NatsAdmin::new(config, NatsTopology::default()).plan().await.unwrap_err();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(error.kind(), Kind::InvalidConfig);
    assert!(error.to_string().contains("broken") && !error.to_string().contains("s3cret"));
}

#[tokio::test]
async fn tls_believes_its_authority_and_shows_its_certificate() {
    let Some(certificates) = require(Certificates::shared()) else { return };
    let options = NatsOptions::new().tls(&certificates, ClientCertificates::Required);
    let Some(server) = require(Nats::start_with(&options)) else { return };
    let files = server.tls_files().unwrap();
    let config = NatsConfig::to(&server.url()).unwrap();
    let plan = |config: NatsConfig| async move {
        NatsAdmin::new(config, NatsTopology::default()).plan().await
    };
    let both =
        config.clone().authority(&files.ca).client_certificate(&files.certificate, &files.key);
    let stream = serde_json::from_str(r#"{"streams":{"L":{"subjects":["l.>"]}}}"#).unwrap();
    NatsAdmin::new(both.clone(), stream).apply(false).await.unwrap();
    comes_back(both.clone()).await;
    let no_certificate = plan(config.clone().authority(&files.ca)).await.unwrap_err();
    assert_eq!(no_certificate.kind(), Kind::DestinationDown, "{no_certificate}");
    let not_believed = plan(config.client_certificate(&files.certificate, &files.key)).await;
    let not_believed = not_believed.unwrap_err();
    assert!(not_believed.to_string().contains("certificate"), "{not_believed}");
    let no_file = plan(both.authority("/nowhere/ca.pem")).await.unwrap_err();
    assert_eq!(no_file.kind(), Kind::InvalidConfig);
    assert!(no_file.to_string().contains("/nowhere/ca.pem"), "{no_file}");
}

#[tokio::test]
async fn a_certificate_for_another_name_is_not_believed() {
    // Not for 127.0.0.1, which is the same server by another name.
    let Some(certificates) = require(Certificates::for_names(&["localhost"])) else { return };
    let options = NatsOptions::new().tls(&certificates, ClientCertificates::Required);
    let Some(server) = require(Nats::start_with(&options)) else { return };
    let files = server.tls_files().unwrap();
    let plan = |url: String| async move {
        let config = NatsConfig::to(&url).unwrap().authority(&files.ca);
        let config = config.client_certificate(&files.certificate, &files.key);
        NatsAdmin::new(config, NatsTopology::default()).plan().await
    };
    let by_address = server.url();
    assert!(by_address.contains("127.0.0.1"), "{by_address}");
    assert!(plan(by_address.replace("127.0.0.1", "localhost")).await.unwrap().is_done());
    let refused = plan(by_address).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::DestinationDown, "{refused}");
    assert!(refused.to_string().contains("certificate"), "{refused}");
}
