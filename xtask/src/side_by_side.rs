//! Test programs, several at a time: they wait for servers most of the time, so three take little longer than one.
//!
//! Each is run as it was compiled and not by cargo, which would wait for whatever another cargo compiles meanwhile.

use crate::shell::quietly;
use crate::stage::{Tally, cargo_test};
use anyhow::{Context, Result, ensure};
use std::collections::VecDeque;
use std::fmt;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const AT_ONCE: usize = 3;

/// These take minutes: begun last, they would run alone at the end.
const LONG: [&str; 5] =
    ["torture_faults", "real", "torture_kills", "stores_postgres", "brokers_cluster"];

/// What cargo's lines about test programs have in them. It writes its JSON without a space.
const OF_TEST: &str = r#""target":{"kind":["test"],"#;

/// One test program.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    /// As cargo calls it; another package may have one of the same name.
    target: String,
    /// Its package's.
    folder: PathBuf,
    executable: PathBuf,
}

impl Program {
    /// What cargo says of a test program that it has made. Nothing in our names and paths needs an escape.
    fn read(line: &str) -> Option<Program> {
        let (of_package, of_target) = line.split_once(OF_TEST)?;
        Some(Program {
            target: text(of_target, "name")?.to_owned(),
            folder: Path::new(text(of_package, "manifest_path")?).parent()?.to_owned(),
            executable: text(of_target, "executable")?.into(),
        })
    }

    /// In the folder where cargo would run it, and told what our tests may ask cargo for when they run: no more than that.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let package = self.folder.file_name().unwrap_or_default();
        write!(f, "{}/{}", package.display(), self.target)
    }
}

/// The text that a line of JSON has under a name.
fn text<'l>(line: &'l str, name: &str) -> Option<&'l str> {
    let (_, rest) = line.split_once(&format!("\"{name}\":\""))?;
    rest.split_once('"').map(|(text, _)| text)
}

/// All of them, as the compile stage has made them: with its flags, cargo makes nothing anew and says where they are.
pub(crate) fn programs() -> Result<Vec<Program>> {
    let mut command = cargo_test(&["--test".to_owned(), "*".to_owned()], &[]);
    command.args(["--no-run", "--message-format", "json-render-diagnostics"]);
    read_all(&quietly(&mut command)?)
}

/// None is left out because it could not be read: it would not run, and nobody would notice.
fn read_all(said: &str) -> Result<Vec<Program>> {
    let of_tests = said.lines().filter(|line| line.contains(OF_TEST));
    let read = |line| Program::read(line).with_context(|| format!("what is meant by {line}"));
    of_tests.map(read).collect()
}

/// How one test program went.
struct Ended {
    program: Program,
    took: Duration,
    tally: Tally,
    status: ExitStatus,
}

/// Runs each, and says what all of them add up to; whichever failed is named.
pub(crate) fn run(
    programs: Vec<Program>,
    one: impl Fn(&Program) -> Result<(Tally, ExitStatus)> + Sync,
) -> Result<String> {
    ensure!(!programs.is_empty(), "no test programs were found");
    let waiting = Mutex::new(longest_first(programs));
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let work = || -> Result<Vec<Ended>> {
        let mut ended = Vec::new();
        while let Some(program) = next() {
            // Its own lines come when it has ended, which may take minutes.
            eprintln!("runs {program}");
            let start = Instant::now();
            let (tally, status) = one(&program)?;
            ended.push(Ended { program, took: start.elapsed(), tally, status });
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

fn longest_first(programs: Vec<Program>) -> VecDeque<Program> {
    let place = |program: &Program| LONG.iter().position(|name| *name == program.target);
    let (mut long, mut others): (Vec<_>, Vec<_>) =
        programs.into_iter().partition(|program| place(program).is_some());
    long.sort_by_key(place);
    // Cargo names them in no order.
    others.sort_by_cached_key(Program::to_string);
    long.into_iter().chain(others).collect()
}

fn sum_up(mut ended: Vec<Ended>) -> Result<String> {
    ended.sort_by_key(|it| std::cmp::Reverse(it.took));
    let longest = ended.iter().take(8).map(|it| format!("{} {}", it.program, seconds(it.took)));
    eprintln!("the longest: {}", longest.collect::<Vec<_>>().join(", "));
    let mut tally = Tally::default();
    ended.iter().for_each(|it| tally.add(it.tally));
    let failed = ended.iter().filter(|it| !it.status.success());
    let failed: Vec<String> = failed.map(|it| format!("{} ({})", it.program, it.status)).collect();
    ensure!(failed.is_empty(), "{}, in {}", tally.describe(), failed.join(", "));
    Ok(tally.describe())
}

fn seconds(time: Duration) -> String {
    format!("{} s", time.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::repository;
    use std::os::unix::process::ExitStatusExt;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn program(target: &str) -> Program {
        let executable = PathBuf::from(format!("target/checked/deps/{target}-1a2b"));
        Program { target: target.to_owned(), folder: "systems/ticketflow".into(), executable }
    }

    fn programs(count: usize) -> Vec<Program> {
        (0..count).map(|n| program(&format!("target{n}"))).collect()
    }

    #[test]
    fn test_programs_are_read_from_what_cargo_says_and_none_is_left_out() {
        let said = |kind: &str, executable: &str| {
            let package = r#""package_id":"path+file:///r/systems/ticketflow#0.1.0","manifest_path":"/r/systems/ticketflow/Cargo.toml""#;
            let target = format!(
                r#"{{"kind":["{kind}"],"crate_types":["bin"],"name":"real","src_path":"/r/main.rs","test":true}}"#
            );
            let made = format!(r#""filenames":["/r/real"],"executable":{executable},"fresh":true"#);
            format!(r#"{{"reason":"compiler-artifact",{package},"target":{target},{made}}}"#)
        };
        let test = said("test", r#""/r/target/checked/deps/real-1a2b""#);
        let bin = said("bin", r#""/r/target/checked/ticketflow""#);
        let end = r#"{"reason":"build-finished","success":true}"#;
        let programs = read_all(&format!("{bin}\n{test}\n{end}\n")).unwrap();
        assert_eq!(programs.len(), 1);
        assert_eq!(programs[0].to_string(), "ticketflow/real");
        let command = programs[0].command();
        assert_eq!(command.get_program(), "/r/target/checked/deps/real-1a2b");
        assert_eq!(command.get_current_dir(), Some(Path::new("/r/systems/ticketflow")));
        let refused = read_all(&said("test", "null")).unwrap_err().to_string();
        assert!(refused.starts_with("what is meant by"), "{refused}");
    }

    #[test]
    fn the_longest_begin_first() {
        let targets = ["upkeep", "brokers_cluster", "torture_faults", "adopt"].map(program);
        let order = longest_first(targets.to_vec());
        let order: Vec<&str> = order.iter().map(|program| program.target.as_str()).collect();
        assert_eq!(order, ["torture_faults", "brokers_cluster", "adopt", "upkeep"]);
    }

    /// One that was renamed would begin among the others, and nobody would notice.
    #[test]
    fn each_of_the_longest_is_a_test_target_that_exists() {
        let folders_in = |folder: PathBuf| {
            let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
            entries.filter(|path| path.is_dir()).collect::<Vec<PathBuf>>()
        };
        let parents = ["crates", "systems", "tests", "."].map(|name| repository().join(name));
        let packages: Vec<PathBuf> = parents.into_iter().flat_map(folders_in).collect();
        for name in LONG {
            let is_in = |package: &PathBuf| {
                let of_tests = package.join("tests");
                of_tests.join(name).with_extension("rs").exists()
                    || of_tests.join(name).join("main.rs").exists()
            };
            assert!(packages.iter().any(is_in), "{name} is no test target");
        }
    }

    #[test]
    fn every_program_runs_once_and_their_counts_add_up() {
        let runs = AtomicUsize::new(0);
        let said = run(programs(5), |_| {
            runs.fetch_add(1, Ordering::Relaxed);
            Ok((Tally { passed: 2, failed: 0, ignored: 0 }, ExitStatus::default()))
        });
        assert_eq!(said.unwrap(), "10 passed");
        assert_eq!(runs.into_inner(), 5);
    }

    #[test]
    fn what_failed_is_named_and_the_others_have_run() {
        let runs = AtomicUsize::new(0);
        let said = run(programs(5), |program| {
            runs.fetch_add(1, Ordering::Relaxed);
            let failed = program.target == "target1";
            let status = ExitStatus::from_raw(if failed { 101 << 8 } else { 0 });
            Ok((Tally { passed: 1, failed: u64::from(failed), ignored: 0 }, status))
        });
        assert_eq!(
            said.unwrap_err().to_string(),
            "5 passed, 1 FAILED, in ticketflow/target1 (exit status: 101)"
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
        let said = run(programs(3), |_| anyhow::bail!("no such file"));
        assert_eq!(said.unwrap_err().to_string(), "no such file");
    }
}
