use super::backoff::Backoff;
use super::checked::Checked;
use relevo::adopt::{AdoptedTable, Mapping, Pending, Preset, TableName};
use relevo::broker::{Publisher, ToBroker};
use relevo::postgres::{self, PostgresStore};
use relevo::sqlite::{self, SqliteStore};
use relevo::{Operate, Relay, RelayConfig, Result, Retention, RunningRelay, Subscription};
use std::sync::Arc;
use std::time::Duration;

/// The relay's subscription, and the name under which the table is adopted.
pub const SUBSCRIPTION: &str = "outbox_events";

/// So many rows, by several claims, are on their way before the first of them was confirmed.
const PAGE_ROWS: usize = 1000;

/// How the table is relayed. The defaults are the document's.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Pauses between two looks at a quiet table: the shortest, doubling up to the longest.
    pub poll: (Duration, Duration),
    /// Most rows of one claim and most events of one batch.
    pub batch: usize,
    /// When a failed event is tried again.
    pub backoff: Backoff,
    /// How long a relay that says nothing keeps its share.
    pub lease: Duration,
    /// How long dead letters can be sent again.
    pub keep_dead: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            poll: (Duration::from_millis(500), Duration::from_secs(2)),
            batch: 50,
            backoff: Backoff::default(),
            lease: Duration::from_secs(10),
            keep_dead: Duration::from_secs(90 * 86_400),
        }
    }
}

impl Settings {
    fn config(&self) -> RelayConfig {
        let mut config = RelayConfig::default();
        config.poll = self.poll;
        config.batch = self.batch;
        config.page_rows = PAGE_ROWS;
        // What is claimed and not confirmed lies before what is not claimed yet: each look at the table goes past it.
        config.lane_queue = 2 * self.batch;
        config.retry = self.backoff.policy();
        config.lease = self.lease;
        config
    }

    fn retention(&self) -> Retention {
        let mut retention = Retention::default();
        retention.dead_letters = self.keep_dead;
        retention.inbox = retention.inbox.max(self.keep_dead);
        retention
    }
}

/// The service's table as Relevo has it. Relevo's own tables lie beside it, in the same database. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Outbox {
    table: Table,
}

#[derive(Debug, Clone)]
enum Table {
    Postgres(PostgresStore, postgres::Adopted),
    Sqlite(SqliteStore, sqlite::Adopted),
}

impl Outbox {
    /// Adopts the table in the database at `url`. The service's own migrations come first.
    pub async fn adopt(url: &str) -> Result<Self> {
        let table = if url.starts_with("sqlite:") {
            let store = SqliteStore::open(url)?;
            store.migrate().await?;
            let adopted = store.adopt(SUBSCRIPTION, mapping()?).await?;
            Table::Sqlite(store, adopted)
        } else {
            let store = PostgresStore::connect(url).await?;
            store.migrate().await?;
            let adopted = store.adopt(SUBSCRIPTION, mapping()?).await?;
            Table::Postgres(store, adopted)
        };
        Ok(Self { table })
    }

    /// Relays it to a publisher, as one of several processes that may do so.
    pub async fn relay(
        &self,
        member: &str,
        settings: &Settings,
        publisher: Box<dyn Publisher>,
    ) -> Result<RunningRelay> {
        let relay = match &self.table {
            Table::Postgres(_, table) => Relay::on(table.clone().claim_rows(settings.batch)),
            Table::Sqlite(_, table) => Relay::on(table.clone().claim_rows(settings.batch)),
        };
        let to = ToBroker::new(Checked::before(publisher));
        relay
            .named(member)
            .retention(settings.retention())
            .subscribe_with(Subscription::new(SUBSCRIPTION), settings.config(), to)
            .start()
            .await
    }

    /// What operators use.
    pub fn operate(&self) -> Arc<dyn Operate> {
        match &self.table {
            Table::Postgres(store, _) => Arc::new(store.clone()),
            Table::Sqlite(store, _) => Arc::new(store.clone()),
        }
    }

    /// Relays, in whatever process, that have a share of the table.
    pub async fn relays_at_work(&self) -> Result<usize> {
        let status = self.operate().status().await?;
        let ours = status.subscriptions.iter().filter(|it| it.name == SUBSCRIPTION);
        Ok(ours.flat_map(|it| &it.members).filter(|member| member.lanes > 0).count())
    }

    /// Rows that are not relayed yet.
    pub async fn pending(&self) -> Result<Pending> {
        match &self.table {
            Table::Postgres(_, table) => table.pending().await,
            Table::Sqlite(_, table) => table.pending().await,
        }
    }
}

fn mapping() -> Result<Mapping> {
    Ok(Preset::SmartEdify.mapping(TableName::parse(Preset::SmartEdify.table())?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::backoff::Growth;
    use relevo_core::clock::Instant;
    use relevo_core::flow::Pace;

    /// The relay waits by Relevo's [`Pace`]; `tests/real.rs` counts the looks of a relay at a quiet table.
    #[test]
    fn a_quiet_table_is_looked_at_after_half_a_second_then_one_then_every_two() {
        let (shortest, longest) = Settings::default().config().poll;
        let (mut pace, mut now) = (Pace::new(shortest, longest), Instant::ZERO);
        let mut pauses = |looks: usize| {
            let pause = |_| {
                pace.quiet(now);
                let pause = pace.until().since(now);
                now = pace.until();
                pause.as_millis()
            };
            let pauses: Vec<u128> = (0..looks).map(pause).collect();
            pace.busy();
            pauses
        };
        assert_eq!(pauses(5), [500, 1000, 2000, 2000, 2000]);
        assert_eq!(pauses(2), [500, 1000], "something came: it begins anew");
    }

    #[test]
    fn the_defaults_are_the_documents() {
        let config = Settings::default().config();
        assert_eq!(config.poll, (Duration::from_millis(500), Duration::from_secs(2)));
        assert_eq!(config.batch, 50);
        assert!(config.check().is_ok());
        let retry = Backoff::default();
        assert_eq!((retry.base, retry.max), (Duration::from_millis(50), Duration::from_secs(300)));
        assert_eq!((retry.growth, retry.max_attempts), (Growth::Exponential, None));
        let mapping = mapping().unwrap();
        let dead = mapping.dead_letters.as_ref().map(|dead| dead.table.table.as_str());
        assert_eq!(
            (mapping.table.table.as_str(), dead),
            ("outbox_events", Some("outbox_events_dlq"))
        );
    }
}
