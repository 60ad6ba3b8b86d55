//! Standard output: tables that fit the terminal for people, JSON for programs.

use super::show::{cut, is_hostile};
use comfy_table::{
    Cell, CellAlignment, ColumnConstraint, ContentArrangement, Row, Table, Width, presets,
};
use serde::Serialize;
use std::io::{self, IsTerminal, Write};
use unicode_width::UnicodeWidthStr;

/// Where a command prints.
#[derive(Debug, Clone)]
pub(crate) struct Output {
    /// JSON instead of text.
    pub(crate) json: bool,
    /// Columns there are; `None` where nobody looks (a file, a pipe).
    pub(crate) width: Option<u16>,
}

/// How a column behaves when there is little room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Column {
    /// Never cut: names, ids.
    Whole(&'static str),
    /// A number: never cut, to the right.
    Number(&'static str),
    /// Cut at the end of its line: payloads, errors.
    Cut(&'static str),
    /// Goes on in the next line: sentences.
    Wrapped(&'static str),
}

impl Column {
    fn title(self) -> &'static str {
        match self {
            Self::Whole(title) | Self::Number(title) | Self::Cut(title) | Self::Wrapped(title) => {
                title
            }
        }
    }
}

impl Output {
    /// To this process's standard output.
    pub(crate) fn new(json: bool) -> Self {
        Self { json, width: columns() }
    }

    /// One line for people; what it is made of is escaped already.
    pub(crate) fn line(&self, text: impl AsRef<str>) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "{}", text.as_ref())?;
        out.flush()
    }

    /// One line, cut to the terminal.
    pub(crate) fn line_cut(&self, text: &str) -> io::Result<()> {
        match self.width {
            Some(width) => self.line(cut(text, usize::from(width))),
            None => self.line(text),
        }
    }

    /// A sentence after its label, on as many lines as the terminal needs; those after the first are indented.
    pub(crate) fn labelled(&self, label: &str, text: &str) -> io::Result<()> {
        let gap = if label.ends_with(':') { " " } else { "  " };
        let indent = label.width() + gap.len();
        let room = self
            .width
            .map_or(usize::MAX, |width| usize::from(width).saturating_sub(indent).max(20));
        let lines = wrapped(text, room);
        for (index, line) in lines.iter().enumerate() {
            let margin = if index == 0 { format!("{label}{gap}") } else { " ".repeat(indent) };
            self.line(format!("{margin}{line}"))?;
        }
        Ok(())
    }

    /// A value as JSON on one line.
    pub(crate) fn json(&self, value: &impl Serialize) -> io::Result<()> {
        let text = serde_json::to_string(value).map_err(io::Error::other)?;
        self.line(ascii_controls(&text))
    }

    /// A table; rows have as many cells as there are columns, escaped already.
    pub(crate) fn table(&self, columns: &[Column], rows: Vec<Vec<String>>) -> io::Result<()> {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_truncation_indicator("…");
        table
            .set_header(columns.iter().map(|column| Cell::new(column.title())).collect::<Vec<_>>());
        let wraps = columns.iter().any(|column| matches!(column, Column::Wrapped(_)));
        for cells in rows {
            let mut row = Row::from(cells);
            if !wraps {
                row.max_height(1);
            }
            table.add_row(row);
        }
        self.arrange(&mut table, columns);
        self.line(table.trim_fmt())
    }

    fn arrange(&self, table: &mut Table, columns: &[Column]) {
        let widths = table.column_max_content_widths();
        for (index, column) in columns.iter().enumerate() {
            let Some(settings) = table.column_mut(index) else { continue };
            settings.set_padding((0, 2));
            match column {
                Column::Whole(_) | Column::Number(_) => {
                    settings.set_constraint(ColumnConstraint::Absolute(Width::Fixed(
                        widths[index] + 2,
                    )));
                }
                // Long words (base64, identifiers) have no spaces to break at.
                Column::Cut(_) => {
                    settings.set_delimiter('\u{0}');
                }
                Column::Wrapped(_) => {}
            }
            if matches!(column, Column::Number(_)) {
                settings.set_cell_alignment(CellAlignment::Right);
            }
        }
        if let Some(width) = self.width {
            table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
        }
    }
}

/// The text in lines of at most `room` columns, broken at spaces.
fn wrapped(text: &str, room: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let fresh = lines.last().is_none_or(String::is_empty);
        let used = lines.last().map_or(0, |line| line.width());
        if !fresh && used + 1 + word.width() > room {
            lines.push(word.to_owned());
        } else if let Some(line) = lines.last_mut() {
            if !fresh {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

/// JSON escapes only what JSON must; a terminal obeys more than that. All of it stands inside strings.
fn ascii_controls(json: &str) -> String {
    if !json.chars().any(is_hostile) {
        return json.to_owned();
    }
    let mut safe = String::with_capacity(json.len());
    for c in json.chars() {
        if is_hostile(c) {
            let mut units = [0; 2];
            safe.extend(c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
        } else {
            safe.push(c);
        }
    }
    safe
}

fn columns() -> Option<u16> {
    let told = std::env::var("COLUMNS")
        .ok()
        .and_then(|text| text.parse().ok())
        .filter(|width| *width >= 20);
    let seen = || match io::stdout().is_terminal() {
        true => terminal_size::terminal_size().map(|(width, _)| width.0),
        false => None,
    };
    told.or_else(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_is_broken_at_spaces() {
        assert_eq!(wrapped("one two three four", 9), ["one two", "three", "four"]);
        assert_eq!(wrapped("unbreakable", 4), ["unbreakable"]);
        assert_eq!(wrapped("", 4), [""]);
    }

    #[test]
    fn json_never_carries_what_a_terminal_obeys() {
        let json = serde_json::to_string("a\u{9b}31m\u{202e}\u{e0041}").unwrap();
        let safe = ascii_controls(&json);
        assert!(safe.is_ascii(), "{safe}");
        assert_eq!(serde_json::from_str::<String>(&safe).unwrap(), "a\u{9b}31m\u{202e}\u{e0041}");
    }
}
