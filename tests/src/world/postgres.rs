use super::effects::{DriverError, Effects};
use super::{EffectRow, IDLE_LIMIT, Scripted, Terms, World, consume_with};
use crate::script::Script;
use async_trait::async_trait;
use deadpool_postgres::Pool;
use relevo_core::broker::Subscriber;
use relevo_core::dead_letters::Operate;
use relevo_core::event::{EventId, NewEvent};
use relevo_core::inbox::{Consuming, Direct};
use relevo_core::outbox::{PublishIn, Store};
use relevo_core::relay::run::Destination;
use relevo_stores::postgres::{
    Deadpool, Options, PostgresOutbox, PostgresStore, SqlxPostgres, TokioPostgres,
};
use relevo_testkit::services::{self, Postgres};
use sqlx::{PgPool, postgres::PgPoolOptions};
use std::sync::Arc;

const TABLE: &str = "CREATE TABLE effects (place bigserial PRIMARY KEY,
    event uuid NOT NULL, key text NOT NULL, payload text NOT NULL)";
const INSERT: &str = "INSERT INTO effects (event, key, payload) VALUES ($1::text::uuid, $2, $3)";
const BAD: &str = "INSERT INTO effects (event, key, payload) VALUES (NULL, NULL, NULL)";

/// Whose transactions the handlers get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PgHandlers {
    /// `sqlx::Transaction<Postgres>`
    Sqlx,
    /// `tokio_postgres::Transaction`
    TokioPostgres,
    /// `deadpool_postgres::Transaction`
    Deadpool,
}

/// A database of its own on a shared server.
pub struct PostgresWorld {
    store: PostgresStore,
    /// The handlers' pools reach the server by the same road as the store.
    sqlx: PgPool,
    handlers: PgHandlers,
    /// The test's own connections, by the direct road.
    own: Pool,
    /// The direct road and the other one.
    urls: (String, String),
}

impl PostgresWorld {
    /// A fresh one, on a major version of PostgreSQL.
    pub async fn fresh(major: u16, handlers: PgHandlers) -> Option<Self> {
        let server = services::require(Postgres::shared(major))?;
        let url = server.create_database().unwrap_or_else(|error| panic!("{error}"));
        Some(Self::at(&url, &url, handlers).await)
    }

    /// The database at `direct`, which the store and the handlers reach by `url`.
    pub async fn at(direct: &str, url: &str, handlers: PgHandlers) -> Self {
        let world = Self::open(direct, url, handlers);
        let own = PostgresStore::from_pool(world.own.clone());
        own.migrate().await.unwrap_or_else(|error| panic!("{error}"));
        let client = world.own.get().await.unwrap_or_else(|error| panic!("{error}"));
        client.batch_execute(TABLE).await.unwrap_or_else(|error| panic!("{error}"));
        world
    }

    fn open(direct: &str, url: &str, handlers: PgHandlers) -> Self {
        let open =
            |url| PostgresStore::open(url, Options::default()).unwrap_or_else(|e| panic!("{e}"));
        let sqlx = PgPoolOptions::new().max_connections(10).connect_lazy(url);
        let sqlx = sqlx.unwrap_or_else(|error| panic!("{error}"));
        let urls = (direct.to_owned(), url.to_owned());
        Self { store: open(url), sqlx, handlers, own: open(direct).pool().clone(), urls }
    }

    async fn number(&self, sql: &str) -> i64 {
        let client = self.own.get().await.unwrap_or_else(|error| panic!("{error}"));
        client.query_one(sql, &[]).await.unwrap_or_else(|error| panic!("{error}")).get(0)
    }
}

/// The two drivers whose transactions have the same methods and different types.
macro_rules! effects_of {
    ($driver:ty) => {
        impl Effects for $driver {
            async fn write(tx: &mut Self::Tx<'_>, row: &EffectRow) -> Result<(), DriverError> {
                tx.execute(INSERT, &[&row.event.to_string(), &row.key, &row.payload]).await?;
                Ok(())
            }

            async fn publish(tx: &mut Self::Tx<'_>, event: NewEvent) -> Result<(), DriverError> {
                PostgresOutbox::new().publish(tx, event).await?;
                Ok(())
            }

            async fn fail(tx: &mut Self::Tx<'_>) -> Result<(), DriverError> {
                tx.execute(BAD, &[]).await?;
                Ok(())
            }
        }
    };
}

effects_of!(Deadpool);
effects_of!(TokioPostgres);

impl Effects for SqlxPostgres {
    async fn write(tx: &mut Self::Tx<'_>, row: &EffectRow) -> Result<(), DriverError> {
        let query =
            sqlx::query(INSERT).bind(row.event.to_string()).bind(&row.key).bind(&row.payload);
        query.execute(&mut **tx).await?;
        Ok(())
    }

    async fn publish(tx: &mut Self::Tx<'_>, event: NewEvent) -> Result<(), DriverError> {
        PostgresOutbox::new().publish(tx, event).await?;
        Ok(())
    }

    async fn fail(tx: &mut Self::Tx<'_>) -> Result<(), DriverError> {
        sqlx::raw_sql(BAD).execute(&mut **tx).await?;
        Ok(())
    }
}

/// Leases of tests are so short that a session of a busy machine idles for longer; none is to be ended for that.
fn direct<D: Effects>(driver: D, handler: Scripted) -> Arc<dyn Destination> {
    Arc::new(Direct::new(driver, handler).idle_limit(IDLE_LIMIT))
}

#[async_trait]
impl World for PostgresWorld {
    fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.store.clone())
    }

    fn operate(&self) -> Arc<dyn Operate> {
        Arc::new(self.store.clone())
    }

    fn destination(&self, script: &Script) -> Arc<dyn Destination> {
        let (pool, handler) = (self.store.pool().clone(), Scripted(script.clone()));
        match self.handlers {
            PgHandlers::Sqlx => direct(SqlxPostgres::new(self.sqlx.clone()), handler),
            PgHandlers::TokioPostgres => direct(TokioPostgres::new(pool), handler),
            PgHandlers::Deadpool => direct(Deadpool::new(pool), handler),
        }
    }

    async fn consume(
        &self,
        name: &str,
        subscriber: Box<dyn Subscriber>,
        terms: Terms,
        script: &Script,
    ) -> Option<Consuming> {
        let (store, pool) = (self.store(), self.store.pool().clone());
        match self.handlers {
            PgHandlers::Sqlx => {
                let driver = SqlxPostgres::new(self.sqlx.clone());
                consume_with(store, driver, name, subscriber, terms, script).await
            }
            PgHandlers::TokioPostgres => {
                let driver = TokioPostgres::new(pool);
                consume_with(store, driver, name, subscriber, terms, script).await
            }
            PgHandlers::Deadpool => {
                let driver = Deadpool::new(pool);
                consume_with(store, driver, name, subscriber, terms, script).await
            }
        }
    }

    async fn publish(&self, events: Vec<NewEvent>) -> Vec<EventId> {
        let mut client = self.own.get().await.unwrap_or_else(|error| panic!("{error}"));
        let mut tx = client.transaction().await.unwrap_or_else(|error| panic!("{error}"));
        let ids = PostgresOutbox::new().publish_all(&mut tx, events).await;
        let ids = ids.unwrap_or_else(|error| panic!("{error}"));
        tx.commit().await.unwrap_or_else(|error| panic!("{error}"));
        ids
    }

    async fn effects(&self) -> Vec<EffectRow> {
        let client = self.own.get().await.unwrap_or_else(|error| panic!("{error}"));
        let sql = "SELECT event, key, payload FROM effects ORDER BY place";
        let rows = client.query(sql, &[]).await.unwrap_or_else(|error| panic!("{error}"));
        let read = |row: &tokio_postgres::Row| EffectRow {
            event: EventId(row.get(0)),
            key: row.get(1),
            payload: row.get(2),
        };
        rows.iter().map(read).collect()
    }

    async fn another(&self) -> Box<dyn World> {
        Box::new(Self::open(&self.urls.0, &self.urls.1, self.handlers))
    }

    async fn open_transactions(&self) -> usize {
        let sql = "SELECT count(*) FROM pg_stat_activity
                   WHERE datname = current_database() AND state LIKE 'idle in transaction%'";
        self.number(sql).await as usize
    }
}
