//! One run: a database, processes on it, the journal beside them, and the verdict at the end.
//!
//! - `probes`: how long until every lane is at work again
//! - `workers`: processes that are started, killed and asked to end
//! - `finish`: coming to rest, and the verdict

mod finish;
mod probes;
mod workers;

use crate::broker::Broker;
use crate::check::Applied;
use crate::database::Database;
use crate::journal::Journal;
use crate::process::Process;
use crate::report::Figures;
use crate::worker::Broken;
use crate::worker::tripwire::{OF_SHARED_TRANSACTIONS, Tripwire};
use anyhow::{Context, Result, ensure};
use relevo_core::clock::Rng;
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use uuid::Uuid;
use workers::wait_ready;

/// The lease of all workers.
pub const LEASE: Duration = Duration::from_secs(1);
/// A dead owner's lanes are at work again within this, on a machine that is not busy with other things.
pub const TAKEOVER_LIMIT: Duration = Duration::from_secs(3);
/// So long whoever sleeps or is cut off in the middle of a claim may keep all others from claiming.
const CLAIM_LIMIT: Duration = Duration::from_secs(3);
/// After any other fault has ended, everything is at work again within this.
pub const RECOVERY_LIMIT: Duration = Duration::from_secs(30);
/// A process that was asked to end has ended within this.
const END_LIMIT: Duration = Duration::from_secs(30);
/// Starting is not what is measured: on a machine with other things to do it may take its time.
pub const START_LIMIT: Duration = Duration::from_secs(180);

/// What all runs share.
#[derive(Debug, Clone)]
pub struct Run {
    /// The program of workers and writers.
    pub program: PathBuf,
    /// What a run is decided by.
    pub seed: u64,
    /// A dead owner's lanes must be at work again within this.
    pub takeover_limit: Duration,
}

/// How a relay differs from the default.
#[derive(Debug, Clone, Default)]
pub struct Relays {
    /// Another way to the database: through a proxy, with settings of a session.
    pub url: Option<String>,
    /// A step at which it gets a signal.
    pub trip: Option<Tripwire>,
    /// Wrong on purpose.
    pub broken: Option<Broken>,
    /// Further arguments.
    pub args: Vec<String>,
}

impl Relays {
    /// With one more argument.
    pub fn arg(mut self, name: &str, value: impl ToString) -> Self {
        self.args.extend([name.to_owned(), value.to_string()]);
        self
    }

    /// One that is wrong on purpose is wrong in its own way, and some steps no slow handler comes to.
    fn may_be_slow(&self) -> bool {
        let shared = |trip: &Tripwire| OF_SHARED_TRANSACTIONS.contains(&trip.step.as_str());
        self.broken.is_none() && !self.trip.as_ref().is_some_and(shared)
    }
}

/// A run under way.
#[derive(Debug)]
pub struct Rig {
    scenario: String,
    run: Run,
    began: Instant,
    folder: TempDir,
    /// The database.
    pub database: Database,
    journal: Arc<Mutex<Journal>>,
    /// The relays at work.
    pub relays: Vec<Process>,
    /// The writers at work.
    pub writers: Vec<Process>,
    /// The consumers at work.
    pub consumers: Vec<Process>,
    outside: Option<Arc<Broker>>,
    /// Effects happen behind the broker, where consumers are, and so in the database again.
    behind: bool,
    /// The file of configuration that adopts a table, where one is relayed instead of the log.
    adopts: Option<PathBuf>,
    /// What was done so far.
    pub figures: Figures,
    problems: Vec<String>,
    /// Decides everything that is left to chance.
    pub rng: Rng,
    started: u32,
    probed: i64,
    /// Events that a database which is a copy does not know any more: that they were sent is not its fault.
    lost_with_copy: HashSet<Uuid>,
    /// How long nothing may move before it counts as at rest.
    pub patience: Duration,
    probe_keys: Vec<String>,
}

impl Rig {
    /// A run on an empty database; its tables are made here. What an adopted table's relays publish goes to a broker.
    pub async fn new(run: &Run, scenario: &str, database: Database) -> Result<Self> {
        database.create().await.context("making the tables")?;
        let outside = match database.adopted() {
            Some(_) => Some(Broker::start(run.seed).await?),
            None => None,
        };
        let folder = tempfile::Builder::new().prefix("relevo-torture-").tempdir()?;
        let adopts = write_configuration(&database, folder.path())?;
        let mut rig = Self {
            scenario: scenario.to_owned(),
            run: run.clone(),
            began: Instant::now(),
            folder,
            database,
            journal: Arc::default(),
            relays: Vec::new(),
            writers: Vec::new(),
            consumers: Vec::new(),
            outside,
            behind: false,
            adopts,
            figures: Figures::default(),
            problems: Vec::new(),
            rng: Rng::seeded(run.seed),
            started: 0,
            probed: 0,
            lost_with_copy: HashSet::new(),
            patience: RECOVERY_LIMIT,
            probe_keys: probes::one_key_for_each_lane(),
        };
        if rig.adopts.is_some() {
            rig.figures.notes.push(rig.described());
        }
        Ok(rig)
    }

    /// Where relays publish to, if effects do not happen in the database.
    pub fn broker(&self) -> Option<Arc<Broker>> {
        self.outside.clone()
    }

    /// Effects happen outside, at this broker, instead of in the database.
    pub fn towards(&mut self, broker: Arc<Broker>) {
        self.outside = Some(broker);
    }

    /// Relays publish to this broker, and effects happen behind it, by consumers.
    pub fn by_way_of(&mut self, broker: Arc<Broker>) {
        (self.outside, self.behind) = (Some(broker), true);
    }

    /// The broker, where effects happen there.
    fn effects_at(&self) -> Option<&Arc<Broker>> {
        self.outside.as_ref().filter(|_| !self.behind)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.rng.below(bound)
    }

    /// Something between the two, by chance.
    pub fn between(&mut self, least_ms: u64, most_ms: u64) -> Duration {
        Duration::from_millis(least_ms + self.rng.below(most_ms - least_ms + 1))
    }

    /// Notes what should not have been.
    pub fn problem(&mut self, what: impl Into<String>) {
        self.problems.push(what.into());
    }

    fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until every relay works and has caught up, and for as long as they need to know each other. Until a take-over
    /// is measured, the broker is calm.
    pub async fn settle(&mut self) -> Result<()> {
        self.calm_broker(true);
        wait_ready(&self.relays)?;
        wait_ready(&self.consumers)?;
        self.probe(Instant::now(), RECOVERY_LIMIT).await?;
        self.work(LEASE + LEASE / 4).await;
        Ok(())
    }

    /// Before a take-over is measured: how long a broker may be silent is not what it measures.
    pub async fn settle_broker(&mut self) -> Result<()> {
        if self.outside.is_some() { self.settle().await } else { Ok(()) }
    }

    pub(crate) fn calm_broker(&self, calm: bool) {
        if let Some(broker) = &self.outside {
            broker.set_calm(calm);
        }
    }

    /// Lets it run until so many transactions were told of, however slow the machine is.
    pub async fn work_until(&self, transactions: usize) -> Result<()> {
        let deadline = Instant::now() + 4 * RECOVERY_LIMIT;
        while self.journal().len() < transactions {
            ensure!(Instant::now() < deadline, "the writers do not come to {transactions}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Lets it run until whatever was committed by now was told of.
    pub async fn work_until_told(&self) -> Result<()> {
        let found = self.database.business().await?;
        let deadline = Instant::now() + 4 * RECOVERY_LIMIT;
        while !self.journal().knows(&found) {
            ensure!(Instant::now() < deadline, "there are transactions that no writer told of");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// How many transactions were told of.
    pub fn transactions(&self) -> usize {
        self.journal().len()
    }

    /// How many transactions of each shape came to their end.
    pub fn shapes(&self) -> BTreeMap<String, u64> {
        self.journal()
            .shapes()
            .into_iter()
            .map(|(shape, count)| (shape.to_owned(), count))
            .collect()
    }

    /// How often something happened to the relays at work.
    pub fn met(&self, what: &str) -> u64 {
        self.relays.iter().map(|relay| relay.told().met.get(what).copied().unwrap_or(0)).sum()
    }

    /// Lets it run for a while.
    pub async fn work(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// Takes over what another run's journal knows, and what its broker had stored when the copy was made: this one goes
    /// on with a copy of its database.
    pub async fn inherit(&mut self, other: &Rig, stored: Vec<Applied>) -> Result<()> {
        self.journal = Arc::new(Mutex::new(other.journal().clone()));
        self.probed = other.probed;
        if let Some(broker) = self.effects_at() {
            broker.remember(stored);
        }
        self.believe_only_the_database().await.map(drop)
    }

    /// From now on only rows tell which transactions there were: the database is a copy that may lack some. Answers how many
    /// of those that were confirmed it lacks.
    pub async fn believe_only_the_database(&mut self) -> Result<usize> {
        let found = self.database.business().await?;
        let lost = self.journal().lost_with(&found);
        self.lost_with_copy.extend(lost);
        let mut journal = self.journal();
        let missing = journal.confirmed_but_missing(&found).len();
        *journal = std::mem::take(&mut *journal).as_inherited();
        Ok(missing)
    }

    /// A dead owner's lanes must be at work again within this.
    fn takeover_limit(&self) -> Duration {
        let claimed = if self.adopts.is_some() { CLAIM_LIMIT } else { Duration::ZERO };
        self.run.takeover_limit + claimed
    }

    /// What is relayed here, in a line.
    pub fn described(&self) -> String {
        let Some(table) = self.database.adopted() else { return "the log".into() };
        let mapping = table.mapping();
        let ends = match (&mapping.dead_letters, &mapping.status) {
            (Some(_), _) => "dead rows go into a table of their own",
            (None, Some(_)) => "dead rows have a state of their own",
            (None, None) => "there is no word for dead rows",
        };
        format!("adopted {}: {:?}; {ends}", mapping.table, mapping.columns)
    }

    /// Fewer kills than this with work in flight are a problem.
    pub fn expect_kills(&mut self, kills: usize) {
        let missing = kills.saturating_sub(self.figures.kills());
        if missing > 0 {
            self.problem(format!("{missing} kills found nothing in flight"));
        }
    }

    /// Ends what writers prepared and will not end, because their session died with the server.
    pub async fn end_prepared(&mut self) -> Result<()> {
        if let Database::Postgres(database) = &self.database {
            let ended = database.end_prepared().await?;
            (0..ended).for_each(|_| self.figures.fault("second phase after a crash"));
        }
        Ok(())
    }
}

/// Writes the file that relays and writers know an adopted table by.
fn write_configuration(database: &Database, folder: &Path) -> Result<Option<PathBuf>> {
    let Some(table) = database.adopted() else { return Ok(None) };
    let file = folder.join("relevo.toml");
    std::fs::write(&file, table.configuration(database.url()))?;
    Ok(Some(file))
}
