//! `relevo demo`: a shop floor of events on an embedded store, and everything that can go wrong with it.
//!
//! The parent places orders, each in one transaction with its event. The worker, the same binary as a child
//! process, packs a parcel for each in the transaction that moves its cursor. Whatever is broken meanwhile: at the
//! end orders and parcels are joined in the database, and the exit code tells whether the promises held.
//!
//! - `shop`: the business and its tables; `keeper`: the thread that places orders and breaks things
//! - `worker`: the child process; `crew`: that process as the parent sees it; `journal`: its attempts
//! - `floor`, `picture`, `screen`: what one sees
//! - `breaks`: what can be broken; `stage`: the demo as it runs; `verify`: the proof at the end

mod breaks;
mod crew;
mod floor;
mod journal;
mod keeper;
mod picture;
mod screen;
mod shop;
mod stage;
mod verify;
mod worker;

use crate::cli::{Globals, exit};
use crate::config::duration;
use breaks::Break;
use relevo_core::{Error, Kind, Result};
use shop::Place;
use stage::{Plan, Stage};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use verify::{Report, Verdict};

/// How long it runs where nobody can press q.
const UNATTENDED: Duration = Duration::from_secs(20);

/// In less than this no order would be placed, and there would be nothing to prove.
const SHORTEST: Duration = Duration::from_secs(1);

fn long_enough(text: &str) -> Result<Duration, String> {
    match duration::parse(text)? {
        length if length < SHORTEST => Err("the demo needs at least 1s to show anything".into()),
        length => Ok(length),
    }
}

/// Options of `relevo demo`.
#[derive(Debug, clap::Args)]
pub struct DemoArgs {
    /// Run for this long, then count [default: until q; 20s without a terminal]
    #[arg(long = "for", value_name = "TIME", value_parser = long_enough)]
    length: Option<Duration>,

    /// Run on, past --for if need be, until so many orders were placed: for slow disks
    #[arg(long, value_name = "N", default_value_t = 0)]
    at_least: u64,

    /// Break this while it runs, spread over the time; several parted by commas
    #[arg(long = "break", value_name = "WHAT", value_delimiter = ',', value_enum)]
    breaks: Vec<Break>,

    /// Orders a second
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=5_000))]
    rate: u32,

    /// Keep everything in this folder [default: a temporary one]
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,

    /// Be the worker of the demo in --dir
    #[arg(long, hide = true, requires = "dir")]
    worker: bool,
}

/// Runs the demo.
pub async fn demo(args: DemoArgs, globals: &Globals) -> Result<ExitCode> {
    if let (true, Some(folder)) = (args.worker, &args.dir) {
        crate::run::log_to_stderr();
        return worker::work(&Place::in_folder(folder)).await.map(|()| ExitCode::SUCCESS);
    }
    // A temporary folder goes with this value, at the end.
    let temporary = match args.dir {
        Some(_) => None,
        None => Some(tempfile::Builder::new().prefix("relevo-demo-").tempdir().map_err(no_folder)?),
    };
    let folder = args.dir.or_else(|| temporary.as_ref().map(|folder| folder.path().to_owned()));
    let folder = folder.unwrap_or_default();
    std::fs::create_dir_all(&folder).map_err(no_folder)?;
    let picture = !globals.json && screen::is_there();
    let length = args.length.or_else(|| (!picture).then_some(UNATTENDED));
    let plan = Plan {
        place: Place::in_folder(&folder),
        length,
        at_least: args.at_least,
        breaks: args.breaks,
        rate: args.rate,
        picture,
        json: globals.json,
    };
    let verdict = Stage::set(plan).await?.play().await?;
    tell(&verdict, globals.json)?;
    Ok(if verdict.broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(exit::FOUND) })
}

fn no_folder(error: std::io::Error) -> Error {
    Error::new(Kind::InvalidArgument, format!("the demo's folder: {error}")).because(error)
}

/// The end: one JSON object, or words.
fn tell(verdict: &Verdict, json: bool) -> Result<()> {
    for broken in &verdict.broken {
        eprintln!("BROKEN: {broken}");
    }
    let text = if json {
        let failed = |e| Error::new(Kind::InvalidPayload, format!("the report: {e}"));
        serde_json::to_string(&verdict.report).map_err(failed)? + "\n"
    } else {
        in_words(verdict)
    };
    // Nobody may be reading any more; the exit code still tells.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

fn in_words(verdict: &Verdict) -> String {
    let Report { committed, delivered, effects, duplicates_seen, retried, dead, lost } =
        &verdict.report;
    let n = |n: &u64| picture::thousands(*n);
    let mut text = format!(
        "\nCounted in the database, orders joined with parcels by id:\n  \
         committed {}   delivered {}   effects {}   dead letters {}\n  \
         retried {}   duplicates absorbed {}   lost {}\n",
        n(committed),
        n(delivered),
        n(effects),
        n(dead),
        n(retried),
        n(duplicates_seen),
        n(lost)
    );
    if verdict.broken.is_empty() {
        text += "Nothing lost, no effect twice, nothing from a rolled-back transaction,\n";
        text += "and the orders of every customer in their order.\n";
    }
    text
}
