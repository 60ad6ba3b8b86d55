use super::{Load, adopting};
use crate::broker::Broker;
use crate::database::Database;
use crate::report::Outcome;
use crate::rig::{LEASE, RECOVERY_LIMIT, Relays, Rig, Run};
use anyhow::{Context, Result};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Every so many kills a relay sleeps past its lease, and every so many others the broker is gone for a while.
const SLEEP_EVERY: usize = 5;
const DOWN_EVERY: usize = 7;

/// An outbox table of somebody else's, its names and states drawn from the seed, relayed by what a file of configuration
/// says of it: relays are killed with claimed rows in hand, sleep past their lease, and the broker comes and goes.
pub async fn adopted(run: &Run, name: &str, database: Database, kills: usize) -> Result<Outcome> {
    let load = Load::on(&database);
    let mut rig = Rig::new(run, name, adopting(run, database)).await?;
    let broker = rig.broker().context("an adopted table has a broker")?;
    rig.start_relays(2, &Relays::default())?;
    rig.start_writers(load.writers, load.args)?;
    let mut round = 0;
    while rig.figures.kills() < kills && round < 3 * kills {
        round += 1;
        let calm = rig.between(50, 300);
        rig.work(calm).await;
        if round.is_multiple_of(SLEEP_EVERY) {
            sleep_past_lease(&mut rig).await?;
            // A fleet at rest: in a storm of deaths those who should take over are themselves just starting.
            rig.settle().await?;
            let died = rig.kill_relay(&Relays::default())?;
            rig.measure_takeover(died).await?;
            continue;
        }
        rig.kill_relay(&Relays::default())?;
        if round.is_multiple_of(DOWN_EVERY) {
            go_away(&mut rig, &broker).await?;
        }
    }
    rig.expect_kills(kills);
    rig.finish().await
}

/// One that lives sleeps while another takes its lanes, and wakes with rows in hand that are claimed by nobody's name.
async fn sleep_past_lease(rig: &mut Rig) -> Result<()> {
    rig.settle().await?;
    let victim = rig.below(rig.relays.len() as u64) as usize;
    let relay = &mut rig.relays[victim];
    relay.wait_until(RECOVERY_LIMIT, |told| told.in_flight() > 0);
    relay.pause();
    let paused = Instant::now();
    rig.figures.fault("SIGSTOP past the lease");
    // Of SQLite's write lock a sleeper may have all there is.
    if matches!(rig.database, Database::Postgres(_)) {
        rig.measure_takeover(paused).await?;
    }
    rig.work((LEASE * 2).saturating_sub(paused.elapsed())).await;
    rig.relays[victim].resume();
    rig.measure_recovery(Instant::now()).await
}

async fn go_away(rig: &mut Rig, broker: &Arc<Broker>) -> Result<()> {
    broker.set_down(true);
    rig.figures.fault("broker down");
    rig.work(Duration::from_millis(600)).await;
    broker.set_down(false);
    rig.measure_recovery(Instant::now()).await
}
