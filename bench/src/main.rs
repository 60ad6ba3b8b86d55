//! How fast Relevo is, against what the bare parts can do on the same machine in the same run.
//!
//! # Layout
//! - [`contests`]: what is compared with what, and the goal of each comparison
//! - [`contest`]: rounds in turn
//! - [`figure`], [`goal`]: medians, ratios, units, what is to be reached
//! - [`tasks`]: what a contender does, in a process of its own, so that its CPU time and memory are its own
//! - [`arena`]: the servers, the seeded logs, and what they cost meanwhile
//! - [`judge`]: nothing lost, nothing twice, in order, after every single run
//! - [`cost`], [`report`]: CPU time and memory of processes; the table on the terminal
//! - [`ledger`], [`machine`]: the JSON, written after every contest; what it was measured on
//! - [`picture`]: SVGs and tables from that JSON

mod arena;
mod contest;
mod contests;
mod cost;
mod figure;
mod goal;
mod judge;
mod ledger;
mod machine;
mod picture;
mod report;
mod tasks;

use anyhow::Result;
use clap::Parser;
use contests::What;
use ledger::Ledger;
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
    /// Where the figures go as JSON: target/bench/figures.json if it is long, otherwise target/bench/short.json. Long runs
    /// of this or that fill one file together.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Measures nothing: draws the pictures and writes the tables of such a file.
    #[arg(long, value_name = "FILE")]
    draw: Option<PathBuf>,
    /// Where pictures and tables go.
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
    let file = if cli.long { "target/bench/figures.json" } else { "target/bench/short.json" };
    let json = cli.json.unwrap_or_else(|| file.into());
    let ledger = Ledger::open(&json, cli.long)?;
    let size = contests::Size::of(cli.long, cli.rounds);
    let (results, run) = contests::run(&cli.what, size, ledger).await?;
    report::print(&results);
    report::warn(&run);
    println!("\nevery sample: {}", json.display());
    picture::draw(&json, &cli.into)
}
