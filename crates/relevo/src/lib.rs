//! Publish inside your own transaction; everything after that commit is Relevo's job.
//!
//! # Layout
//!
//! - [`NewEvent`], [`Event`]: what travels.
//! - [`PublishIn`]: `outbox.publish(&mut tx, event)` for the transaction types of your driver.
//! - [`Relay`]: works subscriptions inside your process.
//! - [`Handler`], [`Effect`], [`Direct`]: effects that commit together with the cursor.
//! - [`Consumer`]: effects done once of what comes from a broker.
//! - [`postgres`], [`sqlite`], [`memory`]: the stores, each behind its feature.
//! - `rabbitmq`, `nats`, `kafka`, `memory_broker`: the brokers, each behind its feature.
//!
//! ```
//! use relevo::memory::MemoryStore;
//! use relevo::{NewEvent, Operate, PublishIn};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let store = MemoryStore::new();
//! let mut tx = store.begin();
//! store.outbox().publish(&mut tx, NewEvent::json("ticket.created", &"t-1")?.key("t-1")).await?;
//! tx.commit()?;
//! assert_eq!(store.peek(0, 10).await?.len(), 1);
//! # Ok::<(), relevo::Error>(())
//! # }).unwrap();
//! ```

/// Only a transaction can be published in. With a pool, or a connection that commits by itself, the event could
/// exist without the business change or the other way round: it does not compile.
///
/// ```compile_fail,E0277
/// async fn wrong(outbox: relevo::sqlite::SqliteOutbox, mut pool: sqlx::SqlitePool) {
///     use relevo::PublishIn;
///     outbox.publish(&mut pool, relevo::NewEvent::bytes("t", vec![])).await.unwrap();
/// }
/// ```
///
/// ```compile_fail,E0277
/// async fn wrong(outbox: relevo::sqlite::SqliteOutbox, mut connection: sqlx::SqliteConnection) {
///     use relevo::PublishIn;
///     outbox.publish(&mut connection, relevo::NewEvent::bytes("t", vec![])).await.unwrap();
/// }
/// ```
///
/// ```compile_fail,E0308
/// fn wrong(outbox: relevo::sqlite::SqliteOutbox, connection: rusqlite::Connection) {
///     outbox.publish_sync(&connection, relevo::NewEvent::bytes("t", vec![])).unwrap();
/// }
/// ```
///
/// ```compile_fail,E0277
/// async fn wrong(outbox: relevo::postgres::PostgresOutbox, mut pool: sqlx::PgPool) {
///     use relevo::PublishIn;
///     outbox.publish(&mut pool, relevo::NewEvent::bytes("t", vec![])).await.unwrap();
/// }
/// ```
///
/// ```compile_fail,E0277
/// async fn wrong(outbox: relevo::postgres::PostgresOutbox, mut client: tokio_postgres::Client) {
///     use relevo::PublishIn;
///     outbox.publish(&mut client, relevo::NewEvent::bytes("t", vec![])).await.unwrap();
/// }
/// ```
///
/// ```compile_fail,E0277
/// async fn wrong(outbox: relevo::postgres::PostgresOutbox, mut client: deadpool_postgres::Client) {
///     use relevo::PublishIn;
///     outbox.publish(&mut client, relevo::NewEvent::bytes("t", vec![])).await.unwrap();
/// }
/// ```
///
/// With a transaction of any of these drivers it does:
///
/// ```
/// async fn right(
///     sqlite: relevo::sqlite::SqliteOutbox,
///     postgres: relevo::postgres::PostgresOutbox,
///     mut a: sqlx::Transaction<'_, sqlx::Sqlite>,
///     b: rusqlite::Transaction<'_>,
///     mut c: sqlx::Transaction<'_, sqlx::Postgres>,
///     mut d: tokio_postgres::Transaction<'_>,
///     mut e: deadpool_postgres::Transaction<'_>,
/// ) -> relevo::Result<()> {
///     use relevo::{NewEvent, PublishIn};
///     let event = || NewEvent::bytes("t", vec![]);
///     sqlite.publish(&mut a, event()).await?;
///     sqlite.publish_sync(&b, event())?;
///     postgres.publish(&mut c, event()).await?;
///     postgres.publish(&mut d, event()).await?;
///     postgres.publish_all(&mut e, vec![event()]).await?;
///     Ok(())
/// }
/// ```
#[cfg(all(doctest, feature = "postgres", feature = "sqlite", feature = "sqlx"))]
pub mod only_transactions {}

mod relay;

pub use relay::{Relay, RunningRelay};

pub use relevo_core::dead_letters::{
    DeadFilter, DeadLetter, DeadLetterId, DeadState, Operate, ReplayProgress,
};
pub use relevo_core::error::{Error, ErrorClass, Kind, Result};
pub use relevo_core::event::{Event, EventId, Headers, NewEvent, TopicFilter, header};
pub use relevo_core::inbox::{
    Answer, Consumer, Consuming, Direct, Effect, Failure, Handler, Settled, TxDriver,
};
pub use relevo_core::limits::Limits;
pub use relevo_core::outbox::{
    Capabilities, MemberId, PublishIn, Retention, Start, Store, Subscription, adopt,
};
pub use relevo_core::relay::{AfterDead, RelayConfig};
pub use relevo_core::retry::RetryPolicy;
pub use relevo_core::{broker, telemetry};

#[cfg(feature = "kafka")]
pub use relevo_brokers::kafka;
#[cfg(feature = "memory-broker")]
pub use relevo_brokers::memory as memory_broker;
#[cfg(feature = "nats")]
pub use relevo_brokers::nats;
#[cfg(feature = "rabbitmq")]
pub use relevo_brokers::rabbitmq;

pub use relevo_stores::memory;
#[cfg(feature = "postgres")]
pub use relevo_stores::postgres;
#[cfg(feature = "sqlite")]
pub use relevo_stores::sqlite;
