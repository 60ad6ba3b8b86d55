//! `dead-letters replay | progress | cancel`

use super::{Filter, frozen};
use crate::cli::ask::confirm;
use crate::cli::failure::{Outcome, missing, wrong};
use crate::cli::output::Output;
use crate::cli::show::counted;
use crate::cli::subscriptions::unproven;
use relevo_core::dead_letters::{Operate, ReplayProgress};
use relevo_core::{Kind, Result};
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// How often `--wait` looks.
const PAUSE: Duration = Duration::from_millis(250);

/// Nothing put back for this long: something is said.
const STUCK: Duration = Duration::from_secs(15);

/// Put dead letters back into delivery
#[derive(Debug, clap::Args)]
#[command(after_help = "\
What matches now is a fixed set; it is counted, and you are asked. The events
keep their ids and go in order, before anything of their key still waiting.
Whoever works the subscription carries it out.

A dead letter may have arrived after all; consumers of a broker or an endpoint
tell by their inbox. Where its rows are gone already (R0042), it is refused.

Examples:
  relevo dead-letters replay --id 7
  relevo dead-letters replay -s billing --class transient --rate 50 --wait
  relevo dead-letters replay --all --yes
  relevo dead-letters cancel 3      3 is the number that replay printed")]
pub(crate) struct Replay {
    #[command(flatten)]
    filter: Filter,
    /// All that are dead
    #[arg(long)]
    all: bool,
    /// So many a second at most
    #[arg(long, value_name = "N")]
    rate: Option<f64>,
    /// Also those whose proof in the inbox is gone: their effects may happen twice
    #[arg(long)]
    even_if_done_before: bool,
    /// Stay until all are put back, and show how far it is
    #[arg(long)]
    wait: bool,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

impl Replay {
    pub(crate) async fn run(self, operate: &dyn Operate, out: &Output) -> Outcome<()> {
        if self.rate.is_some_and(|rate| !(rate > 0.0 && rate.is_finite())) {
            return Err(wrong("--rate is more than 0"));
        }
        let set = frozen(operate, &self.filter.meant(self.all)?).await?;
        if set.count == 0 {
            self.filter.refuse_mistyped(operate).await?;
            return Err(missing(
                "no dead letter in state dead matches; what was replayed or archived is not replayed again",
            ));
        }
        let pace = self.rate.map(|rate| format!(" at {rate} a second")).unwrap_or_default();
        confirm(&format!("Replay {}{pace}?", set.described()), self.yes)?;
        let unproven = unproven(self.even_if_done_before);
        let mut progress = operate.replay_with(&set.filter, self.rate, unproven).await?;
        if !out.json {
            let operation = progress.operation;
            out.line(format!(
                "operation {operation}: {} to be put back{pace}",
                counted(progress.total, "dead letter")
            ))?;
        }
        if self.wait {
            progress = wait(operate, progress, out).await?;
        } else if !out.json {
            out.line(format!(
                "follow it with `relevo dead-letters progress {} --wait`",
                progress.operation
            ))?;
        }
        finish(&progress, out, self.wait)
    }
}

/// How far a replay is
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  relevo dead-letters progress 3 --wait")]
pub(crate) struct Progress {
    /// The number that replay printed
    operation: i64,
    /// Stay until all are put back
    #[arg(long)]
    wait: bool,
}

impl Progress {
    pub(crate) async fn run(self, operate: &dyn Operate, out: &Output) -> Outcome<()> {
        let mut progress = known(operate.replay_progress(self.operation).await, self.operation)?;
        if self.wait {
            progress = wait(operate, progress, out).await?;
        }
        finish(&progress, out, true)
    }
}

/// Take out of a replay what was not put back yet
#[derive(Debug, clap::Args)]
#[command(
    after_help = "What was put back already stays; the rest is dead again.\n\nExample:\n  relevo dead-letters cancel 3"
)]
pub(crate) struct Cancel {
    /// The number that replay printed
    operation: i64,
}

impl Cancel {
    pub(crate) async fn run(self, operate: &dyn Operate, out: &Output) -> Outcome<()> {
        let progress = known(operate.cancel_replay(self.operation).await, self.operation)?;
        finish(&progress, out, true)
    }
}

/// A number that replay never printed is something that is not there.
fn known(found: Result<ReplayProgress>, operation: i64) -> Outcome<ReplayProgress> {
    found.map_err(|error| match error.kind() {
        Kind::InvalidArgument => missing(format!(
            "there is no replay {operation}; `relevo dead-letters replay` prints its number"
        )),
        _ => error.into(),
    })
}

fn finish(progress: &ReplayProgress, out: &Output, told: bool) -> Outcome<()> {
    if out.json {
        out.json(progress)?;
    } else if told {
        out.line(described(progress))?;
    }
    Ok(())
}

fn described(it: &ReplayProgress) -> String {
    format!(
        "operation {}: {} of {} put back, {} waiting, {} cancelled",
        it.operation, it.replayed, it.total, it.waiting, it.cancelled
    )
}

/// Looks until nothing waits any more. Interrupted, the replay itself goes on.
async fn wait(
    operate: &dyn Operate,
    first: ReplayProgress,
    out: &Output,
) -> Outcome<ReplayProgress> {
    let mut bar = Bar::new(out.json);
    let mut progress = first;
    let mut moved = (progress.waiting, Instant::now());
    while progress.waiting > 0 {
        bar.show(&progress)?;
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            pressed = tokio::signal::ctrl_c() => {
                pressed?;
                bar.end()?;
                eprintln!("the replay goes on without you; `relevo dead-letters cancel {}` ends it", progress.operation);
                return Ok(progress);
            }
        }
        progress = operate.replay_progress(progress.operation).await?;
        if progress.waiting != moved.0 {
            moved = (progress.waiting, Instant::now());
        } else if moved.1.elapsed() > STUCK {
            bar.end()?;
            eprintln!(
                "nothing was put back for {}s: does a daemon work this subscription? `relevo status` tells",
                STUCK.as_secs()
            );
            moved.1 = Instant::now();
        }
    }
    bar.show(&progress)?;
    bar.end()?;
    Ok(progress)
}

/// A bar where somebody looks; otherwise a line every few seconds.
struct Bar {
    terminal: bool,
    quiet: bool,
    open: bool,
    last: Option<Instant>,
}

impl Bar {
    fn new(quiet: bool) -> Self {
        Self { terminal: std::io::stderr().is_terminal(), quiet, open: false, last: None }
    }

    fn show(&mut self, it: &ReplayProgress) -> std::io::Result<()> {
        if self.quiet {
            return Ok(());
        }
        let mut err = std::io::stderr().lock();
        if self.terminal {
            let done = (it.total - it.waiting).max(0);
            let filled = usize::try_from(done * 30 / it.total.max(1)).unwrap_or(0).min(30);
            write!(
                err,
                "\r[{}{}] {done}/{}",
                "#".repeat(filled),
                ".".repeat(30 - filled),
                it.total
            )?;
            self.open = true;
            return err.flush();
        }
        if self.last.is_none_or(|at| at.elapsed() >= Duration::from_secs(5)) {
            self.last = Some(Instant::now());
            writeln!(err, "{}", described(it))?;
        }
        Ok(())
    }

    fn end(&mut self) -> std::io::Result<()> {
        if std::mem::take(&mut self.open) {
            writeln!(std::io::stderr())?;
        }
        Ok(())
    }
}
