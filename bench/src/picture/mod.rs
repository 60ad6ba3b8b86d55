//! Pictures and tables from the JSON of a run, for docs/performance.md: SVG by hand, readable on light and dark; Markdown.
//!
//! - [`axis`]: from values to places, and the ticks between
//! - [`chart`]: lines with a legend
//! - [`plots`]: which curves of a run become which picture
//! - [`page`]: every contest as a table

mod axis;
mod chart;
mod page;
mod plots;

use crate::ledger::Book;
use anyhow::{Context, Result};
use std::path::Path;

const PAGE: &str = "figures.md";

/// Draws every picture that the file has the curves for into a folder, and writes its tables there.
pub(crate) fn draw(json: &Path, folder: &Path) -> Result<()> {
    let text =
        std::fs::read_to_string(json).with_context(|| format!("cannot read {}", json.display()))?;
    let run: serde_json::Value = serde_json::from_str(&text)?;
    std::fs::create_dir_all(folder)?;
    for (name, chart) in plots::of(&run) {
        let place = folder.join(name);
        match chart {
            Some(chart) => {
                std::fs::write(&place, chart.svg())?;
                println!("drawn: {}", place.display());
            }
            None => println!("not drawn: {name}; the run has no curves for it"),
        }
    }
    write_page(&text, &folder.join(PAGE))
}

fn write_page(json: &str, place: &Path) -> Result<()> {
    let book: Book = serde_json::from_str(json).context("not figures of this version")?;
    std::fs::write(place, page::of(&book))?;
    println!("written: {}", place.display());
    Ok(())
}
