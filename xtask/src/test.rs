//! `cargo xtask test`: compile once while servers are fetched, run the stages, end with a table.

use crate::args::{Only, TestOptions};
use crate::bench;
use crate::docs;
use crate::instructions;
use crate::servers::{self, Cache, Prepared};
use crate::shell::{env_is_true, loudly, target_folder};
use crate::side_by_side;
use crate::sim;
use crate::stage::{Output, Stage, cargo_test, run_and_count, run_and_tally};
use anyhow::{Result, bail, ensure};
use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) fn run(options: &TestOptions) -> Result<()> {
    servers::compiling::prepare(options.install)?;
    let cache = Cache::open()?;
    let (mut stages, prepared) = compile_and_fetch(options, &cache);
    let compiled = !stages.iter().any(Stage::failed);
    let round = Round { options, cache, prepared, skips: Skips::new(&target_folder())? };
    if compiled {
        stages.extend(round.stages());
    }
    let ending = Ending { stages: &stages, prepared: &round.prepared, skipped: round.skips.read() };
    println!("{}", ending.table());
    println!("\n{}", ending.verdict(env_is_true("CI") || env_is_true("RELEVO_REQUIRE"))?);
    Ok(())
}

fn compile_and_fetch(options: &TestOptions, cache: &Cache) -> (Vec<Stage>, Prepared) {
    if !needs_servers(options) {
        return (vec![Stage::run("compile", || compile(options))], Prepared::default());
    }
    std::thread::scope(|scope| {
        let fetching = scope.spawn(|| {
            let mut prepared = Prepared::default();
            let stage = Stage::run("servers", || {
                prepared = servers::prepare(cache, options.install)?;
                let (found, missing) = (prepared.found.len(), prepared.missing.len());
                Ok(format!("{found} of {} (while compiling)", found + missing))
            });
            (stage, prepared)
        });
        let compiled = Stage::run("compile", || compile(options));
        match fetching.join() {
            Ok((fetched, prepared)) => (vec![compiled, fetched], prepared),
            Err(panic) => resume_unwind(panic),
        }
    })
}

fn needs_servers(options: &TestOptions) -> bool {
    [Only::Integration, Only::Docs, Only::Bench].into_iter().any(|stage| options.wants(stage))
}

fn compile(options: &TestOptions) -> Result<String> {
    let mut command = cargo_test(&[], &[]);
    command.arg("--no-run");
    if options.only == [Only::Unit] {
        command.args(["--lib", "--bins"]);
    }
    loudly(&mut command).map(|()| "ok".to_owned())
}

/// Everything the stages of one run share.
struct Round<'a> {
    options: &'a TestOptions,
    cache: Cache,
    prepared: Prepared,
    skips: Skips,
}

impl Round<'_> {
    fn stages(&self) -> Vec<Stage> {
        let mut stages = Vec::new();
        if self.options.wants(Only::Unit) {
            let targets = ["--lib".to_owned(), "--bins".to_owned()];
            stages.push(Stage::run("unit", || self.cargo(&targets)));
        }
        // Integration tests mostly wait for servers, the simulator only computes: side by side
        // they take the time of the longer one.
        stages.extend(std::thread::scope(|scope| {
            let sim = self.options.wants(Only::Sim).then(|| scope.spawn(|| self.sim_and_mutants()));
            let integration = self.options.wants(Only::Integration).then(|| self.integration());
            let sim = sim.map(|running| running.join().unwrap_or_else(|e| resume_unwind(e)));
            integration.into_iter().chain(sim.into_iter().flatten()).collect::<Vec<_>>()
        }));
        if self.options.wants(Only::Bench) {
            stages.push(Stage::run("bench", || self.bench()));
            stages.push(Stage::run("instructions", || self.instructions()));
        }
        if self.options.wants(Only::Docs) {
            let targets = ["--doc".to_owned()];
            stages.push(Stage::run("doc tests", || self.cargo(&targets)));
            stages.push(Stage::run("docs", || self.console_blocks()));
        }
        stages
    }

    fn integration(&self) -> Stage {
        Stage::run("integration", || {
            // Whoever asks for some tests, or for their output, wants to see it as it comes.
            if !self.options.passed_on.is_empty() {
                return self.cargo(&["--test".to_owned(), "*".to_owned()]);
            }
            side_by_side::run(side_by_side::programs()?, |program| {
                let mut command = program.command();
                self.give_to(&mut command);
                run_and_count(command, Output::WhenDone)
            })
        })
    }

    fn sim(&self) -> Stage {
        Stage::run("sim", || {
            sim::built(&target_folder().join("checked"), &["--seeds", sim::SEEDS])?;
            Ok(format!("{} seeds held", sim::SEEDS))
        })
    }

    /// The simulator as it is shipped first; then the engine is compiled with its mutants, and each has to die.
    fn sim_and_mutants(&self) -> [Stage; 2] {
        let mutants = || sim::mutants(&[]).map(|()| "none survived".to_owned());
        [self.sim(), Stage::run("mutants", mutants)]
    }

    /// The bench as it was compiled for the tests, so short that its figures mean nothing.
    fn bench(&self) -> Result<String> {
        let mut command = bench::built(&target_folder().join("checked"))?;
        self.give_to(&mut command);
        loudly(&mut command)?;
        Ok("every contest works and was judged (a short run: its figures mean nothing)".to_owned())
    }

    fn instructions(&self) -> Result<String> {
        let program = instructions::built(&target_folder().join("checked"))?;
        match self.prepared.place(instructions::VALGRIND) {
            Some(valgrind) => instructions::compare(&program, valgrind),
            None => Ok("NOT COUNTED: valgrind could not be had".to_owned()),
        }
    }

    fn cargo(&self, targets: &[String]) -> Result<String> {
        run_and_tally(self.command(targets), Output::Live)
    }

    fn command(&self, targets: &[String]) -> Command {
        let mut command = cargo_test(targets, &self.options.passed_on);
        self.give_to(&mut command);
        command
    }

    fn console_blocks(&self) -> Result<String> {
        let programs = target_folder().join("checked");
        let relevo = programs.join("relevo");
        ensure!(relevo.exists(), "the relevo binary was not built: {}", relevo.display());
        let mut environment = Command::new("true");
        self.give_to(&mut environment);
        docs::run(&programs, &self.prepared, &environment)
    }

    fn give_to(&self, command: &mut Command) {
        self.prepared.give_to(command);
        command.env("RELEVO_CACHE", self.cache.folder()).env("RELEVO_SKIPPED", &self.skips.file);
        if self.options.keep {
            command.env("RELEVO_KEEP", "1");
        }
    }
}

/// The file into which tests write the servers they had to do without.
struct Skips {
    file: PathBuf,
}

impl Skips {
    fn new(folder: &Path) -> Result<Skips> {
        let file = folder.join(format!("relevo-skipped-{}", std::process::id()));
        std::fs::write(&file, "")?;
        Ok(Skips { file })
    }

    /// How many tests each missing server cost.
    fn read(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for line in std::fs::read_to_string(&self.file).unwrap_or_default().lines() {
            *counts.entry(line.to_owned()).or_default() += 1;
        }
        counts
    }
}

impl Drop for Skips {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
    }
}

/// What the end of a run is about: its stages, and the servers that could not be had.
struct Ending<'r> {
    stages: &'r [Stage],
    prepared: &'r Prepared,
    skipped: BTreeMap<String, usize>,
}

impl Ending<'_> {
    fn table(&self) -> String {
        let mut lines = vec![format!("\n{:<12} {:>9}  result", "stage", "took")];
        lines.extend(self.stages.iter().map(Stage::line));
        if self.is_incomplete() {
            lines.push("\nCOULD NOT BE HAD:".to_owned());
        }
        let missing = self.prepared.missing.iter();
        lines.extend(missing.map(|(server, why)| format!("  {}: {why}", server.name)));
        let skipped = self.skipped.iter();
        lines.extend(skipped.map(|(server, n)| format!("  {server}: SKIPPED by {n} of the tests")));
        lines.join("\n")
    }

    /// The last words of a run that passed. Where it must be complete, one without a server did not.
    fn verdict(&self, must_be_complete: bool) -> Result<&'static str> {
        let failed = self.stages.iter().filter(|stage| stage.failed());
        let failed: Vec<&str> = failed.map(|stage| stage.name).collect();
        ensure!(failed.is_empty(), "FAILED: {}", failed.join(", "));
        match (self.is_incomplete(), must_be_complete) {
            (true, true) => bail!("FAILED: servers are missing, and CI must have them all"),
            (true, false) => Ok("all that ran passed; not everything could run, see above"),
            (false, _) => Ok("all that ran passed"),
        }
    }

    fn is_incomplete(&self) -> bool {
        !self.prepared.missing.is_empty() || !self.skipped.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::servers::SERVERS;

    /// Everything must be there, as CI wants it.
    const STRICT: bool = true;
    const LENIENT: bool = false;

    fn passed() -> Stage {
        Stage::run("unit", || Ok("3 passed".to_owned()))
    }

    fn without_the_first_server() -> Prepared {
        let missing = vec![(&SERVERS[0], "no network".to_owned())];
        Prepared { missing, ..Prepared::default() }
    }

    fn ending<'r>(stages: &'r [Stage], prepared: &'r Prepared) -> Ending<'r> {
        Ending { stages, prepared, skipped: BTreeMap::new() }
    }

    #[test]
    fn a_run_with_everything_passes_everywhere_and_names_nothing_as_missing() {
        let (stages, prepared) = ([passed()], Prepared::default());
        let all_there = ending(&stages, &prepared);
        for must_be_complete in [STRICT, LENIENT] {
            assert_eq!(all_there.verdict(must_be_complete).unwrap(), "all that ran passed");
        }
        let table = all_there.table();
        assert!(table.contains("3 passed") && !table.contains("COULD NOT BE HAD"), "{table}");
    }

    #[test]
    fn a_missing_server_is_named_with_its_reason_and_fails_only_where_all_must_be_there() {
        let (stages, prepared) = ([passed()], without_the_first_server());
        let ending = ending(&stages, &prepared);
        let table = ending.table();
        let (_, end) = table.split_once("COULD NOT BE HAD:").unwrap_or_else(|| panic!("{table}"));
        assert_eq!(end.trim(), format!("{}: no network", SERVERS[0].name));
        let words = ending.verdict(LENIENT).unwrap();
        assert!(words.contains("not everything could run"), "{words}");
        let refusal = ending.verdict(STRICT).unwrap_err().to_string();
        assert!(refusal.contains("FAILED: servers are missing"), "{refusal}");
    }

    #[test]
    fn a_skip_that_a_test_noted_counts_like_a_server_that_could_not_be_fetched() {
        let (stages, prepared) = ([passed()], Prepared::default());
        let skips = Skips::new(&std::env::temp_dir()).unwrap();
        // As the tests of several processes append to it.
        std::fs::write(&skips.file, "NATS\nRabbitMQ\nNATS\n").unwrap();
        let ending = Ending { skipped: skips.read(), ..ending(&stages, &prepared) };
        let table = ending.table();
        assert!(table.contains("  NATS: SKIPPED by 2 of the tests"), "{table}");
        assert!(table.contains("  RabbitMQ: SKIPPED by 1 of the tests"), "{table}");
        assert!(ending.verdict(STRICT).is_err());
        assert!(ending.verdict(LENIENT).unwrap().contains("not everything could run"));
    }

    #[test]
    fn a_stage_that_failed_is_the_verdict_whatever_is_missing() {
        let failed = Stage::run("integration", || bail!("1 FAILED"));
        let (stages, prepared) = ([passed(), failed], without_the_first_server());
        for must_be_complete in [STRICT, LENIENT] {
            let refusal = ending(&stages, &prepared).verdict(must_be_complete).unwrap_err();
            assert_eq!(refusal.to_string(), "FAILED: integration");
        }
    }
}
