//! What goes, and after how long: dispatched rows of `Outbox` after thirty days, what says that an event was processed when
//! nothing can bring it again. A row that waits stays, however old it is. Where `Outbox` is partitioned, months of which
//! nothing is left go as a whole.

use crate::clock::Clock;
use crate::database::{Connection, Database, Value};
use anyhow::Result;
use chrono::{Datelike, Months, NaiveDate, TimeDelta};
use std::time::Duration;

/// How long dispatched rows of `Outbox` are kept.
pub const KEPT: TimeDelta = TimeDelta::days(30);
/// How long it is known which events were processed: a copy that comes later is processed again. RabbitMQ keeps nothing
/// that was acknowledged, and retries end after half an hour; but a dead letter of the dispatcher, whose event may have
/// come through all the same, can be replayed for 90 days, and for 90 more if it dies again.
pub const PROCESSED_KEPT: TimeDelta = TimeDelta::days(190);
/// How long it is known which dead letters are in their queue: longer than the letters themselves stay (90 days).
const LETTERS_KEPT: TimeDelta = TimeDelta::days(120);
/// Between two sweeps.
pub const EVERY: Duration = Duration::from_secs(3600);

/// What a sweep took away.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// Dispatched rows of `Outbox`.
    pub outbox: u64,
    /// Rows of `ProcessedEvents`.
    pub processed: u64,
    /// Rows of `DlqPublished`.
    pub dead_letters: u64,
    /// Partitions of `Outbox`.
    pub partitions: u64,
}

/// Takes away what is older than it is kept, by `clock`.
pub async fn sweep(database: &Database, clock: &Clock) -> Result<Swept> {
    const OUTBOX: &str = r#"DELETE FROM "Outbox" WHERE "DispatchedAt" < $1"#;
    const PROCESSED: &str = r#"DELETE FROM "ProcessedEvents" WHERE "ProcessedAt" < $1"#;
    const DLQ: &str = r#"DELETE FROM "DlqPublished" WHERE "PublishedAt" < $1"#;
    let before = |kept: TimeDelta| -> [Value; 1] { [(clock.now() - kept).into()] };
    let mut connection = database.connect().await?;
    let mut session = connection.session();
    let mut swept = Swept {
        outbox: session.execute(OUTBOX, &before(KEPT)).await?,
        processed: session.execute(PROCESSED, &before(PROCESSED_KEPT)).await?,
        dead_letters: session.execute(DLQ, &before(LETTERS_KEPT)).await?,
        partitions: 0,
    };
    if matches!(database, Database::Postgres(_)) {
        swept.partitions =
            drop_partitions(&mut connection, (clock.now() - KEPT).date_naive()).await?;
    }
    Ok(swept)
}

/// Drops the partitions of months that ended before this day and have no row left. Answers how many.
async fn drop_partitions(connection: &mut Connection, before: NaiveDate) -> Result<u64> {
    let over = |month: &NaiveDate| *month + Months::new(1) <= before;
    let old: Vec<NaiveDate> = months(connection).await?.into_iter().filter(over).collect();
    for month in &old {
        connection.batch(&drop_if_empty(*month)).await?;
    }
    let left = months(connection).await?;
    Ok(old.iter().filter(|month| !left.contains(month)).count() as u64)
}

/// The months that have a partition.
async fn months(connection: &mut Connection) -> Result<Vec<NaiveDate>> {
    const NAMES: &str = r#"SELECT c.relname::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = '"Outbox"'::regclass"#;
    let rows = connection.session().query(NAMES, &[]).await?;
    let names: Vec<String> = rows.iter().map(|row| row.text(0)).collect::<Result<_>>()?;
    // The default partition is of no month.
    let month = |name: &String| NaiveDate::parse_from_str(&format!("{name}_01"), "Outbox_%Y_%m_%d");
    Ok(names.iter().filter_map(|name| month(name).ok()).collect())
}

/// Dropping a partition takes the whole table for a moment. Whoever is at work there comes first: then it is the next
/// sweep's.
fn drop_if_empty(month: NaiveDate) -> String {
    let name = name(month);
    format!(
        r#"DO $$ BEGIN
            IF NOT EXISTS (SELECT FROM "{name}") THEN
                PERFORM set_config('lock_timeout', '2s', true);
                LOCK TABLE ONLY "Outbox" IN ACCESS EXCLUSIVE MODE;
                IF NOT EXISTS (SELECT FROM "{name}") THEN DROP TABLE "{name}"; END IF;
            END IF;
        EXCEPTION WHEN lock_not_available THEN NULL; END $$"#
    )
}

fn name(month: NaiveDate) -> String {
    month.format("Outbox_%Y_%m").to_string()
}

/// Makes the partitions of this month and the next, where `Outbox` is partitioned.
pub async fn partitions(database: &Database, clock: &Clock) -> Result<()> {
    const PARTITIONED: &str =
        r#"SELECT 1::bigint FROM pg_class WHERE oid = '"Outbox"'::regclass AND relkind = 'p'"#;
    let Database::Postgres(_) = database else { return Ok(()) };
    let mut connection = database.connect().await?;
    if connection.session().query_one(PARTITIONED, &[]).await?.is_none() {
        return Ok(());
    }
    let this = clock.now().date_naive().with_day(1).unwrap_or_default();
    for month in [this, this + Months::new(1)] {
        connection.batch(&partition(month)).await?;
    }
    Ok(())
}

fn partition(month: NaiveDate) -> String {
    let next = month + Months::new(1);
    let name = name(month);
    format!(
        r#"CREATE TABLE IF NOT EXISTS "{name}" PARTITION OF "Outbox" FOR VALUES FROM ('{month}Z') TO ('{next}Z')"#
    )
}

/// Makes partitions and sweeps at once and then every `every`, for ever.
pub async fn keep(database: Database, clock: Clock, every: Duration) {
    loop {
        if let Err(error) = partitions(&database, &clock).await {
            tracing::warn!(error = format!("{error:#}"), "partitions; the next sweep tries again");
        }
        match sweep(&database, &clock).await {
            Ok(swept) => tracing::debug!(?swept, "retention"),
            Err(error) => {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "retention; the next sweep tries again"
                )
            }
        }
        tokio::time::sleep(every).await;
    }
}
