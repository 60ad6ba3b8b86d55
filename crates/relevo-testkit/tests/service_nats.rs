//! NATS as the kit starts it: what it keeps, and what can be done to it.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod support;

use relevo_testkit::services::{
    self, Certificates, ClientCertificates, Nats, NatsLogin, NatsOptions, Proxy, unique_name,
};
use rustix::process::Signal;
use std::time::Instant;
use support::owner::{
    assert_a_cluster_ends_with_its_owner, assert_a_starting_cluster_ends_with_its_owner,
    assert_ends_with_its_owner,
};
use support::{Client, TestResult};

#[test]
fn what_was_confirmed_survives_a_restart_and_a_kill() -> TestResult {
    let Some(client) = Client::new("jetstream.py") else { return Ok(()) };
    let start = Instant::now();
    let Some(server) = services::require(Nats::start()) else { return Ok(()) };
    eprintln!("NATS: ready after {:?}, {} kB", start.elapsed(), server.memory_kb());
    let (url, stream) = (server.url(), unique_name("stream"));
    client.declare(&url, &stream)?;
    client.publish(&url, &stream, 1, 10)?;
    server.pause();
    client.assert_waits(&url, &stream);
    server.resume();
    client.publish(&url, &stream, 11, 20)?;
    server.restart()?;
    client.publish(&url, &stream, 21, 30)?;
    server.kill9();
    assert!(!server.is_running());
    assert!(client.publish(&url, &stream, 0, 0).is_err());
    server.restart()?;
    client.assert_has_all(&url, &stream, 30);
    Ok(())
}

#[test]
fn two_servers_at_once_do_not_see_each_other() -> TestResult {
    let Some(client) = Client::new("jetstream.py") else { return Ok(()) };
    let Some(one) = services::require(Nats::start()) else { return Ok(()) };
    let other = Nats::start_with(&NatsOptions::new().durable().line("max_payload: 64KB"))?;
    client.declare(&one.url(), "stream")?;
    assert!(client.publish(&other.url(), "stream", 1, 1).is_err());
    assert!(other.monitored("/varz")?.contains("\"max_payload\": 65536"));
    Ok(())
}

#[test]
fn a_cut_through_the_proxy_keeps_clients_out() -> TestResult {
    let Some(client) = Client::new("jetstream.py") else { return Ok(()) };
    let Some(server) = services::require(Nats::shared()) else { return Ok(()) };
    let proxy = Proxy::start(server.address())?;
    let (url, stream) = (proxy.url(&server.url()), unique_name("stream"));
    client.assert_welcome(&url, &stream);
    proxy.refuse();
    assert!(client.publish(&url, &stream, 1, 1).is_err());
    proxy.heal();
    client.publish(&url, &stream, 1, 1)?;
    Ok(())
}

#[test]
fn a_server_with_tls_asks_for_certificates() -> TestResult {
    let Some(client) = Client::new("jetstream.py") else { return Ok(()) };
    let certificates = Certificates::shared()?;
    let options = NatsOptions::new().tls(&certificates, ClientCertificates::Required);
    let Some(server) = services::require(Nats::start_with(&options)) else { return Ok(()) };
    let files = server.tls_files().unwrap();
    let trusting = client.trusting(files);
    assert!(trusting.declare(&server.url(), "stream").is_err(), "came in without a certificate");
    trusting.certified(files).assert_welcome(&server.url(), "stream");
    Ok(())
}

#[test]
fn a_certificate_for_another_name_is_refused_by_clients() -> TestResult {
    let Some(client) = Client::new("jetstream.py") else { return Ok(()) };
    let certificates = Certificates::for_names(&["elsewhere.test"])?;
    let options = NatsOptions::new().tls(&certificates, ClientCertificates::Optional);
    let Some(server) = services::require(Nats::start_with(&options)) else { return Ok(()) };
    let trusting = client.trusting(server.tls_files().unwrap());
    assert!(trusting.declare(&server.url(), "stream").is_err());
    Ok(())
}

#[test]
fn a_wrong_password_is_refused() -> TestResult {
    let Some(client) = Client::new("jetstream.py") else { return Ok(()) };
    let Some(server) = services::require(Nats::shared()) else { return Ok(()) };
    let wrong = server.url().replace(":relevo@", ":wrong@");
    assert!(client.declare(&wrong, &unique_name("stream")).is_err());
    Ok(())
}

#[test]
fn clients_log_in_by_nkey() -> TestResult {
    let Some(client) = Client::new("jetstream.py") else { return Ok(()) };
    let options = NatsOptions::new().login(NatsLogin::Nkey);
    let Some(server) = services::require(Nats::start_with(&options)) else { return Ok(()) };
    assert!(client.declare(&server.url(), "stream").is_err(), "came in without a key");
    client.with("SEED", server.seed().unwrap()).assert_welcome(&server.url(), "stream");
    Ok(())
}

#[test]
fn clients_log_in_by_credentials_file() -> TestResult {
    let Some(client) = Client::new("jetstream.py") else { return Ok(()) };
    let options = NatsOptions::new().login(NatsLogin::Credentials);
    let Some(server) = services::require(Nats::start_with(&options)) else { return Ok(()) };
    assert!(client.declare(&server.url(), "stream").is_err(), "came in without credentials");
    let file = server.credentials_file().unwrap().display().to_string();
    client.with("CREDENTIALS", file).assert_welcome(&server.url(), "stream");
    Ok(())
}

#[test]
fn a_cluster_serves_on_without_one_node_and_keeps_everything_when_all_are_killed() -> TestResult {
    let Some(client) = Client::new("jetstream.py") else { return Ok(()) };
    let client = client.with("REPLICAS", "3");
    let start = Instant::now();
    let Some(cluster) = services::require(Nats::cluster()) else { return Ok(()) };
    eprintln!("NATS, three nodes: ready after {:?}", start.elapsed());
    let (urls, stream) = (cluster.urls(), unique_name("stream"));
    client.declare(&urls[0], &stream)?;
    client.publish(&urls[0], &stream, 1, 10)?;
    let leader = cluster.leader_of(&stream)?;
    cluster[leader].kill9();
    client.publish(&urls[(leader + 1) % 3], &stream, 11, 20)?;
    cluster[leader].restart()?;
    client.publish(&urls[leader], &stream, 21, 30)?;
    cluster.kill9_all();
    cluster.start_all()?;
    client.assert_has_all(&urls[2], &stream, 30);
    Ok(())
}

#[test]
fn it_ends_with_its_owner() {
    if services::require(Nats::shared()).is_some() {
        assert_ends_with_its_owner("nats");
    }
}

#[test]
fn an_interrupted_run_leaves_no_node_of_a_cluster() {
    if services::require(Nats::shared()).is_none() {
        return;
    }
    for signal in [Signal::KILL, Signal::INT, Signal::TERM] {
        assert_a_cluster_ends_with_its_owner("nats", signal, &[("nats-server", 3)]);
    }
}

#[test]
fn a_run_that_is_interrupted_while_a_cluster_starts_leaves_no_node_either() {
    if services::require(Nats::shared()).is_some() {
        assert_a_starting_cluster_ends_with_its_owner("nats", Signal::KILL, "nats-server");
    }
}
