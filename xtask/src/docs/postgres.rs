//! Databases for the pages, from the test kit's own program: xtask itself knows no PostgreSQL.

use anyhow::{Context, Result, ensure};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A running server. It stops when this value goes, because its standard input then ends.
pub(super) struct Databases {
    server: Child,
    ask: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Databases {
    pub(super) fn start(programs: &Path, environment: &Command) -> Result<Databases> {
        let mut command = Command::new(programs.join("relevo-services"));
        command.args(["postgres", "15"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        for (name, value) in environment.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        let mut server = command.spawn().context("cannot start relevo-services")?;
        let ask = server.stdin.take();
        let answers = BufReader::new(server.stdout.take().context("stdout is a pipe")?);
        let mut databases = Databases { server, ask, answers };
        databases.next_url()?;
        Ok(databases)
    }

    /// The address of a new, empty database.
    pub(super) fn create(&mut self) -> Result<String> {
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

impl Drop for Databases {
    fn drop(&mut self) {
        self.ask = None;
        let _ = self.server.wait();
    }
}
