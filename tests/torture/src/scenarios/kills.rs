use super::{Load, with_setting};
use crate::database::Database;
use crate::report::Outcome;
use crate::rig::{Relays, Rig, Run};
use anyhow::Result;
use relevo_testkit::services::Postgres;
use rustix::process::{Pid, Signal, kill_process};
use std::time::Instant;

/// Every so many kills one is measured: how long until every lane is at work again.
const MEASURE_EVERY: u64 = 12;

/// `kill -9` of relays (and now and then of writers) at random moments with work in flight.
pub async fn kills(run: &Run, name: &str, database: Database, kills: usize) -> Result<Outcome> {
    let load = Load::on(&database);
    let mut rig = Rig::new(run, name, database).await?;
    rig.start_relays(3, &Relays::default())?;
    rig.start_writers(load.writers, load.args)?;
    let mut round = 0;
    while rig.figures.kills() < kills && round < 2 * kills as u64 + 20 {
        round += 1;
        if round.is_multiple_of(MEASURE_EVERY) {
            // A fleet at rest: in a storm of deaths those who should take over are themselves just starting.
            rig.settle().await?;
            let died = rig.kill_relay(&driver_by_turns(round))?;
            rig.measure_takeover(died).await?;
            continue;
        }
        let calm = rig.between(10, 150);
        rig.work(calm).await;
        rig.kill_relay(&driver_by_turns(round))?;
        if round.is_multiple_of(10) {
            rig.kill_writer(load.writers, load.args)?;
        }
    }
    rig.expect_kills(kills);
    rig.finish().await
}

/// Workers with transactions of each driver, side by side. (SQLite has only one.)
fn driver_by_turns(round: u64) -> Relays {
    let driver = ["deadpool", "sqlx", "tokio"][(round % 3) as usize];
    Relays::default().arg("--driver", driver)
}

/// `kill -9` of the server with all its children while everything is at work.
pub async fn server_kills(
    run: &Run,
    name: &str,
    server: &Postgres,
    database: Database,
    kills: u64,
) -> Result<Outcome> {
    let rig = Rig::new(run, name, database).await?;
    kill_servers(rig, server, kills, &Relays::default()).await
}

/// The same, with relays and handlers whose commits the server may lose: effect and cursor are lost together, and what
/// was lost is done again. Those who publish wait for the disk. Of an adopted table claims and marks are lost together with
/// the cursor.
pub async fn server_kills_of_asynchronous_handlers(
    run: &Run,
    name: &str,
    server: &Postgres,
    database: Database,
    kills: u64,
) -> Result<Outcome> {
    let rig = Rig::new(run, name, database).await?;
    let url = with_setting(rig.database.url(), "synchronous_commit=off");
    kill_servers(rig, server, kills, &Relays { url: Some(url), ..Relays::default() }).await
}

pub(super) async fn kill_servers(
    mut rig: Rig,
    server: &Postgres,
    kills: u64,
    relays: &Relays,
) -> Result<Outcome> {
    rig.start_relays(1, relays)?;
    rig.start_relays(1, &relays.clone().arg("--driver", "sqlx"))?;
    rig.start_writers(12, &["--pause-ms", "300", "--two-phase"])?;
    for round in 1..=kills {
        let calm = rig.between(50, 400);
        rig.work(calm).await;
        if round.is_multiple_of(5) {
            kill_backend(&mut rig).await?;
        }
        let in_flight = rig.wait_for_flight();
        server.kill9();
        rig.figures.server_kill(in_flight);
        server.restart()?;
        let up = Instant::now();
        rig.end_prepared().await?;
        rig.measure_recovery(up).await?;
    }
    if rig.figures.server_kills.len() < kills as usize {
        rig.problem("a kill of the server found nothing in flight");
    }
    rig.finish().await
}

/// Kills one session's process: the server ends all others and recovers by itself.
async fn kill_backend(rig: &mut Rig) -> Result<()> {
    let Database::Postgres(database) = &rig.database else { return Ok(()) };
    let query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() LIMIT 1";
    let rows = database.query(query, &[]).await?;
    let Some(pid) = rows.first().and_then(|row| Pid::from_raw(row.get(0))) else { return Ok(()) };
    if let Err(error) = kill_process(pid, Signal::KILL) {
        rig.figures.notes.push(format!("no kill of a single session: {error}"));
        return Ok(());
    }
    rig.figures.fault("kill -9 of one session of PostgreSQL");
    rig.measure_recovery(Instant::now()).await
}

/// SIGTERM at random moments: what is under way ends, the lanes are handed on, the process ends well.
pub async fn terminations(
    run: &Run,
    name: &str,
    database: Database,
    count: u64,
) -> Result<Outcome> {
    let load = Load::on(&database);
    let mut rig = Rig::new(run, name, database).await?;
    rig.start_relays(2, &Relays::default())?;
    rig.start_writers(load.writers, load.args)?;
    for _ in 0..count {
        let calm = rig.between(10, 300);
        rig.work(calm).await;
        rig.settle_broker().await?;
        let asked = rig.terminate_relay(&Relays::default())?;
        rig.measure_takeover(asked).await?;
    }
    rig.finish().await
}
