//! How many instructions hot decisions take: the same on every run, so a slow-down is seen in review.
//!
//! Each decision runs N and then 2 N times under callgrind; the difference, by N, is what one costs. Start-up and
//! preparation fall out. The program is the one of the tests' build: nothing is compiled for it.

use crate::group::end_with_xtask;
use crate::servers::{self, Cache};
use crate::shell::{cargo, loudly, quietly, target_folder};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The variable that names valgrind.
pub(crate) const VALGRIND: &str = "RELEVO_VALGRIND";

const PROGRAM: &str = "relevo-instructions";
const FIGURES: &str = "bench/instructions.txt";
/// A decision may take so many parts of a hundred more than is written down.
const TOLERANCE: f64 = 0.02;
/// How often a decision is made for the first count.
const TIMES: u64 = 200;

type Counts = BTreeMap<String, u64>;

/// `cargo xtask bench instructions [--afresh]`.
pub(crate) fn command(options: &[String]) -> Result<()> {
    let afresh = match options {
        [] => false,
        [option] if option == "--afresh" => true,
        other => bail!("{other:?} is not understood; only --afresh is"),
    };
    let build = ["build", "--profile", "checked", "--locked", "-q", "--workspace"];
    loudly(cargo().args(build).args(["--features", "relevo-daemon/full", "--bin", PROGRAM]))?;
    let program = built(&target_folder().join("checked"))?;
    let prepared = servers::prepare(&Cache::open()?, false)?;
    let valgrind = prepared.place(VALGRIND).context("valgrind could not be had")?;
    if afresh {
        return write(&count_all(&program, valgrind)?);
    }
    println!("{}", compare(&program, valgrind)?);
    Ok(())
}

/// What the tests' build has made.
pub(crate) fn built(programs: &Path) -> Result<PathBuf> {
    let program = programs.join(PROGRAM);
    ensure!(program.exists(), "the decisions were not built: {}", program.display());
    Ok(program)
}

/// Counts, prints, and fails if any decision became slower than its tolerance.
pub(crate) fn compare(program: &Path, valgrind: &Path) -> Result<String> {
    let text = std::fs::read_to_string(FIGURES).with_context(|| format!("no {FIGURES}"))?;
    let (written, counted) = (read(&text)?, count_all(program, valgrind)?);
    let slower = slower(&written, &counted);
    for (name, count) in &counted {
        let before = written.get(name).map_or_else(|| "new".to_owned(), u64::to_string);
        println!("{name:<28} {count:>9} instructions, {before} before");
    }
    ensure!(
        slower.is_empty(),
        "{}; if that is meant, `cargo xtask bench instructions --afresh`",
        slower.join("; ")
    );
    Ok(format!("{} decisions, none slower", counted.len()))
}

fn slower(written: &Counts, counted: &Counts) -> Vec<String> {
    let mut complaints = Vec::new();
    for (name, count) in counted {
        match written.get(name) {
            None => complaints.push(format!("{name} is not in {FIGURES}")),
            Some(before) if *count as f64 > *before as f64 * (1.0 + TOLERANCE) => {
                complaints.push(format!("{name} takes {count} instructions instead of {before}"));
            }
            Some(_) => {}
        }
    }
    let gone = written.keys().filter(|name| !counted.contains_key(*name));
    complaints.extend(gone.map(|name| format!("{name} is in {FIGURES} and nowhere else")));
    complaints
}

fn count_all(program: &Path, valgrind: &Path) -> Result<Counts> {
    let names = quietly(Command::new(program).arg("list"))?;
    let names: Vec<&str> = names.lines().collect();
    let mut counts = Counts::new();
    for name in names {
        let once = count(program, valgrind, name, TIMES)?;
        let twice = count(program, valgrind, name, TIMES * 2)?;
        counts.insert(name.to_owned(), twice.saturating_sub(once) / TIMES);
    }
    Ok(counts)
}

/// Instructions of a whole process.
fn count(program: &Path, valgrind: &Path, name: &str, times: u64) -> Result<u64> {
    let mut command = Command::new(valgrind);
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    // Unpacked without root, it does not lie where it was built for.
    let library = valgrind.parent().map(|bin| bin.join("../root/usr/libexec/valgrind"));
    if let Some(library) = library.filter(|library| library.exists()) {
        command.env("VALGRIND_LIB", library.canonicalize()?);
    }
    command.arg(program).arg(name).arg(times.to_string());
    let output = end_with_xtask(&mut command)?.output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "valgrind: {}\n{text}", output.status);
    collected(&text).with_context(|| format!("valgrind counted nothing:\n{text}"))
}

/// `==1== Collected : 123456`
fn collected(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.split_once("Collected :"))?;
    line.1.trim().parse().ok()
}

fn read(text: &str) -> Result<Counts> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let entry = |line: &str| {
        let (name, count) = line.rsplit_once(' ').context("a line is `name count`")?;
        Ok((name.trim().to_owned(), count.parse()?))
    };
    lines.map(entry).collect()
}

fn write(counts: &Counts) -> Result<()> {
    let mut text = "# Instructions of one hot decision, as the tests' build makes it; `cargo xtask bench instructions`\n\
                    # compares them, `--afresh` writes them.\n"
        .to_owned();
    for (name, count) in counts {
        text += &format!("{name:<28} {count}\n");
    }
    std::fs::write(FIGURES, &text)?;
    print!("{text}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::tests::{ends_with_a_killed_run, to_be_killed};

    #[test]
    fn a_run_that_counts() {
        if let Some(programs) = to_be_killed() {
            count(Path::new("true"), &programs.join("family"), "relay step", 1).unwrap();
        }
    }

    #[test]
    fn a_count_ends_with_xtask_even_if_that_is_killed_alone() {
        ends_with_a_killed_run("instructions::tests::a_run_that_counts");
    }

    #[test]
    fn what_callgrind_says_is_read() {
        let text =
            "==7== Callgrind, a call-graph\n==7== Events    : Ir\n==7== Collected : 123456\n";
        assert_eq!(collected(text), Some(123_456));
        assert_eq!(collected("==7== no such thing"), None);
    }

    #[test]
    fn only_what_became_slower_or_does_not_match_is_named() {
        let written = read("# a comment\nrelay step   1000\nwindow 50\ngone 7\n").unwrap();
        let counted = |step, window| {
            Counts::from([("relay step".to_owned(), step), ("window".to_owned(), window)])
        };
        assert_eq!(slower(&written, &counted(1020, 40)).len(), 1);
        let found = slower(&written, &counted(1021, 50));
        assert!(found[0].starts_with("relay step takes 1021"), "{found:?}");
        assert!(found[1].starts_with("gone"), "{found:?}");
        let new = Counts::from([("parked".to_owned(), 1)]);
        assert!(slower(&Counts::new(), &new)[0].contains("not in"));
    }
}
