use super::Load;
use crate::database::Database;
use crate::report::Outcome;
use crate::rig::{Relays, Rig, Run};
use anyhow::Result;
use rusqlite::TransactionBehavior;
use std::time::{Duration, Instant};

/// Somebody holds SQLite's write lock for longer than anybody waits for it.
pub async fn sqlite_busy(
    run: &Run,
    name: &str,
    database: Database,
    times: u64,
    hold: Duration,
) -> Result<Outcome> {
    let load = Load::on(&database);
    let mut rig = Rig::new(run, name, database).await?;
    rig.start_relays(2, &Relays::default())?;
    rig.start_writers(load.writers, load.args)?;
    for _ in 0..times {
        rig.work(Duration::from_millis(300)).await;
        if let Database::Sqlite(database) = &rig.database {
            let mut connection = database.connect()?;
            let held = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            std::thread::sleep(hold);
            held.rollback()?;
        }
        rig.figures.fault("write lock held by a stranger");
        rig.measure_recovery(Instant::now()).await?;
    }
    rig.finish().await
}
