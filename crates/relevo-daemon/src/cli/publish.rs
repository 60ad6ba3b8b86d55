//! `relevo publish`

use super::Globals;
use super::failure::{Outcome, wrong};
use super::output::Output;
use relevo_core::{Error, EventId, Kind, NewEvent};
use serde::de::IgnoredAny;
use serde_json::json;
use std::io::{IsTerminal, Read};
use std::path::PathBuf;
use std::process::ExitCode;

const JSON: &str = "application/json";

/// Publish one event
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The event is written in a transaction of its own. Services publish inside
theirs: with the library, or by SQL. A payload is JSON, and is checked to be,
unless --content-type says otherwise.

Examples:
  relevo publish order.placed '{\"total\": 12}' --key order-1
  relevo publish order.placed --file order.json --header tenant=acme
  echo '{\"total\": 12}' | relevo publish order.placed
  relevo publish scan.stored --file scan.png --content-type image/png

Reserved headers: type, source, tenant, time, correlation-id, causation-id,
traceparent, tracestate.")]
pub(super) struct Publish {
    /// Words parted by dots, such as order.placed
    topic: String,
    /// The payload; `-` or nothing reads it from standard input
    payload: Option<String>,
    /// What is kept in order: the aggregate, tenant or installation
    #[arg(short, long)]
    key: Option<String>,
    /// Read the payload from a file
    #[arg(short, long, value_name = "FILE", conflicts_with = "payload")]
    file: Option<PathBuf>,
    /// A header, NAME=VALUE; may be repeated
    #[arg(short = 'H', long = "header", value_name = "NAME=VALUE", value_parser = header)]
    headers: Vec<(String, String)>,
    /// What the payload is; without it, JSON
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    /// The event's id, where you have one of your own (a UUID)
    #[arg(long, value_name = "UUID")]
    id: Option<uuid::Uuid>,
}

/// Reads `NAME=VALUE`.
pub(super) fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write NAME=VALUE, such as tenant=acme".into()),
    }
}

impl Publish {
    pub(super) async fn run(self, globals: &Globals, out: &Output) -> Outcome {
        let event = self.event()?;
        globals.limits()?.check(&event)?;
        let (topic, key) = (event.topic.clone(), event.key.clone());
        let opened = globals.open_existing().await?;
        let id = opened.operate.publish_now(event).await?;
        match out.json {
            true => out.json(&json!({"id": id.to_string(), "topic": topic, "key": key}))?,
            false => out.line(id.to_string())?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn event(self) -> Outcome<NewEvent> {
        let payload = self.payload_bytes()?;
        let mut event = event(self.topic, payload, self.content_type)?;
        if let Some(key) = self.key {
            event = event.key(key);
        }
        if let Some(id) = self.id {
            event = event.id(EventId(id));
        }
        Ok(self.headers.into_iter().fold(event, |event, (name, value)| event.header(name, value)))
    }

    fn payload_bytes(&self) -> Outcome<Vec<u8>> {
        if let Some(file) = &self.file {
            return std::fs::read(file)
                .map_err(|error| wrong(format!("{} cannot be read: {error}", file.display())));
        }
        if let Some(payload) = self.payload.as_deref().filter(|payload| *payload != "-") {
            return Ok(payload.as_bytes().to_vec());
        }
        if std::io::stdin().is_terminal() && self.payload.is_none() {
            return Err(wrong(
                "there is no payload: give it after the topic, with --file, or on standard input",
            ));
        }
        let mut bytes = Vec::new();
        std::io::stdin().lock().read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// An event of the given content type; without one the payload must be JSON.
pub(super) fn event(
    topic: String,
    payload: Vec<u8>,
    content_type: Option<String>,
) -> Outcome<NewEvent> {
    let content_type = match content_type {
        Some(given) if given.trim().is_empty() => {
            let why = "the content type is empty; leave it out for JSON, or write text/plain";
            return Err(Error::new(Kind::InvalidHeaders, why).into());
        }
        Some(given) => given,
        None => {
            check_json(&payload)?;
            JSON.into()
        }
    };
    Ok(NewEvent::bytes(topic, payload).content_type(content_type))
}

fn check_json(payload: &[u8]) -> Outcome<()> {
    let unreadable = |error: String| {
        Error::new(
            Kind::InvalidPayload,
            format!(
                "the payload is not JSON ({error}); quote it for the shell, or name what it is: --content-type text/plain"
            ),
        )
    };
    Ok(is_json(payload).map_err(unreadable)?)
}

/// Why these bytes are not JSON. Reading bytes without keeping them, serde_json would let strings that are not UTF-8
/// pass.
pub(super) fn is_json(payload: &[u8]) -> Result<(), String> {
    let text = std::str::from_utf8(payload).map_err(|error| error.to_string())?;
    serde_json::from_str::<IgnoredAny>(text).map(|_| ()).map_err(|error| error.to_string())
}
