use super::Load;
use crate::database::Database;
use crate::report::Outcome;
use crate::rig::{LEASE, RECOVERY_LIMIT, Relays, Rig, Run};
use crate::worker::tripwire::Tripwire;
use anyhow::{Result, ensure};
use std::time::Instant;

/// SIGSTOP at random moments, past the lease: others take the lanes, then the sleeper goes on where it was.
///
/// Half of the workers let their sessions idle inside a transaction for a minute: then no server ends the sleeper's
/// transaction, and only the fence stands between it and a second effect.
pub async fn zombies(run: &Run, name: &str, database: Database, count: u64) -> Result<Outcome> {
    let load = Load::on(&database);
    let holds_everybody = matches!(database, Database::Sqlite(_));
    let mut rig = Rig::new(run, name, database).await?;
    rig.start_relays(1, &Relays::default())?;
    rig.start_relays(2, &Relays::default().arg("--idle-limit-ms", 60_000).arg("--handler-ms", 5))?;
    rig.start_writers(load.writers, load.args)?;
    let mut with_work = 0;
    for _ in 0..count {
        let victim = rig.below(3) as usize;
        let relay = &mut rig.relays[victim];
        relay.wait_until(RECOVERY_LIMIT, |told| told.in_flight() > 0);
        relay.pause();
        let paused = Instant::now();
        // What it told before it slept may still be on its way through the pipe.
        tokio::time::sleep(LEASE / 2).await;
        let (in_flight, batches) = rig.relays[victim].in_hand();
        with_work += u64::from(in_flight > 0);
        rig.figures.fault(if in_flight > 0 {
            "SIGSTOP past the lease, in flight"
        } else {
            "SIGSTOP past the lease"
        });
        if !holds_everybody {
            // Between its fence and its commit a sleeper holds the row of a lane, until its server's patience ends.
            let held = if victim == 0 { 0 } else { batches };
            rig.measure_takeover_but(held, paused).await?;
        }
        // A process that sleeps with SQLite's write lock stops every writer: nobody can publish or take over.
        rig.work((LEASE * 2).saturating_sub(paused.elapsed())).await;
        rig.relays[victim].resume();
        rig.measure_recovery(Instant::now()).await?;
    }
    if 2 * with_work < count {
        rig.problem(format!("only {with_work} of {count} sleepers had work in flight"));
    }
    rig.finish().await
}

/// Is there a session whose last word was the fence, and which said nothing since?
async fn holds_its_fence(database: &Database) -> Result<bool> {
    let Database::Postgres(database) = database else { return Ok(false) };
    let query = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'
                    AND query LIKE '%relevo.record(%' AND state_change < clock_timestamp() - interval '500 ms'";
    Ok(!database.query(query, &[]).await?.is_empty())
}

/// A relay that falls asleep between its fence and its commit, and holds its lane's row for as long as it sleeps: the
/// other lanes must not wait for that one.
pub async fn sleeper_with_a_lock(
    run: &Run,
    name: &str,
    database: Database,
    count: u64,
) -> Result<Outcome> {
    let load = Load::on(&database);
    let mut rig = Rig::new(run, name, database).await?;
    rig.start_relays(1, &Relays::default())?;
    rig.start_writers(load.writers, load.args)?;
    for _ in 0..count {
        let nth = 5 + rig.below(10);
        let trip =
            Some(Tripwire { step: "commit".into(), before: true, nth, signal: "stop".into() });
        let how = Relays { trip, ..Relays::default() }.arg("--idle-limit-ms", 60_000);
        let mut sleeper = rig.spawn_relay(&how)?;
        ensure!(sleeper.wait_paused(RECOVERY_LIMIT), "the sleeper never came to its commit");
        let asleep = Instant::now();
        tokio::time::sleep(LEASE / 2).await;
        let held = sleeper.told().batches();
        rig.figures.fault("SIGSTOP between fence and commit");
        rig.measure_takeover_but(held, asleep).await?;
        ensure!(
            holds_its_fence(&rig.database).await?,
            "the sleeper does not sleep behind its fence"
        );
        sleeper.resume();
        rig.relays.push(sleeper);
        rig.measure_recovery(Instant::now()).await?;
        if let Some(mut sleeper) = rig.relays.pop() {
            sleeper.terminate(RECOVERY_LIMIT)?;
        }
    }
    rig.finish().await
}
