//! What is wrong in a configuration, and on which line.

use super::secret::redacted;
use super::suggest::did_you_mean;
use relevo_core::error::{harmless, quoted};
use relevo_core::{Error, Kind};
use serde::de::DeserializeOwned;
use std::ops::Range;
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

/// So many are enough to begin with.
const MOST_PROBLEMS: usize = 50;

/// The beginning of a text that repeats what the file says, on one line.
fn one_line(text: &str) -> String {
    let line: String = text.chars().map(|c| if c == '\n' { ' ' } else { c }).take(350).collect();
    harmless(line).chars().take(350).collect()
}

/// Something that cannot be meant, and the key it was found at.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) path: Vec<String>,
    pub(super) text: String,
}

/// Where a configuration came from: its name, its text, and which keys an environment variable gave.
pub(super) struct Source<'a> {
    pub(super) name: &'a str,
    pub(super) text: &'a str,
    pub(super) overridden: Vec<(Vec<String>, String)>,
}

impl Source<'_> {
    /// All problems as one error, each with its line.
    pub(super) fn refuse(&self, problems: &[Problem]) -> Error {
        let told = problems.iter().take(MOST_PROBLEMS);
        let mut lines: Vec<String> = told.map(|problem| self.described(problem)).collect();
        if problems.len() > MOST_PROBLEMS {
            lines.push(format!("... and {} more", problems.len() - MOST_PROBLEMS));
        }
        Error::new(Kind::InvalidConfig, lines.join("\n"))
    }

    fn described(&self, problem: &Problem) -> String {
        let place = match self.overridden.iter().find(|(path, _)| *path == problem.path) {
            Some((_, variable)) => format!("variable {}", one_line(variable)),
            None => match line_of_key(self.text, &problem.path) {
                Some(line) => format!("{}, line {line}", self.name),
                None => self.name.to_owned(),
            },
        };
        let (path, text) = (problem.path.join("."), redacted(&problem.text));
        format!("{place}: {}: {}", one_line(&path), one_line(&text))
    }

    /// What the TOML reader refused: every key that nobody knows, or the one thing that is wrong otherwise.
    pub(super) fn refuse_file<T: DeserializeOwned>(&self, error: &toml::de::Error) -> Error {
        let unknown = unknown_keys::<T>(self.text);
        if unknown.len() < 2 {
            return self.refuse_text(error);
        }
        let told = unknown.iter().map(|(path, text)| match line_of_key(self.text, path) {
            Some(line) => format!("{}, line {line}: {}", self.name, one_line(text)),
            None => format!("{}: {}", self.name, one_line(text)),
        });
        Error::new(Kind::InvalidConfig, told.take(MOST_PROBLEMS).collect::<Vec<_>>().join("\n"))
    }

    /// What the TOML reader refused: never with the line's own text, which may hold a password.
    pub(super) fn refuse_text(&self, error: &toml::de::Error) -> Error {
        let place = match error.span() {
            Some(span) => format!("{}, line {}", self.name, line_at(self.text, &span)),
            None => match self.overridden.last() {
                Some((_, variable)) => {
                    format!("variable {} or another of its kind", one_line(variable))
                }
                None => self.name.to_owned(),
            },
        };
        Error::new(
            Kind::InvalidConfig,
            format!("{place}: {}", one_line(&explained(error.message()))),
        )
    }
}

/// Where inside a table that was read by itself an error is, and what it is.
pub(super) fn located(error: &toml::de::Error) -> (Vec<String>, String) {
    let shown = error.to_string();
    let keys = shown.trim_end().rsplit_once("in `").and_then(|(_, keys)| keys.strip_suffix('`'));
    let mut path: Vec<String> =
        keys.into_iter().flat_map(|keys| keys.split('.')).map(str::to_owned).collect();
    path.extend(unknown_field(error.message()).map(|(unknown, _)| unknown.to_owned()));
    (path, explained(error.message()))
}

/// The keys that nobody knows: each is taken out, until the rest can be read or is wrong in another way.
fn unknown_keys<T: DeserializeOwned>(text: &str) -> Vec<(Vec<String>, String)> {
    let mut found = Vec::new();
    let Ok(mut table) = toml::from_str::<Table>(text) else { return found };
    while let Err(error) = T::deserialize(table.clone()) {
        let (path, told) = located(&error);
        if unknown_field(error.message()).is_none() || remove(&mut table, &path).is_none() {
            break;
        }
        found.push((path, told));
    }
    found
}

fn remove(table: &mut Table, path: &[String]) -> Option<Value> {
    let (key, tables) = path.split_last()?;
    let holds = tables.iter().try_fold(table, |table, name| table.get_mut(name)?.as_table_mut())?;
    holds.remove(key)
}

/// The parts of "unknown field `x`, expected one of `a`, `b`".
fn unknown_field(message: &str) -> Option<(&str, Vec<&str>)> {
    let (unknown, expected) = message.strip_prefix("unknown field ")?.split_once(", expected ")?;
    Some((unknown.trim_matches('`'), expected.split('`').skip(1).step_by(2).collect()))
}

/// The same with the nearest of them named.
fn explained(message: &str) -> String {
    let message = without_value(&redacted(message.trim_end()));
    let Some((unknown, known)) = unknown_field(&message) else { return message };
    format!(
        "unknown key {}{} (known here: {})",
        quoted(unknown),
        did_you_mean(unknown, known.iter().copied()),
        known.join(", ")
    )
}

/// A text of the wrong type is not repeated: it may be a secret put one table too high.
fn without_value(message: &str) -> String {
    let value = message
        .strip_prefix("invalid type: string \"")
        .and_then(|rest| rest.rsplit_once("\", expected "));
    value.map_or_else(
        || message.to_owned(),
        |(_, expected)| format!("a text stands where {expected} is expected"),
    )
}

fn line_at(text: &str, span: &Range<usize>) -> usize {
    text.as_bytes().iter().take(span.start).filter(|byte| **byte == b'\n').count() + 1
}

/// The line of the deepest part of `path` that the file has.
fn line_of_key(text: &str, path: &[String]) -> Option<usize> {
    let root = DeTable::parse(text).ok()?;
    let mut table = root.get_ref();
    let mut line = None;
    for name in path {
        let Some((key, value)) = table.iter().find(|(key, _)| key.get_ref() == name.as_str())
        else {
            break;
        };
        line = Some(line_at(text, &key.span()));
        match value.get_ref() {
            DeValue::Table(next) => table = next,
            _ => break,
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_a_key_is_found_or_that_of_its_table() {
        let text = "\n[store.main]\nurl = \"x\"\n";
        let line = |path: &[&str]| {
            line_of_key(text, &path.iter().map(|p| (*p).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(line(&["store", "main", "url"]), Some(3));
        assert_eq!(line(&["store", "main", "url_file"]), Some(2));
        assert_eq!(line(&["http"]), None);
    }
}
