//! The command line. Written by hand: an argument parser would be the largest thing xtask compiles.

use crate::fuzz::FuzzOptions;
use crate::help::{HELP, HELP_BENCH, HELP_FUZZ, HELP_LINT, HELP_PROOF, HELP_SERVERS, HELP_TEST};
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
    /// With the bench's own options.
    Bench(Vec<String>),
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
    Bench,
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
        "bench" if asks_help => Ok(Request::Help(HELP_BENCH)),
        "bench" => Ok(Request::Bench(rest.to_vec())),
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
                None => bail!("--only needs a stage: unit, integration, docs, sim or bench"),
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
        "bench" => Only::Bench,
        other => {
            bail!("there is no stage {other:?}; stages are unit, integration, docs, sim, bench")
        }
    })
}

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
    fn the_bench_reads_its_own_options() {
        let bench = parsed("bench nats --long").unwrap();
        assert_eq!(bench, Request::Bench(vec!["nats".into(), "--long".into()]));
        assert_eq!(parsed("bench --help").unwrap(), Request::Help(HELP_BENCH));
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
