//! Servers for the pages, from the test kit's own program: xtask itself knows none of them.

use super::extract::Part;
use crate::group::end_with_xtask;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// What a page may ask for: the words for relevo-services, and the variables that hold the URL. A NATS server has no
/// databases or virtual hosts to part pages by, and starts at once: each page gets its own.
const KINDS: [(&str, &[&str], &[&str]); 3] = [
    ("PostgreSQL", &["postgres", "15"], &["RELEVO_TEST_PG", "DATABASE_URL"]),
    ("RabbitMQ", &["rabbitmq"], &["RELEVO_TEST_RABBITMQ"]),
    ("NATS", &["nats"], &["RELEVO_TEST_NATS"]),
];

const ANEW: &str = "NATS";

/// The servers that pages asked for so far; one of a kind serves all of them, where it can.
pub(super) struct Servers<'s> {
    programs: &'s Path,
    environment: &'s Command,
    running: BTreeMap<&'static str, Server>,
}

impl<'s> Servers<'s> {
    pub(super) fn new(programs: &'s Path, environment: &'s Command) -> Self {
        Self { programs, environment, running: BTreeMap::new() }
    }

    /// The variables that a page's commands and files mention, each with the URL of something empty.
    pub(super) fn variables_of(&mut self, parts: &[Part]) -> Result<Vec<(&'static str, String)>> {
        let mut variables = Vec::new();
        for (name, words, names) in KINDS {
            if names.iter().any(|variable| mentions(parts, variable)) {
                let url = self.server(name, words)?.create()?;
                variables.extend(names.iter().map(|variable| (*variable, url.clone())));
            }
        }
        Ok(variables)
    }

    fn server(&mut self, name: &'static str, words: &[&str]) -> Result<&mut Server> {
        if name == ANEW || !self.running.contains_key(name) {
            let server = Server::start(self.programs, self.environment, words)
                .with_context(|| format!("needs a {name}, and none can be had"))?;
            self.running.insert(name, server);
        }
        self.running.get_mut(name).context("it was just started")
    }
}

fn mentions(parts: &[Part], variable: &str) -> bool {
    parts.iter().any(|part| match part {
        Part::Block(commands) => commands.iter().any(|command| command.script.contains(variable)),
        Part::File { text, .. } => text.contains(variable),
        Part::Skipped { .. } => false,
    })
}

/// A running server. It stops when this value goes, because its standard input then ends.
struct Server {
    process: Child,
    ask: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Server {
    fn start(programs: &Path, environment: &Command, words: &[&str]) -> Result<Server> {
        let mut command = Command::new(programs.join("relevo-services"));
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        for (name, value) in environment.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        let mut process =
            end_with_xtask(&mut command)?.spawn().context("cannot start relevo-services")?;
        let ask = process.stdin.take();
        let answers = BufReader::new(process.stdout.take().context("stdout is a pipe")?);
        let mut server = Server { process, ask, answers };
        server.next_url()?;
        Ok(server)
    }

    /// The address of something new and empty: a database, a virtual host.
    fn create(&mut self) -> Result<String> {
        self.ask.as_mut().context("stdin is open until drop")?.write_all(b"\n")?;
        self.next_url()
    }

    fn next_url(&mut self) -> Result<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        ensure!(!line.trim().is_empty(), "relevo-services ended; it said why above");
        Ok(line.trim().to_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ask = None;
        let _ = self.process.wait();
    }
}
