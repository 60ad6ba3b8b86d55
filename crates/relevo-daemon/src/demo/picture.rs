//! The moving picture: a pure function from the floor to lines of text.

use super::cards;
use super::crew::Worker;
use super::floor::{Belt, Floor, Item, ItemState};
use super::ink::{Ink, Line, clock, thousands};
use super::troupe::Card;
use relevo_core::limits::LANES;
use std::time::Duration;

/// Cells an order moves in a second.
const SPEED: f64 = 24.0;
/// A poisoned order shows at the gate for this long.
const SHOWN_DEAD: Duration = Duration::from_secs(2);
/// A lane flashes for this long after a parcel.
const FLASH: Duration = Duration::from_millis(300);

/// The shop as it stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Front {
    pub(super) worker: Worker,
    pub(super) pid: Option<i32>,
    pub(super) started: u32,
    pub(super) failing: bool,
    pub(super) rate: u32,
}

/// What the picture shows.
pub(super) struct Scene<'a> {
    pub(super) title: &'a str,
    pub(super) floor: &'a Floor,
    /// `None` where only a system is shown.
    pub(super) shop: Option<Front>,
    pub(super) systems: Vec<&'a Card>,
    /// What the end of the demo waits for, once it does.
    pub(super) ending: bool,
    pub(super) columns: usize,
    pub(super) rows: usize,
    pub(super) colour: bool,
}

impl Front {
    fn gate(&self) -> (char, Ink) {
        match (self.worker, self.failing) {
            (Worker::AtWork, false) => ('┃', Ink::Green),
            (Worker::AtWork, true) => ('╳', Ink::Red),
            (Worker::Waiting | Worker::Stopped, _) => ('┃', Ink::Yellow),
            (Worker::Gone, _) => ('┃', Ink::Red),
        }
    }
}

impl Scene<'_> {
    /// The picture, at most as many lines and columns as the screen has.
    pub(super) fn draw(&self) -> Vec<String> {
        let lines = match &self.shop {
            Some(shop) => self.shop(shop),
            None => self.systems_alone(),
        };
        let lines = lines.into_iter().take(self.rows);
        lines.map(|line| line.print(self.columns, self.colour)).collect()
    }

    fn shop(&self, shop: &Front) -> Vec<Line> {
        let head = [self.title(), Line::new()].into_iter().chain(self.figures()).chain([
            Line::new(),
            self.lanes(),
            Line::new(),
        ]);
        let mut lines: Vec<Line> = head.collect();
        let events = match (self.rows, self.systems.is_empty()) {
            (..20, _) => 1,
            (_, true) => 4,
            (_, false) => 3,
        };
        let foot: Vec<Line> = [Line::new(), self.worker(shop)]
            .into_iter()
            .chain(self.systems.iter().flat_map(|card| cards::lines(card)))
            .chain(self.events(events))
            .chain([self.keys()])
            .collect();
        let belts = self.rows.saturating_sub(lines.len() + foot.len()).clamp(1, 16);
        lines.extend(self.floor.belts.iter().take(belts).map(|belt| self.belt(shop, belt)));
        lines.extend(foot);
        lines
    }

    fn systems_alone(&self) -> Vec<Line> {
        let mut lines = vec![self.title(), Line::new()];
        for card in &self.systems {
            lines.extend(cards::lines(card));
            lines.push(Line::new());
        }
        if self.ending {
            let text = "no more changes: delivering what is left, then counting";
            lines.push(Line::new().add(Ink::Bold, text));
        }
        let events = self.rows.saturating_sub(lines.len() + 2).clamp(1, 20);
        lines.extend(self.events(events));
        lines.extend([Line::new(), self.keys()]);
        lines
    }

    fn title(&self) -> Line {
        let rate = self.shop.map_or_else(String::new, |shop| format!("   {} orders/s", shop.rate));
        let right = format!("{}{rate}", clock(self.floor.now()));
        Line::new()
            .add(Ink::Bold, "relevo demo")
            .add(Ink::Dim, &format!("   {}", self.title))
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
    fn belt(&self, shop: &Front, belt: &Belt) -> Line {
        let name = Line::new().add(Ink::Plain, &format!("{:<8}", belt.customer));
        let length = self.columns.saturating_sub(name.cells.len() + 10).max(10);
        let gate = length * 3 / 5;
        let mut cells = vec![('─', Ink::Dim); length];
        cells[gate] = shop.gate();
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

    fn worker(&self, shop: &Front) -> Line {
        let pid = shop.pid.map(|pid| format!(" {pid}")).unwrap_or_default();
        let (ink, text) = match (shop.worker, shop.failing) {
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
        let started = format!("worker no. {}", shop.started);
        if shop.started > 1 { line.right(Ink::Dim, &started, self.columns) } else { line }
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
        let own = [("p", "oison a message"), ("f", "ail"), ("s", "top or go on"), ("k", "ill -9")];
        let own = own.into_iter().filter(|_| self.shop.is_some());
        let mut line = Line::new();
        for (key, what) in own.chain([("q", "uit and count")]) {
            line = line.add(Ink::Bold, &format!("[{key}]")).add(Ink::Dim, &format!("{what}  "));
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::super::part::Part;
    use super::*;
    use proof::Figures;

    fn front() -> Front {
        Front { worker: Worker::AtWork, pid: Some(4242), started: 2, failing: false, rate: 100 }
    }

    fn card(part: Part) -> Card {
        let figures = Figures {
            committed: 12_345,
            effects: 24_680,
            pending: 1_234,
            dead: 12,
            ..Figures::default()
        };
        let url = "http://127.0.0.1:54321".into();
        Card { part, url, figures, broken: vec!["ticketflow-mail"], lost: Some(0) }
    }

    fn scene<'a>(floor: &'a Floor, cards: &'a [Card], columns: usize, rows: usize) -> Scene<'a> {
        Scene {
            title: "a shop floor and two systems on SQLite",
            floor,
            shop: (!floor.belts.is_empty()).then(front),
            systems: cards.iter().collect(),
            ending: false,
            columns,
            rows,
            colour: false,
        }
    }

    fn cards() -> [Card; 2] {
        [card(Part::Ticketflow), card(Part::Smartedify)]
    }

    #[test]
    fn it_fits_every_screen_from_tiny_to_huge() {
        for shop in [true, false] {
            let (mut floor, cards) = (Floor::new(shop), cards());
            for n in 0..9 {
                floor.note(format!("{n} {}", "something happened ".repeat(20)));
            }
            for (columns, rows) in [(80, 24), (120, 40), (20, 5), (40, 15), (200, 60), (1, 1)] {
                let lines = scene(&floor, &cards, columns, rows).draw();
                assert!(lines.len() <= rows, "{columns}x{rows}: {} lines", lines.len());
                let fits = |line: &String| line.chars().count() <= columns;
                assert!(lines.iter().all(fits), "{columns}x{rows}");
            }
        }
    }

    #[test]
    fn eighty_by_twenty_four_shows_figures_lanes_belts_systems_and_keys() {
        let (floor, cards) = (Floor::new(true), cards());
        let text = scene(&floor, &cards, 80, 24).draw().join("\n");
        for word in [
            "orders committed",
            "lanes",
            "anna",
            "felix",
            "┃",
            "worker 4242 at work",
            "worker no. 2",
            "[k]ill -9",
            "TicketFlow 12,345 committed  24,680 effects  1,234 on their way  12 dead  0 lost",
            "http://127.0.0.1:54321  [m]ail server  [d]ispatcher  [w]orker",
            "[n]onsense  [e]rrors  [u]nreachable  [t]wice  [r]elay",
        ] {
            let cut: String = word.chars().take(79).collect();
            assert!(text.contains(&cut), "{word} is missing in\n{text}");
        }
    }

    #[test]
    fn a_system_alone_has_no_shop_around_it() {
        let floor = Floor::new(false);
        let text = scene(&floor, &[card(Part::Smartedify)], 80, 24).draw().join("\n");
        assert!(text.contains("SmartEdify") && text.contains("[q]uit"), "{text}");
        assert!(!text.contains("orders") && !text.contains("[k]ill"), "{text}");
    }
}
