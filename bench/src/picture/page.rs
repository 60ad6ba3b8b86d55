//! The figures as tables in Markdown.

use crate::figure::{Figure, Sample, Series, Turns};
use crate::ledger::{Book, Entry};
use crate::machine::Machine;

const HEAD: &str = "
| Contender | Figure | Median | Spread | Ratio | Goal | | cpu µs | db µs | broker µs | peak MB | WAL B | dead | queries |
|---|---|--:|--:|--:|---|---|--:|--:|--:|--:|--:|--:|--:|
";

/// One page: what it was measured on, and a table for each contest.
pub(super) fn of(book: &Book) -> String {
    book.contests.iter().fold(introduction(book), |page, contest| page + &section(contest))
}

fn introduction(book: &Book) -> String {
    let Machine { cpu, cores, memory_mb, kernel } = &book.machine;
    let versions: Vec<String> =
        book.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    let mut text = format!(
        "# Figures\n\nWritten by `cargo xtask bench pictures FILE`; what is measured, and how, is in \
         [performance.md](../performance.md).\n\n- **Machine**: {cpu}, {cores} cores, {memory_mb} MB, Linux {kernel}\n\
         - **Versions**: {}\n",
        versions.join(", ")
    );
    for missing in book.missing.values() {
        text += &format!("- **Could not be had**: {missing}\n");
    }
    if !book.long || !book.release {
        text += "- **These figures mean nothing**: the run was short, or of a build without optimisations\n";
    }
    let queries = &book.queries_are;
    text + &format!(
        "\nRatio is ours (the first line) to the other. Costs are per event, of the turn in the middle: CPU of the \
         contender's own process, of the database and of the broker; queries are {queries}.\n"
    )
}

fn section(entry: &Entry) -> String {
    let Entry { results, measured_at, rounds, commit } = entry;
    let name = &results.name;
    let mut text =
        format!("\n## {name}\n\n{measured_at}, {rounds} round(s), commit `{commit}`\n{HEAD}");
    for (index, figure) in results.figures.iter().enumerate() {
        for (line, series) in figure.series.iter().enumerate() {
            // What a contender cost is told once, with its first figure.
            let costs = results.contenders.get(line).filter(|_| index == 0).map(costs);
            let costs = costs.unwrap_or_else(|| " | | | | | |".to_owned());
            text += &format!("{} {costs} |\n", compared(figure, line, series));
        }
    }
    text
}

fn compared(figure: &Figure, line: usize, series: &Series) -> String {
    let spread = Some(series.spread).filter(|spread| spread.is_finite());
    let spread = spread.map(|spread| format!("{:.0} %", spread * 100.0));
    let reached = series.reached.map(|reached| if reached { "reached" } else { "short" });
    format!(
        "| {} | {}, {} | {} | {} | {} | {} | {} |",
        series.name,
        figure.title(),
        figure.unit.label(),
        figure.unit.show(series.median),
        spread.unwrap_or_default(),
        figure.ratio(line).map(|ratio| format!("{ratio:.2}")).unwrap_or_default(),
        series.goal.map(|goal| goal.show()).unwrap_or_default(),
        reached.unwrap_or_default(),
    )
}

/// Of the turn in the middle, by its rate.
fn costs(turns: &Turns) -> String {
    let middle = turns.middle(Sample::rate).cloned().unwrap_or_default();
    let micros = |seconds: f64| middle.per_event(seconds * 1e6);
    format!(
        "{:.1} | {:.1} | {:.1} | {:.0} | {:.0} | {:.4} | {:.4}",
        micros(middle.outcome.cpu_s),
        micros(middle.cpu_database_s),
        micros(middle.cpu_broker_s),
        middle.peak_mb(),
        middle.per_event(middle.wal_bytes),
        middle.dead_per_event(),
        middle.per_event(middle.queries as f64),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::{Reading, Results};
    use crate::goal::{Goal, Unit};
    use crate::tasks::Outcome;
    use std::collections::BTreeMap;

    fn turns(name: &str, events: u64) -> Turns {
        let outcome =
            Outcome { events, seconds: 1.0, cpu_s: 0.5, peak_mb: 20.0, ..Outcome::default() };
        Turns { name: name.into(), samples: vec![Sample { outcome, ..Sample::default() }] }
    }

    /// As it comes out of a file.
    fn book() -> Book {
        let near = Some(Goal::Within { times: 2.0, plus_ms: 3.0 });
        let readings = [
            Reading::rate([Some(Goal::AtLeast(0.9))]),
            Reading {
                name: "p99",
                unit: Unit::Millis,
                of: |sample| sample.value("p99"),
                goals: vec![None, near],
            },
        ];
        let results =
            Results::of("drain".into(), vec![turns("relevo", 100), turns("pipe", 50)], &readings);
        let one = |name: &str, text: &str| BTreeMap::from([(name.to_owned(), text.to_owned())]);
        let written = Book {
            long: true,
            release: true,
            machine: Machine {
                cpu: "fast".into(),
                cores: 2,
                memory_mb: 8000,
                kernel: "6.1".into(),
            },
            versions: one("PostgreSQL", "15.13"),
            queries_are: "statements".into(),
            missing: one("Kafka", "Kafka is not here"),
            contests: vec![Entry {
                results,
                measured_at: "2026-01-02T03:04:05Z".into(),
                rounds: 5,
                commit: "abc".into(),
            }],
        };
        serde_json::from_str(&serde_json::to_string(&written).unwrap()).unwrap()
    }

    #[test]
    fn a_page_says_on_what_it_was_measured_and_what_was_reached() {
        let page = of(&book());
        for part in [
            "fast, 2 cores, 8000 MB, Linux 6.1",
            "PostgreSQL 15.13",
            "**Could not be had**: Kafka is not here",
            "2026-01-02T03:04:05Z, 5 round(s), commit `abc`",
            "| pipe | rate, events/s | 50 | 0 % | 2.00 | ≥ 0.90 | reached | 10000.0 |",
            "| pipe | p99, ms | - |  |  | ≤ 2 × + 3 ms | short |",
        ] {
            assert!(page.contains(part), "no {part} in {page}");
        }
        assert!(!page.contains("mean nothing"));
    }

    #[test]
    fn every_row_has_as_many_cells_as_its_head() {
        let page = of(&book());
        let rows: Vec<&str> = page.lines().filter(|line| line.starts_with('|')).collect();
        assert_eq!(rows.len(), 6);
        let cells = |row: &&str| row.matches('|').count();
        assert!(rows.iter().all(|row| cells(row) == cells(&rows[0])), "{page}");
    }
}
