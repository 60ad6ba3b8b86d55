//! A readable account of a run, kept only when somebody wants to read it.

use super::options::Micros;
use std::fmt::Arguments;

/// The lines of a run.
#[derive(Debug, Default)]
pub(super) struct Trace {
    lines: Option<Vec<String>>,
}

impl Trace {
    /// Keeps lines, or drops them at no cost.
    pub(super) fn new(kept: bool) -> Self {
        Self { lines: kept.then(Vec::new) }
    }

    pub(super) fn is_kept(&self) -> bool {
        self.lines.is_some()
    }

    pub(super) fn line(&mut self, now: Micros, text: Arguments<'_>) {
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{:>10.3} ms  {text}", now as f64 / 1000.0));
        }
    }

    pub(super) fn into_lines(self) -> Vec<String> {
        self.lines.unwrap_or_default()
    }
}
