//! The table for people and the JSON for everything else.

use crate::figure::{Figure, Results, Sample, Series};
use anyhow::{Context, Result};
use std::path::Path;

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
                    println!("  {}", costs(turns.name, &middle));
                });
            }
        }
    }
}

fn heading(figure: &Figure) -> String {
    let name = if figure.name.is_empty() { "rate" } else { figure.name };
    let better = if figure.unit.higher_is_better() { "more is better" } else { "less is better" };
    let name = format!("{name} ({better})");
    format!("{name:<34} {:>12} {:>7} {:>7}  goal", figure.unit.label(), "spread", "ratio")
}

fn compared(figure: &Figure, line: usize, series: &Series) -> String {
    let ours = figure.series.first().map_or(f64::NAN, |ours| ours.median);
    let ratio = ours / series.median;
    let ratio = match line {
        0 => String::new(),
        _ if ratio.is_finite() => format!("{ratio:.2}"),
        _ => "-".to_owned(),
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

/// Everything that was measured, with every sample.
pub(crate) fn write(path: &Path, results: &[Results], run: &Run) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder {
        std::fs::create_dir_all(folder)?;
    }
    let all = serde_json::json!({
        "long": run.long,
        "cores": cores(),
        "release": !cfg!(debug_assertions),
        "queries_are": run.queries,
        "missing": run.missing,
        "contests": results,
    });
    std::fs::write(path, serde_json::to_string_pretty(&all)?)
        .with_context(|| format!("cannot write {}", path.display()))?;
    println!("\nevery sample: {}", path.display());
    Ok(())
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

fn cores() -> usize {
    std::thread::available_parallelism().map_or(0, usize::from)
}
