use crate::database::Database;
use crate::report::Outcome;
use crate::rig::{RECOVERY_LIMIT, Relays, Rig, Run};
use crate::writer::{HELD, Shape};
use anyhow::Result;
use std::time::{Duration, Instant};

/// Many writers whose commits come in another order than their numbers, and a transaction that is held open.
pub async fn commit_order(
    run: &Run,
    name: &str,
    database: Database,
    time: Duration,
    hold: Duration,
) -> Result<Outcome> {
    let mut rig = Rig::new(run, name, database).await?;
    rig.start_relays(2, &Relays::default())?;
    let hold_ms = hold.as_millis().to_string();
    let shapes = ["--pause-ms", "100", "--inside-ms", "40", "--two-phase", "--hold-ms", &hold_ms];
    rig.start_writers(32, &shapes)?;
    let end = Instant::now() + time.max(hold + Duration::from_secs(1));
    let give_up = end + hold + 4 * RECOVERY_LIMIT;
    while Instant::now() < end || (unseen(&rig).is_some() && Instant::now() < give_up) {
        rig.work(Duration::from_millis(800)).await;
        // While the open transaction goes on, everybody else must too.
        rig.measure_recovery(Instant::now()).await?;
    }
    if let Some(shape) = unseen(&rig) {
        rig.problem(format!("no transaction of the shape {shape:?} came to its end"));
    }
    let held = rig.shapes().get(HELD).copied().unwrap_or(0);
    (0..held).for_each(|_| rig.figures.fault("transaction held open"));
    rig.finish().await
}

/// A shape of transactions that did not occur yet.
fn unseen(rig: &Rig) -> Option<&'static str> {
    let seen = rig.shapes();
    Shape::NAMES.into_iter().find(|shape| !seen.contains_key(*shape))
}
