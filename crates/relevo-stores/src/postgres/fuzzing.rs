//! What this adapter reads, as plain functions for the project's fuzz targets. No part of the API.

use super::replication::{Heard as One, Replication};
use super::ticks;
use relevo_core::outbox::Tick;
use std::io::{Cursor, Result};
use tokio_postgres::Config;

/// A tick that was kept as a row in JSON.
pub fn kept_tick(text: &str) -> relevo_core::Result<Tick> {
    ticks::from_json(text)
}

/// What a doorbell heard.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// Transactions with events.
    pub commits: usize,
    /// Questions whether somebody listens.
    pub questions: usize,
    /// Everything else.
    pub others: usize,
    /// How it ended.
    pub end: String,
}

/// Listens to a server that sends these bytes, beginning with the log-in or after it.
pub fn doorbell(stream: &[u8], logs_in: bool) -> Heard {
    let mut heard = Heard::default();
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let ended = runtime.and_then(|runtime| runtime.block_on(listen(stream, logs_in, &mut heard)));
    heard.end = ended.map_or_else(|error| error.to_string(), |()| "the stream ended".to_owned());
    heard
}

async fn listen(stream: &[u8], logs_in: bool, heard: &mut Heard) -> Result<()> {
    let socket = tokio::io::join(Cursor::new(stream.to_vec()), tokio::io::sink());
    let mut connection = Replication::over(Box::new(socket));
    if logs_in {
        connection.log_in(Config::new().user("relay").password("secret")).await?;
    }
    loop {
        match connection.hear().await? {
            One::Commit => heard.commits += 1,
            One::Question => heard.questions += 1,
            One::Nothing => heard.others += 1,
        }
    }
}
