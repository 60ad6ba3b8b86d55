//! The table on the terminal.

use crate::figure::{Figure, Results, Sample, Series};

/// A table a figure: who, how much, how that compares, and once a contest what it cost.
pub(crate) fn print(results: &[Results]) {
    for contest in results {
        println!("\n{}", contest.name);
        for (index, figure) in contest.figures.iter().enumerate() {
            println!("  {}", heading(figure));
            for (line, series) in figure.series.iter().enumerate() {
                println!("  {}", compared(figure, line, series));
            }
            if index + 1 == contest.figures.len() {
                println!("  {}", COSTS);
                contest.contenders.iter().for_each(|turns| {
                    let middle = turns.middle(Sample::rate).cloned().unwrap_or_default();
                    println!("  {}", costs(&turns.name, &middle));
                });
            }
        }
    }
}

fn heading(figure: &Figure) -> String {
    let better = if figure.unit.higher_is_better() { "more is better" } else { "less is better" };
    let name = format!("{} ({better})", figure.title());
    format!("{name:<34} {:>12} {:>7} {:>7}  goal", figure.unit.label(), "spread", "ratio")
}

fn compared(figure: &Figure, line: usize, series: &Series) -> String {
    let ratio = match figure.ratio(line) {
        Some(ratio) => format!("{ratio:.2}"),
        None if line > 0 => "-".to_owned(),
        None => String::new(),
    };
    let goal = series.goal.map(|goal| goal.show()).unwrap_or_default();
    let reached = match series.reached {
        None => "",
        Some(true) => "ok",
        Some(false) => "short",
    };
    let spread = match series.spread.is_finite() {
        true => format!("{:.0}%", series.spread * 100.0),
        false => "-".to_owned(),
    };
    let text = format!(
        "  {:<32} {:>12} {spread:>7} {ratio:>7}  {goal} {reached}",
        series.name,
        figure.unit.show(series.median),
    );
    text.trim_end().to_owned()
}

const COSTS: &str = "what it cost, per event            \
                     cpu µs   db µs  broker µs  peak MB   WAL B  queries    dead";

fn costs(name: &str, middle: &Sample) -> String {
    let micros = |seconds: f64| middle.per_event(seconds * 1e6);
    format!(
        "  {:<32} {:>7.1} {:>7.1} {:>10.1} {:>8.0} {:>7.0} {:>8.4} {:>7.4}",
        name,
        micros(middle.outcome.cpu_s),
        micros(middle.cpu_database_s),
        micros(middle.cpu_broker_s),
        middle.peak_mb(),
        middle.per_event(middle.wal_bytes),
        middle.per_event(middle.queries as f64),
        middle.dead_per_event(),
    )
}

/// What is known of a run beside its figures.
pub(crate) struct Run {
    pub(crate) long: bool,
    /// What queries were counted by.
    pub(crate) queries: &'static str,
    /// What could not be had.
    pub(crate) missing: Vec<String>,
}

/// What a reader must know before believing a figure.
pub(crate) fn warn(run: &Run) {
    println!("\nqueries are {}", run.queries);
    for missing in &run.missing {
        println!("COULD NOT BE HAD: {missing}");
    }
    if !run.long {
        println!(
            "short run: it shows that every contest works and is judged; its figures mean nothing"
        );
    }
    if cfg!(debug_assertions) {
        println!("not a release build: its figures mean nothing");
    }
}
