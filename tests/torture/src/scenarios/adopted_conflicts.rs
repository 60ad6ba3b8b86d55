use super::{adopting, on_postgres, with_setting};
use crate::adopted::Table;
use crate::database::Database;
use crate::report::Outcome;
use crate::rig::{RECOVERY_LIMIT, Relays, Rig, Run};
use anyhow::{Context, Result};
use relevo_core::clock::Rng;
use relevo_testkit::services::Postgres;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// How many of the owner's sessions work on rows that are on their way.
const OWNERS: u64 = 4;
/// So many rows in one transaction.
const ROWS: usize = 8;
/// So long a statement of the relay in a hurry may take; now and then an owner holds its rows for longer.
const HURRY_MS: u64 = 100;

/// An owner that works on the rows of its table while they are claimed, published and marked: deadlocks with relays,
/// serialization failures of its own, statements of relays that wait too long for a row.
pub async fn conflicts_with_owners(
    run: &Run,
    name: &str,
    server: &Postgres,
    time: Duration,
) -> Result<Outcome> {
    let mut rig = Rig::new(run, name, adopting(run, on_postgres(server)?)).await?;
    let hurry = with_setting(rig.database.url(), &format!("statement_timeout={HURRY_MS}"));
    rig.start_relays(2, &Relays::default())?;
    rig.start_relays(1, &Relays { url: Some(hurry), ..Relays::default() })?;
    rig.start_writers(12, &["--pause-ms", "300"])?;
    let owners = owners(&mut rig)?;
    rig.work(time).await;
    // However slow or fast the machine is, each of them must have happened.
    let deadline = Instant::now() + 4 * RECOVERY_LIMIT;
    while met(server).iter().any(|(_, count)| *count == 0) && Instant::now() < deadline {
        rig.work(Duration::from_millis(200)).await;
    }
    drop(owners);
    for (what, count) in met(server) {
        rig.figures.faults.insert(what.to_owned(), count);
        if count == 0 {
            rig.problem(format!("no {what} happened: the scenario does not do what it says"));
        }
    }
    rig.measure_recovery(Instant::now()).await?;
    rig.finish().await
}

/// What the server says. Owners lock their rows in one order, and so never wait for each other in a circle; and only a
/// relay has a limit for its statements.
fn met(server: &Postgres) -> [(&'static str, u64); 3] {
    let log = server.log();
    let count = |text: &str| log.matches(text).count() as u64;
    [
        ("deadlocks of owners and relays", count("deadlock detected")),
        ("serialization failures of owners", count("could not serialize access")),
        ("statement timeouts of relays", count("due to statement timeout")),
    ]
}

/// Begins to work on rows; ends when it is dropped.
fn owners(rig: &mut Rig) -> Result<JoinSet<()>> {
    let Database::Postgres(database) = &rig.database else { return Ok(JoinSet::new()) };
    let table = Arc::new(rig.database.adopted().context("no table is adopted")?.clone());
    let url = database.url.clone();
    let mut owners = JoinSet::new();
    for _ in 0..OWNERS {
        let rng = Rng::seeded(rig.rng.next_u64());
        owners.spawn(own(url.clone(), table.clone(), rng));
    }
    Ok(owners)
}

async fn own(url: String, table: Arc<Table>, mut rng: Rng) {
    loop {
        if let Ok((mut client, connection)) = tokio_postgres::connect(&url, NoTls).await {
            tokio::spawn(connection);
            while !client.is_closed() {
                // The victim of a conflict begins anew.
                if let Err(error) = change_some(&mut client, &table, &mut rng).await {
                    tracing::debug!(%error, "an owner's transaction failed");
                }
                tokio::time::sleep(Duration::from_millis(rng.below(20))).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// One transaction: a few of the newest rows, one after the other, the newest first.
async fn change_some(client: &mut Client, table: &Table, rng: &mut Rng) -> Result<()> {
    let isolated = rng.below(2) == 0;
    let transaction = client.build_transaction();
    let tx = match isolated {
        true => transaction.isolation_level(tokio_postgres::IsolationLevel::RepeatableRead),
        false => transaction,
    };
    let tx = tx.start().await?;
    let look = table.newest_pending(ROWS).context("the table has no order")?;
    for message in tx.simple_query(&look).await? {
        let SimpleQueryMessage::Row(row) = message else { continue };
        let touch = table.touch(row.get(0).unwrap_or_default()).context("no id")?;
        tx.batch_execute(&touch).await?;
        tokio::time::sleep(Duration::from_millis(rng.below(8))).await;
    }
    if rng.below(10) == 0 {
        tokio::time::sleep(Duration::from_millis(2 * HURRY_MS)).await;
    }
    Ok(tx.commit().await?)
}
