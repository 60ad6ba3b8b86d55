//! Every scenario, again and again with other seeds, for as long as wanted; then a report.
//!
//! - `jobs`: which scenarios there are, and how much of each

mod jobs;

use crate::report::{Outcome, worst};
use crate::rig::{Run, TAKEOVER_LIMIT};
use anyhow::{Context, Result, bail};
use jobs::{Job, ON_POSTGRES, ON_SQLITE, perform};
use relevo_core::clock::Rng;
use relevo_testkit::simulation::{Campaign as Simulation, Seen};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What a campaign is given.
#[derive(Debug, Clone, clap::Args)]
pub struct CampaignOptions {
    /// How long.
    #[arg(long, default_value_t = 1.0)]
    pub hours: f64,
    /// What the seeds of all scenarios come from.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Where the report goes; it is written anew after every scenario.
    #[arg(long, default_value = "torture-report.md")]
    pub report: PathBuf,
    /// Only scenarios whose name contains this.
    #[arg(long)]
    pub only: Option<String>,
    /// Seeds of the simulator in every round.
    #[arg(long, default_value_t = 2000)]
    pub sim_seeds: u64,
    /// The major versions of PostgreSQL.
    #[arg(long, value_delimiter = ',', default_values_t = [15, 18])]
    pub postgres: Vec<u16>,
}

/// Runs the campaign. An error if anything was lost, twice, out of order or did not recover.
pub async fn run(options: CampaignOptions) -> Result<()> {
    let seed = options.seed.unwrap_or_else(|| Rng::from_os().next_u64() >> 40);
    let folder = tempfile::Builder::new().prefix("relevo-campaign-").tempdir()?;
    let program = folder.path().join("relevo-torture");
    // Of its own: whoever builds the next one meanwhile must not change this one's processes.
    std::fs::copy(std::env::current_exe()?, &program).context("copying this program")?;
    let began = Instant::now();
    let mut campaign = Campaign {
        options,
        seed,
        program,
        began,
        rng: Rng::seeded(seed),
        outcomes: Vec::new(),
        failures: Vec::new(),
        simulated: Simulated::default(),
        missed: Vec::new(),
        had_a_turn: BTreeSet::new(),
    };
    let end = began + Duration::from_secs_f64(campaign.options.hours * 3600.0);
    println!("campaign with seed {seed} for {} hours", campaign.options.hours);
    while Instant::now() < end {
        campaign.round(end).await;
        if campaign.outcomes.is_empty() && campaign.failures.is_empty() {
            bail!("no scenario is called so");
        }
    }
    campaign.missed = campaign.simulated.missed();
    campaign.missed.iter().for_each(|missed| println!("simulator: {missed}"));
    campaign.write_report()?;
    let red = campaign.outcomes.iter().filter(|outcome| !outcome.is_clean()).count()
        + campaign.failures.len();
    let (missed, report) = (campaign.missed.len(), campaign.options.report.display());
    if red > 0 {
        bail!("{red} scenarios were red; see {report}");
    }
    if missed > 0 {
        bail!("the simulator did not come through {missed} things that it should; see {report}");
    }
    Ok(())
}

/// Below are the seeds of the simulator that the test command tries anyway.
const UNTRIED: u64 = 1_000_000;
/// Seeds that a trace can still be asked for by hand.
const OTHERS: u64 = 1_000_000_000;

/// So many seeds that were drawn should have come through everything. Those of the test command are known to do so in fewer;
/// of others a thousand may well miss what is rare.
const ENOUGH_SEEDS: u64 = 10_000;

/// What the simulator came to, all rounds together.
#[derive(Debug, Default)]
struct Simulated {
    seeds: u64,
    seen: Seen,
}

impl Simulated {
    /// What all seeds together should have come through and did not: they prove nothing about it.
    fn missed(&self) -> Vec<String> {
        if self.seeds < ENOUGH_SEEDS { Vec::new() } else { self.seen.missed(self.seeds) }
    }
}

struct Campaign {
    options: CampaignOptions,
    seed: u64,
    program: PathBuf,
    began: Instant,
    rng: Rng,
    outcomes: Vec<Outcome>,
    /// Scenarios that could not be carried out to their end, and seeds of the simulator that broke a promise.
    failures: Vec<String>,
    simulated: Simulated,
    /// What the simulator should have come through and did not, told at the end.
    missed: Vec<String>,
    /// Scenarios that were begun, by name.
    had_a_turn: BTreeSet<String>,
}

impl Campaign {
    /// Every scenario once, or as many as there is time for.
    async fn round(&mut self, end: Instant) {
        if self.options.only.is_none() && self.options.sim_seeds > 0 {
            self.simulate().await;
        }
        for (job, major, name) in self.wanted() {
            if Instant::now() < end {
                self.had_a_turn.insert(name.clone());
                self.once(job, major, &name).await;
            }
        }
    }

    /// The scenarios of a round, each with its name.
    fn wanted(&self) -> Vec<(Job, u16, String)> {
        let majors = self.options.postgres.iter();
        let on_postgres = majors.flat_map(|major| ON_POSTGRES.map(|job| (job, *major)));
        let jobs = ON_SQLITE.map(|job| (job, 0)).into_iter().chain(on_postgres);
        let named = jobs.map(|(job, major)| match major {
            0 => (job, major, format!("{job:?}")),
            _ => (job, major, format!("{job:?} on PostgreSQL {major}")),
        });
        let only = self.options.only.as_deref().unwrap_or_default();
        named.filter(|(_, _, name)| name.contains(only)).collect()
    }

    /// Scenarios that the time was too short for: the report is not about them.
    fn without_a_turn(&self) -> Vec<String> {
        let names = self.wanted().into_iter().map(|(_, _, name)| name);
        names.filter(|name| !self.had_a_turn.contains(name)).collect()
    }

    /// The next seeds of the simulator.
    async fn simulate(&mut self) {
        let first = UNTRIED + self.seed % OTHERS + self.simulated.seeds;
        let seeds = self.options.sim_seeds;
        let run = move || Simulation { first, seeds, ..Simulation::default() }.run(|| {});
        let report = match tokio::task::spawn_blocking(run).await {
            Ok(report) => report,
            Err(error) => return self.failures.push(format!("simulator: {error}")),
        };
        self.simulated.seeds += report.seeds;
        self.simulated.seen.add(&report.seen);
        println!("simulator: {} seeds from {first} in {:.1?}", report.seeds, report.took);
        if let Some(failure) = report.failure {
            println!("simulator: seed {} BROKEN {}", failure.seed, failure.violation);
            self.failures.push(format!("simulator: seed {} {}", failure.seed, failure.violation));
        }
    }

    async fn once(&mut self, job: Job, major: u16, name: &str) {
        let seed = self.rng.next_u64() >> 40;
        let run = Run { program: self.program.clone(), seed, takeover_limit: TAKEOVER_LIMIT };
        match perform(job, major, name, &run).await {
            Ok(outcomes) => {
                outcomes.iter().for_each(|outcome| println!("{outcome}"));
                self.outcomes.extend(outcomes);
            }
            Err(error) => {
                println!("{name} (seed {seed}) could not be carried out: {error:#}");
                self.failures.push(format!("{name} (seed {seed}): {error:#}"));
            }
        }
        if let Err(error) = self.write_report() {
            println!("the report cannot be written: {error:#}");
        }
    }

    fn write_report(&self) -> Result<()> {
        let path = &self.options.report;
        std::fs::write(path, self.report()?).with_context(|| format!("writing {}", path.display()))
    }

    /// What repeats it.
    fn command(&self) -> String {
        let CampaignOptions { hours, only, sim_seeds, postgres, .. } = &self.options;
        let majors: Vec<String> = postgres.iter().map(u16::to_string).collect();
        let only = only.as_ref().map(|part| format!(" --only {part:?}")).unwrap_or_default();
        format!(
            "cargo xtask campaign --hours {hours} --seed {} --sim-seeds {sim_seeds} --postgres {}{only}",
            self.seed,
            majors.join(",")
        )
    }

    fn report(&self) -> Result<String> {
        let mut text = String::from("# Torture report\n\n");
        writeln!(
            text,
            "`{}`, {:.1} minutes\n",
            self.command(),
            self.began.elapsed().as_secs_f64() / 60.0
        )?;
        self.totals(&mut text)?;
        self.by_scenario(&mut text)?;
        match self.without_a_turn() {
            none if none.is_empty() => writeln!(text, "\nEvery scenario had its turn.")?,
            some => writeln!(text, "\nNo time was left for: {}.", some.join(", "))?,
        }
        self.by_fault(&mut text)?;
        self.by_seed(&mut text)?;
        Ok(text)
    }

    fn totals(&self, text: &mut String) -> Result<()> {
        let sum = |of: fn(&Outcome) -> usize| self.outcomes.iter().map(of).sum::<usize>();
        let in_flight: Vec<usize> =
            self.outcomes.iter().flat_map(|o| o.figures.in_flight.clone()).collect();
        let rows = [
            ("runs, each with a seed of its own", self.outcomes.len()),
            ("runs that could not be carried out", self.failures.len()),
            ("simulated seeds", self.simulated.seeds as usize),
            ("faults injected in simulation", self.simulated.seen.fault_count() as usize),
            ("what the simulator missed (asked from 10,000 simulated seeds on)", self.missed.len()),
            ("events committed", sum(|o| o.verdict.committed)),
            ("faults injected", sum(|o| o.figures.faults.values().sum::<u64>() as usize)),
            ("kills of our processes with work in flight", in_flight.len()),
            ("events in flight at those kills, altogether", in_flight.iter().sum()),
            (
                "events in flight at one of them, at least",
                in_flight.iter().min().copied().unwrap_or(0),
            ),
            (
                "events in flight at one of them, at most",
                in_flight.iter().max().copied().unwrap_or(0),
            ),
            ("kills of PostgreSQL with its children", sum(|o| o.figures.server_kills.len())),
            ("lost", sum(|o| o.verdict.missing.len())),
            ("twice", sum(|o| o.verdict.twice.len())),
            ("ghosts", sum(|o| o.verdict.ghosts.len())),
            ("out of order", sum(|o| o.verdict.out_of_order.len())),
            ("dead letters wrong", sum(|o| o.verdict.dead_wrong.len())),
            ("other problems", sum(|o| o.problems.len())),
        ];
        writeln!(text, "| what | figure |\n|---|---:|")?;
        for (what, figure) in rows {
            writeln!(text, "| {what} | {figure} |")?;
        }
        let all = |of: fn(&Outcome) -> Vec<Duration>| {
            worst(&self.outcomes.iter().flat_map(of).collect::<Vec<_>>())
        };
        writeln!(
            text,
            "| worst take-over (lease 1 s) | {:.2?} |",
            all(|o| o.figures.takeovers.clone())
        )?;
        writeln!(text, "| worst recovery | {:.2?} |\n", all(|o| o.figures.recoveries.clone()))?;
        Ok(())
    }

    fn by_scenario(&self, text: &mut String) -> Result<()> {
        let mut scenarios: BTreeMap<&str, Vec<&Outcome>> = BTreeMap::new();
        for outcome in &self.outcomes {
            scenarios.entry(&outcome.scenario).or_default().push(outcome);
        }
        writeln!(
            text,
            "| scenario | runs | events | kills | red | worst take-over | worst recovery |"
        )?;
        writeln!(text, "|---|---:|---:|---:|---:|---:|---:|")?;
        for (name, outcomes) in scenarios {
            let sum = |of: fn(&Outcome) -> usize| outcomes.iter().map(|o| of(o)).sum::<usize>();
            let takeovers: Vec<Duration> =
                outcomes.iter().flat_map(|o| o.figures.takeovers.clone()).collect();
            let recoveries: Vec<Duration> =
                outcomes.iter().flat_map(|o| o.figures.recoveries.clone()).collect();
            writeln!(
                text,
                "| {name} | {} | {} | {} | {} | {:.2?} | {:.2?} |",
                outcomes.len(),
                sum(|o| o.verdict.committed),
                sum(|o| o.figures.kills() + o.figures.server_kills.len()),
                sum(|o| usize::from(!o.is_clean())),
                worst(&takeovers),
                worst(&recoveries)
            )?;
        }
        Ok(())
    }

    fn by_fault(&self, text: &mut String) -> Result<()> {
        let mut faults: BTreeMap<&str, u64> = BTreeMap::new();
        for (name, count) in self.outcomes.iter().flat_map(|outcome| &outcome.figures.faults) {
            *faults.entry(name).or_default() += count;
        }
        writeln!(text, "\n| fault | injected |\n|---|---:|")?;
        for (name, count) in faults {
            writeln!(text, "| {name} | {count} |")?;
        }
        Ok(())
    }

    /// Every seed, so that a run can be repeated, with the events in flight at each kill; red ones with what was wrong.
    fn by_seed(&self, text: &mut String) -> Result<()> {
        writeln!(text, "\nSeeds:\n")?;
        for outcome in &self.outcomes {
            let colour = if outcome.is_clean() { "clean" } else { "RED" };
            let kills: Vec<String> =
                outcome.figures.in_flight_per_kill().map(|n| n.to_string()).collect();
            let kills = if kills.is_empty() {
                String::new()
            } else {
                format!("; in flight: {}", kills.join(" "))
            };
            writeln!(text, "- {} {}: {colour}{kills}", outcome.scenario, outcome.seed)?;
            if !outcome.is_clean() {
                writeln!(text, "\n```\n{outcome}\n```\n")?;
            }
        }
        for failure in &self.failures {
            writeln!(text, "- could not be carried out: {failure}")?;
        }
        for missed in &self.missed {
            writeln!(text, "- simulator, by all its seeds: {missed}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_seeds_did_not_come_through_is_told_when_they_were_enough_to_expect_it() {
        let missed = |seeds| Simulated { seeds, seen: Seen::default() }.missed().len();
        assert_eq!(missed(ENOUGH_SEEDS - 1), 0);
        assert!(missed(ENOUGH_SEEDS) > 0);
    }
}
