use super::consumer::FromBroker;
use super::handler::{Effects, Writes};
use super::tripwire::Tripped;
use super::{Broken, Driver, RelayOptions, broken, config, outside};
use anyhow::Result;
use relevo::postgres::{Deadpool, PostgresStore, SqlxPostgres, TokioPostgres};
use relevo::sqlite::{SqliteStore, SqlxSqlite};
use relevo::{Consumer, Consuming, Direct, MemberId, Store};
use relevo_core::broker::ToBroker;
use relevo_core::relay::run::Destination;
use std::sync::Arc;
use std::time::Duration;

/// The name all consumers share.
const CONSUMER: &str = "consumer";

/// What a process does.
pub(super) enum Work {
    /// It relays to this.
    Relay(Box<dyn Destination>),
    /// It consumes, and has begun already.
    Consumer(Consuming),
}

pub(super) async fn on_postgres(options: &RelayOptions, store: &PostgresStore) -> Result<Work> {
    if let Some(address) = &options.outside {
        return Ok(Work::Relay(towards(options, address)));
    }
    let store: Arc<dyn Store> = Arc::new(Tripped::new(store.clone()));
    match options.driver {
        Driver::Deadpool => with(options, store, Deadpool::new(pool(options)?)).await,
        Driver::Tokio => with(options, store, TokioPostgres::new(pool(options)?)).await,
        Driver::Sqlx => {
            let pool = sqlx::postgres::PgPoolOptions::new()
                .max_connections(options.pool as u32)
                .acquire_timeout(Duration::from_millis(options.pool_wait_ms))
                .connect(&options.store)
                .await?;
            with(options, store, SqlxPostgres::new(pool)).await
        }
    }
}

fn pool(options: &RelayOptions) -> Result<deadpool_postgres::Pool> {
    let config: tokio_postgres::Config = options.store.parse()?;
    let manager = deadpool_postgres::Manager::new(config, tokio_postgres::NoTls);
    let pool = deadpool_postgres::Pool::builder(manager)
        .max_size(options.pool)
        .wait_timeout(Some(Duration::from_millis(options.pool_wait_ms)))
        .create_timeout(Some(Duration::from_secs(5)))
        .runtime(deadpool_postgres::Runtime::Tokio1);
    Ok(pool.build()?)
}

pub(super) async fn on_sqlite(options: &RelayOptions, store: &SqliteStore) -> Result<Work> {
    if let Some(address) = &options.outside {
        return Ok(Work::Relay(towards(options, address)));
    }
    let file = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(store.path())
        .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal)
        .busy_timeout(Duration::from_secs(5));
    let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(2).connect_lazy_with(file);
    with(options, Arc::new(Tripped::new(store.clone())), SqlxSqlite::new(pool)).await
}

fn towards(options: &RelayOptions, address: &str) -> Box<dyn Destination> {
    let outside = outside::Outside::new(address, &options.member)
        .early(options.broken == Some(Broken::ConfirmEarly))
        .adopted(options.adopt.is_some());
    Box::new(ToBroker::new(outside))
}

/// Handlers in this driver's transactions, right or wrong.
async fn with<D: Writes + Clone>(
    options: &RelayOptions,
    store: Arc<dyn Store>,
    driver: D,
) -> Result<Work> {
    let driver = Tripped::new(driver);
    match options.broken.and_then(broken::Split::of) {
        Some(split) => {
            let apart = broken::Apart::new(driver, store.clone(), split);
            handlers(options, store, apart).await
        }
        None => handlers(options, store, driver).await,
    }
}

async fn handlers<D: Writes + Clone>(
    options: &RelayOptions,
    store: Arc<dyn Store>,
    driver: D,
) -> Result<Work> {
    let effects = Effects::new(options);
    let idle_limit = Duration::from_millis(options.idle_limit_ms);
    let Some(address) = &options.consume else {
        return Ok(Work::Relay(Box::new(Direct::new(driver, effects).idle_limit(idle_limit))));
    };
    let early = options.broken == Some(Broken::AcknowledgeFirst);
    let consumer = Consumer::new(CONSUMER, FromBroker::new(address, early), driver, effects)
        .relay(config(options))
        .batch(options.batch)
        .idle_limit(idle_limit);
    let member = MemberId(options.member.as_str().into());
    Ok(Work::Consumer(consumer.start(store, member).await?))
}
