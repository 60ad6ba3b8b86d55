//! The systems in the picture: their figures, where their API is, and the keys that break them.

use super::ink::{Ink, Line, thousands};
use super::troupe::Card;

/// A line of figures, and below it the address and the keys.
pub(super) fn lines(card: &Card) -> [Line; 2] {
    [figures(card), keys(card)]
}

fn figures(card: &Card) -> Line {
    let figures = &card.figures;
    let n = thousands;
    let waiting = if figures.pending > 0 { Ink::Yellow } else { Ink::Plain };
    let dead = if figures.dead > 0 { Ink::Red } else { Ink::Plain };
    let line = Line::new()
        .add(Ink::Bold, &format!("{:<11}", card.part.title()))
        .add(Ink::Plain, &format!("{} committed  ", n(figures.committed)))
        .add(Ink::Green, &format!("{} effects  ", n(figures.effects)))
        .add(waiting, &format!("{} on their way  ", n(figures.pending)))
        .add(dead, &format!("{} dead", n(figures.dead)));
    match card.lost {
        Some(0) => line.add(Ink::Green, "  0 lost"),
        Some(lost) => line.add(Ink::Red, &format!("  {} lost", n(lost))),
        None => line,
    }
}

/// What is broken is red: its key mends it.
fn keys(card: &Card) -> Line {
    let mut line = Line::new().add(Ink::Dim, &card.url);
    for what in card.part.breaks() {
        let rest = what.label.strip_prefix(what.key).unwrap_or(what.label);
        let ink = if card.broken.contains(&what.name) { Ink::Red } else { Ink::Dim };
        line = line.add(Ink::Bold, &format!("  [{}]", what.key)).add(ink, rest);
    }
    line
}

/// The figures as a line of text.
pub(super) fn plain(card: &Card) -> String {
    let f = &card.figures;
    let n = thousands;
    format!(
        "{}: committed {}  effects {}  on their way {}  retried {}  dead {}",
        card.part.title(),
        n(f.committed),
        n(f.effects),
        n(f.pending),
        n(f.retried),
        n(f.dead)
    )
}
