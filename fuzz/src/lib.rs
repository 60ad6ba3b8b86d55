//! Every decoder of Relevo, as a function of bytes that must not fail whatever the bytes are.
//!
//! # Layout
//!
//! - [`TARGETS`]: the list of decoders, each with its function in `targets/`
//! - `corpus/TARGET/`: inputs worth keeping, made by hand or found by fuzzing
//! - [`Input`]: an input cut into fields
//! - [`mutate`]: seeded mutations, for the test command
//! - `guided.rs`: the same functions under libFuzzer, for `cargo xtask fuzz`
//!
//! `tests/replay.rs` replays the corpus and a fixed number of mutations of it. docs/fuzzing.md tells the rest.

mod expect;
mod input;
pub mod mutate;
mod targets;

pub use input::Input;

use std::path::PathBuf;

/// A decoder under test.
#[derive(Debug)]
pub struct Target {
    /// Its name, and that of its folder in `corpus/`.
    pub name: &'static str,
    /// What it decodes.
    pub decodes: &'static str,
    /// Panics if the decoder breaks one of its promises.
    pub run: fn(&[u8]),
    /// How many mutations the test command tries.
    pub mutations: u32,
}

macro_rules! targets {
    ($($name:ident, $mutations:literal, $decodes:literal;)*) => {
        /// All of them.
        pub const TARGETS: &[Target] = &[$(Target {
            name: stringify!($name),
            decodes: $decodes,
            run: targets::$name::run,
            mutations: $mutations,
        },)*];
    };
}

targets! {
    adopted_row, 1500, "rows of an outbox table that is its owner's";
    broker_messages, 3000, "messages of RabbitMQ, NATS and Kafka, headers of any type, and what their servers answer";
    broker_urls, 1500, "URLs of brokers, several nodes in one, settings of a client, and what is shown of them";
    cloudevents, 1500, "CloudEvents attributes of a message, by every binding";
    config, 1500, "relevo.toml and the variables that override it, with the retry policies in it";
    dead_letter_edit, 1500, "what an editor left of a dead letter";
    doorbell, 1500, "PostgreSQL's replication protocol, from the log-in on";
    duration, 3000, "times with a unit";
    event_limits, 1500, "an event about to be published";
    foreign, 1500, "messages of others, by any mapping";
    headers, 3000, "an event's headers as the stores keep them";
    http_answer, 3000, "status, body and Retry-After of an endpoint";
    http_headers, 1500, "an event as HTTP headers";
    publish_arguments, 1500, "what `relevo publish` and `relevo why` are given";
    snapshot, 3000, "PostgreSQL's snapshots, in ticks";
    sqlite_row, 600, "rows that any SQLite client wrote into the log";
    stored_json, 6000, "what stores keep as JSON: notes of processes, mappings of tables, answers of handlers, ticks";
    terminal, 1500, "events shown on a terminal and as JSON";
    topic_filter, 3000, "topic filters";
    urls, 1500, "URLs of stores and endpoints, and what is shown of them";
}

impl Target {
    /// The target of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        TARGETS.iter().find(|target| target.name == name)
    }

    /// Its corpus: name and bytes of each file, by name.
    pub fn corpus(&self) -> std::io::Result<Vec<(String, Vec<u8>)>> {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(self.name);
        let mut files = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            files.push((name, std::fs::read(path)?));
        }
        files.sort();
        Ok(files)
    }
}
