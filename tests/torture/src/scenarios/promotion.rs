use super::on_postgres;
use super::restore::database_name;
use crate::database::{Database, PostgresDatabase};
use crate::report::Outcome;
use crate::rig::{Relays, Rig, Run};
use anyhow::{Result, ensure};
use relevo_testkit::services::{Postgres, Proxy};
use std::time::{Duration, Instant};

const SHAPES: [&str; 6] = ["--pause-ms", "200", "--inside-ms", "20", "--hold-ms", "300"];

/// A standby that lags takes over from a server that died, under relays that never stop. What had not reached it is
/// nobody's any more: events, effects, ticks and cursors alike. Of what had, nothing may be lost, and of the relays'
/// memory of the rest nothing may be believed.
pub async fn promoted_under_relays(run: &Run, name: &str, primary: &Postgres) -> Result<Outcome> {
    let replication = Proxy::start(primary.address())?;
    let standby = primary.standby(replication.address())?;
    let clients = Proxy::start(primary.address())?;
    let mut rig = Rig::new(run, name, on_postgres(primary)?).await?;
    let behind = PostgresDatabase::new(standby.url(&database_name(rig.database.url())));
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
    rig.database = Database::Postgres(behind);
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
async fn replicated(rig: &Rig, behind: &PostgresDatabase) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    // As long as the database itself has not, it is an error to ask for it there.
    while behind.count_effects().await.unwrap_or_default() < 50 {
        ensure!(Instant::now() < deadline, "the standby does not follow");
        rig.work(Duration::from_millis(50)).await;
    }
    Ok(())
}
