//! Lines of coloured text, and how figures and times are written.

use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ink {
    Plain,
    Dim,
    Bold,
    Green,
    Yellow,
    Red,
}

impl Ink {
    fn code(self) -> &'static str {
        match self {
            Self::Plain => "0",
            Self::Dim => "2",
            Self::Bold => "1",
            Self::Green => "32",
            Self::Yellow => "33",
            Self::Red => "1;31",
        }
    }
}

/// A line of cells, each with its ink, cut to the screen's width.
pub(super) struct Line {
    pub(super) cells: Vec<(char, Ink)>,
}

impl Line {
    pub(super) fn new() -> Self {
        Self { cells: vec![(' ', Ink::Plain)] }
    }

    pub(super) fn add(mut self, ink: Ink, text: &str) -> Self {
        self.cells.extend(text.chars().map(|c| (c, ink)));
        self
    }

    /// Text that ends at the last column.
    pub(super) fn right(mut self, ink: Ink, text: &str, columns: usize) -> Self {
        let start = columns.saturating_sub(text.chars().count() + 1);
        self.cells.resize(start.max(self.cells.len()), (' ', Ink::Plain));
        self.add(ink, text)
    }

    pub(super) fn print(&self, columns: usize, colour: bool) -> String {
        let mut text = String::new();
        let mut ink = Ink::Plain;
        for (c, wanted) in self.cells.iter().take(columns) {
            if colour && *wanted != ink {
                ink = *wanted;
                text.push_str(&format!("\x1b[0;{}m", ink.code()));
            }
            text.push(*c);
        }
        if ink != Ink::Plain {
            text.push_str("\x1b[0m");
        }
        text
    }
}

/// Minutes and seconds.
pub(super) fn clock(time: Duration) -> String {
    format!("{:02}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}

/// 1234567 as 1,234,567.
pub(super) fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_grouped_by_three() {
        assert_eq!([0, 999, 1000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
    }
}
