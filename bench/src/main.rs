//! How fast Relevo is, against what the bare parts can do on the same machine in the same run.
//!
//! # Layout
//! - [`contests`]: what is compared with what, and the goal of each comparison
//! - [`contest`]: rounds in turn
//! - [`figure`], [`goal`]: medians, ratios, units, what is to be reached
//! - [`tasks`]: what a contender does, in a process of its own, so that its CPU time and memory are its own
//! - [`arena`]: the servers, the seeded logs, and what they cost meanwhile
//! - [`judge`]: nothing lost, nothing twice, in order, after every single run
//! - [`cost`], [`report`]: CPU time and memory of processes; the table and the JSON
//! - [`picture`]: SVGs from that JSON

mod arena;
mod contest;
mod contests;
mod cost;
mod figure;
mod goal;
mod judge;
mod picture;
mod report;
mod tasks;

use anyhow::Result;
use clap::Parser;
use contests::What;
use std::path::PathBuf;

/// Measures Relevo against the bare parts. Figures are ratios of contenders that took turns in one run.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench")]
pub(crate) struct Cli {
    /// What to measure; everything, if nothing is named.
    #[arg(value_enum)]
    what: Vec<What>,
    /// Long enough for figures. Without it a run is short: it shows that the bench works.
    #[arg(long)]
    long: bool,
    /// How often each contender takes its turn.
    #[arg(long)]
    rounds: Option<usize>,
    /// Where the figures go as JSON.
    #[arg(long, default_value = "target/bench/figures.json")]
    json: PathBuf,
    /// Measures nothing: draws the pictures of such a file.
    #[arg(long, value_name = "FILE")]
    draw: Option<PathBuf>,
    /// Where pictures go.
    #[arg(long, default_value = "target/bench")]
    into: PathBuf,
    /// A contender's own process.
    #[arg(long, hide = true)]
    task: Option<String>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let cli = Cli::parse();
    if let Some(task) = &cli.task {
        let outcome = tasks::perform(serde_json::from_str(task)?).await?;
        println!("{}", serde_json::to_string(&outcome)?);
        return Ok(());
    }
    if let Some(json) = &cli.draw {
        return picture::draw(json, &cli.into);
    }
    let size = contests::Size::of(cli.long, cli.rounds);
    let (results, run) = contests::run(&cli.what, size).await?;
    report::print(&results);
    report::warn(&run);
    report::write(&cli.json, &results, &run)?;
    picture::draw(&cli.json, &cli.into)
}
