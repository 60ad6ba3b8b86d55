use super::Load;
use crate::database::Database;
use crate::report::Outcome;
use crate::rig::{RECOVERY_LIMIT, Relays, Rig, Run, START_LIMIT};
use anyhow::{Context, Result, ensure};
use std::time::Instant;

/// So many transactions show that writers go on.
const SOME: usize = 80;

/// The schema moves to the next version under relays and writers of this one, which go on; then those of the next
/// version join, and the old ones end.
pub async fn rolling_schema(run: &Run, name: &str, database: Database) -> Result<Outcome> {
    let load = Load::on(&database);
    let mut rig = Rig::new(run, name, database).await?;
    let next = Relays { args: vec!["--next".into()], ..Relays::default() };
    rig.start_relays(2, &Relays::default())?;
    rig.start_writers(load.writers, load.args)?;
    // One writer at a time is all that SQLite has.
    let hold_ms = if matches!(rig.database, Database::Postgres(_)) { "1500" } else { "0" };
    rig.start_writers(1, &["--hold-ms", hold_ms])?;
    rig.work_until(SOME).await?;
    ensure!(!rig.database.move_to_next().await?.is_empty(), "the schema did not move");
    rig.figures.fault("schema moved to the next version");
    old_ones_go_on(&mut rig).await?;
    rig.start_relays(2, &next)?;
    rig.start_writers(load.writers, &[load.args, &["--next"]].concat())?;
    rig.work_until(rig.transactions() + SOME).await?;
    for _ in 0..2 {
        rig.relays.remove(0).terminate(RECOVERY_LIMIT).context("an old relay ends")?;
        rig.figures.fault("an old relay ended");
        rig.measure_recovery(Instant::now()).await?;
        rig.writers.remove(0).terminate(RECOVERY_LIMIT).context("old writers end")?;
    }
    rig.work_until(rig.transactions() + SOME).await?;
    rig.finish().await
}

/// Those at work do, and so does one that dies and is started again as it was.
async fn old_ones_go_on(rig: &mut Rig) -> Result<()> {
    rig.measure_recovery(Instant::now()).await?;
    rig.work_until(rig.transactions() + SOME).await?;
    rig.kill_relay(&Relays::default())?;
    for relay in &rig.relays {
        let ready = relay.wait_until(START_LIMIT, |told| told.ready);
        ensure!(ready, "{} does not start on the next version's schema", relay.name);
    }
    rig.measure_recovery(Instant::now()).await
}
