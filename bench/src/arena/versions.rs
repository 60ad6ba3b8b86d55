//! Which versions of the servers are measured with.

use relevo_testkit::services::{Kafka, Nats, RabbitMq};
use serde_json::Value;
use std::path::Path;

pub(super) fn nats(server: &Nats) -> Option<String> {
    text(&server.monitored("/varz").ok()?, "version")
}

pub(super) fn rabbitmq(server: &RabbitMq) -> Option<String> {
    text(&server.api("GET", "/api/overview", "").ok()?, "rabbitmq_version")
}

/// The protocol does not tell it, but the jar does.
pub(super) fn kafka(_: &Kafka) -> Option<String> {
    jar(std::env::var_os("RELEVO_KAFKA")?.as_ref(), "kafka_2.13-")
}

/// Of the server in this folder.
pub(crate) fn debezium(folder: &Path) -> Option<String> {
    jar(&folder.join("lib"), "debezium-core-")
}

fn text(json: &str, name: &str) -> Option<String> {
    let answer: Value = serde_json::from_str(json).ok()?;
    answer[name].as_str().map(str::to_owned)
}

/// What stands in a jar's name behind these letters.
fn jar(folder: &Path, letters: &str) -> Option<String> {
    let files = std::fs::read_dir(folder).ok()?.filter_map(Result::ok);
    let mut names = files.filter_map(|file| file.file_name().into_string().ok());
    names.find_map(|name| Some(name.strip_prefix(letters)?.strip_suffix(".jar")?.to_owned()))
}
