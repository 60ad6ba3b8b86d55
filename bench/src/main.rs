//! How fast Relevo is, against what the bare parts can do on the same machine in the same run.
//!
//! # Layout
//! - [`contests`]: what is compared with what, and the goal of each comparison
//! - [`contest`]: rounds in turn, medians, ratios
//! - [`tasks`]: what a contender does, in a process of its own, so that its CPU time and memory are its own
//! - [`arena`]: the servers, the seeded log, and what they cost meanwhile
//! - [`judge`]: nothing lost, nothing twice, in order, after every single run
//! - [`cost`], [`report`]: CPU time and memory of processes; the table and the JSON

mod arena;
mod contest;
mod contests;
mod cost;
mod judge;
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
    let size = contests::Size::of(cli.long, cli.rounds);
    let figures = contests::run(&cli.what, size).await?;
    report::print(&figures);
    report::write(&cli.json, &figures, cli.long)
}
