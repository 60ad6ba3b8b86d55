//! The table for people and the JSON for everything else.

use crate::contest::{Figure, Series};
use anyhow::{Context, Result};
use std::path::Path;

/// A table a contest: who, how fast, how that compares, what it cost.
pub(crate) fn print(figures: &[Figure]) {
    for figure in figures {
        println!("\n{}", figure.name);
        println!(
            "  {:<26} {:>10} {:>6} {:>7} {:>6} {:>7} {:>7} {:>7} {:>6} {:>6} {:>6}",
            "",
            "events/s",
            "spread",
            "ratio",
            "goal",
            "cpu us",
            "db us",
            "brk us",
            "MB",
            "WAL B",
            "dead"
        );
        for (index, series) in figure.series.iter().enumerate() {
            println!("  {}", line(figure, index, series));
        }
    }
}

fn line(figure: &Figure, index: usize, series: &Series) -> String {
    let ours = figure.series.first().map_or(0.0, |ours| ours.median);
    let goal = index.checked_sub(1).and_then(|other| figure.goals.get(other).copied().flatten());
    let ratio = ours / series.median;
    let reached = match goal {
        None => "",
        Some(goal) if ratio < goal => " short",
        Some(_) => " ok",
    };
    let shown = |ratio: f64| if index == 0 { String::new() } else { format!("{ratio:.2}") };
    let goal = goal.map(|goal| format!("{goal:.2}")).unwrap_or_default();
    let middle = series.middle().cloned().unwrap_or_default();
    let micros = |seconds: f64| format!("{:.1}", seconds * 1e6 / middle.events.max(1) as f64);
    format!(
        "{:<26} {:>10.0} {:>5.0}% {:>7} {:>6} {:>7} {:>7} {:>7} {:>6.0} {:>6.0} {:>6}{reached}",
        series.name,
        series.median,
        series.spread * 100.0,
        shown(ratio),
        goal,
        micros(middle.cpu_ours_s),
        micros(middle.cpu_database_s),
        micros(middle.cpu_broker_s),
        middle.peak_mb,
        middle.wal_bytes_per_event,
        middle.dead_tuples,
    )
}

/// Everything that was measured, with every sample.
pub(crate) fn write(path: &Path, figures: &[Figure], long: bool) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder {
        std::fs::create_dir_all(folder)?;
    }
    let all = serde_json::json!({ "long": long, "cores": cores(), "figures": figures });
    std::fs::write(path, serde_json::to_string_pretty(&all)?)
        .with_context(|| format!("cannot write {}", path.display()))?;
    println!("\nevery sample: {}", path.display());
    Ok(())
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(0, usize::from)
}
