use super::{on_postgres, with_setting};
use crate::database::Database;
use crate::report::Outcome;
use crate::rig::{RECOVERY_LIMIT, Relays, Rig, Run};
use crate::worker::tripwire::EXHAUSTED;
use anyhow::{Context, Result};
use relevo_testkit::services::Postgres;
use std::time::{Duration, Instant};

/// Handlers that fight over rows: deadlocks, serialization failures, statement timeouts, a pool that is too small.
pub async fn conflicts(
    run: &Run,
    name: &str,
    server: &Postgres,
    time: Duration,
) -> Result<Outcome> {
    let mut rig = Rig::new(run, name, on_postgres(server)?).await?;
    let fighting = Relays { args: vec!["--conflicts".into()], ..Relays::default() };
    let with = |setting: &str| {
        let url = with_setting(rig.database.url(), setting);
        Relays { url: Some(url), ..fighting.clone() }
    };
    let isolated = with("default_transaction_isolation=repeatable read").arg("--driver", "sqlx");
    let hurried = with("statement_timeout=40");
    rig.start_relays(1, &fighting.clone().arg("--pool", 1).arg("--pool-wait-ms", 15))?;
    rig.start_relays(1, &fighting)?;
    rig.start_relays(1, &isolated)?;
    rig.start_relays(1, &hurried)?;
    rig.start_writers(12, &["--pause-ms", "400"])?;
    rig.work(time).await;
    // However slow or fast the machine is, each of them must have happened.
    let deadline = Instant::now() + 4 * RECOVERY_LIMIT;
    while met(&rig, server).iter().any(|(_, count)| *count == 0) && Instant::now() < deadline {
        rig.work(Duration::from_millis(200)).await;
    }
    rig.measure_recovery(Instant::now()).await?;
    count_conflicts(&mut rig, server);
    let database = rig.database.clone();
    let mut outcome = rig.finish().await?;
    if let Err(error) = shared_rows_agree(&database, outcome.verdict.effects).await {
        outcome.problems.push(format!("{error:#}"));
    }
    Ok(outcome)
}

/// What the server says it did to the handlers, and how often they found no connection.
fn met(rig: &Rig, server: &Postgres) -> [(&'static str, u64); 4] {
    let log = server.log();
    let count = |text: &str| log.matches(text).count() as u64;
    [
        ("deadlocks", count("deadlock detected")),
        ("serialization failures", count("could not serialize access")),
        ("statement timeouts", count("due to statement timeout")),
        (EXHAUSTED, rig.met(EXHAUSTED)),
    ]
}

fn count_conflicts(rig: &mut Rig, server: &Postgres) {
    for (name, count) in met(rig, server) {
        rig.figures.faults.insert(name.to_owned(), count);
        if count == 0 {
            rig.problem(format!("no {name} happened: the scenario does not do what it says"));
        }
    }
}

/// Every effect counted two of the shared rows up, in its own transaction.
async fn shared_rows_agree(database: &Database, effects: usize) -> Result<()> {
    let Database::Postgres(database) = database else { return Ok(()) };
    let rows = database.query("SELECT sum(n)::bigint FROM shared", &[]).await?;
    let counted: i64 = rows.first().context("the sum of the shared rows")?.try_get(0)?;
    anyhow::ensure!(
        counted == 2 * effects as i64,
        "{effects} effects counted {counted} on shared rows, not twice as many"
    );
    Ok(())
}
