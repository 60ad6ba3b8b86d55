use crate::database::Database;
use crate::report::Outcome;
use crate::rig::Run;
use crate::scenarios::{self, Source, adopting, on_postgres, on_sqlite};
use anyhow::Result;
use relevo_testkit::services::Postgres;
use std::time::Duration;

/// One scenario on one kind of database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Job {
    Kills,
    ServerKills,
    AsynchronousServerKills,
    Terminations,
    Zombies,
    SleeperWithALock,
    ZombieSteps,
    Steps,
    Upkeep,
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
    AdoptedZombieSteps,
    AdoptedNetwork,
    AdoptedCommitOrder,
    AdoptedAsynchronousServerKills,
    AdoptedConflicts,
    AdoptedDiskFull,
    AdoptedRestore,
    AdoptedPromotion,
    AdoptedRolling,
    SqliteAdopted,
    SqliteAdoptedTerminations,
    SqliteAdoptedSteps,
    SqliteAdoptedBusy,
    SqliteAdoptedDiskFull,
    SqliteAdoptedRolling,
    Consumers,
    ConsumerSteps,
    ConsumerServerKills,
    ConsumerNetwork,
    SqliteUpkeep,
    SqliteCommitOrder,
    SqliteRestore,
    SqliteConsumers,
    SqliteConsumerSteps,
}

pub(super) const ON_SQLITE: [Job; 19] = [
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
    Job::SqliteAdoptedBusy,
    Job::SqliteAdoptedDiskFull,
    Job::SqliteAdoptedRolling,
    Job::SqliteUpkeep,
    Job::SqliteCommitOrder,
    Job::SqliteRestore,
    Job::SqliteConsumers,
    Job::SqliteConsumerSteps,
];

pub(super) const ON_POSTGRES: [Job; 34] = [
    Job::Kills,
    Job::ServerKills,
    Job::AsynchronousServerKills,
    Job::Terminations,
    Job::Zombies,
    Job::SleeperWithALock,
    Job::ZombieSteps,
    Job::Steps,
    Job::Upkeep,
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
    Job::AdoptedZombieSteps,
    Job::AdoptedNetwork,
    Job::AdoptedCommitOrder,
    Job::AdoptedAsynchronousServerKills,
    Job::AdoptedConflicts,
    Job::AdoptedDiskFull,
    Job::AdoptedRestore,
    Job::AdoptedPromotion,
    Job::AdoptedRolling,
    Job::Consumers,
    Job::ConsumerSteps,
    Job::ConsumerServerKills,
    Job::ConsumerNetwork,
];

/// One scenario, on a server or a file of its own.
pub(super) async fn perform(job: Job, major: u16, name: &str, run: &Run) -> Result<Vec<Outcome>> {
    if major > 0 {
        let server = scenarios::server(major)?;
        return perform_on_postgres(job, &server, name, run).await;
    }
    let folder = tempfile::tempdir()?;
    Ok(match job {
        Job::SqliteRestore => {
            let mut outcomes = Vec::new();
            for source in [Source::Log, Source::Adopted] {
                let name = format!("{name} ({source:?})");
                outcomes.extend(scenarios::restore_of_a_file(run, &name, source).await?);
            }
            outcomes
        }
        _ => vec![perform_on_sqlite(job, on_sqlite(folder.path()), name, run).await?],
    })
}

async fn perform_on_sqlite(job: Job, database: Database, name: &str, run: &Run) -> Result<Outcome> {
    match job {
        Job::SqliteKills => scenarios::kills(run, name, database, 100).await,
        Job::SqliteTerminations => scenarios::terminations(run, name, database, 30).await,
        Job::SqliteZombies => scenarios::zombies(run, name, database, 10).await,
        Job::SqliteSteps => scenarios::signals_at_steps(run, name, database, 1).await,
        Job::SqliteBusy => busy(run, name, database).await,
        Job::SqliteDiskFull => scenarios::disk_full_on_sqlite(run, name, Source::Log, 5).await,
        Job::SqliteRolling => scenarios::rolling_schema(run, name, database).await,
        Job::SqliteAdopted => scenarios::adopted(run, name, database, 40).await,
        Job::SqliteAdoptedTerminations => {
            scenarios::terminations(run, name, adopting(run, database), 15).await
        }
        Job::SqliteAdoptedSteps => {
            scenarios::signals_at_steps(run, name, adopting(run, database), 1).await
        }
        Job::SqliteAdoptedBusy => busy(run, name, adopting(run, database)).await,
        Job::SqliteAdoptedDiskFull => {
            scenarios::disk_full_on_sqlite(run, name, Source::Adopted, 5).await
        }
        Job::SqliteAdoptedRolling => {
            scenarios::rolling_schema(run, name, adopting(run, database)).await
        }
        Job::SqliteConsumers => scenarios::consumers(run, name, database, 60).await,
        Job::SqliteConsumerSteps => consumer_steps(run, name, database).await,
        Job::SqliteUpkeep => scenarios::upkeep(run, name, database, 40).await,
        Job::SqliteCommitOrder => {
            let (time, hold) = (Duration::from_secs(30), Duration::from_secs(3));
            scenarios::commit_order(run, name, database, time, hold).await
        }
        _ => scenarios::outside(run, name, database, 60).await,
    }
}

async fn consumer_steps(run: &Run, name: &str, database: Database) -> Result<Outcome> {
    let steps = scenarios::every_step_of_consumers();
    scenarios::signals_at_steps_of_consumers(run, name, database, &steps).await
}

async fn busy(run: &Run, name: &str, database: Database) -> Result<Outcome> {
    scenarios::sqlite_busy(run, name, database, 3, Duration::from_secs(7)).await
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
        Job::AsynchronousServerKills => asynchronous(run, name, server, on_postgres(server)?).await,
        Job::Terminations => scenarios::terminations(run, name, on_postgres(server)?, 40).await,
        Job::Zombies => scenarios::zombies(run, name, on_postgres(server)?, 20).await,
        Job::SleeperWithALock => {
            scenarios::sleeper_with_a_lock(run, name, on_postgres(server)?, 8).await
        }
        Job::ZombieSteps => zombie_steps(run, name, on_postgres(server)?).await,
        Job::Steps => scenarios::signals_at_steps(run, name, on_postgres(server)?, 2).await,
        Job::Network => scenarios::network(run, name, server, on_postgres(server)?, 5, true).await,
        Job::Conflicts => scenarios::conflicts(run, name, server, Duration::from_secs(30)).await,
        Job::DiskFull => scenarios::disk_full_on_postgres(run, name, server, Source::Log, 5).await,
        Job::CommitOrder => commit_order(run, name, on_postgres(server)?).await,
        Job::Outside => scenarios::outside(run, name, on_postgres(server)?, 60).await,
        Job::Adopted => scenarios::adopted(run, name, on_postgres(server)?, 60).await,
        Job::Upkeep => scenarios::upkeep(run, name, on_postgres(server)?, 60).await,
        Job::Rolling => scenarios::rolling_schema(run, name, on_postgres(server)?).await,
        Job::Promotion => scenarios::promoted_under_relays(run, name, server, Source::Log).await,
        Job::Restore => return restore(run, name, server, Source::Log).await,
        Job::AdoptedRestore => return restore(run, name, server, Source::Adopted).await,
        Job::Consumers | Job::ConsumerSteps | Job::ConsumerServerKills | Job::ConsumerNetwork => {
            perform_with_consumers(job, server, name, run).await
        }
        _ => perform_adopted(job, server, name, run).await,
    };
    Ok(vec![outcome?])
}

/// By way of a broker, and back by consumers.
async fn perform_with_consumers(
    job: Job,
    server: &Postgres,
    name: &str,
    run: &Run,
) -> Result<Outcome> {
    let database = on_postgres(server)?;
    match job {
        Job::ConsumerSteps => consumer_steps(run, name, database).await,
        Job::ConsumerServerKills => {
            scenarios::server_kills_under_consumers(run, name, server, database, 15).await
        }
        Job::ConsumerNetwork => {
            scenarios::network_under_consumers(run, name, server, database, 3).await
        }
        _ => scenarios::consumers(run, name, database, 80).await,
    }
}

/// What is done to the log is done to a table of somebody else's too.
async fn perform_adopted(job: Job, server: &Postgres, name: &str, run: &Run) -> Result<Outcome> {
    let database = || Ok::<_, anyhow::Error>(adopting(run, on_postgres(server)?));
    match job {
        Job::AdoptedServerKills => {
            scenarios::server_kills(run, name, server, database()?, 20).await
        }
        Job::AdoptedAsynchronousServerKills => asynchronous(run, name, server, database()?).await,
        Job::AdoptedTerminations => scenarios::terminations(run, name, database()?, 20).await,
        Job::AdoptedSteps => scenarios::signals_at_steps(run, name, database()?, 2).await,
        Job::AdoptedZombieSteps => zombie_steps(run, name, database()?).await,
        Job::AdoptedNetwork => scenarios::network(run, name, server, database()?, 3, true).await,
        Job::AdoptedConflicts => {
            scenarios::conflicts_with_owners(run, name, server, Duration::from_secs(30)).await
        }
        Job::AdoptedDiskFull => {
            scenarios::disk_full_on_postgres(run, name, server, Source::Adopted, 5).await
        }
        Job::AdoptedPromotion => {
            scenarios::promoted_under_relays(run, name, server, Source::Adopted).await
        }
        Job::AdoptedRolling => scenarios::rolling_schema(run, name, database()?).await,
        _ => commit_order(run, name, database()?).await,
    }
}

async fn asynchronous(
    run: &Run,
    name: &str,
    server: &Postgres,
    database: Database,
) -> Result<Outcome> {
    scenarios::server_kills_of_asynchronous_handlers(run, name, server, database, 20).await
}

async fn zombie_steps(run: &Run, name: &str, database: Database) -> Result<Outcome> {
    let steps = scenarios::every_step(&database);
    scenarios::zombies_at_steps(run, name, database, &steps).await
}

async fn commit_order(run: &Run, name: &str, database: Database) -> Result<Outcome> {
    let minute = Duration::from_secs(60);
    scenarios::commit_order(run, name, database, minute + Duration::from_secs(5), minute).await
}

async fn restore(run: &Run, name: &str, server: &Postgres, source: Source) -> Result<Vec<Outcome>> {
    let other = scenarios::server(server.major())?;
    let mut outcomes = Vec::from(scenarios::restore(run, name, server, &other, source).await?);
    let moved = format!("{name}: under running relays");
    outcomes.push(scenarios::moved_under_relays(run, &moved, server, &other, source).await?);
    Ok(outcomes)
}
