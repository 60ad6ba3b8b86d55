use super::{Load, Source, on_postgres, on_sqlite};
use crate::database::Database;
use crate::report::Outcome;
use crate::rig::{Relays, Rig, Run};
use anyhow::{Context, Result, bail, ensure};
use relevo_testkit::services::{Postgres, Proxy, pg_client_for, sql};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A dump taken while everything is at work, restored into another cluster, where the work goes on.
///
/// Judged twice: the first cluster, which never noticed, and the second, whose truth is what the dump brought and
/// what was published there since.
pub async fn restore(
    run: &Run,
    name: &str,
    from: &Postgres,
    to: &Postgres,
    source: Source,
) -> Result<[Outcome; 2]> {
    let folder = tempfile::tempdir()?;
    let dump = folder.path().join("dump.sql");
    let database = source.of(run, on_postgres(from)?);
    let mut first = Rig::new(run, &format!("{name}: the first cluster"), database).await?;
    first.start_relays(2, &Relays::default())?;
    let shapes = ["--pause-ms", "300", "--inside-ms", "20", "--two-phase", "--hold-ms", "1500"];
    first.start_writers(16, &shapes)?;
    first.work(Duration::from_secs(3)).await;
    dump_of(from, first.database.url(), &dump)?;
    // Whatever the dump calls published had been stored by then.
    let stored = first.broker().map(|broker| broker.stored()).unwrap_or_default();
    first.figures.fault("dump while at work");
    let restored = source.of(run, on_postgres(to)?);
    restore_into(to, &restored, &dump)?;
    let mut second = Rig::new(run, &format!("{name}: the second cluster"), restored).await?;
    second.inherit(&first, stored).await?;
    first.work(Duration::from_millis(500)).await;
    let first = first.finish().await?;
    second.figures.fault("restored into another cluster");
    second.start_relays(2, &Relays::default())?;
    second.start_writers(16, &shapes)?;
    second.measure_recovery(std::time::Instant::now()).await?;
    second.work(Duration::from_secs(2)).await;
    let mut second = second.finish().await?;
    if !second.figures.notes.iter().any(|note| note.contains("cluster")) {
        second.problems.push("nothing was said of the move to another cluster".into());
    }
    Ok([first, second])
}

/// The same with a file: a copy that `VACUUM INTO` makes while everything is at work, with which others go on.
pub async fn restore_of_a_file(run: &Run, name: &str, source: Source) -> Result<[Outcome; 2]> {
    let folder = tempfile::tempdir()?;
    let database = source.of(run, on_sqlite(folder.path()));
    let mut first = Rig::new(run, &format!("{name}: the first file"), database).await?;
    let load = Load::on(&first.database);
    first.start_relays(2, &Relays::default())?;
    first.start_writers(load.writers, load.args)?;
    first.work(Duration::from_secs(2)).await;
    let Database::Sqlite(file) = &first.database else { bail!("a server has no file") };
    let copied = Database::Sqlite(file.copy_into(&folder.path().join("copy.db"))?);
    // Whatever the copy calls published had been stored by then.
    let stored = first.broker().map(|broker| broker.stored()).unwrap_or_default();
    first.figures.fault("copy while at work");
    // What was stored meanwhile, and what the copy has, is known then.
    first.work_until_told().await?;
    let mut second = Rig::new(run, &format!("{name}: the copy"), copied).await?;
    second.inherit(&first, stored).await?;
    let first = first.finish().await?;
    second.figures.fault("gone on with a copy");
    second.start_relays(2, &Relays::default())?;
    second.start_writers(load.writers, load.args)?;
    second.measure_recovery(std::time::Instant::now()).await?;
    second.work(Duration::from_secs(1)).await;
    Ok([first, second.finish().await?])
}

/// The database moves to another cluster under relays that never stop: their connections break, and the next ones meet
/// the restored copy. What was committed but not delivered before must come without anything new being published.
pub async fn moved_under_relays(
    run: &Run,
    name: &str,
    from: &Postgres,
    to: &Postgres,
    source: Source,
) -> Result<Outcome> {
    let folder = tempfile::tempdir()?;
    let dump = folder.path().join("dump.sql");
    let proxy = Proxy::start(from.address())?;
    let mut rig = Rig::new(run, name, source.of(run, on_postgres(from)?)).await?;
    let through = proxy.url(rig.database.url());
    rig.start_relays(2, &Relays { url: Some(through), ..Relays::default() })?;
    let shapes = ["--pause-ms", "200", "--inside-ms", "20", "--hold-ms", "300"];
    rig.start_writers(16, &shapes)?;
    rig.work(Duration::from_secs(2)).await;
    proxy.refuse();
    rig.work(Duration::from_secs(1)).await;
    rig.end_writers().await?;
    dump_of(from, rig.database.url(), &dump)?;
    let restored = elsewhere(&rig.database, to)?;
    let create = format!("CREATE DATABASE {} TEMPLATE template0", database_name(restored.url()));
    sql::execute(&to.url("postgres"), &create)?;
    rig.database = restored;
    restore_into(to, &rig.database, &dump)?;
    rig.figures.fault("moved to another cluster under running relays");
    proxy.lead_to(to.address());
    proxy.heal();
    rig.come_to_rest().await?;
    rig.start_writers(16, &shapes)?;
    rig.measure_recovery(std::time::Instant::now()).await?;
    rig.work(Duration::from_secs(1)).await;
    rig.finish().await
}

/// The same database on another server.
pub(super) fn elsewhere(database: &Database, server: &Postgres) -> Result<Database> {
    let Database::Postgres(here) = database else { bail!("a file has no server") };
    Ok(Database::Postgres(here.at(server.url(&database_name(&here.url)))))
}

fn database_name(url: &str) -> String {
    url.rsplit('/').next().unwrap_or_default().to_owned()
}

fn dump_of(server: &Postgres, url: &str, file: &Path) -> Result<()> {
    let mut command = Command::new(pg_client_for("pg_dump", server.major())?);
    command.arg("--dbname").arg(url).arg("--file").arg(file);
    succeed(command)
}

fn restore_into(server: &Postgres, database: &Database, file: &Path) -> Result<()> {
    let mut command = Command::new(pg_client_for("psql", server.major())?);
    command
        .args(["--quiet", "--set", "ON_ERROR_STOP=1", "--dbname"])
        .arg(database.url())
        .arg("--file")
        .arg(file);
    succeed(command)
}

fn succeed(mut command: Command) -> Result<()> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
