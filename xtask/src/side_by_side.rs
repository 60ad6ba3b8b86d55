//! Test programs, several at a time: they wait for servers most of the time, so three take little longer than one.

use crate::stage::Tally;
use anyhow::{Result, ensure};
use std::collections::VecDeque;
use std::panic::resume_unwind;
use std::process::ExitStatus;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const AT_ONCE: usize = 3;

/// These take minutes: begun last, they would run alone at the end.
const LONG: [&str; 5] =
    ["torture_faults", "real", "torture_kills", "stores_postgres", "brokers_cluster"];

/// How one test program went.
struct Ended {
    target: String,
    took: Duration,
    tally: Tally,
    status: ExitStatus,
}

/// Runs every target, and says what all of them add up to; whichever failed is named.
pub(crate) fn run(
    targets: Vec<String>,
    one: impl Fn(&str) -> Result<(Tally, ExitStatus)> + Sync,
) -> Result<String> {
    ensure!(!targets.is_empty(), "no test programs were found");
    let waiting = Mutex::new(longest_first(targets));
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let work = || -> Result<Vec<Ended>> {
        let mut ended = Vec::new();
        while let Some(target) = next() {
            // Its own lines come when it has ended, which may take minutes.
            eprintln!("runs {target}");
            let start = Instant::now();
            let (tally, status) = one(&target)?;
            ended.push(Ended { target, took: start.elapsed(), tally, status });
        }
        Ok(ended)
    };
    let ended = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        let joined = workers.into_iter().map(|w| w.join().unwrap_or_else(|e| resume_unwind(e)));
        joined.collect::<Result<Vec<_>>>()
    })?;
    sum_up(ended.into_iter().flatten().collect())
}

fn longest_first(targets: Vec<String>) -> VecDeque<String> {
    let (mut long, short): (Vec<_>, Vec<_>) =
        targets.into_iter().partition(|target| LONG.contains(&target.as_str()));
    long.sort_by_key(|target| LONG.iter().position(|name| name == target));
    long.into_iter().chain(short).collect()
}

fn sum_up(mut ended: Vec<Ended>) -> Result<String> {
    ended.sort_by_key(|program| std::cmp::Reverse(program.took));
    let longest = ended.iter().take(8).map(|p| format!("{} {}", p.target, seconds(p.took)));
    eprintln!("the longest: {}", longest.collect::<Vec<_>>().join(", "));
    let mut tally = Tally::default();
    ended.iter().for_each(|program| tally.add(program.tally));
    let failed = ended.iter().filter(|program| !program.status.success());
    let failed: Vec<String> = failed.map(|p| format!("{} ({})", p.target, p.status)).collect();
    ensure!(failed.is_empty(), "{}, in {}", tally.describe(), failed.join(", "));
    Ok(tally.describe())
}

fn seconds(time: Duration) -> String {
    format!("{} s", time.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn targets(count: usize) -> Vec<String> {
        (0..count).map(|n| format!("target{n}")).collect()
    }

    #[test]
    fn the_longest_begin_first() {
        let targets = ["adopt", "brokers_cluster", "torture_faults", "upkeep"].map(str::to_owned);
        let order: Vec<String> = longest_first(targets.to_vec()).into();
        assert_eq!(order, ["torture_faults", "brokers_cluster", "adopt", "upkeep"]);
    }

    #[test]
    fn every_target_runs_once_and_their_counts_add_up() {
        let runs = AtomicUsize::new(0);
        let said = run(targets(5), |_| {
            runs.fetch_add(1, Ordering::Relaxed);
            Ok((Tally { passed: 2, failed: 0, ignored: 0 }, ExitStatus::default()))
        });
        assert_eq!(said.unwrap(), "10 passed");
        assert_eq!(runs.into_inner(), 5);
    }

    #[test]
    fn what_failed_is_named_and_the_others_have_run() {
        let runs = AtomicUsize::new(0);
        let said = run(targets(5), |target| {
            runs.fetch_add(1, Ordering::Relaxed);
            let failed = target == "target1";
            let status = ExitStatus::from_raw(if failed { 101 << 8 } else { 0 });
            Ok((Tally { passed: 1, failed: u64::from(failed), ignored: 0 }, status))
        });
        assert_eq!(
            said.unwrap_err().to_string(),
            "5 passed, 1 FAILED, in target1 (exit status: 101)"
        );
        assert_eq!(runs.into_inner(), 5);
    }

    #[test]
    fn nothing_to_run_is_an_error() {
        let said = run(Vec::new(), |_| anyhow::bail!("nothing is run"));
        assert_eq!(said.unwrap_err().to_string(), "no test programs were found");
    }

    #[test]
    fn a_program_that_cannot_be_started_is_an_error() {
        let said = run(targets(3), |_| anyhow::bail!("no cargo"));
        assert_eq!(said.unwrap_err().to_string(), "no cargo");
    }
}
