//! The command line. Written by hand: an argument parser would be the largest thing xtask compiles.

use crate::fuzz::FuzzOptions;
use anyhow::{Context, Result, bail};

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Help(&'static str),
    Lint,
    Tidy,
    Servers {
        install: bool,
    },
    Test(TestOptions),
    /// With the simulator's own options.
    Sim(Vec<String>),
    Mutants(Vec<String>),
    Campaign(Vec<String>),
    Fuzz(FuzzOptions),
}

/// The options of `cargo xtask test`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TestOptions {
    /// Stages to run; empty means all of them.
    pub(crate) only: Vec<Only>,
    /// May install system packages (needs root).
    pub(crate) install: bool,
    /// Leave data folders and logs of the servers in place.
    pub(crate) keep: bool,
    /// Given to every test binary: a filter, or options of its harness.
    pub(crate) passed_on: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Only {
    Unit,
    Integration,
    Docs,
    Sim,
}

impl TestOptions {
    pub(crate) fn wants(&self, stage: Only) -> bool {
        self.only.is_empty() || self.only.contains(&stage)
    }
}

pub(crate) fn parse(args: impl Iterator<Item = String>) -> Result<Request> {
    let args: Vec<String> = args.collect();
    let (command, rest) = match args.split_first() {
        None => return Ok(Request::Help(HELP)),
        Some((command, rest)) => (command.as_str(), rest),
    };
    let asks_help = rest.iter().take_while(|a| *a != "--").any(|a| a == "--help" || a == "-h");
    match command {
        "help" | "--help" | "-h" => Ok(Request::Help(HELP)),
        "lint" if asks_help => Ok(Request::Help(HELP_LINT)),
        "tidy" if asks_help => Ok(Request::Help(HELP_LINT)),
        "test" if asks_help => Ok(Request::Help(HELP_TEST)),
        "servers" if asks_help => Ok(Request::Help(HELP_SERVERS)),
        "sim" | "mutants" | "campaign" if asks_help => Ok(Request::Help(HELP_PROOF)),
        "fuzz" if asks_help => Ok(Request::Help(HELP_FUZZ)),
        "fuzz" => fuzz(rest).map(Request::Fuzz),
        "sim" => Ok(Request::Sim(rest.to_vec())),
        "mutants" => Ok(Request::Mutants(rest.to_vec())),
        "campaign" => Ok(Request::Campaign(rest.to_vec())),
        "lint" => no_options(rest, Request::Lint),
        "tidy" => no_options(rest, Request::Tidy),
        "servers" => servers(rest),
        "test" => test(rest).map(Request::Test),
        other => bail!("there is no command {other:?}; `cargo xtask --help` lists them"),
    }
}

fn no_options(rest: &[String], request: Request) -> Result<Request> {
    match rest.first() {
        None => Ok(request),
        Some(extra) => bail!("{extra:?} is not understood here; this command takes no options"),
    }
}

fn servers(rest: &[String]) -> Result<Request> {
    match rest {
        [] => Ok(Request::Servers { install: false }),
        [flag] if flag == "--install" => Ok(Request::Servers { install: true }),
        _ => bail!("`cargo xtask servers` takes only --install"),
    }
}

fn test(rest: &[String]) -> Result<TestOptions> {
    let mut options = TestOptions::default();
    let mut rest = rest.iter();
    while let Some(arg) = rest.next() {
        match arg.as_str() {
            "--install" => options.install = true,
            "--keep" => options.keep = true,
            "--only" => match rest.next() {
                Some(stages) => options.only.extend(stage_names(stages)?),
                None => bail!("--only needs a stage: unit, integration, docs or sim"),
            },
            "--" => options.passed_on = rest.by_ref().cloned().collect(),
            other => match other.strip_prefix("--only=") {
                Some(stages) => options.only.extend(stage_names(stages)?),
                None => bail!("{other:?} is not understood; see `cargo xtask test --help`"),
            },
        }
    }
    Ok(options)
}

fn fuzz(rest: &[String]) -> Result<FuzzOptions> {
    let mut options = FuzzOptions { targets: Vec::new(), minutes: 1 };
    let mut rest = rest.iter();
    while let Some(arg) = rest.next() {
        match arg.as_str() {
            "--minutes" => {
                let minutes = rest.next().and_then(|minutes| minutes.parse().ok());
                options.minutes =
                    minutes.filter(|n| *n > 0).context("--minutes needs a number of at least 1")?;
            }
            option if option.starts_with('-') => {
                bail!("{option:?} is not understood; see `cargo xtask fuzz --help`")
            }
            target => options.targets.push(target.to_owned()),
        }
    }
    Ok(options)
}

fn stage_names(list: &str) -> Result<Vec<Only>> {
    list.split(',').map(stage_name).collect()
}

fn stage_name(name: &str) -> Result<Only> {
    Ok(match name {
        "unit" => Only::Unit,
        "integration" => Only::Integration,
        "docs" => Only::Docs,
        "sim" => Only::Sim,
        other => bail!("there is no stage {other:?}; stages are unit, integration, docs, sim"),
    })
}

const HELP: &str = "\
cargo xtask COMMAND

  lint       formatting, clippy, documentation, licences, tidiness: no server needed
  test       compile once, get the real servers, run everything, end with a table
  tidy       only the repository's own rules (a part of lint, one second)
  servers    only find or fetch the servers that the tests use
  sim        the simulator: `cargo xtask sim --seeds 50000`, or one seed with its account: `--seed 17`
  mutants    deliberately wrong engines, each of which the simulator must catch
  fuzz       every decoder, guided by coverage: `cargo xtask fuzz --minutes 5`, or one: `fuzz config`
  campaign   torture on real processes for long: `cargo xtask campaign --hours 1`

Each command explains itself: `cargo xtask test --help`.
What CI runs is `.ci/run`: lint, then test.
";

const HELP_LINT: &str = "\
cargo xtask lint      everything below, each part even if an earlier one failed
cargo xtask tidy      only the last line

  fmt      cargo fmt --check                     mend with `cargo fmt`
  clippy   all targets, warnings are errors      (profile `checked`, shared with the tests)
  doc      rustdoc, warnings are errors
  deny     licences, bans, sources (deny.toml)   said aloud if cargo-deny is not installed
  tidy     every error code has a page in docs/errors and every page a code; no source file
           over 800 lines; no path of somebody's machine; local links in Markdown resolve;
           tests that a page names as proof exist; hooks for tests are not called by
           shipped code; no banned crate in Cargo.lock
";

const HELP_TEST: &str = "\
cargo xtask test [--only STAGE[,STAGE]] [--install] [--keep] [-- FILTER...]

Compiles the workspace once (profile `checked`), fetches missing servers meanwhile, runs the
stages, and ends with what ran and what could not be had.

  --only STAGE   unit          tests inside the crates: needs no server
                 integration   crates/*/tests and tests/: real PostgreSQL, PgBouncer, Python
                 sim           the seeded simulator, and its mutants, each of which must die: needs no server
                 docs          doc tests, and the console blocks of README.md and docs/
  --install      may install system packages with apt-get (as root; implied by CI=true as root)
  --keep         leave the servers' data folders and logs in place and print where they are
  -- FILTER      handed to every test binary, e.g. `-- late_commit --nocapture`

A server that cannot be had skips its tests and is named at the end; with CI=true (or
RELEVO_REQUIRE=1) it is a failure.

Servers are kept in .cache/ of the repository ($RELEVO_CACHE chooses another folder), which
survives `cargo clean`. After the first run plain `cargo test -p CRATE` finds them too.

examples:
  cargo xtask test --only unit                 the quick round while writing code
  cargo xtask test --only integration -- lease just the tests with `lease` in their name
";

const HELP_PROOF: &str = "\
cargo xtask sim [--seeds N] [--first S] [--threads T]    many seeds; ends with what was explored
cargo xtask sim --seed S                                 one seed with all its options and its account
cargo xtask mutants [--seeds N] [--afresh]               every wrong engine, with the seed that caught it; seeds
                                                         known to catch are tried first, or found anew
cargo xtask campaign --hours H                           kills, cuts, zombies, late commits on real servers;
                                                         writes a report

The same seed always does the same. A mutant that survives its seeds fails, and so does the right
engine if any seed breaks one of its promises.
";

const HELP_FUZZ: &str = "\
cargo xtask fuzz [TARGET...] [--minutes N]

Runs each target (all of them, if none is named) for N minutes (1) under libFuzzer. Needs a C++ compiler, and
compiles everything once more into target/fuzz/. An input that breaks a promise is kept under
target/fuzz/found/: mend what it broke, and put it into fuzz/corpus/TARGET/, where the tests replay it.

examples:
  cargo xtask fuzz config --minutes 10
  nice cargo xtask fuzz --minutes 5
";

const HELP_SERVERS: &str = "\
cargo xtask servers [--install]

Finds or fetches the servers that the tests use and prints, for each, the variable that hands
it to them and its place. Setting that variable yourself chooses another server:

  RELEVO_PG_18_BIN=/opt/pg18/bin cargo test -p relevo-stores

  --install      may install system packages with apt-get (as root; implied by CI=true as root)
";

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Request> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn stages_are_a_list_or_repeated() {
        let list = parsed("test --only unit,docs").unwrap();
        let repeated = parsed("test --only unit --only=docs").unwrap();
        assert_eq!(list, repeated);
        let Request::Test(options) = list else { panic!("not a test request") };
        assert!(options.wants(Only::Unit) && options.wants(Only::Docs));
        assert!(!options.wants(Only::Sim));
    }

    #[test]
    fn without_only_every_stage_is_wanted() {
        let Request::Test(options) = parsed("test --keep").unwrap() else { panic!() };
        assert!(options.keep && options.wants(Only::Sim) && options.wants(Only::Unit));
    }

    #[test]
    fn what_follows_two_dashes_goes_to_the_tests() {
        let Request::Test(options) = parsed("test -- late --help").unwrap() else { panic!() };
        assert_eq!(options.passed_on, ["late", "--help"]);
    }

    #[test]
    fn fuzzing_takes_targets_and_minutes() {
        let Request::Fuzz(options) = parsed("fuzz config urls --minutes 3").unwrap() else {
            panic!()
        };
        assert_eq!((options.targets.len(), options.minutes), (2, 3));
        assert!(parsed("fuzz --minutes 0").is_err() && parsed("fuzz --minuets 3").is_err());
    }

    #[test]
    fn a_misspelt_option_is_refused_with_a_hint() {
        let error = parsed("test --instal").unwrap_err().to_string();
        assert!(error.contains("--instal") && error.contains("--help"), "{error}");
        assert!(parsed("test --only units").is_err());
        assert!(parsed("lint --fix").is_err());
        assert!(parsed("tset").is_err());
    }
}
