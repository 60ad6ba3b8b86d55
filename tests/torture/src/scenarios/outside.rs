use super::Load;
use crate::broker::Broker;
use crate::database::Database;
use crate::report::Outcome;
use crate::rig::{Relays, Rig, Run};
use anyhow::Result;
use std::time::{Duration, Instant};

/// Towards a broker that refuses, forgets to answer, hangs up and goes away, with relays that are killed meanwhile.
pub async fn outside(run: &Run, name: &str, database: Database, kills: usize) -> Result<Outcome> {
    let load = Load::on(&database);
    let broker = Broker::start(run.seed).await?;
    let mut rig = Rig::new(run, name, database).await?;
    rig.towards(broker.clone());
    rig.start_relays(2, &Relays::default())?;
    rig.start_writers(load.writers, load.args)?;
    let mut round = 0;
    while rig.figures.kills() < kills && round < 3 * kills {
        round += 1;
        let calm = rig.between(50, 400);
        rig.work(calm).await;
        rig.kill_relay(&Relays::default())?;
        if round.is_multiple_of(4) {
            broker.set_down(true);
            rig.figures.fault("broker down");
            rig.work(Duration::from_millis(600)).await;
            broker.set_down(false);
            rig.measure_recovery(Instant::now()).await?;
        }
    }
    rig.expect_kills(kills);
    rig.finish().await
}
