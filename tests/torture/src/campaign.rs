//! Every scenario, again and again with other seeds, for as long as wanted; then a report.

use crate::database::Database;
use crate::report::{Outcome, worst};
use crate::rig::{Run, TAKEOVER_LIMIT};
use crate::scenarios::{self, adopting, on_postgres, on_sqlite};
use anyhow::{Context, Result, bail};
use relevo_core::clock::Rng;
use relevo_testkit::services::Postgres;
use relevo_testkit::simulation::Campaign as Simulation;
use std::collections::BTreeMap;
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

/// One scenario on one kind of database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Job {
    Kills,
    ServerKills,
    AsynchronousServerKills,
    Terminations,
    Zombies,
    SleeperWithALock,
    ZombieSteps,
    Steps,
    Network,
    Conflicts,
    DiskFull,
    CommitOrder,
    Outside,
    Restore,
    Promotion,
    Rolling,
    SqliteKills,
    SqliteTerminations,
    SqliteZombies,
    SqliteSteps,
    SqliteBusy,
    SqliteDiskFull,
    SqliteRolling,
    SqliteOutside,
    Adopted,
    AdoptedServerKills,
    AdoptedTerminations,
    AdoptedSteps,
    AdoptedNetwork,
    AdoptedCommitOrder,
    SqliteAdopted,
    SqliteAdoptedTerminations,
    SqliteAdoptedSteps,
    Consumers,
    SqliteConsumers,
}

const ON_SQLITE: [Job; 12] = [
    Job::SqliteKills,
    Job::SqliteTerminations,
    Job::SqliteZombies,
    Job::SqliteSteps,
    Job::SqliteBusy,
    Job::SqliteDiskFull,
    Job::SqliteRolling,
    Job::SqliteOutside,
    Job::SqliteAdopted,
    Job::SqliteAdoptedTerminations,
    Job::SqliteAdoptedSteps,
    Job::SqliteConsumers,
];

const ON_POSTGRES: [Job; 23] = [
    Job::Kills,
    Job::ServerKills,
    Job::AsynchronousServerKills,
    Job::Terminations,
    Job::Zombies,
    Job::SleeperWithALock,
    Job::ZombieSteps,
    Job::Steps,
    Job::Network,
    Job::Conflicts,
    Job::DiskFull,
    Job::CommitOrder,
    Job::Outside,
    Job::Restore,
    Job::Promotion,
    Job::Rolling,
    Job::Adopted,
    Job::AdoptedServerKills,
    Job::AdoptedTerminations,
    Job::AdoptedSteps,
    Job::AdoptedNetwork,
    Job::AdoptedCommitOrder,
    Job::Consumers,
];

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
    };
    let end = began + Duration::from_secs_f64(campaign.options.hours * 3600.0);
    println!("campaign with seed {seed} for {} hours", campaign.options.hours);
    while Instant::now() < end {
        campaign.round(end).await;
        if campaign.outcomes.is_empty() && campaign.failures.is_empty() {
            bail!("no scenario is called so");
        }
    }
    campaign.write_report()?;
    let red = campaign.outcomes.iter().filter(|outcome| !outcome.is_clean()).count()
        + campaign.failures.len();
    if red > 0 {
        bail!("{red} scenarios were red; see {}", campaign.options.report.display());
    }
    Ok(())
}

/// Below are the seeds of the simulator that the test command tries anyway.
const UNTRIED: u64 = 1_000_000;
/// Seeds that a trace can still be asked for by hand.
const OTHERS: u64 = 1_000_000_000;

/// What the simulator came to, all rounds together.
#[derive(Debug, Default)]
struct Simulated {
    seeds: u64,
    faults: u64,
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
}

impl Campaign {
    /// Every scenario once.
    async fn round(&mut self, end: Instant) {
        if self.options.only.is_none() && self.options.sim_seeds > 0 {
            self.simulate().await;
        }
        let majors = self.options.postgres.clone();
        let on_postgres = majors.iter().flat_map(|major| ON_POSTGRES.map(|job| (job, *major)));
        let jobs: Vec<(Job, u16)> =
            ON_SQLITE.map(|job| (job, 0)).into_iter().chain(on_postgres).collect();
        for (job, major) in jobs {
            let name = if major == 0 {
                format!("{job:?}")
            } else {
                format!("{job:?} on PostgreSQL {major}")
            };
            let wanted = self.options.only.as_ref().is_none_or(|part| name.contains(part.as_str()));
            if wanted && Instant::now() < end {
                self.once(job, major, &name).await;
            }
        }
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
        self.simulated.faults += report.seen.fault_count();
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
            ("faults injected in simulation", self.simulated.faults as usize),
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
        Ok(())
    }
}

async fn perform(job: Job, major: u16, name: &str, run: &Run) -> Result<Vec<Outcome>> {
    if major > 0 {
        let server = scenarios::server(major)?;
        return perform_on_postgres(job, &server, name, run).await;
    }
    let folder = tempfile::tempdir()?;
    let database = on_sqlite(folder.path());
    let outcome = match job {
        Job::SqliteKills => scenarios::kills(run, name, database, 100).await,
        Job::SqliteTerminations => scenarios::terminations(run, name, database, 30).await,
        Job::SqliteZombies => scenarios::zombies(run, name, database, 10).await,
        Job::SqliteSteps => scenarios::signals_at_steps(run, name, database, 1).await,
        Job::SqliteBusy => {
            scenarios::sqlite_busy(run, name, folder.path(), 3, Duration::from_secs(7)).await
        }
        Job::SqliteDiskFull => scenarios::disk_full_on_sqlite(run, name, 5).await,
        Job::SqliteRolling => scenarios::rolling_schema(run, name, database).await,
        Job::SqliteAdopted => scenarios::adopted(run, name, database, 40).await,
        Job::SqliteAdoptedTerminations => {
            scenarios::terminations(run, name, adopting(run, database), 15).await
        }
        Job::SqliteAdoptedSteps => {
            scenarios::signals_at_steps(run, name, adopting(run, database), 1).await
        }
        Job::SqliteConsumers => scenarios::consumers(run, name, database, 60).await,
        _ => scenarios::outside(run, name, database, 60).await,
    };
    Ok(vec![outcome?])
}

async fn perform_on_postgres(
    job: Job,
    server: &Postgres,
    name: &str,
    run: &Run,
) -> Result<Vec<Outcome>> {
    let outcome = match job {
        Job::Kills => scenarios::kills(run, name, on_postgres(server)?, 150).await,
        Job::ServerKills => {
            scenarios::server_kills(run, name, server, on_postgres(server)?, 40).await
        }
        Job::AsynchronousServerKills => {
            scenarios::server_kills_of_asynchronous_handlers(run, name, server, 20).await
        }
        Job::Terminations => scenarios::terminations(run, name, on_postgres(server)?, 40).await,
        Job::Zombies => scenarios::zombies(run, name, on_postgres(server)?, 20).await,
        Job::SleeperWithALock => {
            scenarios::sleeper_with_a_lock(run, name, on_postgres(server)?, 8).await
        }
        Job::ZombieSteps => {
            let steps = crate::worker::tripwire::STEPS;
            scenarios::zombies_at_steps(run, name, on_postgres(server)?, &steps).await
        }
        Job::Steps => scenarios::signals_at_steps(run, name, on_postgres(server)?, 2).await,
        Job::Network => scenarios::network(run, name, server, on_postgres(server)?, 5, true).await,
        Job::Conflicts => scenarios::conflicts(run, name, server, Duration::from_secs(30)).await,
        Job::DiskFull => scenarios::disk_full_on_postgres(run, name, server, 5).await,
        Job::Outside => scenarios::outside(run, name, on_postgres(server)?, 60).await,
        Job::Adopted => scenarios::adopted(run, name, on_postgres(server)?, 60).await,
        Job::AdoptedServerKills
        | Job::AdoptedTerminations
        | Job::AdoptedSteps
        | Job::AdoptedNetwork
        | Job::AdoptedCommitOrder => perform_adopted(job, server, name, run).await,
        Job::Consumers => scenarios::consumers(run, name, on_postgres(server)?, 80).await,
        Job::Rolling => scenarios::rolling_schema(run, name, on_postgres(server)?).await,
        Job::Promotion => scenarios::promoted_under_relays(run, name, server).await,
        Job::Restore => {
            let other = scenarios::server(server.major())?;
            let mut outcomes = Vec::from(scenarios::restore(run, name, server, &other).await?);
            let moved = format!("{name}: under running relays");
            outcomes.push(scenarios::moved_under_relays(run, &moved, server, &other).await?);
            return Ok(outcomes);
        }
        _ => commit_order(run, name, on_postgres(server)?).await,
    };
    Ok(vec![outcome?])
}

async fn commit_order(run: &Run, name: &str, database: Database) -> Result<Outcome> {
    let minute = Duration::from_secs(60);
    scenarios::commit_order(run, name, database, minute + Duration::from_secs(5), minute).await
}

/// What is done to the log is done to a table of somebody else's too.
async fn perform_adopted(job: Job, server: &Postgres, name: &str, run: &Run) -> Result<Outcome> {
    let database = adopting(run, on_postgres(server)?);
    match job {
        Job::AdoptedServerKills => scenarios::server_kills(run, name, server, database, 20).await,
        Job::AdoptedTerminations => scenarios::terminations(run, name, database, 20).await,
        Job::AdoptedSteps => scenarios::signals_at_steps(run, name, database, 2).await,
        Job::AdoptedNetwork => scenarios::network(run, name, server, database, 3, true).await,
        _ => commit_order(run, name, database).await,
    }
}
