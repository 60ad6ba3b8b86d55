//! The moving picture: a pure function from the floor to lines of text.

use super::crew::Worker;
use super::floor::{Belt, Floor, Item, ItemState};
use relevo_core::limits::LANES;
use std::time::Duration;

/// Cells an order moves in a second.
const SPEED: f64 = 24.0;
/// A poisoned order shows at the gate for this long.
const SHOWN_DEAD: Duration = Duration::from_secs(2);
/// A lane flashes for this long after a parcel.
const FLASH: Duration = Duration::from_millis(300);

/// What the picture shows beside the floor.
pub(super) struct Scene<'a> {
    pub(super) floor: &'a Floor,
    pub(super) worker: Worker,
    pub(super) pid: Option<i32>,
    pub(super) started: u32,
    pub(super) failing: bool,
    pub(super) rate: u32,
    /// What the end of the demo waits for, once it does.
    pub(super) ending: bool,
    pub(super) columns: usize,
    pub(super) rows: usize,
    pub(super) colour: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ink {
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
struct Line {
    cells: Vec<(char, Ink)>,
}

impl Line {
    fn new() -> Self {
        Self { cells: vec![(' ', Ink::Plain)] }
    }

    fn add(mut self, ink: Ink, text: &str) -> Self {
        self.cells.extend(text.chars().map(|c| (c, ink)));
        self
    }

    /// Text that ends at the last column.
    fn right(mut self, ink: Ink, text: &str, columns: usize) -> Self {
        let start = columns.saturating_sub(text.chars().count() + 1);
        self.cells.resize(start.max(self.cells.len()), (' ', Ink::Plain));
        self.add(ink, text)
    }

    fn print(&self, columns: usize, colour: bool) -> String {
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

impl Scene<'_> {
    /// The picture, at most as many lines and columns as the screen has.
    pub(super) fn draw(&self) -> Vec<String> {
        let head = [self.title(), Line::new()].into_iter().chain(self.figures()).chain([
            Line::new(),
            self.lanes(),
            Line::new(),
        ]);
        let head: Vec<Line> = head.collect();
        let events = if self.rows >= 20 { 4 } else { 1 };
        let foot: Vec<Line> = [Line::new(), self.worker()]
            .into_iter()
            .chain(self.events(events))
            .chain([self.keys()])
            .collect();
        let belts = self.rows.saturating_sub(head.len() + foot.len()).clamp(1, 16);
        let lines = head
            .into_iter()
            .chain(self.floor.belts.iter().take(belts).map(|belt| self.belt(belt)))
            .chain(foot);
        lines.take(self.rows).map(|line| line.print(self.columns, self.colour)).collect()
    }

    fn title(&self) -> Line {
        let right = format!("{}   {} orders/s", clock(self.floor.now()), self.rate);
        Line::new()
            .add(Ink::Bold, "relevo demo")
            .add(Ink::Dim, "   a shop floor on SQLite, no broker")
            .right(Ink::Dim, &right, self.columns)
    }

    fn figures(&self) -> [Line; 3] {
        let figures = &self.floor.figures;
        let trouble = |n: u64| if n > 0 { Ink::Yellow } else { Ink::Plain };
        let dead = if figures.dead > 0 { Ink::Red } else { Ink::Plain };
        [
            Line::new()
                .add(Ink::Bold, &format!("{:>9}", thousands(figures.committed)))
                .add(Ink::Plain, " orders committed, in one transaction with their event")
                .add(Ink::Dim, &format!("; {} rolled back", thousands(figures.rolled_back))),
            Line::new()
                .add(Ink::Green, &format!("{:>9}", thousands(figures.effects)))
                .add(Ink::Plain, " parcels packed, in one transaction with the cursor"),
            Line::new()
                .add(
                    trouble(figures.pending()),
                    &format!("{:>9} on their way", thousands(figures.pending())),
                )
                .add(
                    trouble(figures.retried),
                    &format!("   {} retried", thousands(figures.retried)),
                )
                .add(dead, &format!("   {} dead", thousands(figures.dead)))
                .add(
                    trouble(figures.duplicates),
                    &format!("   {} duplicates absorbed", thousands(figures.duplicates)),
                ),
        ]
    }

    /// One cell for each lane: how much waits in it, or a flash where something passed.
    fn lanes(&self) -> Line {
        let cells = (0..LANES).map(|lane| self.lane(lane));
        let mut line = Line::new().add(Ink::Dim, "lanes   ");
        line.cells.extend(cells);
        line
    }

    fn lane(&self, lane: u16) -> (char, Ink) {
        let items = || {
            self.floor.belts.iter().filter(|belt| belt.lane == lane).flat_map(|belt| &belt.items)
        };
        let waiting = items().filter(|item| item.is_waiting()).count();
        let ink = if items().any(|item| item.state == ItemState::Failing) {
            Ink::Red
        } else {
            Ink::Yellow
        };
        let now = self.floor.now();
        let passed = |item: &Item| matches!(item.state, ItemState::Done(at) if now.saturating_sub(at) < FLASH);
        match waiting {
            0 if items().any(passed) => ('•', Ink::Green),
            0 => ('·', Ink::Dim),
            1 => ('▂', ink),
            2 => ('▃', ink),
            3 | 4 => ('▅', ink),
            5..=8 => ('▆', ink),
            _ => ('█', ink),
        }
    }

    /// Orders come from the left, wait at the gate, and leave as parcels to the right.
    fn belt(&self, belt: &Belt) -> Line {
        let name = Line::new().add(Ink::Plain, &format!("{:<8}", belt.customer));
        let length = self.columns.saturating_sub(name.cells.len() + 10).max(10);
        let gate = length * 3 / 5;
        let mut cells = vec![('─', Ink::Dim); length];
        cells[gate] = self.gate();
        let mut ahead = 0;
        for item in &belt.items {
            if let Some((place, cell)) = self.item(item, gate, ahead)
                && place < length
            {
                cells[place] = cell;
            }
            ahead += usize::from(item.is_waiting());
        }
        let mut line = name;
        line.cells.extend(cells);
        line.right(Ink::Dim, &format!("{:>7}", thousands(belt.packed)), self.columns)
    }

    fn gate(&self) -> (char, Ink) {
        match (self.worker, self.failing) {
            (Worker::AtWork, false) => ('┃', Ink::Green),
            (Worker::AtWork, true) => ('╳', Ink::Red),
            (Worker::Waiting | Worker::Stopped, _) => ('┃', Ink::Yellow),
            (Worker::Gone, _) => ('┃', Ink::Red),
        }
    }

    /// Where an order is drawn, behind `ahead` others that wait.
    fn item(&self, item: &Item, gate: usize, ahead: usize) -> Option<(usize, (char, Ink))> {
        let now = self.floor.now();
        let way = |since: Duration| now.saturating_sub(since).as_secs_f64() * SPEED;
        let moved = way(item.placed);
        match item.state {
            ItemState::Waiting | ItemState::Failing => {
                // A queue longer than the belt ends at its beginning.
                let place = (moved as usize).min((gate - 1).saturating_sub(ahead));
                let ink = if item.state == ItemState::Failing { Ink::Red } else { Ink::Yellow };
                Some((place, ('●', ink)))
            }
            ItemState::Done(at) => {
                let place = moved.min(gate as f64 + 1.0 + way(at)) as usize;
                let ink = if place > gate { Ink::Green } else { Ink::Yellow };
                (place != gate).then_some((place, ('●', ink)))
            }
            ItemState::Dead(at) => {
                let place = (moved as usize).min(gate);
                (now.saturating_sub(at) < SHOWN_DEAD).then_some((place, ('✗', Ink::Red)))
            }
        }
    }

    fn worker(&self) -> Line {
        let pid = self.pid.map(|pid| format!(" {pid}")).unwrap_or_default();
        let (ink, text) = match (self.worker, self.failing) {
            _ if self.ending => (
                Ink::Bold,
                "no more orders: delivering what is left, then counting in the database".to_owned(),
            ),
            (Worker::AtWork, false) => (Ink::Green, format!("worker{pid} at work")),
            (Worker::AtWork, true) => (
                Ink::Red,
                format!("worker{pid}: every attempt fails; keys are parked and tried again"),
            ),
            (Worker::Waiting, _) => {
                (Ink::Yellow, format!("worker{pid} waits until the lease of the killed one ends"))
            }
            (Worker::Stopped, _) => {
                (Ink::Yellow, format!("worker{pid} is stopped; orders go on, nothing is lost"))
            }
            (Worker::Gone, _) => (Ink::Red, "no worker".to_owned()),
        };
        let line = Line::new().add(ink, &text);
        let started = format!("worker no. {}", self.started);
        if self.started > 1 { line.right(Ink::Dim, &started, self.columns) } else { line }
    }

    fn events(&self, most: usize) -> Vec<Line> {
        let shown = self.floor.events.iter().rev().take(most).collect::<Vec<_>>();
        let mut lines: Vec<Line> = shown
            .into_iter()
            .rev()
            .map(|(at, text)| {
                Line::new().add(Ink::Dim, &clock(*at)).add(Ink::Plain, &format!(" {text}"))
            })
            .collect();
        lines.resize_with(most, Line::new);
        lines
    }

    fn keys(&self) -> Line {
        let mut line = Line::new();
        for (key, what) in [
            ("p", "oison a message"),
            ("f", "ail"),
            ("s", "top or go on"),
            ("k", "ill -9"),
            ("q", "uit and count"),
        ] {
            line = line.add(Ink::Bold, &format!("[{key}]")).add(Ink::Dim, &format!("{what}  "));
        }
        line
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

    fn scene(floor: &Floor, columns: usize, rows: usize) -> Scene<'_> {
        Scene {
            floor,
            worker: Worker::AtWork,
            pid: Some(4242),
            started: 2,
            failing: false,
            rate: 100,
            ending: false,
            columns,
            rows,
            colour: false,
        }
    }

    #[test]
    fn it_fits_every_screen_from_tiny_to_huge() {
        let mut floor = Floor::new();
        for n in 0..9 {
            floor.note(format!("{n} {}", "something happened ".repeat(20)));
        }
        for (columns, rows) in [(80, 24), (20, 5), (40, 15), (200, 60), (1, 1)] {
            let lines = scene(&floor, columns, rows).draw();
            assert!(lines.len() <= rows, "{columns}x{rows}: {} lines", lines.len());
            assert!(lines.iter().all(|line| line.chars().count() <= columns), "{columns}x{rows}");
        }
    }

    #[test]
    fn eighty_by_twenty_four_shows_figures_lanes_belts_and_keys() {
        let floor = Floor::new();
        let text = scene(&floor, 80, 24).draw().join("\n");
        for word in [
            "orders committed",
            "lanes",
            "anna",
            "┃",
            "worker 4242 at work",
            "worker no. 2",
            "[k]ill -9",
        ] {
            assert!(text.contains(word), "{word} is missing in\n{text}");
        }
    }

    #[test]
    fn figures_are_grouped_by_three() {
        assert_eq!([0, 999, 1000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
    }
}
