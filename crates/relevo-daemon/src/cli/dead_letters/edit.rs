//! `dead-letters edit`: a copy with bytes and an id of its own is replayed, the original is archived.

use super::change::{Content, changes};
use super::one;
use crate::cli::ask::confirm;
use crate::cli::failure::{Failure, Outcome, wrong};
use crate::cli::output::Output;
use crate::cli::publish::header;
use relevo_core::dead_letters::{DeadLetterId, DeadState, Operate};
use relevo_core::error::quoted;
use relevo_core::limits::Limits;
use relevo_core::{Error, Headers, Kind, NewEvent};
use serde_json::json;
use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Replay an edited copy
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Without --payload, --header or --without-header it opens $VISUAL or $EDITOR:
headers first, an empty line, the payload. It shows what changes and asks.
The copy has an id of its own; the original is archived.

Examples:
  relevo dead-letters edit 7
  relevo dead-letters edit 7 --payload fixed.json --yes
  relevo dead-letters edit 7 --header tenant=acme --without-header time")]
pub(crate) struct Edit {
    /// The dead letter's number
    id: DeadLetterId,
    /// The new payload, from a file (- is standard input)
    #[arg(long, value_name = "FILE")]
    payload: Option<PathBuf>,
    /// Set a header, NAME=VALUE; may be repeated
    #[arg(short = 'H', long = "header", value_name = "NAME=VALUE", value_parser = header)]
    headers: Vec<(String, String)>,
    /// Leave a header out; may be repeated
    #[arg(long, value_name = "NAME")]
    without_header: Vec<String>,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

impl Edit {
    pub(crate) async fn run(
        self,
        operate: &dyn Operate,
        limits: &Limits,
        out: &Output,
    ) -> Outcome<()> {
        let dead = one(operate, self.id).await?;
        if dead.state != DeadState::Dead {
            let why = format!(
                "dead letter {} is {}, and only dead ones are replayed",
                dead.id,
                dead.state.as_str()
            );
            return Err(Error::new(Kind::ReplayRefused, why).into());
        }
        let before =
            Content { payload: dead.event.payload.to_vec(), headers: dead.event.headers.clone() };
        let after = self.edited(&before)?;
        check(&dead.event.topic, &after, limits)?;
        let lines = changes(&before, &after);
        if lines.is_empty() {
            return Err(wrong(format!(
                "nothing changes; `relevo dead-letters replay --id {}` replays it as it is",
                self.id
            )));
        }
        if !out.json {
            out.line(lines.join("\n"))?;
        }
        confirm(
            &format!(
                "Replay a copy of dead letter {} with these changes, and archive the original?",
                self.id
            ),
            self.yes,
        )?;
        let event = operate.replay_edited(self.id, after.payload.into(), after.headers).await?;
        match out.json {
            true => out.json(
                &json!({"archived": self.id, "event": event.to_string(), "changes": lines}),
            )?,
            false => out.line(format!(
                "dead letter {} is archived; its copy {event} will be replayed",
                self.id
            ))?,
        }
        Ok(())
    }

    fn edited(&self, before: &Content) -> Outcome<Content> {
        if self.payload.is_none() && self.headers.is_empty() && self.without_header.is_empty() {
            return in_editor(before);
        }
        let mut after = before.clone();
        if let Some(file) = &self.payload {
            after.payload = read(file)?;
        }
        for name in &self.without_header {
            if after.headers.remove(name).is_none() {
                return Err(wrong(format!("there is no header {name:?} to leave out")));
            }
        }
        for (name, value) in &self.headers {
            after.headers.set(name, value);
        }
        Ok(after)
    }
}

fn read(file: &Path) -> Outcome<Vec<u8>> {
    if file == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::stdin().lock().read_to_end(&mut bytes)?;
        return Ok(bytes);
    }
    std::fs::read(file)
        .map_err(|error| wrong(format!("{} cannot be read: {error}", file.display())))
}

/// The same bounds as for a new event.
pub(in crate::cli) fn check(topic: &str, after: &Content, limits: &Limits) -> Outcome<()> {
    let mut event = NewEvent::bytes(topic, after.payload.clone());
    event.headers = after.headers.clone();
    limits.check(&event)?;
    let is_json = after.headers.get("content-type").is_some_and(|kind| kind.contains("json"));
    if is_json && let Err(error) = crate::cli::publish::is_json(&after.payload) {
        return Err(Error::new(
            Kind::InvalidPayload,
            format!("the new payload is not JSON: {error}"),
        )
        .into());
    }
    Ok(())
}

fn in_editor(before: &Content) -> Outcome<Content> {
    let text = for_editor(before)?;
    let Some(editor) = editor() else {
        return Err(wrong(
            "there is no terminal for an editor; give --payload FILE, --header or --without-header",
        ));
    };
    // In a folder of its own that nobody else can read: the payload may be anything.
    let folder = tempfile::Builder::new().prefix("relevo-").tempdir()?;
    let file = folder.path().join("dead-letter.txt");
    std::fs::File::create_new(&file)?.write_all(text.as_bytes())?;
    run_editor(&editor, &file)?;
    let text = std::fs::read_to_string(&file)
        .map_err(|error| wrong(format!("what the editor left cannot be read: {error}")))?;
    let mut after = parse(&text)?;
    // Editors end a file with a line break; the payload had none.
    if !text.ends_with('\n') && after.payload.ends_with(b"\n") {
        after.payload.pop();
    }
    Ok(after)
}

/// The user's editor; without one, `vi`, where there is a terminal for it.
fn editor() -> Option<String> {
    let named = ["VISUAL", "EDITOR"]
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
    named.or_else(|| std::io::stdin().is_terminal().then(|| "vi".to_owned()))
}

/// `$EDITOR` may carry arguments, so a shell reads it.
fn run_editor(editor: &str, file: &Path) -> Outcome<()> {
    let status = Command::new("sh")
        .arg("-c")
        .arg(format!("{editor} \"$1\""))
        .arg("relevo")
        .arg(file)
        .status()?;
    match status.success() {
        true => Ok(()),
        false => {
            Err(Failure::NotConfirmed(format!("the editor ended with {status}; nothing changed")))
        }
    }
}

/// Headers, an empty line, the payload: what [`parse`] reads.
pub(in crate::cli) fn for_editor(content: &Content) -> Outcome<String> {
    let Ok(payload) = std::str::from_utf8(&content.payload) else {
        return Err(wrong("the payload is not text; give the new one with --payload FILE"));
    };
    let line = |(name, value): (&str, &str)| format!("{name}: {value}\n");
    let lines: String = content.headers.iter().map(line).collect();
    let text = format!("{lines}\n{payload}");
    // Whoever writes by SQL may put a line break into a header: it would come back as another header, or as payload.
    if parse(&text).ok().as_ref() != Some(content) {
        return Err(wrong(
            "a header cannot be written on a line of its own; give --payload FILE, --header or --without-header",
        ));
    }
    Ok(text)
}

/// Headers, an empty line, the payload.
pub(in crate::cli) fn parse(text: &str) -> Outcome<Content> {
    let mut headers = Headers::default();
    let mut rest = text;
    loop {
        let (line, tail) = rest
            .split_once('\n')
            .ok_or_else(|| wrong("an empty line must part headers and payload"))?;
        rest = tail;
        if line.is_empty() {
            return Ok(Content { payload: rest.as_bytes().to_vec(), headers });
        }
        let (name, value) = line
            .split_once(": ")
            .ok_or_else(|| wrong(format!("{} is not a header; write name: value", quoted(line))))?;
        headers.set(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_and_payload_survive_the_editor() {
        let headers: Headers = [("a", "1: 2"), ("b", "")].into_iter().collect();
        let content = Content { payload: b"{\n\n}\n".to_vec(), headers };
        assert_eq!(parse(&for_editor(&content).unwrap()).unwrap(), content);
        for header in [("a", "1\n\n2"), ("a: b", "1"), ("", "1\n")] {
            let headers = [header].into_iter().collect();
            assert!(for_editor(&Content { payload: vec![], headers }).is_err(), "{header:?}");
        }
        assert!(parse("no header\n\n{}").is_err());
        assert!(parse("a: 1").is_err());
    }
}
