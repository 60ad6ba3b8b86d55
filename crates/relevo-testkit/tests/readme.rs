//! The README's table of servers against what the running servers say of themselves: pins can name one version while
//! another one answers. RabbitMQ is asked in `brokers_rabbitmq`, which has one running anyway.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

use relevo_testkit::services::{Kafka, Nats, PgBouncer, Postgres, require, sql};
use std::collections::BTreeSet;

/// The versions in a server's row, which is the same in both languages.
#[track_caller]
fn named(server: &str) -> Vec<String> {
    let in_page = |page: &str| -> Vec<String> {
        let file = format!("{}/../../{page}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(file).unwrap();
        let row = text.lines().find_map(|line| line.strip_prefix(&format!("| {server} | ")));
        let row = row.unwrap_or_else(|| panic!("{page} has no row of {server}"));
        let words = row.split([' ', ',', '(', ')']).filter(|word| word.contains('.'));
        words.map(str::to_owned).collect()
    };
    let versions = in_page("README.md");
    assert_eq!(in_page("README.es.md"), versions, "README.es.md, {server}");
    versions
}

#[test]
fn the_readme_names_the_postgresql_of_every_major_version_that_runs() {
    let named = named("PostgreSQL");
    let majors: BTreeSet<u16> =
        named.iter().map(|version| version.split('.').next().unwrap().parse().unwrap()).collect();
    assert_eq!(majors, BTreeSet::from(Postgres::MAJORS));
    for major in Postgres::MAJORS {
        let Some(postgres) = require(Postgres::start(major)) else { continue };
        let said = sql::value(&postgres.url("postgres"), "SHOW server_version").unwrap();
        // Packagers add words of their own: `15.18 (Debian 15.18-0+deb12u1)`.
        let ran = said.split(' ').next().unwrap();
        assert!(named.iter().any(|version| version == ran), "{said} runs, named are {named:?}");
    }
}

#[test]
fn the_readme_names_the_pgbouncer_that_runs() {
    let Some(postgres) = require(Postgres::shared(15)) else { return };
    let Some(pgbouncer) = require(PgBouncer::start(&postgres)) else { return };
    let console = pgbouncer.url(&postgres.url("pgbouncer"));
    let said = sql::value(&console, "SHOW VERSION").unwrap();
    assert_eq!(said.strip_prefix("PgBouncer "), Some(&*named("PgBouncer").join(", ")), "{said}");
}

#[test]
fn the_readme_names_the_nats_that_runs() {
    let Some(nats) = require(Nats::shared()) else { return };
    let said: serde_json::Value = serde_json::from_str(&nats.monitored("/varz").unwrap()).unwrap();
    assert_eq!(said["version"], named("NATS").join(", "));
}

/// Brokers tell clients what they can do, not what they are: their version is in what they print when they start.
#[test]
fn the_readme_names_the_kafka_that_runs() {
    let Some(kafka) = require(Kafka::shared()) else { return };
    let log = kafka.log();
    let said = log.lines().find_map(|line| Some(line.split_once("Kafka version: ")?.1));
    assert_eq!(said, Some(&*named("Apache Kafka").join(", ")), "{log}");
}
