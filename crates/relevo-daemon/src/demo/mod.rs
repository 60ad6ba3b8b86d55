//! `relevo demo`: a shop floor of events and two documented systems, on embedded stores, and everything that can go wrong
//! with them.
//!
//! The shop: the parent places orders, each in one transaction with its event. The worker, the same binary as a child
//! process, packs a parcel for each in the transaction that moves its cursor. The systems, TicketFlow and SmartEdify, run
//! in the parent, each with people who use its API. Whatever is broken meanwhile: at the end what was committed is joined
//! with its effects, and the exit code tells whether the promises held.
//!
//! - `part`: what there is to be shown
//! - `shop`: the business and its tables; `keeper`: the thread that places orders and breaks things
//! - `worker`: the child process; `crew`: that process as the parent sees it; `journal`: its attempts
//! - `works`: the shop at work; `troupe`: the systems at work
//! - `floor`, `picture`, `cards`, `ink`, `screen`: what one sees
//! - `breaks`: what can be broken; `stage`: the demo as it runs; `verify`: the shop's proof; `tell`: the end
//! - `sabotage`: mistakes that the proof must find

mod breaks;
mod cards;
mod crew;
mod floor;
mod ink;
mod journal;
mod keeper;
mod part;
mod picture;
mod sabotage;
mod screen;
mod shop;
mod stage;
mod tell;
mod troupe;
mod verify;
mod worker;
mod works;

use crate::cli::{Globals, exit};
use crate::config::duration;
use breaks::Fault;
use part::{Part, Profile};
use relevo_core::{Error, Kind, Result};
use shop::Place;
use stage::{Plan, Stage};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

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
    /// Only this part [default: all of them]
    #[arg(value_enum)]
    part: Option<Part>,

    /// What a system alone runs on
    #[arg(long, value_enum, default_value = "embedded")]
    profile: Profile,

    /// Run for this long, then count [default: until q; 20s without a terminal]
    #[arg(long = "for", value_name = "TIME", value_parser = long_enough)]
    length: Option<Duration>,

    /// Run on, past --for if need be, until so many orders were placed (or changes made): for slow disks
    #[arg(long, value_name = "N", default_value_t = 0)]
    at_least: u64,

    /// Break this while it runs, spread over the time; several parted by commas
    #[arg(long = "break", value_name = "WHAT", value_delimiter = ',', value_parser = breaks::parser())]
    breaks: Vec<Fault>,

    /// Orders a second, or changes a second of a system alone [default: 100, or 20]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=5_000))]
    rate: Option<u32>,

    /// Keep everything in this folder [default: a temporary one]
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,

    /// Be the worker of the demo in --dir
    #[arg(long, hide = true, requires = "dir")]
    worker: bool,
}

impl DemoArgs {
    fn parts(&self) -> Vec<Part> {
        self.part.map_or_else(|| Part::ALL.to_vec(), |part| vec![part])
    }

    /// What cannot be meant is refused.
    fn check(&self) -> Result<()> {
        let parts = self.parts();
        if let Some(fault) = self.breaks.iter().find(|fault| !parts.contains(&fault.part())) {
            let (name, whose) = (fault.name(), fault.part().title());
            return Err(wrong(format!("--break {name}: {whose} is not a part of this demo")));
        }
        if self.profile == Profile::Real
            && !matches!(parts[..], [Part::Ticketflow | Part::Smartedify])
        {
            let one = "name one system: relevo demo ticketflow --profile real, or smartedify";
            return Err(wrong(format!("--profile real: {one}")));
        }
        Ok(())
    }
}

/// Runs the demo.
pub async fn demo(args: DemoArgs, globals: &Globals) -> Result<ExitCode> {
    if let (true, Some(folder)) = (args.worker, &args.dir) {
        crate::run::log_to_stderr();
        return worker::work(&Place::in_folder(folder)).await.map(|()| ExitCode::SUCCESS);
    }
    args.check()?;
    // A temporary folder goes with this value, at the end.
    let temporary = match args.dir {
        Some(_) => None,
        None => Some(tempfile::Builder::new().prefix("relevo-demo-").tempdir().map_err(no_folder)?),
    };
    let parts = args.parts();
    let folder = args.dir.or_else(|| temporary.as_ref().map(|folder| folder.path().to_owned()));
    let folder = folder.unwrap_or_default();
    std::fs::create_dir_all(&folder).map_err(no_folder)?;
    log_into(&folder)?;
    let picture = !globals.json && screen::is_there();
    let plan = Plan {
        parts,
        profile: args.profile,
        folder,
        length: args.length.or_else(|| (!picture).then_some(UNATTENDED)),
        at_least: args.at_least,
        breaks: args.breaks,
        rate: args.rate,
        picture,
        json: globals.json,
    };
    let verdicts = Stage::set(plan).await?.play().await?;
    tell::tell(&verdicts, globals.json)?;
    let holds = verdicts.iter().all(|(_, verdict)| verdict.holds());
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::from(exit::FOUND) })
}

/// What the systems say goes to a file: the terminal has its picture.
fn log_into(folder: &Path) -> Result<()> {
    let mut options = std::fs::OpenOptions::new();
    let log = options.create(true).append(true).open(folder.join("systems.log"));
    let log = log.map_err(no_folder)?;
    let filter = tracing_subscriber::EnvFilter::try_from_env("RELEVO_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn,lapin=off"));
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false);
    let subscriber = subscriber.with_writer(std::sync::Mutex::new(log));
    crate::logging::set_up(subscriber.finish());
    Ok(())
}

fn wrong(message: String) -> Error {
    Error::new(Kind::InvalidArgument, message)
}

fn no_folder(error: std::io::Error) -> Error {
    Error::new(Kind::InvalidArgument, format!("the demo's folder: {error}")).because(error)
}
