use super::restore::elsewhere;
use super::{Source, on_postgres};
use crate::database::Database;
use crate::report::Outcome;
use crate::rig::{Relays, Rig, Run};
use anyhow::{Result, ensure};
use relevo_testkit::services::{Postgres, Proxy};
use std::time::{Duration, Instant};

const SHAPES: [&str; 6] = ["--pause-ms", "200", "--inside-ms", "20", "--hold-ms", "300"];

/// A standby that lags takes over from a server that died, under relays that never stop. What had not reached it is
/// nobody's any more: events, effects, ticks and cursors alike. Of what had, nothing may be lost, and of the relays'
/// memory of the rest nothing may be believed. (A broker may have had some of it: that was right at its time.)
pub async fn promoted_under_relays(
    run: &Run,
    name: &str,
    primary: &Postgres,
    source: Source,
) -> Result<Outcome> {
    let replication = Proxy::start(primary.address())?;
    let standby = primary.standby(replication.address())?;
    let clients = Proxy::start(primary.address())?;
    let mut rig = Rig::new(run, name, source.of(run, on_postgres(primary)?)).await?;
    let behind = elsewhere(&rig.database, &standby)?;
    let through = clients.url(rig.database.url());
    rig.start_relays(2, &Relays { url: Some(through.clone()), ..Relays::default() })?;
    rig.start_writers_at(&through, 16, &SHAPES)?;
    rig.work(Duration::from_secs(2)).await;
    replicated(&rig, &behind).await?;
    replication.half_open();
    let transactions = rig.transactions();
    rig.work_until(transactions + 100).await?;
    rig.wait_for_flight();
    primary.kill9();
    clients.refuse();
    rig.kill_writers();
    standby.promote()?;
    rig.database = behind;
    let lost = rig.believe_only_the_database().await?;
    ensure!(lost > 0, "the standby had everything that the server confirmed: nothing was lost");
    rig.figures.notes.push(format!("{lost} confirmed transactions had not reached the standby"));
    rig.figures.fault("a standby that lags took over under running relays");
    clients.lead_to(standby.address());
    clients.heal();
    rig.come_to_rest().await?;
    rig.start_writers(16, &SHAPES)?;
    rig.measure_recovery(Instant::now()).await?;
    rig.work(Duration::from_secs(1)).await;
    rig.finish().await
}

/// Waits until something of the work has reached the standby.
async fn replicated(rig: &Rig, behind: &Database) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    // As long as the database itself has not, it is an error to ask for it there.
    while worked_off(behind).await.unwrap_or_default() < 50 {
        ensure!(Instant::now() < deadline, "the standby does not follow");
        rig.work(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// How much of the work a database knows of: effects, or whatever wrote into an adopted table, whose effects are elsewhere.
async fn worked_off(database: &Database) -> Result<usize> {
    match database.adopted() {
        Some(_) => Ok(database.business().await?.len()),
        None => database.count_effects().await,
    }
}
