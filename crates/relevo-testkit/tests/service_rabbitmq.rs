//! RabbitMQ as the kit starts it: what it keeps, and what can be done to it.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod support;

use relevo_testkit::services::{
    self, Certificates, ClientCertificates, Proxy, RabbitMq, RabbitMqOptions, unique_name,
};
use rustix::process::Signal;
use std::time::{Duration, Instant};
use support::owner::{
    assert_a_cluster_ends_with_its_owner, assert_a_starting_cluster_ends_with_its_owner,
    assert_ends_with_its_owner,
};
use support::{Client, TestResult};

/// A single node forgets what a quorum queue confirmed when it is killed right after the queue was
/// declared.
const UNTIL_DECLARED_FOR_GOOD: Duration = Duration::from_secs(2);

#[test]
fn what_was_confirmed_survives_a_restart_and_a_kill() -> TestResult {
    let Some(client) = Client::new("rabbitmq.py") else { return Ok(()) };
    let start = Instant::now();
    let Some(server) = services::require(RabbitMq::start()) else { return Ok(()) };
    eprintln!("RabbitMQ: ready after {:?}, {} kB", start.elapsed(), server.memory_kb());
    let (url, queue) = (server.fresh_vhost()?, unique_name("queue"));
    client.declare(&url, &queue)?;
    std::thread::sleep(UNTIL_DECLARED_FOR_GOOD);
    client.publish(&url, &queue, 1, 10)?;
    server.pause();
    client.assert_waits(&url, &queue);
    server.resume();
    client.publish(&url, &queue, 11, 20)?;
    server.restart()?;
    client.publish(&url, &queue, 21, 30)?;
    server.kill9();
    assert!(!server.is_running());
    assert!(client.publish(&url, &queue, 0, 0).is_err());
    let start = Instant::now();
    server.restart()?;
    eprintln!("RabbitMQ: after a kill, ready after {:?}", start.elapsed());
    client.assert_has_all(&url, &queue, 30);
    Ok(())
}

#[test]
fn virtual_hosts_of_a_shared_server_do_not_see_each_other() -> TestResult {
    let Some(client) = Client::new("rabbitmq.py") else { return Ok(()) };
    let Some(server) = services::require(RabbitMq::shared()) else { return Ok(()) };
    let (one, other) = (server.fresh_vhost()?, RabbitMq::shared()?.fresh_vhost()?);
    client.declare(&one, "queue")?;
    client.publish(&one, "queue", 1, 3)?;
    assert!(client.publish(&other, "queue", 1, 1).is_err());
    client.assert_has_all(&one, "queue", 3);
    Ok(())
}

#[test]
fn a_cut_through_the_proxy_keeps_clients_out() -> TestResult {
    let Some(client) = Client::new("rabbitmq.py") else { return Ok(()) };
    let Some(server) = services::require(RabbitMq::shared()) else { return Ok(()) };
    let proxy = Proxy::start(server.address())?;
    let url = proxy.url(&server.fresh_vhost()?);
    client.assert_welcome(&url, "queue");
    proxy.refuse();
    assert!(client.declare(&url, "queue").is_err());
    proxy.heal();
    client.assert_welcome(&url, "queue");
    Ok(())
}

#[test]
fn a_port_with_tls_asks_for_certificates_and_logs_in_by_them() -> TestResult {
    let Some(client) = Client::new("rabbitmq.py") else { return Ok(()) };
    let certificates = Certificates::shared()?;
    let options = RabbitMqOptions::new().tls(&certificates, ClientCertificates::Required);
    let Some(server) = services::require(RabbitMq::start_with(&options)) else { return Ok(()) };
    let files = server.tls_files().unwrap();
    let url = server.tls_url(&server.fresh_vhost()?);
    let trusting = client.trusting(files);
    assert!(trusting.declare(&url, "queue").is_err(), "came in without a certificate");
    let certified = trusting.certified(files);
    certified.assert_welcome(&url, "queue");
    let nameless = url.replace("relevo:relevo@", "nobody:nothing@");
    assert!(certified.declare(&nameless, "queue").is_err());
    certified.with("EXTERNAL", "1").assert_welcome(&nameless, "queue");
    Ok(())
}

#[test]
fn a_cluster_serves_on_without_one_node_and_keeps_everything_when_all_are_killed() -> TestResult {
    let Some(client) = Client::new("rabbitmq.py") else { return Ok(()) };
    let start = Instant::now();
    let Some(cluster) = services::require(RabbitMq::cluster()) else { return Ok(()) };
    eprintln!("RabbitMQ, three nodes: ready after {:?}", start.elapsed());
    let (urls, queue) = (cluster.urls(), unique_name("queue"));
    client.declare(&urls[0], &queue)?;
    client.publish(&urls[0], &queue, 1, 10)?;
    assert_eq!(cluster.leader_of(&queue)?, 0, "a queue is led where it was declared");
    cluster[0].kill9();
    client.publish(&urls[1], &queue, 11, 20)?;
    cluster[0].restart()?;
    client.publish(&urls[0], &queue, 21, 30)?;
    cluster.kill9_all();
    let start = Instant::now();
    cluster.start_all()?;
    eprintln!("RabbitMQ, three nodes: after a kill of all, ready after {:?}", start.elapsed());
    client.assert_has_all(&urls[2], &queue, 30);
    Ok(())
}

#[test]
fn it_ends_with_its_owner() {
    if services::require(RabbitMq::shared()).is_some() {
        assert_ends_with_its_owner("rabbitmq");
    }
}

#[test]
fn an_interrupted_run_leaves_neither_a_node_of_a_cluster_nor_its_directory_of_names() {
    if services::require(RabbitMq::shared()).is_none() {
        return;
    }
    for signal in [Signal::KILL, Signal::INT] {
        assert_a_cluster_ends_with_its_owner("rabbitmq", signal, &[("beam.smp", 3), ("epmd", 1)]);
    }
}

#[test]
fn a_run_that_is_interrupted_while_a_cluster_starts_leaves_no_node_either() {
    if services::require(RabbitMq::shared()).is_some() {
        assert_a_starting_cluster_ends_with_its_owner("rabbitmq", Signal::TERM, "beam.smp");
    }
}
