//! Apache Kafka as the kit starts it: what it keeps, and what can be done to it.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod support;

use relevo_testkit::services::{self, Certificates, Kafka, KafkaOptions, TlsFiles, unique_name};
use rustix::process::Signal;
use std::time::Instant;
use support::owner::{
    assert_a_cluster_ends_with_its_owner, assert_a_starting_cluster_ends_with_its_owner,
    assert_ends_with_its_owner,
};
use support::{Client, TestResult};

#[test]
fn what_was_confirmed_survives_a_restart_and_a_kill() -> TestResult {
    let Some(client) = Client::new("kafka.py") else { return Ok(()) };
    let start = Instant::now();
    let Some(server) = services::require(Kafka::start()) else { return Ok(()) };
    eprintln!("Kafka: ready after {:?}, {} kB", start.elapsed(), server.memory_kb());
    let (bootstrap, topic) = (server.bootstrap(), unique_name("topic"));
    client.declare(&bootstrap, &topic)?;
    client.publish(&bootstrap, &topic, 1, 10)?;
    server.pause();
    client.assert_waits(&bootstrap, &topic);
    server.resume();
    client.publish(&bootstrap, &topic, 11, 20)?;
    server.restart()?;
    client.publish(&bootstrap, &topic, 21, 30)?;
    server.kill9();
    assert!(!server.is_running());
    let start = Instant::now();
    server.restart()?;
    eprintln!("Kafka: after a kill, ready after {:?}", start.elapsed());
    client.assert_has_all(&bootstrap, &topic, 30);
    Ok(())
}

#[test]
fn a_cut_through_its_own_proxy_keeps_clients_out() -> TestResult {
    let Some(client) = Client::new("kafka.py") else { return Ok(()) };
    let options = KafkaOptions::new().proxied();
    let Some(server) = services::require(Kafka::start_with(&options)) else { return Ok(()) };
    let (bootstrap, topic) = (server.proxied_bootstrap().unwrap(), unique_name("topic"));
    let proxy = server.proxy().unwrap();
    client.assert_welcome(&bootstrap, &topic);
    let brokers = client.run(&["brokers", &bootstrap, &topic])?;
    assert_eq!(brokers.trim(), bootstrap, "clients are sent past the proxy");
    client.publish(&bootstrap, &topic, 1, 5)?;
    proxy.refuse();
    client.assert_waits(&bootstrap, &topic);
    proxy.heal();
    client.assert_has_all(&bootstrap, &topic, 5);
    Ok(())
}

fn settings(files: &TlsFiles, more: &str) -> String {
    format!(r#"{{"ssl.ca.location": "{}", {more}}}"#, files.ca.display())
}

fn scram(files: &TlsFiles, user: &str, password: &str) -> String {
    let login = format!(r#""sasl.username": "{user}", "sasl.password": "{password}""#);
    let way = r#""security.protocol": "SASL_SSL", "sasl.mechanisms": "SCRAM-SHA-512""#;
    settings(files, &format!("{way}, {login}"))
}

#[test]
fn passwords_and_certificates_each_have_a_port_with_tls() -> TestResult {
    let certificates = Certificates::shared()?;
    let options = KafkaOptions::new().tls(&certificates).user("stranger", "strange");
    let Some(server) = services::require(Kafka::start_with(&options)) else { return Ok(()) };
    let files = server.tls_files().unwrap();
    let with = |settings: String| Client::new("kafka.py").map(|c| c.with("SETTINGS", settings));
    let Some(administrator) = with(scram(files, "relevo", "relevo")) else { return Ok(()) };
    let (by_password, topic) = (server.scram_bootstrap().unwrap(), unique_name("topic"));
    administrator.assert_welcome(&by_password, &topic);
    administrator.publish(&by_password, &topic, 1, 5)?;
    for refused in [scram(files, "relevo", "wrong"), scram(files, "stranger", "strange")] {
        with(refused).unwrap().assert_waits(&by_password, &topic);
    }
    let mtls = format!(
        r#""security.protocol": "SSL", "ssl.certificate.location": "{}", "ssl.key.location": "{}""#,
        files.certificate.display(),
        files.key.display()
    );
    let by_certificate = server.mtls_bootstrap().unwrap();
    with(settings(files, &mtls)).unwrap().assert_has_all(&by_certificate, &topic, 5);
    let nameless = with(settings(files, r#""security.protocol": "SSL""#)).unwrap();
    nameless.assert_waits(&by_certificate, &topic);
    Ok(())
}

#[test]
fn a_cluster_serves_on_without_one_node_and_keeps_everything_when_all_are_killed() -> TestResult {
    let Some(client) = Client::new("kafka.py") else { return Ok(()) };
    let client = client.with("REPLICAS", "3");
    let start = Instant::now();
    let Some(cluster) = services::require(Kafka::cluster()) else { return Ok(()) };
    eprintln!("Kafka, three nodes: ready after {:?}", start.elapsed());
    let (bootstrap, topic) = (cluster.bootstrap(), unique_name("topic"));
    client.declare(&bootstrap, &topic)?;
    client.publish(&bootstrap, &topic, 1, 10)?;
    let leader = cluster.leader_of(&topic)?;
    cluster[leader].kill9();
    client.publish(&bootstrap, &topic, 11, 20)?;
    cluster[leader].restart()?;
    client.publish(&bootstrap, &topic, 21, 30)?;
    cluster.kill9_all();
    let start = Instant::now();
    cluster.start_all()?;
    eprintln!("Kafka, three nodes: after a kill of all, ready after {:?}", start.elapsed());
    client.assert_has_all(&bootstrap, &topic, 30);
    Ok(())
}

#[test]
fn it_ends_with_its_owner() {
    if services::require(Kafka::shared()).is_some() {
        assert_ends_with_its_owner("kafka");
    }
}

#[test]
fn an_interrupted_run_leaves_no_node_of_a_cluster() {
    if services::require(Kafka::shared()).is_none() {
        return;
    }
    for signal in [Signal::KILL, Signal::TERM] {
        assert_a_cluster_ends_with_its_owner("kafka", signal, &[("java", 3)]);
    }
}

#[test]
fn a_run_that_is_interrupted_while_a_cluster_starts_leaves_no_node_either() {
    if services::require(Kafka::shared()).is_some() {
        assert_a_starting_cluster_ends_with_its_owner("kafka", Signal::INT, "java");
    }
}
