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
    let pace: &[&str] = match rig.database {
        Database::Postgres(_) => &["--pause-ms", "100", "--inside-ms", "40", "--two-phase"],
        // Whoever waits inside a transaction keeps everybody waiting.
        Database::Sqlite(_) => &["--pause-ms", "1500", "--inside-ms", "4"],
    };
    rig.start_writers(32, &[pace, &["--hold-ms", &hold_ms]].concat())?;
    let end = Instant::now() + time.max(hold + Duration::from_secs(1));
    let give_up = end + hold + 4 * RECOVERY_LIMIT;
    while Instant::now() < end || (unseen(&rig).is_some() && Instant::now() < give_up) {
        rig.work(Duration::from_millis(800)).await;
        // While the open transaction goes on, everybody else must too; on SQLite, as soon as it ends.
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
    let (seen, postgres) = (rig.shapes(), matches!(rig.database, Database::Postgres(_)));
    let there_is = |shape: &&str| postgres || *shape != Shape::TwoPhase.name();
    Shape::NAMES.into_iter().filter(there_is).find(|shape| !seen.contains_key(*shape))
}
